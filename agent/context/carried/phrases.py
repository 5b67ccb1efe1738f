"""Phrases of eleven languages by which rules, take-backs, decisions and the like are known: `phrases.toml`."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

SENTENCE_END = re.compile(r"\n+|(?<=[.!?\u061f])\s+|(?<=[\u3002\uff01\uff1f])")
"""Chinese and Japanese put no space behind it."""
QUESTION = re.compile(r"[?\u061f](?=[\s\"'*_)]|\Z)|\uff1f|吗(?=[\s。]|\Z)|か(?=[\s。]|\Z)")
_START = r"(?:\A|[,;:(\u2013\u2014-]\s*|\b(?:and|then|und|et|y|e|и)\s+)(?:(?:{lead})[,:!]?\s+){0,4}"
_BEYOND_LATIN = re.compile("[\u0370-\u1fff\u2e80-\U0010ffff]")
_MARKS = {0x2019: "'"} | dict.fromkeys(range(0x64B, 0x653))


class Language:
    """Expressions about rules in one language, for sentences in lower case; compiled when they are first needed."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table

    @cached_property
    def rule(self) -> re.Pattern[str]:
        """Sentences that ask for something from now on."""
        return self._expression("rule")

    @cached_property
    def take_back(self) -> re.Pattern[str]:
        """Sentences that take a rule back."""
        return self._expression("take_back")

    @cached_property
    def teller(self) -> re.Pattern[str]:
        """Beginnings of sentences that tell something."""
        return re.compile(rf"\W*{_whole(self._table['teller'])}")

    @cached_property
    def once(self) -> re.Pattern[str]:
        """What holds once; also what others have said."""
        return re.compile(_whole(self._table["once"]) + "|" + self._table["reported"])

    def _expression(self, name: str) -> re.Pattern[str]:
        found = [one for line in self._table[name].strip().splitlines() for one in _alternatives(line)]
        groups = []
        for beginning in ("{start}", r"\b", ""):  # looked for once at each place, not once for each alternative
            behind = [one.removeprefix(beginning) for one in found if one.startswith(beginning)]
            found = [one for one in found if not one.startswith(beginning)]
            groups += [f"{beginning}(?:{'|'.join(behind)})"] * bool(behind)
        start = _START.replace("{lead}", self._table["lead"])
        return re.compile("|".join(groups).replace("{start}", start).replace("{told}", self._table.get("told", "")))


Hinted: TypeAlias = Sequence[tuple[Language, Sequence[str]]]
"""Languages in which a text may say something about rules, with the words that hint at it.

One of those is in every sentence that an expression could match: to look for a word is quick."""


def plain(text: str) -> str:
    """A text as the expressions expect it: lower case, apostrophes `'`, Arabic without vowel marks."""
    return text.lower().translate(_MARKS)


def hinted(text: str) -> Hinted:
    lower = f" {plain(text)}".replace("\n", " ")
    found = ((language, [word for word in words if word in lower]) for language, words in _hints(_alphabet(text)))
    return [(language, words) for language, words in found if words]


def weighty_words(text: str) -> Sequence[str]:
    """Words in lower case, one of which is in a text of such letters wherever it says that it matters."""
    return _weighty(_alphabet(text))


@cache
def _languages() -> Sequence[tuple[Language, Sequence[str]]]:
    return [(Language(table), table["hints"]) for table in _stored().values()]


@cache
def _hints(alphabet: int) -> Hinted:
    return [(language, _within(alphabet, words)) for language, words in _languages()]


@cache
def _weighty(alphabet: int) -> Sequence[str]:
    return _within(alphabet, dict.fromkeys(word for table in _stored().values() for word in table["matters"]))


def _within(alphabet: int, words: Iterable[str]) -> Sequence[str]:
    return [word for word in words if _alphabet(word) <= alphabet]


def _alphabet(text: str) -> int:
    """0 for ASCII, 1 for Latin letters, 2 for others: of other words nobody has to look for."""
    return 0 if text.isascii() else 1 if _BEYOND_LATIN.search(text) is None else 2


@cache
def any_of(name: str) -> re.Pattern[str]:
    """Expression for the words of this name (`decision`, `error`) in whatever language."""
    return re.compile("|".join(_whole(table[name]) for table in _stored().values()), re.IGNORECASE)


@cache
def _stored() -> dict[str, dict[str, Any]]:  # expressions, and lists of words
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _alternatives(expression: str) -> Iterator[str]:
    start = depth = 0
    for mark in re.finditer(r"\\.|\[[^]]*\]|[()|]", expression):
        if mark[0] == "|" and depth == 0:
            yield expression[start : mark.start()]
            start = mark.end()
        depth += (mark[0] == "(") - (mark[0] == ")")
    yield expression[start:]


def _whole(words: str) -> str:
    """The words as words; Chinese, Japanese and Korean put nothing between theirs."""
    return rf"(?:{words})" if re.search(r"[\u3040-\u9fff\uac00-\ud7a3]", words) else rf"\b(?:{words})(?!\w)"


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Spans of the sentences of a text."""
    start = 0
    for end in SENTENCE_END.finditer(text):
        yield start, end.start()
        start = end.end()
    yield start, len(text)
