"""Patterns of secrets, as `patterns.toml` lists them; read when the first text is looked at."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Span: TypeAlias = tuple[int, int]
"""Indexes of a secret in a text: its first, and the one behind it."""

_SHORT_CHARS = 300
"""Characters up to which one search for any of many words is quicker than one for each."""


@cache
def stored() -> Mapping[str, Any]:  # as the file holds it; each module knows the types of its own part
    """The content of the file."""
    return tomllib.loads(Path(__file__).with_name("patterns.toml").read_text(encoding="utf-8"))


@cache
def _words(*, is_ascii: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Words that have to be there before a secret is named or told, by what several of them have in common."""
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
    """The words that have to be there before a secret is named or told, and are."""
    if len(lower) <= _SHORT_CHARS and _any_word().search(lower) is None:
        return frozenset()
    words = _words(is_ascii=lower.isascii())
    return frozenset(word for stem, some in words if stem in lower for word in some if word in lower)


@cache
def expression(part: str, name: str) -> re.Pattern[str]:
    """An expression of the file; each of its lines is an alternative, but one that begins with a space goes on."""
    return re.compile(stored()[part][name].strip().replace("\n ", "").replace("\n", "|"))
