"""Reasoning that models write into their text, between tags such as `<think>`, in front of the answer.

Servers that know a model put it into a field of its own. Tags later in an answer are text: people may ask about them.
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
    "<|start|>assistant": None,  # gpt-oss, and so on to its end
    "<|channel|>analysis<|message|>": _HARMONY_END,
    "<|channel|>commentary<|message|>": None,
    "<|channel|>final<|message|>": None,
}
"""Pattern that ends the reasoning, by the text that opens it. None: the text is only left out."""
_LAST_MARKERS: Final = ("<|end|>", "<|return|>", "<|call|>", "<|END_RESPONSE|>")
_UNOPENED: Final = re.compile(rf"</({'|'.join(_NAMES)})>", re.IGNORECASE)
_WITHOUT_MARKERS: Final = re.compile(r"analysis(?=[A-Z\"'])(.*?)assistantfinal(?=\S)(.*)", re.DOTALL)
"""Rest of gpt-oss's channels where a server has dropped the markers around their names."""


class ThinkTagParser:
    """Splits one answer into text and reasoning while it comes in.

    >>> parser = ThinkTagParser()
    >>> shown = parser.feed("<thi") + parser.feed("nk>hm</think>It") + parser.feed(" is.")
    >>> parser.finish(shown)
    ('It is.', 'hm')
    """

    def __init__(self) -> None:
        self._state: Literal["beginning", "thinking", "answering"] = "beginning"
        self._held = ""
        """Text of the beginning that is not decided yet."""
        self._end = _HARMONY_END
        self._thought = StringIO()
        self._tail = ""
        self._thoughts: list[str] = []
        self._is_cut = self._has_shown = False
        self._markers = 0

    def feed(self, piece: str) -> str:
        """Add a piece, and return the text that now is known to belong to the answer."""
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
                # Blanks may go on for ever.
                if len(self._held) < 4_096 and any(one.startswith((text, text.lower())) for one in _MARKERS):
                    return ""  # it may become a marker
                return self._answer(text)
            self._markers += 1  # each costs the length of the text after it
            length, end = found
            self._is_cut, self._held = True, text[length:]
            if end is not None:
                rest, self._held = self._held, ""
                self._state, self._end = "thinking", end
                self._think(rest)
        return ""

    def restart(self) -> str:
        """Return the undecided text when a call begins, because the text after the call is another beginning."""
        held, self._held = self._held, ""
        self._end_thought(self._thought.getvalue())
        self._state = "beginning"
        return "" if self._is_cut and not held.strip() else held

    def finish(self, shown: str) -> tuple[str, str]:
        """Return the whole answer and its reasoning. `shown` is all that `feed` and `restart` have returned."""
        shown += self.restart()
        if self._is_cut:
            while (marker := next(filter(shown.rstrip().endswith, _LAST_MARKERS), None)) is not None:
                shown = shown.rstrip().removesuffix(marker).rstrip()
        elif (unopened := _without_opening(shown)) is not None:
            thought, shown = unopened
            self._end_thought(thought)
        return shown, "\n\n".join(self._thoughts)

    def _answer(self, text: str) -> str:
        """Return the beginning of an answer. Blanks in front of it stay, unless they follow reasoning."""
        held, self._held = self._held, ""
        self._state = "answering"
        if self._is_cut:
            held = f"\n\n{text}" if self._has_shown else text
        self._has_shown = True
        return held

    def _think(self, piece: str) -> bool:
        """Add to the reasoning. Return True if it has ended; the text after it is held."""
        self._thought.write(piece)
        window = self._tail + piece
        found = self._end.search(window)
        if found is None:
            self._tail = window[-64:]  # in which an end may have begun
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
    """Return the length of the marker that a text begins with, and the pattern that ends its reasoning."""
    for marker, end in _MARKERS.items():
        head = text[: len(marker)]
        if marker in (head, head.lower()):
            return len(marker), end
    return None


def _without_opening(text: str) -> tuple[str, str] | None:
    """Return reasoning and answer if the prompt held the opening tag; None for a text about tags."""
    if (found := _WITHOUT_MARKERS.fullmatch(text)) is not None:
        return found[1], found[2]
    closing = _UNOPENED.search(text)
    if closing is None or f"<{closing[1].lower()}" in text.lower() or _UNOPENED.search(text, closing.end()):
        return None
    before = text[: closing.start()]
    is_code = before.count("```") % 2 or before.rpartition("\n")[2].count("`") % 2
    return None if is_code else (before, text[closing.end() :].lstrip())
