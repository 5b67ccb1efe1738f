"""Search SQLite's index.

FTS5 rejects ordinary text (`what?`, `a/b`, `don't`, a lone `AND`), so every word is quoted.
"""

import json
from collections.abc import Collection, Sequence
from typing import Unpack, assert_never

from hermes_state.engines.sqlite.index import SERVING
from hermes_state.search.index import serving_index
from hermes_state.search.query import AllOf, AnyOf, Expression, Term, Without
from hermes_state.search.ranking import AGENT_OF, SAID_BY_PEOPLE, MatchReader, SearchFilter
from hermes_state.store.segment import REPEATS, phrase
from hermes_state.store.sql import Connection, scalar, scalars

# Purpose: load the newest matches.
_NEWEST = f"""SELECT rowid AS id FROM {{0}} WHERE {{0}} MATCH :match AND rowid < :before
  AND (:agent IS NULL OR {AGENT_OF.format("{0}.rowid")} = :agent) ORDER BY rowid DESC LIMIT :limit"""
# Purpose: count the newest matches. (Ids grow with time, so the limit can be applied before `since`.)
_COUNT = f"""SELECT count(*) FROM ({_NEWEST}) hit
WHERE :since IS NULL OR (SELECT created_at FROM messages WHERE id = hit.id) >= :since"""
# Purpose: find indexed words. All words that start with `head` need a single scan; each other word needs a look-up.
_KNOWN = """SELECT term FROM messages_terms WHERE term >= :head AND term < :head || char(0x10ffff)
UNION ALL SELECT value FROM json_each(:others) WHERE EXISTS (SELECT 1 FROM messages_terms WHERE term = value)"""


def match_text(expression: Expression) -> str:
    """Return the expression in the query syntax of FTS5.

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


def _any(scopes: Sequence[str]) -> str:
    return " OR ".join(f'"{scope}"' for scope in scopes)


class Fts5Matches(MatchReader):
    def __init__(self, db: Connection, **filters: Unpack[SearchFilter]) -> None:
        super().__init__(db, **filters)
        self._index = serving_index(db)
        self._scopes = [f'scope:"{scope}"' for scope in self.scopes]
        self._scopes += [f"scope:({_any(self.any_of)})"] if self.any_of else []
        self._excluded = [REPEATS] * self.leaves_out_repeats + self.none_of

    def count(self, expression: Expression, limit: int) -> int:
        return scalar(self.db, int, _COUNT.format(self._index), self._parameters(expression, limit))

    def newest(self, expression: Expression | None, limit: int) -> list[int]:
        return scalars(self.db, int, _NEWEST.format(self._index), self._parameters(expression, limit))

    def _parameters(self, expression: Expression | None, limit: int) -> dict[str, int | str | None]:
        wanted = f"text:({match_text(expression)})" if expression is not None else f'scope:"{SAID_BY_PEOPLE}"'
        excluded = f" NOT scope:({_any(self._excluded)})" if self._excluded else ""
        match = " AND ".join([f"({wanted}{excluded})", *self._scopes])
        return {"match": match, "limit": limit, "before": self.before, "since": self.since, "agent": self.agent}

    def known_words(self, words: Collection[str], head: str) -> list[str]:
        if self._index != SERVING:  # only the complete index has a table of its words
            return []
        others = json.dumps(sorted(word for word in words if not word.startswith(head)))
        known = scalars(self.db, str, _KNOWN, {"head": head, "others": others})
        return [word for word in known if word in words]
