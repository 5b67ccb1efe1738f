"""Full-text search over every stored message, compressed or not.

Rows that were made only for a view are not indexed, so what was said is found once, in the session where it was said.
"""

import heapq
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from hermes_state.search.index import serving_index
from hermes_state.search.query import Query, Term, fold, one_line, parse_query
from hermes_state.search.ranking import Ranking
from hermes_state.sessions import LINEAGE_KEY
from hermes_state.store.segment import INDEXED_CHARACTERS
from hermes_state.store.sql import columns, scalar, select
from hermes_state.values import ChatId, ChatKey, LineageId, MessageId, MessageRole, Millis, Origin, SessionId

SNIPPET_CHARACTERS = 200

COMPARED_HITS = 100
"""Rows with all words side by side that are compared with a query that excludes one of these."""

SHOWN_TERMS = 8
SHOWN_WORDS = 4
"""A snippet is looked for by the first words of the first terms: it only has to begin near a match."""

Order: TypeAlias = Literal["best", "newest"]

_COLUMNS = f"""m.id AS message_id, m.session_id, s.key AS session_key, m.lineage_id,
{LINEAGE_KEY} AS lineage_key, m.chat_id, {columns(ChatKey, "c", "chat")}, m.role, m.origin, m.sender_name,
m.created_at, m.text"""
_NAMES = "JOIN sessions s ON s.id = m.session_id JOIN chats c ON c.id = s.chat_id"

_NEWEST = "SELECT rowid, 0.0 FROM {0} WHERE {0} MATCH :match ORDER BY rowid DESC LIMIT :limit"

# Purpose: what is shown of hits, pairs of an id and a score. (Ids grow with time: a limit may come before `since`.)
_HITS = f"""
SELECT {_COLUMNS}, json_extract(hit.value, '$[1]') AS score
FROM json_each(:hits) hit JOIN messages m ON m.id = json_extract(hit.value, '$[0]') {_NAMES}
WHERE :since IS NULL OR m.created_at >= :since
ORDER BY hit.key
"""


class FoundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that matches. `score` is higher for a better match and 0 when ordered by time."""

    message_id: MessageId
    session_id: SessionId
    session_key: str
    lineage_id: LineageId
    lineage_key: str
    """Key of the conversation's first session."""
    chat_id: ChatId
    chat: ChatKey
    role: MessageRole
    origin: Origin
    sender_name: str | None
    created_at: Millis
    text: str
    score: float
    snippet: str = ""
    """One line of about `SNIPPET_CHARACTERS` around the first match, with `…` where it was cut."""


def search(
    db: sqlite3.Connection,
    query: str,
    *,
    chat_id: ChatId | None = None,
    lineage_id: LineageId | None = None,
    role: MessageRole | None = None,
    since: Millis | None = None,
    order: Order = "best",
    limit: int = 20,
) -> list[FoundMessage]:
    """The rows that match `query`, any text a person may type; an empty list when it asks for nothing.

    `chat_id`, `lineage_id` and `role` narrow the search inside the index, which makes it faster. Run it with a time
    limit of its own (`store.read_within(1.0, search, ...)`): a query can be made to be slow.
    """
    parsed = parse_query(query)
    if parsed is None:
        return []
    scopes = [
        f'scope:"{token}"'
        for token, narrows in ((f"c{chat_id}", chat_id), (f"l{lineage_id}", lineage_id), (f"r{role}", role))
        if narrows is not None
    ]

    index = serving_index(db)
    ranking = Ranking(db, index)

    def found(expression: str, terms: Sequence[Term], limit: int) -> dict[int, float]:
        match = " AND ".join([f"text:({expression})", *scopes])
        if order == "best":
            return dict(ranking.best(match, terms, scopes, since, limit))
        return dict(db.execute(_NEWEST.format(index), {"match": match, "limit": limit}).fetchall())

    hits = _pasted(db, parsed, found, limit)
    if parsed.expression is not None and (order == "newest" or len(hits) < limit):
        others = found(parsed.expression, parsed.terms, limit)
        best = max(others.values(), default=0.0)
        hits = others | {row_id: score + best for row_id, score in hits.items()}
    shown = heapq.nlargest(limit, hits.items(), key=lambda hit: (hit[1], hit[0]))
    rows = select(db, FoundMessage, _HITS, {"hits": msgspec.json.encode(shown).decode(), "since": since})
    pattern = _pattern(parsed.wanted)
    return [msgspec.structs.replace(row, snippet=_snippet(row.text, pattern)) for row in rows]


def _pasted(
    db: sqlite3.Connection, parsed: Query, found: Callable[[str, Sequence[Term], int], dict[int, float]], limit: int
) -> dict[int, float]:
    """Rows with all words of the query side by side. One of them may be excluded (`red -door`), unless its dash stands
    there, too (`find . -name foo`)."""
    if parsed.whole is None:
        return {}
    hits = found(parsed.whole.expression, [parsed.whole], max(limit, COMPARED_HITS) if parsed.has_exclusions else limit)
    if parsed.has_exclusions:
        text_of = f"SELECT substr(text, 1, {INDEXED_CHARACTERS}) FROM messages WHERE id = ?"
        texts = {row_id: one_line(scalar(db, str, text_of, (row_id,))) for row_id in hits}
        hits = {row_id: score for row_id, score in hits.items() if parsed.text in texts[row_id]}
    return hits


def snippet_of(text: str, query: str) -> str:
    """The snippet that a hit for `query` has, of a text that was changed since (redacted, for one)."""
    parsed = parse_query(query)
    return _snippet(text, _pattern(parsed.wanted) if parsed is not None else None)


def _pattern(wanted: Sequence[Term]) -> re.Pattern[str] | None:
    """A pattern for folded text: any of the wanted terms, whatever punctuation stands between its words."""
    patterns = [pattern for term in wanted[:SHOWN_TERMS] if (pattern := term.pattern(SHOWN_WORDS))]
    return re.compile("|".join(patterns)) if patterns else None


def _snippet(text: str, pattern: re.Pattern[str] | None) -> str:
    found = pattern.search(fold(text[:INDEXED_CHARACTERS])) if pattern else None
    at = found.start() if found else 0
    start = max(0, min(at - SNIPPET_CHARACTERS // 3, len(text) - SNIPPET_CHARACTERS))
    end = start + SNIPPET_CHARACTERS
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
