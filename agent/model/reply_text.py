"""Parsers for reasoning and tool calls that a model wrote into its answer's text.

Some models write their reasoning before the answer, between tags such as `<think>`. Servers that support such a model
return its reasoning in a separate field. Tags later in an answer are ordinary text, because people may ask about these
tags.

Some servers also leave tool calls in the text. Every model family has its own markup for them, but the parts are the
same: wrappers that contain calls, and calls with a name and arguments. The arguments are JSON or key-value pairs.
Markup in code or in the middle of a sentence is not a call.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import StringIO
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from hermes_state.imports import late_pattern

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
"""Pattern for gpt-oss output from a server that removed the markers around the channel names."""


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
        """Prepare for a tool call, which new reasoning can follow. Return the text held back so far."""
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
            self._tail = window[-64:]  # may contain the start of an end marker
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
    """Return the length of the marker at the start of `text`, and the pattern that ends its reasoning."""
    for marker, end in _MARKERS.items():
        head = text[: len(marker)]
        if marker in (head, head.lower()):
            return len(marker), end
    return None


def _without_opening(text: str) -> tuple[str, str] | None:
    """Split `text` into reasoning and answer if the opening tag was in the prompt. Otherwise, return None."""
    if (found := _WITHOUT_MARKERS.fullmatch(text)) is not None:
        return found[1], found[2]
    closing = _UNOPENED.search(text)
    if closing is None or f"<{closing[1].lower()}" in text.lower() or _UNOPENED.search(text, closing.end()):
        return None
    before = text[: closing.start()]
    is_code = before.count("```") % 2 or before.rpartition("\n")[2].count("`") % 2
    return None if is_code else (before, text[closing.end() :].lstrip())


# ---- tool calls

Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the offered tools, by name."""
MAX_MARKERS: Final = 200
"""Maximum number of possible calls to examine. The cost of each grows with the length of the text before it."""

_BAR: Final = r"[|\uff5c]"
_PREFIX: Final = r"(?:\w{1,20}:|[a-z]{1,20}_|[|\uff5c\u2016 ]{1,4}DSML[|\uff5c\u2016 ]{1,4}(?:\w:)?)?"
_TAG: Final = rf"(?i:{_PREFIX}(?:(?:tool|function)s?(?:[_-]?(?:call|use)s?)?|invoke))>"
_TOKEN: Final = rf"<{_BAR}tool[_\u2581]calls?(?:[_\u2581]section)?[_\u2581]"
_OPENS: Final = (
    rf"<{_TAG}|{_TOKEN}(?:begin|start){_BAR}>|<\|(?:tool_call|START_ACTION\||(?:python|action)_start\|)>"
    r"|<\|(?:plugin|tools_prefix|tool_calls|tool_call:begin)\|>|\[TOOL_(?:CALL|REQUEST)\]"
)
_CLOSES: Final = (
    rf"</{_TAG}|{_TOKEN}end{_BAR}>|<tool_call\|>|\[(?:/TOOL_CALL|END_TOOL_REQUEST)\]"
    r"|<\|(?:END_ACTION|(?:python|action)_end|tools_suffix|/tool_call|tool_call:end)\|>"
)
_SINGLE: Final = (
    r"\[TOOL_CALLS\]|<\|(?:python_tag|tool_call)\|>|\bfunctools(?=\s*\[)|^```tool_(?:code|call|use)s?\n"
    r"|^Action: ?\n?```json\n|^Action: ?(?=\w+\s*\nAction Input:)|^(?:tool|function)_call:\s*"
)
_WRAPPERS: Final = (
    rf"(?P<opens>{_OPENS})|(?P<closes>{_CLOSES})|{_SINGLE}|<{_BAR}(?:call|e[\w\u2581]+|im_end){_BAR}>|</s>"
    r"|[\s,;)\]]+|```\w*"
)
_WRAPPER: Final = late_pattern(_WRAPPERS, re.MULTILINE)
_ELEMENT: Final = rf"<{_PREFIX}(?:function(?:_call)?|invoke)(?:=|\s+name\s*=)"
_HARMONY: Final = r"(?:<\|start\|>\w+)?<\|channel\|>\w+\s+to=|\bto=functions\."
_BEGIN: Final = late_pattern(
    rf"{_OPENS}|{_SINGLE}|{_ELEMENT}|{_HARMONY}|\[Calling tool|(?P<bare>\A\s*(?=[\[{{])|^(?=\[\w+\())",
    re.MULTILINE,
)
_BEGUN: Final = late_pattern(
    # Group names are removed, because Python cannot restore groups inside possessive quantifiers.
    rf"(?:{re.sub('P<[a-z]+>', ':', _WRAPPERS)}){{0,16}}+(?:[\[{{]|{_ELEMENT}|.{{0,40}}(?:{_HARMONY})"
    r"|[\w.:-]{1,99}\s*[\[({<]|(?:<\w+>\s*)+[^<>]*</|\w+\s*\nAction Input:|\Z)",
    re.MULTILINE,
)
"""Pattern for wrappers and the beginning of a call, which can be incomplete. Does not match inside a sentence."""
_SIGN: Final = re.compile(r"[<\[{`=]|(?:Action|_call):")
"""Pattern that every match of `_BEGIN` contains or looks ahead to. It is much faster."""
_WORDS: Final = ("```tool_", "Action:\n```json", "to=functions.", "functools", "function_call:", "tool_call:")
_PARTIAL: Final = late_pattern(
    r"(?:<[^<>\n]{0,48}|\[[A-Za-z_ ]{0,16}|^```tool_\w{0,4}|"
    rf"(?:(?:{_OPENS}|{_SINGLE})\s*)+(?:```\w*\n)?[^!?\n]{{0,80}}\n?|"
    r"<\|start\|>\w*(?:<[|\w]*>?[\w =.]*)?|<\|channel\|>[\w =.]*|^Action:[^\n]{0,60}(?:\n[\w ]{0,13})?|"
    + "|".join(r"(?<!\w)" + "".join(f"{re.escape(sign)}(?:" for sign in word) + ")?" * len(word) for word in _WORDS)
    + r")\Z",
    re.MULTILINE,
)
"""Pattern for text at the end that could become a call when more text arrives."""
_HEAD: Final = late_pattern(
    rf"{_ELEMENT}\s*[\"']?(?P<element>[\w.-]+)[\"']?\s*>?\s*|(?:<\|start\|>\w+)?(?:<\|channel\|>)?(?:\w+\s+)?"
    rf"(?:to=|call:|function<{_BAR}tool\u2581sep{_BAR}>|\[Calling tool:\s*)?(?:functions?[.:])?(?P<name>[\w.-]+)"
    rf"(?::\d+)?(?:\s|\[ARGS\]|\[CALL_ID\]\w+|<{_BAR}[\w\u2581]+{_BAR}>|```json|json|code|commentary|\()*"
    r"(?=\{|<arg_key>|</)|(?=[\[{])"
)
_PAIR: Final = late_pattern(
    rf"<{_PREFIX}param(?:eter)?(?:=|\s+name\s*=)\s*[\"']?([\w.-]+)[^>]*>\n?(.*?)\n?</{_PREFIX}param(?:eter)?>\s*"
    r"|<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*",
    re.DOTALL,
)
_KEYS: Final = (r'"(?:tool_)?(?:name|tool|function)"\s*:\s*', r'"(?:arguments|parameters|args|input)"\s*:')
_decode: Final = json.JSONDecoder(strict=False).raw_decode


def find_calls(text: str, schemas: Schemas, is_said: Callable[[str], bool]) -> tuple[int, list[tuple[str, str]]] | None:
    """Return the index at which the calls in `text` begin, and a list of their names and arguments.

    Return None if the text contains no calls. The list is empty if the calls cannot be used, because they are broken,
    name unknown tools, or are followed by more text. It is also empty if `is_said` returns True for the text of a call.
    """
    if _SIGN.search(text) is None:
        return None
    passed = 0
    for begin in islice(_BEGIN.finditer(text), MAX_MARKERS):
        start = begin.start()
        if start < passed or is_code(text[:start]):
            continue
        calls, passed, is_whole = _parsed(text, start, schemas)
        if is_whole and calls and not text[passed:].strip() and all(name in schemas for name, _, _ in calls):
            return start, [] if any(is_said(source) for *_, source in calls) else [(one[0], one[1]) for one in calls]
        names = "|".join(map(re.escape, schemas))
        named = rf"\s*\[(?:{names})\(.*\)\]\s*\Z|(?=.*{_KEYS[0]}\"(?:{names})\").*{_KEYS[1]}"
        is_named = begin["bare"] is None or re.match(named, text[start:], re.DOTALL) is not None
        if _BEGUN.match(text, start) is None or not is_named:
            continue
        if not is_whole or not calls:
            passed = next((one.end() for one in _WRAPPER.finditer(text, passed) if one["closes"]), len(text))
        words = re.findall(r"[\w.-]+", text[start:passed])
        before, after = text[:start].rpartition("\n")[2].strip(), text[passed:].partition("\n")[0].strip(" .")
        is_sentence = bool(before and after) and before[-1] not in ".!?:\u2026\u3002\uff01\uff1f\uff1a"
        if not is_sentence and (not text[passed:].strip() or not schemas.keys().isdisjoint(words)):
            return start, []
    return None


def first_doubt(text: str, start: int) -> int:
    """Return the first index after `start` where a call might begin in growing text, or else the length of the text."""
    begun = max(start, len(text) - 128)
    if _SIGN.search(text, start) is None:  # only the beginning of a word can be doubtful
        begun = max(start, len(text) - 16)
    else:
        for begin in islice(_BEGIN.finditer(text, start), MAX_MARKERS):
            if _BEGUN.match(text, begin.start()) is not None and not is_code(text[: begin.start()]):
                return begin.start()
    partial = _PARTIAL.search(text, begun)
    return len(text) if partial is None or is_code(text[: partial.start()]) else partial.start()


def is_code(before: str) -> bool:
    """Return True if the text before a position opens a code block or a quotation without closing it."""
    fence, has_fences = "", "```" in before or "~~~" in before
    for line, rest in re.findall(r"\n {0,3}(`{3,}|~{3,})([^\n]*)", f"\n{before}") if has_fences else ():
        fence = line if not fence else "" if line.startswith(fence) and not rest.strip() else fence
    last = before.rpartition("\n")[2]
    return bool(fence) or last.count("`") % 2 == 1 or last.startswith((" " * 4, "\t", ">"))


def _parsed(text: str, position: int, schemas: Schemas) -> tuple[list[tuple[str, str, str]], int, bool]:
    """Return calls at `position` as (name, arguments, source), the index after them, and True if no wrapper is open."""
    calls: list[tuple[str, str, str]] = []
    depth = 0
    while position < len(text):
        if (wrapper := _WRAPPER.match(text, position)) is not None:
            depth += (wrapper["opens"] is not None) - (wrapper["closes"] is not None)
            position = wrapper.end()
            continue
        if (head := _HEAD.match(text, position)) is None:
            break
        name, end, found = head["element"] or head["name"], head.end(), list[tuple[str | None, object]]()
        depth += head["element"] is not None
        if text[end : end + 1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                value, end = _decode(text, end)
                found = [(name, value)] if name else _of_json(value)
                depth *= not isinstance(value, list)  # a list of calls needs no closing wrapper
        elif name:
            arguments = {}
            properties = schemas.get(name, {}).get("properties", {})
            while (pair := _PAIR.match(text, end)) is not None:
                key, written = (pair[1], pair[2]) if pair[1] else (pair[3].strip(), pair[4])
                arguments[key], end = _typed(written, properties.get(key, {})), pair.end()
            found = [(name, arguments)]
        if not found or not all(name and isinstance(value, dict) for name, value in found):
            return [], position, False
        calls += [(str(name), json.dumps(value, ensure_ascii=False), text[position:end]) for name, value in found]
        position = end
    return calls, position, depth <= 0


def _of_json(value: Any) -> list[tuple[str | None, object]]:
    found: list[tuple[str | None, object]] = []
    for one in value if isinstance(value, list) else [value]:
        call = one["function"] if isinstance(one, dict) and isinstance(one.get("function"), dict) else one
        if not isinstance(call, dict):
            return []
        names = (call.get(key) for key in ("name", "tool_name", "tool", "function"))
        written = next((call[key] for key in ("arguments", "parameters", "args", "input") if key in call), None)
        arguments = _typed(written, {}) if isinstance(written, str) else written
        found.append((next((name for name in names if isinstance(name, str)), None), arguments))
    return found


def _typed(written: str, schema: Mapping[str, Any]) -> object:
    with suppress(ValueError):
        return written if schema.get("type") == "string" else json.loads(written)
    return written
