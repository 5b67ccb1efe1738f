"""Phrases in eleven languages that indicate rules, withdrawn rules, decisions and so on (listed in `phrases.toml`)."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import normalize

from hermes_state.imports import late_pattern

_SENTENCE_END = late_pattern(r"[\n.!?\u061f\u3002\uff01\uff1f](?:(?<![.!?\u061f])\n*|\n+|\s+)")
"""Pattern for the end of a sentence: its last character and the white space after it, if any."""
QUESTION = late_pattern(r"[?\u061f](?=[\s\"'*_)]|\Z)|\uff1f|吗(?=[\s。]|\Z)|か(?=[\s。]|\Z)")
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
WORD = late_pattern(rf"[{_CJK}]+|[^\W{_CJK}]+")
_IS_CJK, _KANA_ALONE = late_pattern(f"[{_CJK}]"), re.compile(r"[\u3040-\u309f]{2}")
_VOWEL_MARK = re.compile("[\u064b-\u0652]")
_ARTICLE, _STEM = re.compile(r"\A(?:[بفكو]?ال|لل)"), 5
_START = r"(?:\A|[,;:(\u2013\u2014-]\s*|\b(?:and|then|und|et|y|e|и)\s+)(?:(?:{lead})[,:!]?\s+){0,4}"
_PLAIN = re.compile(r"(?:[^\\()\[\].?*+{}^$|](?![?*+{]))*")
"""Pattern for the characters at the beginning of an expression that stand for themselves."""
_SCRIPTS = ("\u0370-\u05ff", "\u0600-\u06ff", "\u3040-\u30ff", "\u3400-\u9fff", "\uac00-\ud7a3")
"""Scripts other than Latin. Text is searched only for words in the scripts that it contains."""
_GAP = r"[^a-z\u0370-\u1fff\u3040-\ud7ff]"
"""Pattern for most characters before the start of a word, which is also quick in scripts without spaces."""


class Language:
    """Regular expressions that find rules in lower-case sentences in one language. They are compiled on first use."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table

    @cached_property
    def rule(self) -> re.Pattern[str]:
        return self._expression("rule")

    @cached_property
    def take_back(self) -> re.Pattern[str]:
        return self._expression("take_back")

    @cached_property
    def either(self) -> re.Pattern[str]:
        """Matches both rules and withdrawals. A single search is faster than two, and most sentences are neither."""
        return self._expression("rule", "take_back")

    @cached_property
    def teller(self) -> re.Pattern[str]:
        """Matches the beginning of a sentence that reports something."""
        return re.compile(rf"\W*{_whole(self._table['teller'])}")

    @cached_property
    def once(self) -> re.Pattern[str]:
        """Matches sentences that apply only once, or that quote other people."""
        return re.compile(_whole(self._table["once"]) + "|" + self._table["reported"])

    @cached_property
    def one_time(self) -> re.Pattern[str]:
        """Matches words that limit a wish to one time."""
        return re.compile(_whole(self._table["once"]))

    @cached_property
    def foreign(self) -> re.Pattern[str]:
        """Matches sentences that share words with this language but are written in another one."""
        return re.compile(_whole(self._table.get("foreign", "(?!)")))

    def is_foreign(self, lower: str) -> bool:
        """Return True if at least a quarter of the words are English. A single English word says nothing."""
        found = len(self.foreign.findall(lower))
        return found > 0 and found * 4 >= len(WORD.findall(lower))

    @cached_property
    def choice(self) -> re.Pattern[str]:
        """Matches clauses in which people say what they prefer or have decided."""
        return self._expression("choice", "settled")

    @cached_property
    def wish(self) -> re.Pattern[str]:
        """Matches clauses in which people say what they prefer, but not their decisions."""
        return self._expression("choice")

    @cached_property
    def no_subject(self) -> re.Pattern[str]:
        """Matches words that do not belong to the subject of a preference."""
        own = "|".join(re.escape(word.strip()) for word in self._table["choice_hints"])
        return re.compile(f"{own}|{_whole(self._table['common'])}")

    @cached_property
    def no_choice(self) -> re.Pattern[str]:
        """Matches clauses that leave a choice open, or that quote other people."""
        return re.compile(self._table["undecided"] + "|" + self._table["reported"])

    @cached_property
    def request(self) -> re.Pattern[str]:
        """Matches the beginning of a request that shares a sentence with a preference."""
        return re.compile(self._table["request"])

    def _expression(self, *names: str) -> re.Pattern[str]:
        lines = [line for name in names for line in self._table[name].strip().splitlines()]
        found = [one for line in lines for one in _alternatives(line)]
        for name in ("told", "deed"):
            found = [one.replace(f"{{{name}}}", self._table.get(name, "")) for one in found]
        groups = []
        for beginning in ("{start}", r"\b", ""):  # tried once per position, not once per alternative
            behind = [one.removeprefix(beginning) for one in found if one.startswith(beginning)]
            found = [one for one in found if not one.startswith(beginning)]
            groups += [beginning + _guarded("|".join(behind))] * bool(behind)
        return re.compile("|".join(groups).replace("{start}", _START.replace("{lead}", self._table["lead"])))


class _Words:
    """Words to search for in a single pass: the parts in `words` are searched for, and then the words with these parts.

    Latin parts are searched for only at the start of a word, which is twice as fast, except for those in `inside`.
    """

    def __init__(self, words: Mapping[str, str], inside: Collection[str] = ()) -> None:
        self._by_start: dict[str, list[str]] = {}
        self._expressions: list[re.Pattern[str]] = []
        for is_inside in (False, True):
            starts: list[str] = []
            for word, part in sorted(words.items(), key=itemgetter(1)):
                if (part >= "\u0370" or part in inside) is is_inside:
                    starts += [part] * (not starts or not part.startswith(starts[-1]))
                    self._by_start.setdefault(starts[-1], []).append(word)
            if starts:
                first, found = "".join(re.escape(one[0]) for one in starts), f"(?=({_any_of(starts)}))"
                self._expressions.append(re.compile(rf"[{first}](?<={found}.)" if is_inside else _GAP + found))

    def within(self, lower: str) -> set[str]:
        starts = {start for expression in self._expressions for start in expression.findall(lower)}
        return {word for start in starts for word in self._by_start[start] if word in lower}


Hinted: TypeAlias = Sequence[tuple[Language, frozenset[str], frozenset[str]]]
"""Languages whose hint words occur in the text, with the hint words of rules, and those of preferences and decisions.

Text without hint words contains nothing to quote.
"""


def plain(text: str) -> str:
    """Return `text` in lower case, with `'` as the apostrophe and without Arabic vowel marks."""
    lower = text.lower().replace("\u2019", "'")
    return lower if lower.isascii() else _VOWEL_MARK.sub("", lower)


def hinted(text: str) -> Hinted:
    """Search once for the hint words of rules, preferences and decisions."""
    found = _hints(_scripts(text)).within(f" {plain(text)}".replace("\n", " "))
    if not found:
        return ()
    parts = ((language, rules & found, choices & found) for language, rules, choices in _languages())
    return [(language, rules, choices) for language, rules, choices in parts if rules or choices]


def weighty_words(text: str) -> Collection[str]:
    """Return the words, in lower case, that mark parts of `text` as important."""
    return _weighty(_scripts(text)).within(f" {text.lower()}")


@cache
def _languages() -> Sequence[tuple[Language, frozenset[str], frozenset[str]]]:
    return [
        (Language(table), frozenset(table["hints"]), frozenset(table["choice_hints"])) for table in _stored().values()
    ]


@cache
def _hints(scripts: int) -> _Words:
    listed = (word for table in _stored().values() for name in ("hints", "choice_hints") for word in table[name])
    inside = {word for table in _stored().values() for word in table.get("inside", ())}
    return _Words({word: word.lstrip(" ,'-") for word in listed if not _scripts(word) & ~scripts}, inside)


@cache
def _weighty(scripts: int) -> _Words:
    listed = (word for table in _stored().values() for word in table["matters"] if not _scripts(word) & ~scripts)
    return _Words({word: max(WORD.findall(word), key=len)[:4] for word in listed})


def _scripts(text: str) -> int:
    """Return a bit mask of the scripts in `text`: 0 for ASCII, otherwise 1 plus a bit for each of `_SCRIPTS`."""
    found = 0 if text.isascii() else 1
    while found and (other := _other_scripts(found).search(text)) is not None:
        found += next(2 << bit for bit, span in enumerate(_SCRIPTS) if span[0] <= other[0] <= span[2])
    return found


@cache
def _other_scripts(found: int) -> re.Pattern[str]:
    others = "".join(span for bit, span in enumerate(_SCRIPTS) if not found & 2 << bit)
    return re.compile(f"[{others}]" if others else "(?!)")


@cache
def any_of(name: str) -> re.Pattern[str]:
    """Return a regular expression for all words listed under this name (such as `decision`), in all languages."""
    listed = groupby((table[name] for table in _stored().values() if name in table), key=_is_matched_anywhere)
    return re.compile("|".join(_whole("|".join(some)) for _, some in listed), re.IGNORECASE)


@cache
def _stored() -> dict[str, dict[str, Any]]:  # regular expressions, and lists of words
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _any_of(words: Sequence[str]) -> str:
    """Return a regular expression for sorted words, none a prefix of another. It tests each shared prefix only once."""
    found = []
    for first, some in groupby(words, key=lambda word: word[:1]):
        rest = [word[1:] for word in some]
        found.append(re.escape(first) + (_any_of(rest) if any(rest) else ""))
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _alternatives(expression: str) -> Iterator[str]:
    ends = [mark.start() for mark, depth in _marks(expression) if mark[0] == "|" and depth == 0]
    return (expression[start + 1 : end] for start, end in pairwise([-1, *ends, len(expression)]))


def _marks(expression: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield the marks of groups and alternatives, each with the number of groups that are open after it."""
    depth = 0
    for mark in re.finditer(r"\\.|\[[^]]*\]|[()|]", expression):
        depth += (mark[0] == "(") - (mark[0] == ")")
        yield mark, depth


def _guarded(expression: str) -> str:
    """Return a group for `expression`. A quick test of the first three letters skips most alternatives at most places.

    >>> _guarded("al(?:l|ways)|not(?: one)?|.x")
    '(?:(?=(?:al(?:l|w)|not))(?:al(?:l|ways)|not(?: one)?)|(?:.x))'
    """
    begun = {one: _beginnings(one) for one in _alternatives(expression)}
    groups = []
    for is_quick, some in groupby(begun, key=lambda one: "" not in begun[one]):
        ones = [*some]
        test = f"(?={_any_of(sorted({text for one in ones for text in begun[one]}))})" if is_quick else ""
        groups.append(f"{test}(?:{'|'.join(ones)})")
    return f"(?:{'|'.join(groups)})"


def _beginnings(alternative: str) -> set[str]:
    """Return texts of up to three characters. Each match of an alternative begins with one of them."""
    begun = _PLAIN.findall(alternative)[0][:3]
    rest = alternative[len(begun) :]
    is_group, has_no_width = rest.startswith("(?:"), rest.startswith(("(?!", "(?=", "(?<"))
    if len(begun) == 3 or not (is_group or has_no_width):
        return {begun}
    end = next(mark.end() for mark, depth in _marks(rest) if depth == 0)
    behind = rest[end:]
    if behind.startswith(("*", "+", "{")):
        return {begun}
    inner = [*_alternatives(rest[3 : end - 1] if is_group else ""), *[""] * behind.startswith("?")]
    return {text for piece in inner for text in _beginnings(begun + piece + behind.lstrip("?"))}


def _whole(words: str) -> str:
    """Return a regular expression for whole words. Chinese, Japanese and Korean words are matched anywhere."""
    return rf"(?:{words})" if _is_matched_anywhere(words) else rf"\b(?=\w){_guarded(words)}(?!\w)"


def _is_matched_anywhere(words: str) -> bool:
    return re.search(r"[\u3040-\u9fff\uac00-\ud7a3]", words) is not None


def stems(text: str) -> frozenset[str]:
    """Return the stems of words of four or more letters. Faster than `subject_words`, but keeps common words."""
    return frozenset(word[:_STEM] for word in WORD.findall(text.lower()) if len(word) > 3 and not word.isdigit())


@lru_cache(maxsize=1_024)  # cached, because each withdrawal is compared with all rules
def subject_words(text: str) -> frozenset[str]:
    """Return the stems of words, without common and very short ones, or pairs of Chinese and Japanese characters."""
    found: set[str] = set()
    said = any_of("common").sub(" ", plain(text))
    for word in WORD.findall(normalize("NFC", re.sub(r"[\u0300-\u036f\u064b-\u0655]", "", normalize("NFKD", said)))):
        if _IS_CJK.match(word):
            found.update(pair for pair in map("".join, pairwise(word)) if _KANA_ALONE.fullmatch(pair) is None)
        elif len(word := _ARTICLE.sub("", word)) > 3 or word.isdigit():
            found.add(word.removesuffix("s")[:_STEM])
    return frozenset(found)


@cache
def choice_words() -> frozenset[str]:
    """Return the stems of words that mark a clause as a preference, such as "prefer"."""
    return subject_words(" ".join(word for table in _stored().values() for word in table["choice_hints"]))


def sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield start, end.start() + (text[end.start()] != "\n")
        start = end.end()
    yield start, len(text)
