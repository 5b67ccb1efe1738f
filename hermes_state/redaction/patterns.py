"""Patterns for secrets, loaded from `patterns.toml`, and redaction of keys in known formats."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]
"""Start and end index of a secret in the searched text."""
MARK = "[redacted]"


@cache
def stored() -> Mapping[str, Any]:  # each module knows the types of its own part
    return tomllib.loads(Path(__file__).with_name("patterns.toml").read_text(encoding="utf-8"))


@cache
def _words(*, is_ascii: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the words that can signal a secret, grouped by a part that they share."""
    names, speech = stored()["names"], stored()["speech"]
    found: dict[str, list[str]] = {}
    commands, nouns, numbers = stored()["commands"], speech["nouns"], speech["numbers"]
    for word in dict.fromkeys((*names["others"], *commands, *names["ends"], *names["behind"], *nouns, *numbers)):
        found.setdefault(next((stem for stem in names["stems"] if stem in word), word), []).append(word)
    return tuple((stem, tuple(words)) for stem, words in found.items() if stem.isascii() or not is_ascii)


@cache
def _any_word() -> re.Pattern[str]:
    return re.compile("|".join(re.escape(stem) for stem, _ in _words(is_ascii=False)))


def words_in(lower: str) -> frozenset[str]:
    """Return the words in `lower` (a lower-case text) that may signal a secret."""
    if len(lower) <= 300 and _any_word().search(lower) is None:  # faster than one search per word in short texts
        return frozenset()
    words = _words(is_ascii=lower.isascii())
    return frozenset(word for stem, some in words if stem in lower for word in some if word in lower)


@cache
def expression(part: str, name: str) -> re.Pattern[str]:
    """Compile an expression from `patterns.toml`. Each line is an alternative. Indented lines continue it."""
    return re.compile(stored()[part][name].strip().replace("\n ", "").replace("\n", "|"))


# ---- shapes of keys

_APART = bytes(code if re.match(r"[\w.-]", chr(code), re.ASCII) else ord(" ") for code in range(256))
_TAIL = re.compile(r"[_-]([A-Za-z0-9]{30,})", re.ASCII)
_TAIL_HINT = re.compile(_TAIL.pattern.encode())
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)


@cache
def _beginnings() -> tuple[tuple[bytes, str, str], ...]:
    """Return the known prefixes of keys, each as bytes, as a string, and with a pattern for the rest of the key.

    Prefixes of up to three characters match only at the start of a word.
    """
    return tuple(
        (f"{' ' if len(begin) <= 3 else ''}{begin}".encode(), begin, keys["rest"])
        for keys in stored()["keys"]
        for begin in keys["begin"]
    )


@cache
def _shape(begin: str, rest: str) -> re.Pattern[str]:
    # The pattern starts with `begin`, because starting with a negative lookbehind takes many times as long.
    boundary = "" if begin[0] in "_-" else rf"(?<![A-Za-z0-9_]{re.escape(begin)})"
    return re.compile(re.escape(begin) + boundary + rest, re.ASCII)  # ASCII, so that a key ends before Chinese text


@cache
def _unmarked() -> Mapping[re.Pattern[str], tuple[re.Pattern[str], ...]]:
    """Return patterns for keys that have no fixed prefix, grouped by a pattern that is quick to search for."""
    found: dict[re.Pattern[str], tuple[re.Pattern[str], ...]] = {}
    for key in stored()["unmarked"]:
        hint = re.compile(key["hint"])
        found[hint] = (*found.get(hint, ()), re.compile(key["shape"], re.ASCII))
    return found


def without_shapes(text: str) -> str:
    """Return `text` with each key in a known format replaced by `[redacted]`."""
    if "-----BEGIN" in text:
        text = _PEM.sub(MARK, text)
    # Searching a text for whole patterns takes a thousand times as long as searching for their starts. Every key
    # contains a word of 15 characters that is not just lower-case letters. Most texts contain no such word.
    words = text.encode("utf-8", "surrogatepass").translate(_APART).split()
    long = [word for word in words if len(word) >= 15]
    runs = b" ".join(
        [b"", *[word for word in long if not word.islower() or word.translate(None, b"0123456789") != word]]
    )
    if not runs:
        return text
    for hint, shapes in _unmarked().items():
        for shape in shapes if hint.search(text) is not None else ():
            text = shape.sub(lambda key: key[0].replace(key[1], MARK) if key.lastindex else MARK, text)
    for sought, begin, rest in _beginnings():
        if sought in runs:
            text = _shape(begin, rest).sub(MARK, text)
    return _TAIL.sub(_tail_mark, text) if _TAIL_HINT.search(runs) is not None else text


def _tail_mark(tail: re.Match[str]) -> str:
    """Redact the match if it mixes upper case, lower case and digits, which ordinary words of this length do not."""
    random = tail[1]
    return tail[0] if random.isalpha() or random.islower() or random.isupper() else f"{tail[0][0]}{MARK}"
