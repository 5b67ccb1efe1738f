"""Normalised error responses of providers, and a search for the features (kinds of wording) in `features.toml`.

The error text can be in `error`, in FastAPI's `detail`, in lists, in nested JSON strings, or in a proxy's fields.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from hermes_state.imports import late_pattern

MAX_CHARACTERS: Final = 4_000
"""Maximum number of characters that are examined. Responses state the reason at the beginning."""
MAX_WAIT_SECONDS: Final = 31 * 86_400.0
"""Longest plausible pause, in seconds: no quota period is longer than a month."""


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Error response from a provider."""

    status: int
    """HTTP status. For an error after a 200: the status named in the error, else 0."""
    headers: Mapping[str, str]
    text: str
    """All texts and names of the error as one lower-case line, without quotes, underscores in names, or thousands
    separators. Empty for a proxy's HTML page.
    """
    stated: frozenset[int]
    """HTTP statuses mentioned in the response body."""
    counts: Mapping[str, int]
    """Numbers in the response body, by field name."""
    fields: tuple[str, ...]
    """Paths of the request fields that the error names, in lower case."""
    name: str
    """First error name that is safe to show, verbatim, or an empty string. Other names could be sentences or keys."""

    @property
    def title(self) -> str:
        return " ".join(filter(None, (f"HTTP {self.status}" if self.status else "in a stream", self.name)))

    @property
    def retry_after(self) -> float | None:
        """Return the pause that the provider requests, in seconds, from the headers or the text."""
        seconds = retry_after_seconds(self.headers)
        if seconds is not None or "retry-after" in self.headers:
            return seconds
        if (found := self.found("wait")) is not None:
            parts = re.findall(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|mil|[smhd])", found[1])
            unit_seconds = {"ms": 0.001, "mil": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
            seconds = sum(float(number) * unit_seconds[unit] for number, unit in parts)
            if self.headers and seconds < 5.0:  # the pauses of `RetryPolicy` are long enough
                return None
        else:
            keys = ("retry after", "retry after seconds", "resets in seconds")
            seconds = next((self.counts[key] for key in keys if key in self.counts), None)
        return float(seconds) if seconds is not None and 0 <= seconds <= MAX_WAIT_SECONDS else None

    def found(self, feature: str) -> re.Match[str] | None:
        """Return the first match in the text for any of the feature's patterns."""
        return next(filter(None, (pattern.search(self.text) for pattern in load_features()[feature])), None)

    def says(self, feature: str) -> bool:
        return self.found(feature) is not None

    def number(self, feature: str) -> int | None:
        """Return the number captured by a feature's pattern."""
        found = self.found(feature)
        return None if found is None else next((int(group) for group in found.groups() if group), None)

    def numbers(self, feature: str) -> list[int]:
        """Return all numbers that match a feature, which must have a single pattern."""
        return [int(number) for number in load_features()[feature][0].findall(self.text)]

    def count(self, name: str) -> int | None:
        """Return the value of a field if it is a plausible number of tokens."""
        value = self.counts.get(name, 0)
        return value if 0 < value < 1_000_000_000 else None


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the requested pause from the headers; None if they contain neither a number nor a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= MAX_WAIT_SECONDS:
            return seconds
    try:  # relative to the response's own date, because clocks differ
        named, sent = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        seconds = (named - sent).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return seconds if 0 <= seconds <= MAX_WAIT_SECONDS else None


@cache
def load_features() -> Mapping[str, tuple[re.Pattern[str], ...]]:
    """Return the patterns of each feature, each compiled when first used. `features.toml` explains the syntax."""
    stored = tomllib.loads(Path(__file__).with_name("features.toml").read_text(encoding="utf-8"))
    parts = {name: _joined(lines) for name, lines in stored.pop("parts").items()}

    def pattern(lines: str) -> re.Pattern[str]:
        written = _joined(lines).replace("<n>", r"(\d{1,9})(?![\d.]{0,9}\d)")
        for name, part in parts.items():
            written = written.replace(f"<{name}>", part)
        return late_pattern(written, re.ASCII)  # otherwise `\b` would not match between Latin and Chinese characters

    listed = {name: [found] if isinstance(found, str) else found for name, found in stored.items()}
    return {name: tuple(map(pattern, found)) for name, found in listed.items()}


def _joined(lines: str) -> str:
    return lines.strip("\n").replace("\n ", "").replace("\n", "|")


# ---- normalisation


def error_answer(status: int, headers: Mapping[str, str], body: object) -> ErrorAnswer:
    """Normalise an error response. `status`: 0 for an error after a 200. `body`: decoded JSON, or any text."""
    walk = _AnswerReader()
    if not (isinstance(body, str) and body.lstrip().startswith("<")):
        walk.take("message", body)
    names = [re.sub("([a-z0-9])([A-Z])", r"\1 \2", name).replace("_", " ").replace("-", " ") for name in walk.names]
    said = " ; ".join([*walk.texts, *dict.fromkeys(names)])[:MAX_CHARACTERS].lower()
    said = re.sub("[`'\"*\u2018\u2019\u201c\u201d\\\\]", "", said)
    said = " ".join(said.split()).replace("context deadline", "deadline")
    return ErrorAnswer(
        status=status if status >= 400 else next(iter(walk.statuses), 0),
        headers=headers,
        # Remove thousands separators, but keep the comma of a range.
        text=re.sub(
            r"(\[\s*\d+\s*,\s*\d+\s*\])|(?<=\d)[,_\u202f\u00a0](?=\d{3}(?!\d))", lambda match: match[1] or "", said
        ),
        stated=frozenset(walk.statuses),
        counts=walk.counts,
        fields=tuple(walk.fields),
        name=next(filter(_NAME.fullmatch, walk.names), ""),
    )


class _AnswerReader(msgspec.Struct):
    """Collects the messages, codes, counts and field names of an error response, up to ten levels deep."""

    texts: list[str] = msgspec.field(default_factory=list)
    names: list[str] = msgspec.field(default_factory=list)
    statuses: list[int] = msgspec.field(default_factory=list)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    fields: list[str] = msgspec.field(default_factory=list)
    parts: int = 0

    def take(self, key: str, value: object, depth: int = 0) -> None:
        self.parts += 1
        if key == "flagged_input":  # only this field reveals OpenRouter's moderation
            self.names.append("flagged")
        if depth > 10 or self.parts > 200 or key in _QUOTING:
            return
        if isinstance(value, Mapping):
            for name, part in value.items():
                is_worded = isinstance(part, list) and all(isinstance(one, str) and " " in one for one in part)
                if is_worded and part and name not in _QUOTING:  # a list of validation errors for one field
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
        if key in ("loc", "path", "field", "param", "parameter", "property", "instancepath", "pointer"):
            self.fields.append(text[:MAX_CHARACTERS].lower())
        begin = re.search(r"[{\[]\s{0,40}[\"{\[]", text)
        if begin is not None and (parsed := _parsed(text[begin.start() :])) is not None:
            self.take(key, parsed, depth + 1)
            text = text[: begin.start()]  # the proxy's own text before the forwarded error
        if key in _NAMING and text.isdecimal():
            if len(text) == 3 and 400 <= int(text) < 600:
                self.statuses.append(int(text))
            self.names.append(f"#{text}")  # `#` prevents the number from being read as a token count
        elif (key in _NAMING and " " not in text.strip()) or ("_" in text and _NAME.fullmatch(text)):
            self.names.insert(0 if key == "code" else len(self.names), text.strip()[:MAX_CHARACTERS])
        elif key in _NAMING or any(part in key for part in _SAYING):
            self.texts.append(text[:MAX_CHARACTERS])
        elif "retry" in key:
            self.texts.append(f"retry in {text}")


def _parsed(text: str) -> object:
    """Return the JSON value at the beginning of `text`; None if there is no such value or it is very long."""
    end = max(text.rfind("}"), text.rfind("]"))
    if 0 < end < 100_000:
        with suppress(ValueError, RecursionError):
            value: object = json.loads(text[: end + 1])
            return value
    return None


_QUOTING: Final = frozenset(
    {"input", "flagged_input", "failed_generation", "headers", "user_id", "request_id", "id", "provider_name", "url"}
)
"""Fields that quote the request or contain ids. Their text does not describe the error."""
_NAMING: Final = frozenset(
    {
        *("code", "type", "status", "statuscode", "status_code", "http_code", "error_code", "errorcode", "error_type"),
        *("__type", "reason", "kind", "cause", "quotaid", "param"),
    }
)
"""Fields that contain the name of the error."""
_SAYING: Final = ("message", "msg", "detail", "error", "description", "title", "raw", "body", "text", "reason", "hint")
"""Parts of field names. A field whose name contains one of them describes the error."""
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,47}")
"""Pattern for an error name. Any other text could be a sentence or a key."""
