"""Full-text search over every stored message, compressed or not.

Rows that were made only for a view are not indexed, so what was said is found once, in the session where it was said.
"""

import re
import sqlite3
import unicodedata
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from hermes_state.search.index import serving_index
from hermes_state.search.query import Query, one_line, parse_query
from hermes_state.sessions import LINEAGE_KEY
from hermes_state.store.segment import INDEXED_CHARACTERS
from hermes_state.store.sql import columns, select
from hermes_state.values import ChatId, ChatKey, LineageId, MessageId, MessageRole, Millis, Origin, SessionId

RANKED_HITS = 1_000
"""Newest matches that are ranked: ranking every match of a common word takes a second per million rows."""

SNIPPET_CHARACTERS = 200

COMPARED_HITS = 100
"""Rows with all words side by side that are compared with a query that excludes one of these."""

SHOWN_TERMS = 8
SHOWN_PIECES = 4
"""A snippet is looked for by the first pieces of the first terms: it only has to begin near a match."""

Order: TypeAlias = Literal["best", "newest"]

_COLUMNS = f"""m.id AS message_id, m.session_id, s.key AS session_key, m.lineage_id,
{LINEAGE_KEY} AS lineage_key, m.chat_id, {columns(ChatKey, "c", "chat")}, m.role, m.origin, m.sender_name,
m.created_at, m.text"""
_NAMES = "JOIN sessions s ON s.id = m.session_id JOIN chats c ON c.id = s.chat_id"

_BEST = f"""
WITH hit AS MATERIALIZED (
  SELECT rowid AS id, bm25({{0}}, 1.0, 0.0) AS rank FROM {{0}} WHERE {{0}} MATCH :match
  ORDER BY rowid DESC LIMIT :ranked),
best AS (
  SELECT id, rank FROM hit
  WHERE :since IS NULL OR (SELECT created_at FROM messages WHERE id = hit.id) >= :since
  ORDER BY rank, id DESC LIMIT :limit)
SELECT {_COLUMNS}, -best.rank AS score
FROM best JOIN messages m ON m.id = best.id {_NAMES} ORDER BY best.rank, m.id DESC
"""
"""The best of the newest matches. (`rowid IN (SELECT ...)` would rank every match, once per row.)"""

_NEWEST = f"""
WITH hit AS MATERIALIZED (
  SELECT rowid AS id FROM {{0}} WHERE {{0}} MATCH :match ORDER BY rowid DESC LIMIT :limit)
SELECT {_COLUMNS}, 0.0 AS score
FROM hit JOIN messages m ON m.id = hit.id {_NAMES} WHERE :since IS NULL OR m.created_at >= :since ORDER BY m.id DESC
"""
"""The newest matches; ids grow with time, so that the limit may come before `since`."""


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
    scope = [
        f'scope:"{token}"'
        for token, narrows in ((f"c{chat_id}", chat_id), (f"l{lineage_id}", lineage_id), (f"r{role}", role))
        if narrows is not None
    ]

    query_of_index = (_BEST if order == "best" else _NEWEST).format(serving_index(db))

    def found(expression: str | None, limit: int) -> list[FoundMessage]:
        if expression is None:
            return []
        match = " AND ".join([f"text:({expression})", *scope])
        parameters = {"match": match, "ranked": RANKED_HITS, "since": since, "limit": limit}
        return select(db, FoundMessage, query_of_index, parameters)

    hits = _merged(_pasted(parsed, found, limit), found(parsed.expression, limit), order)[:limit]
    pattern = _pattern(parsed.wanted)
    return [msgspec.structs.replace(hit, snippet=_snippet(hit.text, pattern)) for hit in hits]


def _pasted(parsed: Query, found: Callable[[str | None, int], list[FoundMessage]], limit: int) -> list[FoundMessage]:
    """Rows with all words of the query side by side. One of them may be excluded (`red -door`), unless its dash stands
    there, too (`find . -name foo`)."""
    if not parsed.has_exclusions:
        return found(parsed.whole, limit)
    hits = found(parsed.whole, max(limit, COMPARED_HITS))
    return [hit for hit in hits if parsed.text in one_line(hit.text[:INDEXED_CHARACTERS])][:limit]


def _merged(pasted: list[FoundMessage], others: list[FoundMessage], order: Order) -> list[FoundMessage]:
    """Both, each row once: the pasted ones before all others, unless the newest come first."""
    best = max((hit.score for hit in others), default=0.0) if order == "best" else 0.0
    rows = {hit.message_id: hit for hit in others}
    rows |= {hit.message_id: msgspec.structs.replace(hit, score=hit.score + best) for hit in pasted}
    return sorted(rows.values(), key=lambda hit: (hit.score, hit.message_id), reverse=True)


def snippet_of(text: str, query: str) -> str:
    """The snippet that a hit for `query` has, of a text that was changed since (redacted, for one)."""
    parsed = parse_query(query)
    return _snippet(text, _pattern(parsed.wanted) if parsed is not None else None)


class _FoldingCache(dict[int, str]):
    """Every character to one without case and accent, as the index compares them; positions stay as they are."""

    def __missing__(self, code: int) -> str:
        folded = unicodedata.normalize("NFD", chr(code))[0].lower()[0]
        self[code] = folded
        return folded


_folding = _FoldingCache()
_WORD_OR_SIGN = re.compile(r"[^\W_]+|[^\w\s]")

# What may stand before a word, and before a sign such as an emoji. Neither can take in a part of what follows it, and
# both are short and never given back: a match of nearly equal signs would otherwise be tried in every possible way,
# while nothing else in the process runs.
_BEFORE_WORD = r"[\W_]{0,16}+"
_BEFORE_SIGN = r"[\x00-/:-@\[-`{-\x7f]{0,16}+"


def _pattern(wanted: tuple[str, ...]) -> re.Pattern[str] | None:
    """A pattern for folded text: any of the wanted terms, whatever punctuation stands between its words."""
    terms = []
    for term in wanted[:SHOWN_TERMS]:
        pieces = _WORD_OR_SIGN.findall(term.translate(_folding))
        shown = [piece for piece in pieces if piece.isalnum() or not piece.isascii()][:SHOWN_PIECES]
        if shown:
            rest = ((_BEFORE_WORD if piece.isalnum() else _BEFORE_SIGN) + re.escape(piece) for piece in shown[1:])
            terms.append(re.escape(shown[0]) + "".join(rest))
    return re.compile("|".join(terms)) if terms else None


def _snippet(text: str, pattern: re.Pattern[str] | None) -> str:
    found = pattern.search(text[:INDEXED_CHARACTERS].translate(_folding)) if pattern else None
    at = found.start() if found else 0
    start = max(0, min(at - SNIPPET_CHARACTERS // 3, len(text) - SNIPPET_CHARACTERS))
    end = start + SNIPPET_CHARACTERS
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"
