"""Search SQLite's index, and rank matches by BM25 in a time that does not grow with the index.

FTS5 rejects ordinary text (`what?`, `a/b`, `don't`, a lone `AND`), so every word is quoted. FTS5's own `bm25` function
counts all matches of every term and scope. For common terms, this module estimates that number from samples instead,
and counts the terms in the texts of the newest matches.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Unpack, assert_never

from hermes_state.engines.sqlite.index import SERVING
from hermes_state.search.index import load_totals, serving_index, sizes_of
from hermes_state.search.query import AllOf, AnyOf, Expression, Term, Without
from hermes_state.search.ranking import RANKED_HITS, MatchReader, SearchFilter, best_of, scored, weight
from hermes_state.store.segment import REPEATS, phrase
from hermes_state.store.sql import Connection, scalar, scalars

COMMON_ROWS = 200_000
"""Maximum number of matches that SQLite counts, in about 8 ms. A term with more matches is common."""

COUNTED_HITS = 200
"""Number of matches that are ranked for a common word in one scope. Ranking a thousand takes three times as long."""

SAMPLED_HITS, SAMPLED_PLACES = 100, 4
"""Number of matches in each sample, and number of samples to take when a common term's weight is estimated."""

# Purpose: load the best of the newest matches. (`rowid IN (SELECT ...)` would rank every match, once per row.)
_RANKED = """
WITH hit AS MATERIALIZED (
  SELECT rowid AS id, bm25({0}, 1.0, 0.0) AS rank FROM {0} WHERE {0} MATCH :match AND rowid < :before
  ORDER BY rowid DESC LIMIT :ranked)
SELECT id, coalesce(-rank, 0.0) FROM hit
WHERE :since IS NULL OR (SELECT created_at FROM messages WHERE id = hit.id) >= :since
ORDER BY rank, id DESC LIMIT :limit
"""
# Purpose: load the newest matches with the texts and sizes that bm25 needs.
_COUNTED = """
WITH hit AS MATERIALIZED (
  SELECT rowid AS id FROM {0} WHERE {0} MATCH :match AND rowid < :before ORDER BY rowid DESC LIMIT :ranked)
SELECT m.id, CASE WHEN m.body IS NULL THEN coalesce(m.text, '') ELSE fts_row(m.text, m.body) END,
  CAST(coalesce(d.sz, '') AS BLOB)
FROM hit JOIN messages m ON m.id = hit.id JOIN {0}_docsize d ON d.id = hit.id
WHERE :since IS NULL OR m.created_at >= :since
"""
# Purpose: measure the density of the newest matches up to a message.
_SAMPLE = f"""
SELECT count(*), min(id), max(id) FROM (
  SELECT rowid AS id FROM {{0}} WHERE {{0}} MATCH ? AND rowid <= ? ORDER BY rowid DESC LIMIT {SAMPLED_HITS})
"""
# Purpose: load the newest matches.
_NEWEST = "SELECT rowid AS id, 0.0 FROM {0} WHERE {0} MATCH :match AND rowid < :before ORDER BY rowid DESC LIMIT :limit"
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
        self._newest = scalar(db, int, "SELECT coalesce(max(id), 0) FROM messages")
        self._rows_with = cache(self._estimate)

    def count(self, expression: Expression, limit: int) -> int:
        return scalar(self.db, int, _COUNT.format(self._index), self._parameters(expression, limit))

    def newest(self, expression: Expression, limit: int) -> list[tuple[int, float]]:
        return self.db.execute(_NEWEST.format(self._index), self._parameters(expression, limit)).fetchall()

    def _parameters(self, expression: Expression, limit: int) -> dict[str, int | str | None]:
        excluded = f" NOT scope:({_any(self._excluded)})" if self._excluded else ""
        match = " AND ".join([f"text:({match_text(expression)}){excluded}", *self._scopes])
        return {"match": match, "limit": limit, "before": self.before, "since": self.since}

    def best(self, expression: Expression, terms: Sequence[Term], limit: int) -> list[tuple[int, float]]:
        asks_for_common = sum(map(self._frequency, terms)) > COMMON_ROWS
        is_one_word = len(terms) == 1 and len(terms[0].words) == 1
        ranked = COUNTED_HITS if is_one_word and asks_for_common and self._scopes else RANKED_HITS
        parameters = {"ranked": ranked, **self._parameters(expression, limit)}
        # SQLite's bm25 would also count the messages of each chat that is left out
        if not (asks_for_common or self.none_of) and sum(map(self._rows_with, self._scopes)) <= COMMON_ROWS:
            return self.db.execute(_RANKED.format(self._index), parameters).fetchall()
        rows = self.db.execute(_COUNTED.format(self._index), parameters)
        return best_of(self._scored(rows, terms), limit)

    def _scored(self, rows: Iterable[tuple[int, str, bytes]], terms: Sequence[Term]) -> Iterator[tuple[int, float]]:
        count, *words = load_totals(self.db, self._index)
        average = max(1.0, sum(words) / max(1, count))
        length = cache(lambda sizes: sum(sizes_of(sizes)) / average)  # cached, because many rows have the same length
        sized = ((row_id, text, len(text), length(sizes)) for row_id, text, sizes in rows)
        is_lone = len(terms) == 1
        weights = {term: 1.0 if is_lone else weight(self._frequency(term, SAMPLED_PLACES), count) for term in terms}
        return scored(sized, weights)

    def known_words(self, words: Collection[str], head: str) -> list[str]:
        if self._index != SERVING:  # only the complete index has a table of its words
            return []
        others = json.dumps(sorted(word for word in words if not word.startswith(head)))
        known = scalars(self.db, str, _KNOWN, {"head": head, "others": others})
        return [word for word in known if word in words]

    def _frequency(self, term: Term, places: int = 1) -> float:
        """Estimate the number of messages with the rarest word of a term. Counting exactly would read all of them."""
        least = float(self._newest)
        for word in term.words or [term]:
            least = min(least, self._rows_with(f"text:{match_text(word)}", places))
            if places == 1 and least <= COMMON_ROWS:
                break  # the term is not common, so a rough estimate is enough
        return least

    def _estimate(self, match: str, places: int = 1) -> float:
        """Estimate the number of matching messages. Small numbers are exact. Return 0 for a small index."""
        if self._newest <= COMMON_ROWS:
            return 0
        sampled: list[float] = []
        for place in range(places, 0, -1):
            top = self._newest * place // places
            rows, oldest, newest = self.db.execute(_SAMPLE.format(self._index), (match, top)).fetchone()
            if rows < SAMPLED_HITS and place == places:
                return float(rows)
            if rows == SAMPLED_HITS:
                rows *= newest / (newest - oldest + 1)  # assume that older messages match as often
            sampled.append(rows * self._newest / top)
        return sum(sampled) / places
