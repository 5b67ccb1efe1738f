"""Query parser: what a person typed, as an expression that FTS5 always understands.

FTS5 rejects ordinary text (`what?`, `a/b`, `don't`, a lone `AND`), so nothing of the text reaches it unquoted. Kept are
`"a phrase"`, `prefix*`, `-without`, parentheses, and `AND`, `OR`, `NOT` in capitals; what makes no sense is dropped.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from hermes_state.store.segment import phrase, segment_query

MAX_CHARACTERS = 2_000
"""Characters of a query that count: a pasted word of a megabyte keeps the index busy for seconds, without a stop."""

MAX_TERMS = 32
"""Words of a query that count: a pasted page is not a query."""

MAX_DEPTH = 20
"""Depth of parentheses that counts; FTS5's own parser gives up at 256."""

_PIECE = re.compile(r'"(?P<phrase>[^"]*)"?(?P<phrase_star>\*)?|(?P<bracket>[()])|(?P<word>[^\s"()]+)')
_OPERATORS = frozenset({"AND", "OR", "NOT"})


@dataclass(frozen=True, slots=True)
class Term:
    """A word or phrase as it was typed, and the FTS5 phrase that finds it."""

    text: str
    expression: str


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query: the FTS5 expression, and the terms a match contains (for showing where it matched)."""

    expression: str
    wanted: tuple[str, ...]


def parse_query(text: str) -> Query | None:
    """The query that `text` stands for; None if nothing in it can be looked for. Never raises.

    Words side by side must all occur. A query of nothing but exclusions (`-this`) is None: it would match all the rest.
    """
    # Half an emoji and NUL cannot reach SQLite.
    clean = text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8").replace("\0", " ")
    parser = _Parser(_limited(_items(clean)))
    expression = parser.parse_any(depth=0)
    return None if expression is None else Query(expression, tuple(parser.wanted))


def _items(text: str) -> Iterator[str | Term]:
    """Operators and brackets as they are, everything else that holds a token as a term."""
    for match in _PIECE.finditer(text):
        if match["bracket"]:
            yield match["bracket"]
        elif match["word"] is None:
            yield from _term(match["phrase"], is_prefix=bool(match["phrase_star"]))
        elif match["word"] in _OPERATORS:
            yield match["word"]
        else:
            yield from _word(match["word"])


def _word(word: str) -> Iterator[str | Term]:
    is_excluded = word.startswith("-") and len(word) > 1
    bare = word.removeprefix("-") if is_excluded else word
    for term in _term(bare.rstrip("*"), is_prefix=bare.endswith("*")):
        if is_excluded:
            yield "NOT"
        yield term


def _term(text: str, *, is_prefix: bool) -> Iterator[Term]:
    if _has_token(text):
        expression = phrase(text)
        star = "*" if is_prefix and not expression.endswith("*") else ""
        yield Term(text, expression + star)


def _has_token(text: str) -> bool:
    """True when the tokenizer finds anything in `text`: letters, numbers, private use characters."""
    categories = map(unicodedata.category, segment_query(text))
    return any(category[0] in "LN" or category == "Co" for category in categories)


def _limited(items: Iterator[str | Term]) -> list[str | Term]:
    kept: list[str | Term] = []
    terms = 0
    for item in items:
        terms += isinstance(item, Term)
        if terms > MAX_TERMS:
            break
        kept.append(item)
    return kept


class _Parser:
    """Recursive descent that skips whatever does not fit.

    any = all { OR all } ;  all = { [NOT] (term | "(" any ")") | AND }
    """

    def __init__(self, items: list[str | Term]) -> None:
        self._items = items
        self._next = 0
        self.wanted: list[str] = []

    def parse_any(self, depth: int) -> str | None:
        parts = []
        while True:
            if part := self._parse_all(depth):
                parts.append(part)
            if self._peek() != "OR":
                break
            self._next += 1
        if len(parts) < 2:
            return parts[0] if parts else None
        return f"({' OR '.join(parts)})"

    def _parse_all(self, depth: int) -> str | None:
        included: list[str] = []
        excluded: list[str] = []
        is_negated = False
        while (item := self._peek()) is not None and item != "OR" and not (item == ")" and depth):
            self._next += 1
            if item == "NOT":
                is_negated = True
            elif item != "AND" and item != ")":
                if part := self._parse_operand(item, depth, is_wanted=not is_negated):
                    (excluded if is_negated else included).append(part)
                is_negated = False
        if not included:
            return None
        expression = included[0] if len(included) == 1 else f"({' AND '.join(included)})"
        for part in excluded:
            expression = f"({expression} NOT {part})"
        return expression

    def _parse_operand(self, item: str | Term, depth: int, *, is_wanted: bool) -> str | None:
        if isinstance(item, Term):
            if is_wanted:
                self.wanted.append(item.text)
            return item.expression
        if depth >= MAX_DEPTH:
            return None
        before = len(self.wanted)
        expression = self.parse_any(depth + 1)
        if self._peek() == ")":
            self._next += 1
        if not is_wanted:
            del self.wanted[before:]
        return expression

    def _peek(self) -> str | Term | None:
        return self._items[self._next] if self._next < len(self._items) else None
