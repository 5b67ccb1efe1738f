"""Phrases of eleven languages by which rules, take-backs, decisions and the like are known: `phrases.toml`."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

SENTENCE_END = re.compile(r"\n+|(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])")
"""Chinese and Japanese put no space behind it."""
QUESTION = re.compile(r"[?\u061f](?=[\s\"'*_)]|\Z)|\uff1f|吗(?=[\s。]|\Z)|か(?=[\s。]|\Z)")
_START = r"(?:\A|[,;:(\u2013\u2014-]\s*|\b(?:and|then|und|et|y|e|и)\s+)(?:(?:{lead})[,:!]?\s+)*"
_MARKS = {0x2019: "'"} | dict.fromkeys(range(0x64B, 0x653))


@dataclass(frozen=True, slots=True)
class Language:
    """Expressions about rules in one language, for sentences in lower case."""

    hints: Sequence[str]
    """One of them is in every sentence that an expression could match: to look for a word is quick."""
    rule: re.Pattern[str]
    teller: re.Pattern[str]
    once: re.Pattern[str]
    """Also what others have said."""
    take_back: re.Pattern[str]


@cache
def languages() -> tuple[Language, ...]:
    """The languages that are known."""
    return tuple(
        Language(
            hints=tuple(table["hints"]),
            rule=_expression(table, "rule"),
            teller=re.compile(rf"\W*{_whole(table['teller'])}"),
            once=re.compile(_whole(table["once"]) + "|" + table["reported"]),
            take_back=_expression(table, "take_back"),
        )
        for table in _stored().values()
    )


Hinted: TypeAlias = Sequence[tuple[Language, Sequence[str]]]
"""Languages in which a text may say something about rules, with the words that hint at it."""


def plain(text: str) -> str:
    """A text as the expressions expect it: lower case, apostrophes `'`, Arabic without vowel marks."""
    return text.lower().translate(_MARKS)


def hinted(text: str) -> Hinted:
    lower = f" {plain(text)}".replace("\n", " ")
    found = ((language, [word for word in language.hints if word in lower]) for language in languages())
    return [(language, words) for language, words in found if words]


@cache
def any_of(name: str) -> re.Pattern[str]:
    """Expression for the words of this name (`decision`, `error`) in whatever language."""
    return re.compile("|".join(_whole(table[name]) for table in _stored().values()), re.IGNORECASE)


@cache
def _stored() -> dict[str, dict[str, Any]]:  # expressions, and lists of words
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _whole(words: str) -> str:
    """The words as words; Chinese, Japanese and Korean put nothing between theirs."""
    return rf"(?:{words})" if re.search(r"[\u3040-\u9fff\uac00-\ud7a3]", words) else rf"\b(?:{words})(?!\w)"


def _expression(table: Mapping[str, Any], name: str) -> re.Pattern[str]:
    text = "|".join(f"(?:{line})" for line in table[name].strip().splitlines())
    start = _START.replace("{lead}", table["lead"])
    return re.compile(text.replace("{start}", start).replace("{told}", table.get("told", "")))


@cache
def weighty_words(*, is_ascii: bool) -> tuple[str, ...]:
    """Words in lower case, one of which is in every sentence that says that it matters. `is_ascii`: it is all ASCII."""
    words = dict.fromkeys(word for table in _stored().values() for word in table["matters"])
    return tuple(word for word in words if not is_ascii or word.isascii())


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the sentences of a text."""
    start = 0
    for end in SENTENCE_END.finditer(text):
        yield start, end.start()
        start = end.end()
    yield start, len(text)
