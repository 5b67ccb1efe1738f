"""Error answers of providers in one form, whatever shape they came in, and the features that are looked for in them.

What an answer says may stand in `error`, in FastAPI's `detail`, in lists, in strings that are JSON again, and in a
field of whoever passed the request on. Words that tell something are features, listed in `features.toml`.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Final

MAX_CHARACTERS: Final = 4_000
"""Most characters of one answer that are judged; what is said stands at the beginning."""
MAX_PARTS: Final = 200
"""Most fields and elements of one answer that are looked at."""
MAX_HELD_CHARACTERS: Final = 100_000
"""Longest JSON that is looked for in a text."""
MAX_DEPTH: Final = 10
MAX_WAIT_SECONDS: Final = 31 * 86_400.0
"""Longest pause that is believed, in seconds: quotas are counted by the month at most.

More, `inf` included, is no time to tell a person.
"""
MIN_WORDED_WAIT_SECONDS: Final = 5.0
"""Shortest pause, in seconds, that is looked for in words where there are headers to name one; ours are as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """Error answer of a provider, whatever its shape was."""

    status: int
    """HTTP status; behind a 200 the one that the error states itself, else 0."""
    headers: Mapping[str, str]
    text: str
    """All words and names of the error: one line in lower case, without quotes, underscores in names and thousands
    separators. Empty for a proxy's page, which may say anything."""
    stated: frozenset[int]
    """Statuses that the answer holds itself."""
    counts: Mapping[str, int]
    """Numbers by the name of their field."""
    fields: tuple[str, ...]
    """Paths of the request's fields that the error names, in lower case."""
    name: str
    """The first name, as it was written; empty where it may be a sentence, or a key."""

    @property
    def title(self) -> str:
        return " ".join(filter(None, (f"HTTP {self.status}" if self.status else "in a stream", self.name)))

    @property
    def retry_after(self) -> float | None:
        """Seconds for which the provider asks not to be called again, by the headers or in words."""
        seconds = retry_after_seconds(self.headers)
        if seconds is not None or "retry-after" in self.headers:
            return seconds
        if (found := self.found("wait")) is not None:
            parts = _WAIT_PART.findall(found[1])
            seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
            if self.headers and seconds < MIN_WORDED_WAIT_SECONDS:
                return None
        else:
            seconds = next((self.counts[key] for key in _WAIT_COUNTS if key in self.counts), None)
        return float(seconds) if seconds is not None and 0 <= seconds <= MAX_WAIT_SECONDS else None

    def found(self, feature: str) -> re.Match[str] | None:
        """The first place where the words of a feature stand."""
        return next(filter(None, (pattern.search(self.text) for pattern in load_features()[feature])), None)

    def says(self, feature: str) -> bool:
        return self.found(feature) is not None

    def number(self, feature: str) -> int | None:
        """The number beside the words of a feature."""
        found = self.found(feature)
        return None if found is None else next((int(group) for group in found.groups() if group), None)

    def numbers(self, feature: str) -> list[int]:
        """All numbers of a feature that has one pattern."""
        return [int(number) for number in load_features()[feature][0].findall(self.text)]

    def count(self, name: str) -> int | None:
        """The number of tokens in a field, where it is one."""
        value = self.counts.get(name, 0)
        return value if 0 < value < 1_000_000_000 else None


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds for which an answer asks not to be called again; None where it names neither a number nor a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= MAX_WAIT_SECONDS:
            return seconds
    try:  # the date of the answer and the one it names, for clocks differ
        named, sent = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        seconds = (named - sent).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return seconds if 0 <= seconds <= MAX_WAIT_SECONDS else None


@cache
def load_features() -> Mapping[str, tuple[re.Pattern[str], ...]]:
    """The patterns of each feature, as the head of the file describes them; read when the first refusal comes."""
    stored = tomllib.loads(Path(__file__).with_name("features.toml").read_text(encoding="utf-8"))
    parts = {name: _joined(lines) for name, lines in stored.pop("parts").items()}

    def pattern(lines: str) -> re.Pattern[str]:
        written = _joined(lines).replace("<n>", r"(\d{1,9})(?![\d.]{0,9}\d)")
        for name, part in parts.items():
            written = written.replace(f"<{name}>", part)
        return re.compile(written, re.ASCII)  # else a word would not end before Chinese

    listed = {name: [found] if isinstance(found, str) else found for name, found in stored.items()}
    return {name: tuple(map(pattern, found)) for name, found in listed.items()}


def _joined(lines: str) -> str:
    return lines.strip("\n").replace("\n ", "").replace("\n", "|")


# ---- one form for all answers


def error_answer(status: int, headers: Mapping[str, str], body: object) -> ErrorAnswer:
    """The answer with this status, 0 behind a 200; `body` is its JSON, decoded or not, or a text."""
    walk = _AnswerReader()
    if not (isinstance(body, str) and body.lstrip().startswith("<")):
        walk.take("message", body)
    names = [_HUMP.sub(r"\1 \2", name).replace("_", " ").replace("-", " ") for name in walk.names]
    said = " ; ".join([*walk.texts, *dict.fromkeys(names)])[:MAX_CHARACTERS].lower()
    said = " ".join(said.translate(_UNQUOTED).split()).replace("context deadline", "deadline")
    return ErrorAnswer(
        status=status if status >= 400 else next(iter(walk.statuses), 0),
        headers=headers,
        text=_SEPARATOR.sub(lambda match: match[1] or "", said),
        stated=frozenset(walk.statuses),
        counts=walk.counts,
        fields=tuple(walk.fields),
        name=next(filter(_NAME.fullmatch, walk.names), ""),
    )


@dataclass(slots=True)
class _AnswerReader:
    """Parts of an answer, collected from wherever they stand."""

    texts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    fields: list[str] = field(default_factory=list)
    parts: int = 0

    def take(self, key: str, value: object, depth: int = 0) -> None:
        self.parts += 1
        if key == "flagged_input":  # OpenRouter's moderation says so by nothing else
            self.names.append("flagged")
        if depth > MAX_DEPTH or self.parts > MAX_PARTS or key in _QUOTING:
            return
        if isinstance(value, Mapping):
            for name, part in value.items():
                is_worded = isinstance(part, list) and all(isinstance(one, str) and " " in one for one in part)
                if is_worded and part and name not in _QUOTING:  # what a validator says of one field
                    self.fields.append(str(name).lower())
                self.take(f"{name} message" if is_worded else str(name).lower(), part, depth + 1)
        elif isinstance(value, list):
            for part in value:
                self.take(key, part, depth + 1)
        elif type(value) is int:
            self.counts.setdefault(key.replace("_", " "), value)
            if key in _NAMING:
                self._take_text(key, str(value), depth)
        elif isinstance(value, str):
            self._take_text(key, value, depth)

    def _take_text(self, key: str, text: str, depth: int) -> None:
        if key in _PLACING:
            self.fields.append(text[:MAX_CHARACTERS].lower())
        begin = _JSON_BEGIN.search(text)
        if begin is not None and (parsed := _parsed(text[begin.start() :])) is not None:
            self.take(key, parsed, depth + 1)
            text = text[: begin.start()]  # some put words in front of what they pass on
        if key in _NAMING and text.isdecimal():
            if len(text) == 3 and 400 <= int(text) < 600:
                self.statuses.append(int(text))
            self.names.append(f"#{text}")  # else it would be taken for a number of tokens
        elif (key in _NAMING and " " not in text.strip()) or ("_" in text and _NAME.fullmatch(text)):
            self.names.insert(0 if key == "code" else len(self.names), text.strip()[:MAX_CHARACTERS])
        elif key in _NAMING or any(part in key for part in _SAYING):
            self.texts.append(text[:MAX_CHARACTERS])
        elif "retry" in key:
            self.texts.append(f"retry in {text}")


def _parsed(text: str) -> object:
    """The JSON that a text begins with; None where it is none, or too long."""
    end = max(text.rfind("}"), text.rfind("]"))
    if not 0 < end < MAX_HELD_CHARACTERS:
        return None
    try:
        value: object = json.loads(text[: end + 1])
    except (ValueError, RecursionError):
        return None
    return value


_QUOTING: Final = frozenset(
    {"input", "flagged_input", "failed_generation", "headers", "user_id", "request_id", "id", "provider_name", "url"}
)
"""Fields that quote the request, or name something: no words of the error."""
_NAMING: Final = frozenset(
    {
        *("code", "type", "status", "statuscode", "status_code", "http_code", "error_code", "errorcode", "error_type"),
        *("__type", "reason", "kind", "cause", "quotaid", "param"),
    }
)
"""Fields by which errors call themselves."""
_PLACING: Final = frozenset({"loc", "path", "field", "param", "parameter", "property", "instancepath", "pointer"})
"""Fields by which errors name a field of the request."""
_SAYING: Final = ("message", "msg", "detail", "error", "description", "title", "raw", "body", "text", "reason", "hint")
"""Parts of the names of fields that hold words."""
_JSON_BEGIN: Final = re.compile(r"[{\[]\s{0,40}[\"{\[]")
_HUMP: Final = re.compile(r"([a-z0-9])([A-Z])")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
"""Form of a name as providers write them. Anything else may be a sentence, or a key."""
_UNQUOTED: Final = str.maketrans(dict.fromkeys("`'\"*\u2018\u2019\u201c\u201d\\", ""))
_SEPARATOR: Final = re.compile(r"(\[\s*\d+\s*,\s*\d+\s*\])|(?<=\d)[,_\u202f\u00a0](?=\d{3}(?!\d))")
"""Separators of thousands; not the comma of a range."""
_WAIT_COUNTS: Final = ("retry after", "retry after seconds", "resets in seconds")
_WAIT_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|mil|[smhd])")
_UNIT_SECONDS: Final = {"ms": 0.001, "mil": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
