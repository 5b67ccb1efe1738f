"""Search SQLite's index, and the newest messages, whose words are not in it yet.

FTS5 rejects ordinary text (`what?`, `a/b`, `don't`, a lone `AND`), so every word is quoted.
"""

import json
import sqlite3
import weakref
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Unpack, assert_never

from hermes_state.engines.postgres.tsvector import tokens
from hermes_state.engines.sqlite.index import SERVING, load_mark, newest_id
from hermes_state.search.index import serving_index
from hermes_state.search.query import AllOf, AnyOf, Expression, Term, Without
from hermes_state.search.ranking import AGENT_OF, SAID_BY_PEOPLE, MatchReader, SearchFilter
from hermes_state.store.segment import REPEATS, phrase
from hermes_state.store.sql import Connection, scalar, scalars

# Purpose: load the newest matches.
_NEWEST = f"""SELECT rowid AS id FROM {{0}} WHERE {{0}} MATCH :match AND rowid < :before
  AND (:agent IS NULL OR {AGENT_OF.format("{0}.rowid")} = :agent) ORDER BY rowid DESC LIMIT :limit"""
_RECENT = f"SELECT rowid FROM {SERVING} WHERE {SERVING} MATCH ? ORDER BY rowid DESC LIMIT ?"
# Purpose: find messages that have no words in the index yet.
_UNINDEXED = f"""SELECT u.id, scope FROM messages_search u WHERE u.id > ? AND u.id < ?
  AND (? IS NULL OR {AGENT_OF.format("u.id")} = ?) ORDER BY u.id"""
_TEXT = "SELECT text FROM messages_search WHERE id = ?"
# Purpose: find indexed words. Unlike FTS5's tables of words, a match ends at the first message with the word.
_KNOWN = """SELECT value FROM json_each(?)
WHERE EXISTS (SELECT 1 FROM {0} WHERE {0} MATCH 'text:"' || value || '"')"""
_LOOK_UP_KIB = 2_048
"""Size of the page cache during hundreds of look-ups. With the connection's own size, they take three times as long."""


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

    def newest(self, expression: Expression | None, limit: int) -> list[int]:
        wanted = f"text:({match_text(expression)})" if expression is not None else f'scope:"{SAID_BY_PEOPLE}"'
        excluded = f" NOT scope:({_any(self._excluded)})" if self._excluded else ""
        match = " AND ".join([f"({wanted}{excluded})", *self._scopes])
        recent = [] if self._recent is None else scalars(self._recent, int, _RECENT, (match, limit))
        values = {"match": match, "limit": limit - len(recent), "before": self.before, "agent": self.agent}
        return [*recent, *scalars(self.db, int, _NEWEST.format(self._index), values)]

    def known_words(self, words: Collection[str], head: str) -> list[str]:
        ordered = json.dumps(sorted(words, key=lambda word: (not word.startswith(head), word)))
        (own,) = self.db.execute("PRAGMA cache_size").fetchone()
        self.db.execute(f"PRAGMA cache_size = -{_LOOK_UP_KIB}")
        try:
            known = {*scalars(self.db, str, _KNOWN.format(self._index), (ordered,))}
        finally:
            self.db.execute(f"PRAGMA cache_size = {own:d}")
        if self._recent is not None:
            known.update(scalars(self._recent, str, _KNOWN.format(SERVING), (ordered,)))
        return [word for word in json.loads(ordered) if word in known and tokens(word) == [word]]

    @cached_property
    def _recent(self) -> Connection | None:
        """Index, in memory, of the messages above the mark that pass the filters. None if there are none."""
        if (mark := load_mark(self.db)) >= newest_id(self.db):
            return None
        unindexed = self.db.execute(_UNINDEXED, (mark, self.before, self.agent, self.agent)).fetchall()
        found = [(row_id, scope) for row_id, scope in unindexed if self._passes({*scope.split()})]
        if not found:
            return None
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, db.close)
        tokenizer = "tokenize='unicode61 remove_diacritics 2'"
        db.execute(f"CREATE VIRTUAL TABLE {SERVING} USING fts5(text, scope, content='', {tokenizer})")
        rows = ((row_id, scalar(self.db, str, _TEXT, (row_id,)), scope) for row_id, scope in found)
        db.executemany(f"INSERT INTO {SERVING}(rowid, text, scope) VALUES (?, ?, ?)", rows)
        return db

    def _passes(self, scopes: set[str]) -> bool:
        wanted = scopes.issuperset(self.scopes) and (not self.any_of or not scopes.isdisjoint(self.any_of))
        return wanted and scopes.isdisjoint(self._excluded)
