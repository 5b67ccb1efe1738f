"""Query parser: what a person typed, as an expression that FTS5 always understands.

FTS5 rejects ordinary text (`what?`, `a/b`, `don't`, a lone `AND`), so nothing of the text reaches it unquoted. Kept are
`"a phrase"`, `prefix*`, `-without`, parentheses, and `AND`, `OR`, `NOT` in capitals; what makes no sense is dropped.
"""

import re
import unicodedata
from collections import deque
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
class Query:
    """A parsed query, or one term of it: the FTS5 expression, and what a match contains (to show where it matched)."""

    expression: str
    wanted: tuple[str, ...]


def parse_query(text: str) -> Query | None:
    """The query that `text` stands for; None if nothing in it can be looked for. Never raises.

    Words side by side must all occur. A query of nothing but exclusions (`-this`) is None: it would match all the rest.
    """
    # Half an emoji and NUL cannot reach SQLite.
    clean = text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8").replace("\0", " ")
    wanted: list[str] = []
    expression = _any(_limited(_items(clean)), wanted)
    return None if expression is None else Query(expression, tuple(wanted))


def _items(text: str) -> Iterator[str | Query]:
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


def _word(word: str) -> Iterator[str | Query]:
    is_excluded = word.startswith("-") and len(word) > 1
    bare = word.removeprefix("-") if is_excluded else word
    for term in _term(bare.rstrip("*"), is_prefix=bare.endswith("*")):
        if is_excluded:
            yield "NOT"
        yield term


def _term(text: str, *, is_prefix: bool) -> Iterator[Query]:
    if _has_token(text):
        expression = phrase(text)
        star = "*" if is_prefix and not expression.endswith("*") else ""
        yield Query(expression + star, (text,))


def _has_token(text: str) -> bool:
    """True when the tokenizer finds anything in `text`: letters, numbers, private use characters."""
    categories = map(unicodedata.category, segment_query(text))
    return any(category[0] in "LN" or category == "Co" for category in categories)


def _limited(items: Iterator[str | Query]) -> deque[str | Query]:
    kept: deque[str | Query] = deque()
    terms = 0
    for item in items:
        terms += isinstance(item, Query)
        if terms > MAX_TERMS:
            break
        kept.append(item)
    return kept


# The grammar; whatever does not fit is skipped:
# any = all { OR all } ;  all = { [NOT] (term | "(" any ")") | AND }


def _any(items: deque[str | Query], wanted: list[str], depth: int = 0) -> str | None:
    """Expression of what stands in front of `items`, which is taken away; `wanted` gets the terms of a match."""
    parts = [_all(items, wanted, depth)]
    while items and items[0] == "OR":
        items.popleft()
        parts.append(_all(items, wanted, depth))
    return _joined(" OR ", [part for part in parts if part])


def _all(items: deque[str | Query], wanted: list[str], depth: int) -> str | None:
    included: list[str] = []
    excluded: list[str] = []
    is_negated = False
    while items and items[0] != "OR" and not (items[0] == ")" and depth):
        item = items.popleft()
        if item == "NOT":
            is_negated = True
        elif item != "AND" and item != ")":
            if part := _operand(item, items, [] if is_negated else wanted, depth):
                (excluded if is_negated else included).append(part)
            is_negated = False
    expression = _joined(" AND ", included)
    for part in excluded if expression else ():
        expression = f"({expression} NOT {part})"
    return expression


def _operand(item: str | Query, items: deque[str | Query], wanted: list[str], depth: int) -> str | None:
    if isinstance(item, Query):
        wanted.extend(item.wanted)
        return item.expression
    if depth >= MAX_DEPTH:
        return None
    expression = _any(items, wanted, depth + 1)
    if items and items[0] == ")":
        items.popleft()
    return expression


def _joined(operator: str, parts: list[str]) -> str | None:
    return f"({operator.join(parts)})" if len(parts) > 1 else next(iter(parts), None)
