"""Parser for models that write their reasoning into the text, between tags such as `<think>`, before the answer.

Servers that support such a model return its reasoning in a separate field. Tags later in an answer are ordinary text,
because people may ask about these tags.
"""

import re
from collections.abc import Mapping
from io import StringIO
from typing import Final, Literal

_NAMES: Final = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "antthinking", "reasoning_scratchpad"),
    *("seed:think", "mm:think", "longcat_think"),
)
_HARMONY_END: Final = re.compile(r"<\|end\|>|(?=<\|(?:start|channel|return|call)\|>)")
_MARKERS: Final[Mapping[str, re.Pattern[str] | None]] = {
    **{f"<{name}>": re.compile(rf"</{name}\s{{0,8}}>", re.IGNORECASE) for name in _NAMES},
    **{f"</{name}>": None for name in _NAMES},
    "[THINK]": re.compile(r"\[/THINK\]"),  # Mistral
    "[/THINK]": None,
    "◁think▷": re.compile("◁/think▷"),  # Kimi
    "◁/think▷": None,
    "<|think|>": re.compile(r"<\|/think\|>"),
    "<|START_THINKING|>": re.compile(r"<\|END_THINKING\|>"),  # Cohere
    "<|START_RESPONSE|>": None,
    "<|channel>thought\n": re.compile("<channel\\|>"),  # Gemma
    "<|start|>assistant": None,  # gpt-oss, like the next three
    "<|channel|>analysis<|message|>": _HARMONY_END,
    "<|channel|>commentary<|message|>": None,
    "<|channel|>final<|message|>": None,
}
"""Opening markers, each with a pattern for the end of the reasoning. None: the marker is only removed."""
_LAST_MARKERS: Final = ("<|end|>", "<|return|>", "<|call|>", "<|END_RESPONSE|>")
_UNOPENED: Final = re.compile(rf"</({'|'.join(_NAMES)})>", re.IGNORECASE)
_WITHOUT_MARKERS: Final = re.compile(r"analysis(?=[A-Z\"'])(.*?)assistantfinal(?=\S)(.*)", re.DOTALL)
"""Output of gpt-oss after a server removed the markers around the channel names."""


class ThinkTagParser:
    """Splits a streamed answer into text and reasoning.

    >>> parser = ThinkTagParser()
    >>> shown = parser.feed("<thi") + parser.feed("nk>hm</think>It") + parser.feed(" is.")
    >>> parser.finish(shown)
    ('It is.', 'hm')
    """

    def __init__(self) -> None:
        self._state: Literal["beginning", "thinking", "answering"] = "beginning"
        self._held = ""
        """Text that is not yet known to be reasoning or answer."""
        self._end = _HARMONY_END
        self._thought = StringIO()
        self._tail = ""
        self._thoughts: list[str] = []
        self._is_cut = self._has_shown = False
        self._markers = 0

    def feed(self, piece: str) -> str:
        """Read the next piece of the stream. Return the text that is now known to belong to the answer."""
        if self._state == "answering":
            return piece
        if self._state == "beginning":
            self._held += piece
        elif not self._think(piece):
            return ""
        while self._state == "beginning":
            text = self._held.lstrip()
            found = _marker(text)
            if found is None or self._markers >= 200:
                # Do not hold back an endless run of whitespace.
                if len(self._held) < 4_096 and any(one.startswith((text, text.lower())) for one in _MARKERS):
                    return ""  # more text may complete a marker
                return self._answer(text)
            self._markers += 1  # limited, because removing a marker copies all the text after it
            length, end = found
            self._is_cut, self._held = True, text[length:]
            if end is not None:
                rest, self._held = self._held, ""
                self._state, self._end = "thinking", end
                self._think(rest)
        return ""

    def restart(self) -> str:
        """Return the text held back so far, because a tool call begins. New reasoning can follow the call."""
        held, self._held = self._held, ""
        self._end_thought(self._thought.getvalue())
        self._state = "beginning"
        return "" if self._is_cut and not held.strip() else held

    def finish(self, shown: str) -> tuple[str, str]:
        """Return the whole answer and its reasoning. `shown`: all text that `feed` and `restart` returned."""
        shown += self.restart()
        if self._is_cut:
            while (marker := next(filter(shown.rstrip().endswith, _LAST_MARKERS), None)) is not None:
                shown = shown.rstrip().removesuffix(marker).rstrip()
        elif (unopened := _without_opening(shown)) is not None:
            thought, shown = unopened
            self._end_thought(thought)
        return shown, "\n\n".join(self._thoughts)

    def _answer(self, text: str) -> str:
        """Return the beginning of an answer. Leading whitespace is removed only after reasoning."""
        held, self._held = self._held, ""
        self._state = "answering"
        if self._is_cut:
            held = f"\n\n{text}" if self._has_shown else text
        self._has_shown = True
        return held

    def _think(self, piece: str) -> bool:
        """Add a piece of reasoning. If the reasoning ends in this piece, hold back the rest and return True."""
        self._thought.write(piece)
        window = self._tail + piece
        found = self._end.search(window)
        if found is None:
            self._tail = window[-64:]  # the start of an end marker may be here
            return False
        thought = self._thought.getvalue()
        self._held = window[found.end() :]
        self._end_thought(thought[: len(thought) - len(window) + found.start()])
        self._state = "beginning"
        return True

    def _end_thought(self, thought: str) -> None:
        self._thought = StringIO()
        self._tail = ""
        if thought.strip():
            self._thoughts.append(thought.strip())


def _marker(text: str) -> tuple[int, re.Pattern[str] | None] | None:
    """Return the length of the marker at the start of a text, and the pattern that ends its reasoning."""
    for marker, end in _MARKERS.items():
        head = text[: len(marker)]
        if marker in (head, head.lower()):
            return len(marker), end
    return None


def _without_opening(text: str) -> tuple[str, str] | None:
    """Split a text into reasoning and answer if the opening tag was in the prompt. Otherwise, return None."""
    if (found := _WITHOUT_MARKERS.fullmatch(text)) is not None:
        return found[1], found[2]
    closing = _UNOPENED.search(text)
    if closing is None or f"<{closing[1].lower()}" in text.lower() or _UNOPENED.search(text, closing.end()):
        return None
    before = text[: closing.start()]
    is_code = before.count("```") % 2 or before.rpartition("\n")[2].count("`") % 2
    return None if is_code else (before, text[closing.end() :].lstrip())
