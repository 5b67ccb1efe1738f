"""Look-ups of the command line in everything that was said: the same for the daemon and for a file at rest.

The rows are what `--json` prints. Times are UTC milliseconds; sessions and lineages are named by their whole keys, a
lineage by that of its first session; a message by its recall id, such as `m123`.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias

import msgspec

from hermes_state.admin import lineage_queries
from hermes_state.admin.lineage_queries import LookupResult
from hermes_state.chats import load_chat
from hermes_state.errors import CommandError, LookupReason, LookupRejected
from hermes_state.search.full_text import FoundMessage, Order, search, snippet_of
from hermes_state.search.index import load_progress
from hermes_state.sessions import Session, list_conversations, load_active, load_session
from hermes_state.store.searched import searched_text
from hermes_state.store.segment import INDEXED_CHARACTERS
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_hidden, load_messages
from hermes_state.values import ChatId, MessageId, MessageRole, Millis, Transcript, recall_id

Row: TypeAlias = dict[str, Any]
"""One JSON object of an answer."""

Redact: TypeAlias = Callable[[str], str]

LOOKUP_SECONDS = 5.0
"""Longest time a look-up may take, in seconds; a query can be made to be slow."""

MAX_HITS = 100
MAX_SESSIONS = 5_000
"""Most sessions of one answer; about 2 MB of JSON."""

MAX_PAGE_ROWS = 500
MAX_PAGE_CHARS = 1_000_000
"""Most text of one answer, in characters, beyond its first row; the asker asks again for what came before."""

MAX_HIT_CHARS = 100_000
"""Most characters of a hit's text; `history` has all of it."""

_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class LineageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sessions of a conversation, of a chat or of all chats, oldest first."""

    place: str | None = None
    limit: _Limit = MAX_SESSIONS

    def read(self, db: Connection) -> list[Row]:
        place = find_place(db, self.place) if self.place is not None else None
        return [
            {
                "session": one.key,
                "parent": one.parent_key,
                "depth": one.depth,
                "kind": one.kind,
                "lineage": one.lineage_key,
                "platform": one.chat.platform,
                "chat": one.chat.name,
                "started_at": one.started_at,
                "ended_at": one.ended_at,
                "end_reason": one.end_reason,
                "messages": one.message_count,
                "layer": one.layer,
                "tokens_before": one.tokens_before,
                "tokens_after": one.tokens_after,
                "focus": one.focus,
                "summary_kind": one.summary_kind,
                "model": one.model,
            }
            for one in lineage_queries.load_lineage_sessions(db, place, min(self.limit, MAX_SESSIONS))
        ]


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that match, from all chats or one."""

    words: str
    chat: str | None = None
    role: MessageRole | None = None
    since: int | None = None
    order: Order = "best"
    limit: _Limit = 20

    def read(self, db: Connection) -> list[Row]:
        return [
            {
                "message": recall_id(found.message_id),
                "session": found.session_key,
                "lineage": found.lineage_key,
                "chat": found.chat.name,
                "role": found.role,
                "at": found.created_at,
                "text": found,  # shown as `redacted_texts` has it
                "snippet": "",
                "score": found.score,
            }
            for found in self.find(db)
        ]

    def find(self, db: Connection, within: ChatId | None = None) -> list[FoundMessage]:
        """The hits, in one chat alone with `within`."""
        chat_id = find_chat(db, self.chat, within) if self.chat is not None else within
        since = Millis(self.since) if self.since is not None else None
        limit = min(self.limit, MAX_HITS)
        return search(db, self.words, chat_id=chat_id, role=self.role, since=since, order=self.order, limit=limit)


def incompleteness(db: Connection) -> str | None:
    """A sentence for people while a search may miss something."""
    percent = load_progress(db)
    if percent is None:
        return None
    return f"The search index is being made anew ({percent} % done): older messages may be missing here."


def redacted_texts(found: FoundMessage, words: str, redact: Redact) -> dict[str, str]:
    """`text` and `snippet` of a hit as they may be shown.

    Redacted before the snippet is cut: a secret that the cut has halved looks like none.
    """
    safe = redact(found.text[:INDEXED_CHARACTERS])
    searched = searched_text(found.text, found.body, redact) if found.body else safe
    return {"text": safe[:MAX_HIT_CHARS], "snippet": snippet_of(searched, words)}


class SearchIndexRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence, in a row of its own, while a search may miss something."""

    def read(self, db: Connection) -> list[Row]:
        return [{"note": note} for note in [incompleteness(db)] if note is not None]


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages as they were said, oldest first.

    A chat stands for its conversation, a session for the whole conversation that it belongs to unless
    `is_session_only`, a message for what was said around it in its session.
    """

    place: str
    limit: _Limit = MAX_PAGE_ROWS
    before: int | None = None
    """Id of a message; only what was said before it."""
    is_session_only: bool = False

    def read(self, db: Connection) -> list[Row]:
        place = find_place(db, self.place)
        session = place.session or load_active(db, place.chat_id)
        if session is None:
            return []
        rows = _fitting(self._load(db, place, session), is_newest=place.message_id is None)
        hidden = load_hidden(db, session.lineage_id)
        key_of = cache(lambda session_id: load_session(db, session_id).key)
        shared = {"lineage": key_of(session.lineage_id), "chat": load_chat(db, session.chat_id).key.name}
        return [
            {
                "message": recall_id(row.id),
                "session": key_of(row.session_id),
                **shared,
                "role": row.role,
                "origin": row.origin,
                "at": row.created_at,
                "sender": row.sender_name,
                "tool": row.tool_name,
                "calls": [call.name for call in row.body.calls],
                "text": row.text or "",
                "taken_back": row.id in hidden,
            }
            for row in rows
        ]

    def _load(self, db: Connection, place: LookupResult, session: Session) -> Transcript:
        limit = min(self.limit, MAX_PAGE_ROWS)
        if place.message_id is not None:
            return lineage_queries.load_around(db, session.id, place.message_seq, limit // 2, limit)
        before = MessageId(self.before) if self.before is not None else None
        return load_messages(db, session.lineage_id, limit, before, session.id if self.is_session_only else None)


def _fitting(rows: Transcript, *, is_newest: bool) -> Transcript:
    """Rows that an answer holds, at least one: from the newest back, or from the oldest on."""
    room, count = MAX_PAGE_CHARS, 0
    for row in reversed(rows) if is_newest else rows:
        room -= len(row.text or "")
        if room < 0 and count:
            break
        count += 1
    return rows[len(rows) - count :] if is_newest else rows[:count]


class SessionsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations of one chat or of all, the most recently used first."""

    chat: str | None = None
    limit: _Limit = 100

    def read(self, db: Connection) -> list[Row]:
        chat_id = find_chat(db, self.chat) if self.chat is not None else None
        rows = []
        for one in list_conversations(db, chat_id, min(self.limit, MAX_SESSIONS)):
            chat = load_chat(db, one.tip.chat_id).key
            rows.append(
                {
                    "session": one.tip.key,
                    "platform": chat.platform,
                    "chat": chat.name,
                    "title": one.title,
                    "first_words": one.first_words,
                    "started_at": one.started_at,
                    "last_human_at": one.last_human_at,
                    "ended_at": one.tip.ended_at,
                    "end_reason": one.tip.end_reason,
                    "sessions": one.session_count,
                    "messages": one.message_count,
                    "is_active": one.is_active,
                }
            )
        return rows


LookupRequest: TypeAlias = LineageRequest | SearchRequest | SearchIndexRequest | HistoryRequest | SessionsRequest

LOOKUPS: Mapping[str, type[LookupRequest]] = {
    "lineage": LineageRequest,
    "search": SearchRequest,
    "search_index": SearchIndexRequest,
    "history": HistoryRequest,
    "sessions": SessionsRequest,
}
"""Requests by the name under which the command line asks."""


def parse_request(name: str, args: Mapping[str, Any]) -> LookupRequest:
    """Request from its name and arguments. Raises `CommandError`."""
    try:
        return msgspec.convert(args, LOOKUPS[name])
    except msgspec.ValidationError as error:
        raise CommandError(f"{name}: {error}") from None


async def look_up(store: Store, name: str, args: Mapping[str, Any], redact: Redact) -> list[Row]:
    """Answer from the running daemon's store. Raises `CommandError`, and `StoreUnavailable` when it takes too long."""
    request = parse_request(name, args)
    rows = await store.read_within(LOOKUP_SECONDS, request.read)
    return await asyncio.to_thread(_redacted, request, rows, redact)


def look_up_at_rest(db: Connection, name: str, args: Mapping[str, Any], redact: Redact) -> list[Row]:
    """Answer from a file that no daemon has open. Raises `CommandError`."""
    request = parse_request(name, args)
    return _redacted(request, request.read(db), redact)


def _redacted(request: LookupRequest, rows: list[Row], redact: Redact) -> list[Row]:
    """Rows as they may be shown; takes long for long texts."""
    if isinstance(request, SearchRequest):
        return [{**row, **redacted_texts(row["text"], request.words, redact)} for row in rows]
    if isinstance(request, SessionsRequest):
        return [
            {**row, "title": row["title"] and redact(row["title"]), "first_words": redact(row["first_words"])}
            for row in rows
        ]
    return rows


_NOT_FOUND = "No chat, session or message{scope} has the id “{name}”."
_REFUSALS = {
    LookupReason.MALFORMED: "That is too long to be an id.",
    LookupReason.NOT_FOUND: _NOT_FOUND,
    LookupReason.OTHER_CHAT: "Here only this chat can be looked at; ask me in a direct chat for another one.",
    LookupReason.MESSAGE_NOT_FOUND: "There is no message {name}{scope}.",
    LookupReason.AMBIGUOUS_CHAT: "More than one chat is called “{name}”: {candidates}.",
    LookupReason.AMBIGUOUS_SESSION: "More than one session's id starts with “{name}”: {candidates}.",
}


def find_place(db: Connection, name: str, within: ChatId | None = None) -> LookupResult:
    """`lineage_queries.find_place` for people. Raises `CommandError`."""
    try:
        return lineage_queries.find_place(db, name, within)
    except LookupRejected as error:
        candidates = ", ".join(f"`{candidate}`" for candidate in error.candidates)
        scope = " of this chat" if within is not None else ""
        text = _REFUSALS.get(error.reason, _NOT_FOUND).format(name=error.name, candidates=candidates, scope=scope)
        raise CommandError(text) from error


def find_chat(db: Connection, name: str, within: ChatId | None = None) -> ChatId:
    """The chat that people mean by a name. Raises `CommandError`."""
    place = find_place(db, name, within)
    if place.session is not None:
        raise CommandError(f"“{name}” is no chat; a chat is called like `telegram:42`.")
    return place.chat_id
