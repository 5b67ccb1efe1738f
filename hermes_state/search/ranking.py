"""Ranking for both engines: the newest matches get a BM25 score from the words in their texts."""

import heapq
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict, Unpack

from hermes_state.search.query import Expression, Term
from hermes_state.store.segment import folded
from hermes_state.store.sql import Connection, scalar_or_none
from hermes_state.values import ChatId, LineageId, MessageRole, Millis, TurnId

RANKED_HITS = 1_000
"""Number of newest matches that are ranked. Ranking all matches of a common word takes a second per million rows."""

COUNTED_CHARACTERS, COUNTED_TERMS = 4_000, 8
"""Terms are counted in the first `COUNTED_CHARACTERS` of a text. Only the `COUNTED_TERMS` rarest ones are counted."""

_K1, _B, _LEAST_WEIGHT = 1.2, 0.75, 1e-6  # as in SQLite


class SearchFilter(TypedDict, total=False):
    """Filters of a search. `turn_id` excludes messages since that turn began, and the results of earlier searches."""

    chat_id: ChatId | None
    chat_ids: Sequence[ChatId]
    """Chats to search. If it is not given, all chats are searched."""
    other_than: Sequence[ChatId]
    """Chats to leave out."""
    lineage_id: LineageId | None
    role: MessageRole | None
    since: Millis | None
    until: Millis | None
    turn_id: TurnId | None


class MatchReader(ABC):
    """Find matches in an engine's index that pass the filters of a search."""

    def __init__(self, db: Connection, **filters: Unpack[SearchFilter]) -> None:
        self.db = db
        marks = {"c": filters.get("chat_id"), "l": filters.get("lineage_id"), "r": filters.get("role")}
        self.scopes = [f"{mark}{value}" for mark, value in marks.items() if value is not None]
        turn_id = filters.get("turn_id")
        self.leaves_out_repeats = turn_id is not None
        self.any_of = [f"c{chat_id}" for chat_id in filters.get("chat_ids", ())]
        self.none_of = [f"c{chat_id}" for chat_id in filters.get("other_than", ())]
        query = "SELECT min(id) FROM messages WHERE turn_id = ?"
        before = scalar_or_none(db, int, query, (turn_id,)) if turn_id is not None else None
        self.before, self.since = before or 2**62, filters.get("since")
        if (until := filters.get("until")) is not None:
            self.before = min(self.before, _first_since(db, until))

    @abstractmethod
    def count(self, expression: Expression, limit: int) -> int:
        """Count at most `limit` matches."""

    @abstractmethod
    def newest(self, expression: Expression, limit: int) -> list[tuple[int, float]]:
        """Return the ids of the newest matches, each with the score 0. The filter `since` is ignored."""

    @abstractmethod
    def best(self, expression: Expression, terms: Sequence[Term], limit: int) -> list[tuple[int, float]]:
        """Return the ids and scores of the best matches among the newest. `terms` are the terms in `expression`."""

    @abstractmethod
    def known_words(self, words: Collection[str], head: str) -> list[str]:
        """Return the indexed words among `words`. Words that occur only outside the filtered messages may be missing.

        Words that start with `head` are found faster than others.
        """


def _first_since(db: Connection, at: Millis) -> int:
    """Return the id of the first message since `at`. Ids grow with time, so about 20 look-ups are enough."""
    low, high = 0, (scalar_or_none(db, int, "SELECT max(id) FROM messages") or 0) + 1
    while low < high:
        middle = (low + high) // 2
        row = db.execute("SELECT id, created_at FROM messages WHERE id >= ? ORDER BY id LIMIT 1", (middle,)).fetchone()
        if row is None or row[1] >= at:
            high = middle
        else:
            low = row[0] + 1
    return low


def weight(frequency: float, count: float) -> float:
    frequency = min(count, frequency)
    return max(_LEAST_WEIGHT, math.log((count - frequency + 0.5) / (frequency + 0.5)))


def scored(rows: Iterable[tuple[int, str, int, float]], weights: Mapping[Term, float]) -> Iterator[tuple[int, float]]:
    """Yield ids and scores. A row has an id, the start of a text, its character count and its relative length."""
    known = [(weight, term.pattern() or "(?!)") for term, weight in weights.items()]
    counted = [(weight, re.compile(pattern).findall) for weight, pattern in heapq.nlargest(COUNTED_TERMS, known)]
    for row_id, text, characters, length in rows:
        norm = _K1 * (1 - _B + _B * length)
        beginning, share = folded(text[:COUNTED_CHARACTERS]), max(1.0, characters / COUNTED_CHARACTERS)
        score = 0.0
        for weight, find in counted:
            found = len(find(beginning)) * share
            score += weight * found * (_K1 + 1) / (found + norm)
        yield row_id, score


def best_of(hits: Iterable[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    return heapq.nlargest(limit, hits, key=lambda hit: (hit[1], hit[0]))
