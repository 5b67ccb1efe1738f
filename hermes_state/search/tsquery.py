"""Search PostgreSQL's index. The newest matches are found in one of two ways.

The index of words (GIN) can only return all matches of a word, so it is used only for rare words. For common words,
messages are searched backward from the newest one. A quick first search shows which way is faster. PostgreSQL's planner
would choose wrongly: it expects an unknown word in every thousandth message, and would read all messages.
"""

from collections.abc import Collection, Sequence
from typing import Any, Unpack, assert_never

from hermes_state.engines.postgres.tsvector import mark, tokens
from hermes_state.search.query import AllOf, AnyOf, Expression, Term, Without
from hermes_state.search.ranking import (
    COUNTED_CHARACTERS,
    RANKED_HITS,
    MatchReader,
    SearchFilter,
    best_of,
    scored,
    weight,
)
from hermes_state.store.segment import REPEATS, fts_row
from hermes_state.store.sql import Connection, scalar

RECENT_ROWS = 500  # number of newest messages that are searched first, in half a millisecond

COUNTED_HITS = 300
"""Number of newest matches that are ranked by the words in their texts. Loading and folding a text takes 20 µs."""


# Purpose: find the newest matches among the newest messages. (IS TRUE avoids the index.)
_RECENT = """
SELECT message_id FROM message_words
WHERE (words @@ CAST(? AS tsquery)) IS TRUE AND message_id < ? AND message_id > ? ORDER BY message_id DESC LIMIT ?"""
# Purpose: load the texts, lengths and times of a query's matches.
_WITH_TEXTS = f"""
SELECT m.id, left(m.text, {COUNTED_CHARACTERS}), m.body, coalesce(length(m.text), 0) + coalesce(length(m.body), 0),
  m.created_at FROM ({{}}) AS found JOIN messages m ON m.id = found.message_id"""
# Purpose: find the words of a list that occur in the given messages.
_KNOWN = """
SELECT DISTINCT lexeme FROM (SELECT words FROM message_words WHERE message_id = ANY(CAST(? AS bigint[]))) AS hit,
  unnest(words) WHERE lexeme = ANY(CAST(? AS text[]))"""


def query_text(expression: Expression) -> str | None:
    """Translate the expression into a `tsquery`. Return None if no row can match.

    >>> query_text(Without(Term("red", is_prefix=True), Term("blue house", is_prefix=False)))
    "(('red':*) & !('blue'<->'house'))"
    """
    match expression:
        case Term(text, is_prefix):
            words = [f"'{word}'" for word in tokens(text, is_query=True)]
            return f"({'<->'.join(words)}{':*' * is_prefix})" if words else None
        case AllOf(parts):
            texts = [query_text(part) for part in parts]
            return None if None in texts else f"({' & '.join(filter(None, texts))})"
        case AnyOf(parts):
            return f"({' | '.join(texts)})" if (texts := [*filter(None, map(query_text, parts))]) else None
        case Without(wanted, excluded):
            kept, left_out = query_text(wanted), query_text(excluded)
            return kept if kept is None or left_out is None else f"({kept} & !{left_out})"
        case _:
            assert_never(expression)


def _any(scopes: Sequence[str]) -> str:
    return " | ".join(f"'{mark(scope)}'" for scope in scopes)


class TsMatches(MatchReader):
    def __init__(self, db: Connection, **filters: Unpack[SearchFilter]) -> None:
        super().__init__(db, **filters)
        # An id above all possible matches. Because the statement has a parameter, it can share a round trip.
        query = "SELECT least(CAST(? AS bigint), coalesce(max(message_id), 0) + 1) FROM message_words"
        self._top = scalar(db, int, query, (self.before,))
        left_out = [REPEATS] * self.leaves_out_repeats + self.none_of
        scopes = [f"!({_any(left_out)})"] if left_out else []
        scopes += [f"'{mark(scope)}'" for scope in self.scopes] + ([f"({_any(self.any_of)})"] if self.any_of else [])
        self._scope = "".join(f" & {scope}" for scope in scopes)

    def count(self, expression: Expression, limit: int) -> int:
        ids = [row_id for row_id, _ in self.newest(expression, limit)]
        query = "SELECT count(*) FROM messages WHERE id = ANY(CAST(? AS bigint[])) AND created_at >= ?"
        return len(ids) if self.since is None else scalar(self.db, int, query, (_array(ids), self.since))

    def newest(self, expression: Expression, limit: int) -> list[tuple[int, float]]:
        return [(row_id, 0.0) for (row_id,) in self._newest(expression, limit)]

    def _newest(self, expression: Expression, limit: int, shape: str = "{}") -> list[tuple[Any, ...]]:
        """Load the newest matches with the statement `shape`, in which `{}` is replaced with a query for ids.

        Searches backward from the newest message, unless loading all matches from the index is probably faster.
        """
        if (query := query_text(expression)) is None:
            return []
        query, span = query + self._scope, RECENT_ROWS
        while True:
            rows = self._recent(query, span, limit, shape)
            if len(rows) == limit or span >= self._top:
                return rows
            needed = 2 * limit * span // max(1, len(rows))
            # Loading a match from the index takes ten times as long as searching a message.
            if needed > 10 * self._top * len(rows) / span:
                return self._looked_up(query, limit, shape)
            span = needed

    def _recent(self, query: str, span: int, limit: int, shape: str = "{}") -> list[tuple[Any, ...]]:
        bounds = (self._top, self._top - span - 1, limit)
        return self.db.execute(shape.format(_RECENT), (query, *bounds)).fetchall()

    def _looked_up(self, query: str, limit: int, shape: str = "{}") -> list[tuple[Any, ...]]:
        # Find all matches with the index, then keep the newest. (MATERIALIZED makes sure that the limit comes last.)
        statement = """WITH hit AS MATERIALIZED (SELECT message_id FROM message_words WHERE words @@ CAST(? AS tsquery))
        SELECT message_id FROM hit WHERE message_id < ? ORDER BY message_id DESC LIMIT ?"""
        return self.db.execute(shape.format(statement), (query, self._top, limit)).fetchall()

    def best(self, expression: Expression, terms: Sequence[Term], limit: int) -> list[tuple[int, float]]:
        found = self._newest(expression, COUNTED_HITS, _WITH_TEXTS)
        rows = [columns for *columns, created_at in found if created_at >= (self.since or 0)]
        average = max(1.0, sum(characters for *_, characters in rows) / max(1, len(rows)))
        sized = ((row_id, fts_row(text, body), size, size / average) for row_id, text, body, size in rows)
        return best_of(scored(sized, {term: self._weight(term) if len(terms) > 1 else 1.0 for term in terms}), limit)

    def _weight(self, term: Term) -> float:
        query = query_text(term)
        return weight(len(self._recent(query, RECENT_ROWS, RECENT_ROWS)) if query is not None else 0, RECENT_ROWS)

    def known_words(self, words: Collection[str], head: str) -> list[str]:
        any_of = "|".join(f"'{word}'" for word in words)
        ids = [row_id for (row_id,) in self._looked_up(f"({any_of}){self._scope}", RANKED_HITS)]
        known = self.db.execute(_KNOWN, (_array(ids), list(words))).fetchall()
        return sorted((word for (word,) in known), key=lambda word: (not word.startswith(head), word))


def _array(ids: Sequence[int]) -> str:
    """Format ids as a PostgreSQL array. The driver would take 3 ms to format a thousand ids."""
    return "{" + ",".join(map(str, ids)) + "}"
