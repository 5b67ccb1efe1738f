"""Search PostgreSQL's index. The newest matches are found in one of two ways.

The index of words (GIN) can only return all matches of a word, so it is used only for rare words. For common words,
messages are searched backward from the newest one. A quick first search shows which way is faster. PostgreSQL's planner
would choose wrongly: it expects an unknown word in every thousandth message, and would read all messages.
"""

from collections.abc import Collection, Sequence
from typing import Unpack, assert_never

from hermes_state.engines.postgres.tsvector import mark, tokens
from hermes_state.search.query import AllOf, AnyOf, Expression, Term, Without
from hermes_state.search.ranking import AGENT_OF, RANKED_HITS, SAID_BY_PEOPLE, MatchReader, SearchFilter
from hermes_state.store.segment import REPEATS
from hermes_state.store.sql import Connection, scalar, scalars

RECENT_ROWS = 500  # number of newest messages that are searched first, in half a millisecond

# Purpose: find the newest matches among the newest messages. (IS TRUE avoids the index.)
_RECENT = """
SELECT message_id FROM message_words
WHERE (words @@ CAST(? AS tsquery)) IS TRUE AND message_id < ? AND message_id > ? {} ORDER BY message_id DESC LIMIT ?"""
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
        self._by_agent = f"AND {AGENT_OF.format('message_id')} = ?" if self.agent is not None else ""
        self._agent = () if self.agent is None else (self.agent,)
        self._scope = "".join(f" & {scope}" for scope in scopes)

    def newest(self, expression: Expression | None, limit: int) -> list[int]:
        """Return the ids of the newest matches.

        Searches backward from the newest message, unless loading all matches from the index is probably faster.
        """
        words = query_text(expression) if expression is not None else f"'{mark(SAID_BY_PEOPLE)}'"
        if words is None:
            return []
        query, span = words + self._scope, RECENT_ROWS
        while True:
            ids = self._recent(query, span, limit)
            if len(ids) == limit or span >= self._top:
                return ids
            needed = 2 * limit * span // max(1, len(ids))
            # Loading a match from the index takes ten times as long as searching a message.
            if needed > 10 * self._top * len(ids) / span:
                return self._looked_up(query, limit)
            span = needed

    def _recent(self, query: str, span: int, limit: int) -> list[int]:
        values = (query, self._top, self._top - span - 1, *self._agent, limit)
        return scalars(self.db, int, _RECENT.format(self._by_agent), values)

    def _looked_up(self, query: str, limit: int) -> list[int]:
        # Find all matches with the index, then keep the newest. (MATERIALIZED makes sure that the limit comes last.)
        statement = f"""WITH hit AS MATERIALIZED
          (SELECT message_id FROM message_words WHERE words @@ CAST(? AS tsquery))
        SELECT message_id FROM hit WHERE message_id < ? {self._by_agent} ORDER BY message_id DESC LIMIT ?"""
        return scalars(self.db, int, statement, (query, self._top, *self._agent, limit))

    def known_words(self, words: Collection[str], head: str) -> list[str]:
        any_of = "|".join(f"'{word}'" for word in words)
        ids = self._looked_up(f"({any_of}){self._scope}", RANKED_HITS)
        known = self.db.execute(_KNOWN, (_array(ids), list(words))).fetchall()
        return sorted((word for (word,) in known), key=lambda word: (not word.startswith(head), word))


def _array(ids: Sequence[int]) -> str:
    """Format ids as a PostgreSQL array. The driver would take 3 ms to format a thousand ids."""
    return "{" + ",".join(map(str, ids)) + "}"
