"""Ranking for both engines: the newest matches get a BM25 score from the words in their texts."""

import heapq
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias, TypedDict, Unpack

from hermes_state.imports import late_pattern
from hermes_state.search.query import IN_WORD, LETTER, Expression, Term, any_pattern
from hermes_state.store.segment import CJK, folded, fts_row
from hermes_state.store.sql import Connection, scalar, scalar_or_none
from hermes_state.turns import first_message
from hermes_state.values import ChatId, LineageId, MessageRole, Millis, TurnId

RANKED_HITS = 1_000
"""Number of newest matches that are ranked. Ranking all matches of a common word takes a second per million rows."""

COUNTED_CHARACTERS, COUNTED_TERMS = 4_000, 8
"""Terms are counted in the first `COUNTED_CHARACTERS` of a text. Only the `COUNTED_TERMS` rarest ones are counted."""

PASSAGE = 600
"""Characters of a passage. The score of a longer text is the mean of its own score and that of its best passage."""

AGENT_OF = "(SELECT s.agent FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = {})"
"""SQL for the agent of a message. A filter in the index would name each of the agent's conversations."""

SAID_BY_PEOPLE = f"r{MessageRole.USER}"  # scope of the messages of people

_K1, _B = 1.2, 0.5
_pairs = late_pattern(f"[{CJK}]")


class SearchFilter(TypedDict, total=False):
    """Filters of a search. `turn_id` excludes messages since that turn began, and the results of earlier searches."""

    chat_id: ChatId | None
    chat_ids: Sequence[ChatId]
    """Chats to search. If it is not given, all chats are searched."""
    other_than: Sequence[ChatId]
    """Chats to leave out."""
    lineage_id: LineageId | None
    lineage_ids: Sequence[LineageId]
    """Conversations to search. If it is not given, all conversations are searched."""
    agent: str | None
    """Agent whose conversations are searched."""
    role: MessageRole | None
    since: Millis | None
    until: Millis | None
    turn_id: TurnId | None


class Candidate(NamedTuple):
    """A matching message, before it is ranked."""

    id: int
    role: str
    sender_name: str | None
    created_at: int
    text: str | None
    """The first `COUNTED_CHARACTERS` of the text."""
    body: str | None
    characters: int
    """Length of the text and the body."""


class MatchReader(ABC):
    """Find matches in an engine's index that pass the filters of a search."""

    def __init__(self, db: Connection, **filters: Unpack[SearchFilter]) -> None:
        self.db = db
        marks = {"c": filters.get("chat_id"), "l": filters.get("lineage_id"), "r": filters.get("role")}
        self.scopes = [f"{mark}{value}" for mark, value in marks.items() if value is not None]
        names = {"lineage_id": marks["l"], "chat_id": marks["c"]}
        self._within = next(((name, value) for name, value in names.items() if value is not None), None)
        self.has_role = marks["r"] is not None
        turn_id = filters.get("turn_id")
        self.leaves_out_repeats = turn_id is not None
        self.any_of = [f"c{chat_id}" for chat_id in filters.get("chat_ids", ())]
        self.any_of += [f"l{lineage_id}" for lineage_id in filters.get("lineage_ids", ())]
        self.none_of = [f"c{chat_id}" for chat_id in filters.get("other_than", ())]
        self.agent = filters.get("agent")
        before = first_message(db, turn_id) if turn_id is not None else None
        self.before, self.since = before or 2**62, filters.get("since")
        self.after = _first_since(db, self.since) if self.since is not None else 0
        if (until := filters.get("until")) is not None:
            self.before = min(self.before, _first_since(db, until))

    @abstractmethod
    def newest(self, expression: Expression | None, limit: int) -> list[int]:
        """Return the ids of the newest matches, or of the newest messages of people. The filter `since` is ignored."""

    @abstractmethod
    def known_words(self, words: Collection[str], head: str) -> list[str]:
        """Return the indexed words among `words`. Words that occur only outside the filtered messages may be missing.

        Words that start with `head` are found faster than others.
        """

    def best(self, expression: Expression, terms: Sequence[Term], limit: int) -> list[tuple[int, float]]:
        """Return the ids and scores of the best matches among the newest. `terms` are the terms in `expression`."""
        rows = self.load_candidates(self.newest(expression, RANKED_HITS))
        weights: dict[tuple[Term, ...], float] = {(terms[0],): 1.0}
        if len(terms) > 1:
            weights = {(term,): self.weight(self.newest(term, RANKED_HITS)) for term in terms}
        return best_of(((row.id, sum(scores.values())) for row, scores in scored(rows, weights)), limit)

    def load_candidates(self, ids: Sequence[int], *, has_bodies: bool = True) -> list[Candidate]:
        """Load the messages with these ids that are new enough, without their bodies if `has_bodies` is False."""
        body = "body" if has_bodies else "NULL"
        query = f"""SELECT id, role, sender_name, created_at, substr(text, 1, {COUNTED_CHARACTERS}), {body},
          coalesce(length(text), 0) + coalesce(length(body), 0)
        FROM messages WHERE id IN ({",".join(map(str, ids)) or "NULL"}) AND created_at >= {int(self.since or 0)}
        ORDER BY id"""
        return [Candidate(*row) for row in self.db.execute(query).fetchall()]  # unprepared, because each query differs

    def weight(self, ids: Sequence[int]) -> float:
        """Return the weight of a term from the ids of its newest matches. Rare terms weigh more."""
        count = max(self._size, float(len(ids)))
        frequency = float(len(ids))
        if len(ids) == RANKED_HITS:  # assume that older messages match as often
            frequency *= max(1.0, (ids[0] - self._first) / (ids[0] - ids[-1] + 1))
        frequency = min(count, frequency)
        return math.log(1 + (count - frequency + 0.5) / (frequency + 0.5))

    @cached_property
    def _size(self) -> float:
        """Approximate number of messages that pass the filters."""
        if self._within is None:
            return float(scalar_or_none(self.db, int, "SELECT max(id) FROM messages") or 0)
        query = f"SELECT coalesce(sum(message_count), 0) FROM sessions WHERE {self._within[0]} = ?"
        return scalar(self.db, float, query, (self._within[1],))

    @cached_property
    def _first(self) -> int:
        """Id of the first message of the conversation, or 0 for a search in several conversations."""
        if self._within is None or self._within[0] != "lineage_id":
            return 0
        return scalar_or_none(self.db, int, "SELECT min(id) FROM messages WHERE lineage_id = ?", self._within[1:]) or 0


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


def scored(
    rows: Sequence[Candidate], weights: Mapping[tuple[Term, ...], float]
) -> Iterator[tuple[Candidate, dict[tuple[Term, ...], float]]]:
    """Yield each row with its BM25 scores, one for each of the rarest words.

    `weights` has the forms of each word and the weight of the word.
    """
    counted = heapq.nlargest(COUNTED_TERMS, weights.items(), key=lambda item: item[1])
    are_paired = [any(_pairs.search(term.text) for term in forms) for forms, _ in counted]
    patterns = [
        re.compile(any_pattern(forms, edge=IN_WORD if is_paired else LETTER) or "(?!)")
        for (forms, _), is_paired in zip(counted, are_paired, strict=True)
    ]
    average = max(1.0, sum(row.characters for row in rows) / max(1, len(rows)))
    for row in rows:
        beginning = folded((row.text or "") if row.body is None else fts_row(row.text, row.body)[:COUNTED_CHARACTERS])
        # Other words end at a character that is indexed in pairs. A pattern that says so would compile slowly.
        spaced = beginning if beginning.isascii() else _pairs.sub(" ", beginning)
        found = [
            [match.start() for match in pattern.finditer(beginning if is_paired else spaced)]
            for pattern, is_paired in zip(patterns, are_paired, strict=True)
        ]
        share = max(1.0, row.characters / COUNTED_CHARACTERS)
        scores = _bm25(counted, [len(places) * share for places in found], row.characters / average)
        if row.characters > PASSAGE and sum(map(bool, found)) > 1:
            best = _best_passage(counted, found, average)
            scores = [(whole + part) / 2 for whole, part in zip(scores, best, strict=True)]
        yield row, {forms: score for (forms, _), score in zip(counted, scores, strict=True)}


_Counted: TypeAlias = Sequence[tuple[tuple[Term, ...], float]]


def _bm25(counted: _Counted, counts: Sequence[float], length: float) -> list[float]:
    norm = _K1 * (1 - _B + _B * length)
    return [weight * n * (_K1 + 1) / (n + norm) for (_, weight), n in zip(counted, counts, strict=True)]


def _best_passage(counted: _Counted, places: Sequence[Sequence[int]], average: float) -> list[float]:
    """Return the scores of the passage with the highest score. Passages overlap by half."""
    counts = dict[int, list[int]]()
    for number, starts in enumerate(places):
        for start in starts:
            half = start // (PASSAGE // 2)
            for passage in (half - 1, half):
                counts.setdefault(passage, [0] * len(places))[number] += 1
    return max((_bm25(counted, some, PASSAGE / average) for _, some in sorted(counts.items())), key=sum)


def best_of(hits: Iterable[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    return heapq.nlargest(limit, hits, key=lambda hit: (hit[1], hit[0]))
