"""Query parser: turns a person's text into a tree, which `fts5` and `tsquery` translate for their index.

Supports `"a phrase"`, `prefix*`, `-without`, parentheses, and `AND`, `OR`, `NOT` in capitals. Other syntax is ignored.
Pasted text can look like operators (`find . -name foo`, `IS NOT NULL`). So the words of a query are also searched as
one phrase, and command options (`--rm`, `-rf`) exclude nothing.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import TypeAlias

import msgspec

from hermes_state.imports import late_pattern
from hermes_state.store.segment import CJK, EMOJI, ends_in_half_a_pair, folded, segment_query

MAX_TERMS = 32  # maximum number of words in a query; a pasted page is not a query
QUESTION_WORDS = 4
"""Minimum number of unquoted words in a question. Quotes in a question mark a name or title, not an exact phrase."""


_PIECE = re.compile(r'"(?P<phrase>[^"]*)"?(?P<phrase_star>\*)?|(?P<bracket>[()])|(?P<word>[^\s"()]+)')
_DASHES = {ord(dash): "-" for dash in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"} | {0x2014: "--"}
IN_WORD = rf"[^\W_{CJK}]"
"""Pattern for a letter or digit that is not indexed in pairs."""
_begins_in_word = late_pattern(IN_WORD)
LETTER = r"[^\W_]"
"""Pattern for a letter or digit of any script. Excluding Chinese would make compiling it a hundred times slower."""
# Punctuation between two words. The pattern is possessive, limited in length, and excludes characters of the next word.
# Otherwise repeated characters would cause exponential backtracking, which would block the whole process.
_BETWEEN = rf"(?:_|[^\w{EMOJI}]){{0,16}}+"


class Term(msgspec.Struct, frozen=True):
    text: str
    is_prefix: bool  # a match can have more letters after the last word

    @property
    def words(self) -> list["Term"]:
        """The words of the term as they are indexed, each as a separate term."""
        *words, last = re.findall(r"[^\W_]+", segment_query(self.text)) or [""]
        return [*(Term(word, False) for word in words), Term(last, self.is_prefix)] if last else []

    def pattern(self, words: int | None = None, edge: str = IN_WORD) -> str | None:
        """Return a pattern for the term's first `words` in folded text. Characters around them must not match `edge`.

        The pattern starts with the plain word instead of a lookbehind, which makes the search ten times faster.
        """
        pieces: list[str] = re.findall(rf"[^\W_]+|[{EMOJI}]", folded(self.text))[:words]
        if not pieces:
            return None
        first, *others = map(re.escape, pieces)
        begin = f"(?<!{edge}{first})" if edge and _begins_in_word.match(pieces[0]) else ""
        is_open = not edge or self.is_prefix or not _begins_in_word.match(pieces[-1][-1])
        return first + begin + "".join(_BETWEEN + piece for piece in others) + ("" if is_open else f"(?!{edge})")


def any_pattern(terms: Iterable[Term], words: int | None = None, edge: str = IN_WORD) -> str:
    """Return a pattern like `Term.pattern` for any of the terms.

    Forms of a word share their first letters in the pattern, so that it compiles faster.
    """
    patterns, ends = list[str](), dict[str, list[str]]()
    for term in terms:
        if edge and not term.is_prefix and re.fullmatch("[a-z]{3,}", term.text):
            ends.setdefault(term.text[:3], []).append(term.text[3:])
        else:
            patterns += filter(None, [term.pattern(words, edge)])
    patterns += (f"{start}(?<!{edge}{start})(?:{'|'.join(some)})(?!{edge})" for start, some in ends.items())
    return "|".join(patterns)


class AllOf(msgspec.Struct, frozen=True):
    """Expression that matches messages with all of its parts (at least two)."""

    parts: tuple["Expression", ...]


class AnyOf(msgspec.Struct, frozen=True):
    """Expression that matches messages with any of its parts (at least two)."""

    parts: tuple["Expression", ...]


class Without(msgspec.Struct, frozen=True):
    """Expression that matches messages with the wanted part but without the excluded part."""

    wanted: "Expression"
    excluded: "Expression"


Expression: TypeAlias = Term | AllOf | AnyOf | Without


class Query(msgspec.Struct, frozen=True):
    expression: Expression | None  # None if the query only excludes words
    wanted: tuple[Term, ...]
    terms: tuple[Term, ...]  # including excluded terms
    whole: Term | None  # all words as one phrase; None if there are fewer than two
    text: str
    """The whole query, folded into one line, for comparison with messages from which it may have been copied."""
    has_exclusions: bool
    words: tuple[str, ...]
    """The typed words, with Chinese and Japanese in pairs of characters. Empty if quotes or operators make it exact."""


def parse_query(text: str) -> Query | None:
    """Parse a query. Return None if it is empty or only excludes words. Never raises.

    Without operators, all words of the query must match.
    """
    # SQLite rejects half an emoji and NUL. A pasted word of a megabyte would take seconds to search.
    clean = text[:2_000].encode("utf-8", "replace").decode("utf-8").replace("\0", " ")
    items = _limited(_items(clean))
    terms = tuple(item for item in items if isinstance(item, Term))
    has_exclusions, has_words = "NOT" in items, len(terms) > 1
    unquoted = len(re.sub(r'"[^"]*(?:"|$)', " ", clean).split())
    is_exact = has_exclusions or "OR" in items or "AND" in items or ('"' in clean and unquoted < QUESTION_WORDS)
    words = clean.split()[:MAX_TERMS]
    wanted: list[Term] = []
    expression = _any(items, wanted)
    if expression is None and not has_words:
        return None
    text = " ".join(words)
    whole = _made(text) if has_words else None
    wanted = wanted or [_made(word) for word in words]
    parts = () if is_exact else tuple(dict.fromkeys(part for term in terms for part in _parts(term)))
    return Query(expression, tuple(wanted), terms, whole, one_line(text), has_exclusions, parts)


def _parts(term: Term) -> list[str]:
    if re.search(f"[{CJK}]{{3}}", term.text):
        return segment_query(term.text).split()
    words = term.text.split()
    return [term.text + "*" * term.is_prefix, *(words if len(words) > 1 else ())]  # a title, and its words


def one_line(text: str) -> str:
    """Fold `text` into one line with one kind of dash, to compare whole queries."""
    return " ".join(folded(text.translate(_DASHES)).split())


def _items(text: str) -> Iterator[str | Term]:
    """Yield operators, brackets, and terms that contain a word."""
    for match in _PIECE.finditer(text):
        if match["bracket"]:
            yield match["bracket"]
        elif match["word"] is None:
            yield from _term(match["phrase"], is_prefix=bool(match["phrase_star"]))
        elif match["word"] in ("AND", "OR", "NOT"):
            yield match["word"]
        else:
            yield from _word(match["word"])


def _word(word: str) -> Iterator[str | Term]:
    bare = word.lstrip("-")
    is_option = word.startswith("--") or (len(bare) <= 2 and segment_query(bare) == bare)
    is_excluded = word.startswith("-") and not is_option
    for term in _term(bare.rstrip("*"), is_prefix=bare.endswith("*")):
        if is_excluded:
            yield "NOT"
        yield term


def _term(text: str, *, is_prefix: bool) -> Iterator[Term]:
    categories = map(unicodedata.category, segment_query(text))
    if any(category[0] in "LN" or category == "Co" for category in categories):  # FTS5 indexes private use areas
        yield _made(text, is_prefix=is_prefix)


def _made(text: str, *, is_prefix: bool = False) -> Term:
    return Term(text, is_prefix or ends_in_half_a_pair(text))


def _limited(items: Iterator[str | Term]) -> deque[str | Term]:
    kept: deque[str | Term] = deque()
    terms = 0
    for item in items:
        terms += isinstance(item, Term)
        if terms > MAX_TERMS:
            break
        kept.append(item)
    return kept


# The grammar. Items that do not fit are skipped.
# any = all { OR all } ;  all = { [NOT] (term | "(" any ")") | AND }


def _any(items: deque[str | Term], wanted: list[Term], depth: int = 0) -> Expression | None:
    """Parse the start of `items` and remove it. Add the terms that are not excluded to `wanted`."""
    parts = [_all(items, wanted, depth)]
    while items and items[0] == "OR":
        items.popleft()
        parts.append(_all(items, wanted, depth))
    return _joined(AnyOf, [part for part in parts if part is not None])


def _all(items: deque[str | Term], wanted: list[Term], depth: int) -> Expression | None:
    included: list[Expression] = []
    excluded: list[Expression] = []
    is_negated = False
    while items and items[0] != "OR" and not (items[0] == ")" and depth):
        item = items.popleft()
        if item == "NOT":
            is_negated = True
        elif item != "AND" and item != ")":
            part = _operand(item, items, [] if is_negated else wanted, depth)
            if part is not None:
                (excluded if is_negated else included).append(part)
            is_negated = False
    expression = _joined(AllOf, included)
    return reduce(Without, excluded, expression) if expression is not None else None


def _operand(item: str | Term, items: deque[str | Term], wanted: list[Term], depth: int) -> Expression | None:
    if isinstance(item, Term):
        wanted.append(item)
        return item
    if depth >= 20:  # nesting limit; FTS5's own is 256
        return None
    expression = _any(items, wanted, depth + 1)
    if items and items[0] == ")":
        items.popleft()
    return expression


def _joined(junction: type[AllOf] | type[AnyOf], parts: list[Expression]) -> Expression | None:
    return junction(tuple(parts)) if len(parts) > 1 else next(iter(parts), None)
