"""Writer of FTS5's query language: the MATCH text of a query's tree.

FTS5 rejects ordinary text (`what?`, `a/b`, `don't`, a lone `AND`), so no word reaches it unquoted.
"""

from typing import assert_never

from hermes_state.search.query import AllOf, AnyOf, Expression, Term, Without
from hermes_state.store.segment import phrase


def match_text(expression: Expression) -> str:
    """The expression as FTS5 understands it.

    >>> match_text(Without(Term("red", is_prefix=True), Term("blue house", is_prefix=False)))
    '("red"* NOT "blue house")'
    """
    match expression:
        case Term(text, is_prefix):
            return phrase(text) + "*" * is_prefix
        case AllOf(parts):
            return f"({' AND '.join(map(match_text, parts))})"
        case AnyOf(parts):
            return f"({' OR '.join(map(match_text, parts))})"
        case Without(wanted, excluded):
            return f"({match_text(wanted)} NOT {match_text(excluded)})"
        case _:
            assert_never(expression)
