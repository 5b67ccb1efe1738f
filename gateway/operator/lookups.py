"""Look-ups in everything that was said: the same for the running daemon and for a database that no daemon has open.

Each request reads values, which the daemon sends to the command line without secrets. Each kind of output has its own
renderer: `json_row` here, `gateway.cli.lookups` for the terminal, `gateway.commands.lineage` for chats.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeAlias

import msgspec

from agent.context.excerpt import Redact
from gateway.operator.places import Lookup, find_chat, find_place, fitting
from gateway.operator.records import ConversationsRequest, MessagesRequest
from hermes_state.admin import lineage_queries
from hermes_state.admin.lineage_queries import LineageSession, LookupResult
from hermes_state.chats import load_chat
from hermes_state.errors import CommandError
from hermes_state.search.full_text import FoundMessage, Order, search, snippet_of
from hermes_state.search.index import load_progress
from hermes_state.sessions import Conversation, Session, list_conversations, load_active, load_session
from hermes_state.store.segment import INDEXED_CHARACTERS, searched_text
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import shortened
from hermes_state.transcripts import load_hidden, load_messages
from hermes_state.values import ChatId, MessageId, MessageRole, Millis, Origin, Transcript, recall_id

Row: TypeAlias = dict[str, Any]
"""One JSON object of an answer."""

LOOKUP_SECONDS = 5.0
"""Longest time a look-up may take, in seconds; a query can be made to be slow."""

MAX_HITS = 100
MAX_SESSIONS = 5_000
"""Most sessions of one answer; about 3 MB of JSON."""

MAX_PAGE_ROWS = 500

MAX_HIT_CHARS = 100_000
"""Most characters of a hit's text; `history` has all of it."""

_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was said. The names are those of the JSON output; times are UTC milliseconds."""

    message: str
    """Recall id, such as `m123`."""
    session: str
    """Key of the session in which it was said."""
    lineage: str
    """Key of the conversation's first session."""
    chat: str
    role: MessageRole
    origin: Origin
    at: Millis
    sender: str | None
    tool: str | None
    calls: tuple[str, ...]
    """Names of the tools that it calls."""
    text: str
    taken_back: bool


class LineageRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sessions of a conversation, of a chat or of all chats, oldest first."""

    place: str | None = None
    limit: _Limit = MAX_SESSIONS

    def read(self, db: Connection) -> list[LineageSession]:
        place = find_place(db, self.place) if self.place is not None else None
        return lineage_queries.load_lineage_sessions(db, place, min(self.limit, MAX_SESSIONS))


class SearchRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that match, from all chats or one."""

    words: str
    chat: str | None = None
    role: MessageRole | None = None
    since: int | None = None
    order: Order = "best"
    limit: _Limit = 20

    def read(self, db: Connection, within: ChatId | None = None) -> list[FoundMessage]:
        """Return the hits, with `within` only those of one chat."""
        chat_id = find_chat(db, self.chat, within) if self.chat is not None else within
        since = Millis(self.since) if self.since is not None else None
        limit = min(self.limit, MAX_HITS)
        return search(db, self.words, chat_id=chat_id, role=self.role, since=since, order=self.order, limit=limit)

    def redacted(self, one: FoundMessage, redact: Redact) -> FoundMessage:
        """Return a hit with its snippet. Redaction comes first: half a secret would not be recognised."""
        safe = redact(one.text[:INDEXED_CHARACTERS])
        searched = searched_text(one.text, one.body, redact) if one.body else safe
        snippet = snippet_of(searched, self.words)
        return msgspec.structs.replace(one, text=safe[:MAX_HIT_CHARS], snippet=snippet, body=None)


def incompleteness(db: Connection) -> str | None:
    """Return a sentence for people while a search may miss something."""
    percent = load_progress(db)
    if percent is None:
        return None
    return f"The search index is being made anew ({percent} % done): older messages may be missing here."


class SearchIndexRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sentence while a search may miss something, else nothing."""

    def read(self, db: Connection) -> list[str]:
        return [note for note in [incompleteness(db)] if note is not None]


class HistoryRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages as they were said, oldest first.

    A chat stands for its conversation, a session for the whole conversation that it belongs to unless
    `is_session_only`, a message for what was said around it in its session.
    """

    place: str
    limit: _Limit = MAX_PAGE_ROWS
    before: int | None = None
    """Id of a message; only what was said before it."""
    is_session_only: bool = False

    def read(self, db: Connection) -> list[HistoryMessage]:
        place = find_place(db, self.place)
        session = place.session or load_active(db, place.chat_id)
        if session is None:
            return []
        hidden, key_of = load_hidden(db, session.lineage_id), cache(lambda key: load_session(db, key).key)
        lineage, chat = key_of(session.lineage_id), load_chat(db, session.chat_id).key.name
        return [
            HistoryMessage(
                message=recall_id(row.id),
                session=key_of(row.session_id),
                lineage=lineage,
                chat=chat,
                role=row.role,
                origin=row.origin,
                at=row.created_at,
                sender=row.sender_name,
                tool=row.tool_name,
                calls=tuple(call.name for call in row.body.calls),
                text=row.text or "",
                taken_back=row.id in hidden,
            )
            for row in self._load(db, place, session)
        ]

    def _load(self, db: Connection, place: LookupResult, session: Session) -> Transcript:
        limit = min(self.limit, MAX_PAGE_ROWS)
        if place.message_id is not None:
            return fitting(lineage_queries.load_around(db, session.id, place.message_seq, limit // 2, limit))
        before = MessageId(self.before) if self.before is not None else None
        session_id = session.id if self.is_session_only else None
        return fitting(load_messages(db, session.lineage_id, limit, before, session_id)[::-1])[::-1]


class SessionsRequest(Lookup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations of one chat or of all, the most recently used first."""

    chat: str | None = None
    limit: _Limit = 100

    def read(self, db: Connection) -> list[Conversation]:
        chat_id = find_chat(db, self.chat) if self.chat is not None else None
        return list_conversations(db, chat_id, min(self.limit, MAX_SESSIONS))

    def redacted(self, one: Conversation, redact: Redact) -> Conversation:
        tip, title = msgspec.structs.replace(one.tip, system_prompt=None), one.title and redact(one.title)
        return msgspec.structs.replace(one, tip=tip, title=title, first_words=redact(one.first_words))


LOOKUPS: Mapping[str, type[Lookup]] = {
    "lineage": LineageRequest,
    "search": SearchRequest,
    "search_index": SearchIndexRequest,
    "history": HistoryRequest,
    "sessions": SessionsRequest,
    "conversations": ConversationsRequest,
    "messages": MessagesRequest,
}
"""Requests by the name under which the command line asks."""


def parse_request(name: str, args: Mapping[str, Any]) -> Lookup:
    """Return the request of this name and these arguments. Raises `CommandError`."""
    try:
        return msgspec.convert(args, LOOKUPS[name])
    except msgspec.ValidationError as error:
        raise CommandError(f"{name}: {error}") from None


async def look_up(store: Store, name: str, args: Mapping[str, Any], redact: Redact) -> list[Any]:
    """Answer from the running daemon's store. Raises `CommandError`, and `StoreUnavailable` when it takes too long."""
    request = parse_request(name, args)
    found = await store.read_within(LOOKUP_SECONDS, request.read)
    return await asyncio.to_thread(_answer, request, found, redact)


def look_up_at_rest(db: Connection, name: str, args: Mapping[str, Any], redact: Redact) -> list[Any]:
    """Answer from a database that no daemon has open. Raises `CommandError`."""
    request = parse_request(name, args)
    return _answer(request, request.read(db), redact)


def _answer(request: Lookup, found: Sequence[Any], redact: Redact) -> list[Any]:
    answer: list[Any] = msgspec.to_builtins([request.redacted(one, redact) for one in found])
    return answer


def compression_details(made: LineageSession) -> list[str]:
    """Return what is known of the compression that made a session: `95,000 → 40,000 tokens`, `focus “schema”`."""
    details = []
    if made.tokens_before is not None and made.tokens_after is not None:
        details.append(f"{made.tokens_before:,} → {made.tokens_after:,} tokens")
    if made.summary_kind is not None:
        is_by_rule = made.summary_kind == "deterministic"
        details.append("handoff without a model" if is_by_rule else f"summary by {made.model}")
    if made.focus:
        details.append(f"focus “{shortened(made.focus)}”")
    return details + (["undone since"] if made.was_undone else [])


def speaker(role: MessageRole, sender: str | None, tool: str | None) -> str:
    """Return who says a message, for people."""
    return f"tool {tool}" if role is MessageRole.TOOL else sender or role.value


def json_row(one: LineageSession | FoundMessage | HistoryMessage | Conversation) -> Row:
    """Return the JSON of a value. Sessions and conversations are named by whole keys, messages by recall ids."""
    match one:
        case LineageSession():
            return {
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
        case FoundMessage():
            return {
                "message": recall_id(one.message_id),
                "session": one.session_key,
                "lineage": one.lineage_key,
                "chat": one.chat.name,
                "role": one.role,
                "at": one.created_at,
                "text": one.text,
                "snippet": one.snippet,
                "score": one.score,
            }
        case HistoryMessage():
            return msgspec.structs.asdict(one)
        case Conversation():
            return {
                "session": one.tip.key,
                "platform": one.chat.platform,
                "chat": one.chat.name,
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
