"""Matches of an expression, counted, newest first, or ranked by bm25 at a price that does not grow with the index.

SQLite's own `bm25` counts the matches of every term and scope in the whole index, to learn how much each of them
weighs. Where one of them is common, that is estimated from some matches, and the terms are counted in the texts.
"""

import heapq
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TypedDict, Unpack

from hermes_state.search.fts5 import match_text
from hermes_state.search.index import load_totals, serving_index, sizes_of
from hermes_state.search.query import Expression, Term, fold
from hermes_state.store.searched import REPEATS
from hermes_state.store.sql import Connection, scalar, scalar_or_none
from hermes_state.values import ChatId, LineageId, MessageRole, Millis, TurnId

RANKED_HITS = 1_000
"""Newest matches that are ranked: ranking every match of a common word takes a second per million rows."""

COMMON_ROWS = 200_000
"""Matches in the whole index that SQLite may count, in about 8 ms; more of a term, and it is common."""

COUNTED_HITS, COUNTED_CHARACTERS, COUNTED_TERMS = 200, 4_000, 8
"""Where something is common: newest matches of a single word in one scope that are ranked (they lie apart: a thousand
take three times as long), beginnings of texts in which terms are counted (the rest is taken to be like them), and
terms, the rarest."""

SAMPLED_HITS, SAMPLED_PLACES = 100, 4
"""Matches from which the number of all is estimated, and places from which they are taken for a weight."""

_K1, _B, _LEAST_WEIGHT = 1.2, 0.75, 1e-6  # as in SQLite

# Purpose: the best of the newest matches. (`rowid IN (SELECT ...)` would rank every match, once per row.)
_RANKED = """
WITH hit AS MATERIALIZED (
  SELECT rowid AS id, bm25({0}, 1.0, 0.0) AS rank FROM {0} WHERE {0} MATCH :match AND rowid < :before
  ORDER BY rowid DESC LIMIT :ranked)
SELECT id, coalesce(-rank, 0.0) FROM hit
WHERE :since IS NULL OR (SELECT created_at FROM messages WHERE id = hit.id) >= :since
ORDER BY rank, id DESC LIMIT :limit
"""
# Purpose: the newest matches with what bm25 needs of each.
_COUNTED = """
WITH hit AS MATERIALIZED (
  SELECT rowid AS id FROM {0} WHERE {0} MATCH :match AND rowid < :before ORDER BY rowid DESC LIMIT :ranked)
SELECT m.id, CASE WHEN m.body IS NULL THEN coalesce(m.text, '') ELSE fts_row(m.text, m.body) END,
  CAST(coalesce(d.sz, '') AS BLOB)
FROM hit JOIN messages m ON m.id = hit.id JOIN {0}_docsize d ON d.id = hit.id
WHERE :since IS NULL OR m.created_at >= :since
"""
# Purpose: how close together the newest matches up to a message are.
_SAMPLE = f"""
SELECT count(*), min(id), max(id) FROM (
  SELECT rowid AS id FROM {{0}} WHERE {{0}} MATCH ? AND rowid <= ? ORDER BY rowid DESC LIMIT {SAMPLED_HITS})
"""


# Purpose: the newest matches.
_NEWEST = "SELECT rowid AS id, 0.0 FROM {0} WHERE {0} MATCH :match AND rowid < :before ORDER BY rowid DESC LIMIT :limit"
# Purpose: their number. (Ids grow with time: a limit may come before `since`.)
_COUNT = f"""SELECT count(*) FROM ({_NEWEST}) hit
WHERE :since IS NULL OR (SELECT created_at FROM messages WHERE id = hit.id) >= :since"""


class SearchFilter(TypedDict, total=False):
    """Bounds of a search. A turn that searches finds nothing of itself, nor results of earlier searches."""

    chat_id: ChatId | None
    lineage_id: LineageId | None
    role: MessageRole | None
    since: Millis | None
    turn_id: TurnId | None


class MatchReader:
    """Matches in the index that serves, within the bounds of a search."""

    def __init__(self, db: Connection, **filters: Unpack[SearchFilter]) -> None:
        self.db = db
        self.index = serving_index(db)
        marks = {"c": filters.get("chat_id"), "l": filters.get("lineage_id"), "r": filters.get("role")}
        self._scopes = [f'scope:"{mark}{value}"' for mark, value in marks.items() if value is not None]
        turn_id = filters.get("turn_id")
        self._excluded = "" if turn_id is None else f' NOT scope:"{REPEATS}"'
        before = scalar_or_none(db, int, "SELECT min(id) FROM messages WHERE turn_id = ?", (turn_id,))
        self.bounds = {"before": before or 2**62, "since": filters.get("since")}
        self._newest = scalar(db, int, "SELECT coalesce(max(id), 0) FROM messages")
        self._rows_with = cache(self._estimate)

    def count(self, expression: Expression, limit: int) -> int:
        """Number of matches, at most `limit`."""
        return scalar(self.db, int, _COUNT.format(self.index), self._parameters(expression, limit))

    def newest(self, expression: Expression, limit: int) -> list[tuple[int, float]]:
        """Ids of the newest matches; of those before `since`, too."""
        return self.db.execute(_NEWEST.format(self.index), self._parameters(expression, limit)).fetchall()

    def _parameters(self, expression: Expression, limit: int) -> dict[str, int | str | None]:
        match = " AND ".join([f"text:({match_text(expression)}){self._excluded}", *self._scopes])
        return {"match": match, "limit": limit, **self.bounds}

    def best(self, expression: Expression, terms: Sequence[Term], limit: int) -> list[tuple[int, float]]:
        """Ids and scores of the best of the newest matches; `expression` asks for `terms`."""
        asks_for_common = sum(map(self._frequency, terms)) > COMMON_ROWS
        is_one_word = len(terms) == 1 and len(terms[0].words) == 1
        ranked = COUNTED_HITS if is_one_word and asks_for_common and self._scopes else RANKED_HITS
        parameters = {"ranked": ranked, **self._parameters(expression, limit)}
        if not asks_for_common and sum(map(self._rows_with, self._scopes)) <= COMMON_ROWS:
            return self.db.execute(_RANKED.format(self.index), parameters).fetchall()
        rows = self.db.execute(_COUNTED.format(self.index), parameters)
        return heapq.nlargest(limit, self._scored(rows, terms), key=lambda hit: (hit[1], hit[0]))

    def _scored(self, rows: Iterable[tuple[int, str, bytes]], terms: Sequence[Term]) -> Iterator[tuple[int, float]]:
        count, *words = load_totals(self.db, self.index)
        average = max(1.0, sum(words) / max(1, count))
        known = [(self._weight(term, count) if len(terms) > 1 else 1.0, term.pattern() or "(?!)") for term in terms]
        counted = [(weight, re.compile(pattern).findall) for weight, pattern in heapq.nlargest(COUNTED_TERMS, known)]
        norms: dict[bytes, float] = {}  # most rows are about as long as others
        for row_id, text, sizes in rows:
            if (norm := norms.get(sizes)) is None:
                norm = norms[sizes] = _K1 * (1 - _B + _B * sum(sizes_of(sizes)) / average)
            folded, share = fold(text[:COUNTED_CHARACTERS]), max(1.0, len(text) / COUNTED_CHARACTERS)
            score = 0.0
            for weight, find in counted:
                found = len(find(folded)) * share
                score += weight * found * (_K1 + 1) / (found + norm)
            yield row_id, score

    def _weight(self, term: Term, count: int) -> float:
        frequency = min(count, self._frequency(term, SAMPLED_PLACES))
        return max(_LEAST_WEIGHT, math.log((count - frequency + 0.5) / (frequency + 0.5)))

    def _frequency(self, term: Term, places: int = 1) -> float:
        """Number of messages with the rarest word of a term: SQLite looks at all of them to count it."""
        least = float(self._newest)
        for word in term.words or [term]:
            least = min(least, self._rows_with(f"text:{match_text(word)}", places))
            if places == 1 and least <= COMMON_ROWS:
                break  # it is not common, however rare it may be
        return least

    def _estimate(self, match: str, places: int = 1) -> float:
        """Number of messages that match, counted if they are few; nothing in an index where nothing is common."""
        if self._newest <= COMMON_ROWS:
            return 0
        sampled: list[float] = []
        for place in range(places, 0, -1):
            top = self._newest * place // places
            rows, oldest, newest = self.db.execute(_SAMPLE.format(self.index), (match, top)).fetchone()
            if rows < SAMPLED_HITS and place == places:
                return float(rows)
            if rows == SAMPLED_HITS:
                rows *= newest / (newest - oldest + 1)  # as if all of them were as close together
            sampled.append(rows * self._newest / top)
        return sum(sampled) / places
