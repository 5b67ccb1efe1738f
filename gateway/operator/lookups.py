"""Look-ups in stored conversations.

The results are the same whether the running daemon or the command itself reads the database.

The daemon runs each request and sends the values to the command line, without secrets. The values are rendered by
`json_row` here, by `gateway.cli.lookups` for the terminal, and by `gateway.commands.lineage` for chats.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import orjson

from agent.context.excerpt import Redact, said, speaker_name
from agent.model.base import ToolSchema
from gateway.operator.why import load_explained
from hermes_state import ratings
from hermes_state.admin import lineage_queries
from hermes_state.admin.lineage_queries import FullMessage, LineageSession, LookupResult, StoredConversation
from hermes_state.admin.overview import lacks_ratings
from hermes_state.admin.why import WhyReport
from hermes_state.agents import find_agent
from hermes_state.attachments import MessageFile, load_files
from hermes_state.chats import load_chat
from hermes_state.errors import CommandError, LookupReason, LookupRejected
from hermes_state.search.full_text import FoundMessage, Order, search, snippet_of
from hermes_state.search.index import load_progress
from hermes_state.search.ranking import SearchFilter
from hermes_state.sessions import Conversation, Session, list_conversations, load_active, load_session
from hermes_state.store.segment import INDEXED_CHARACTERS, searched_text
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import enclosed, shortened, thoughts
from hermes_state.transcripts import load_hidden, load_messages, load_messages_after
from hermes_state.values import (
    ChatId,
    LineageId,
    Message,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    Transcript,
    recall_id,
)

Row: TypeAlias = dict[str, Any]

LOOKUP_SECONDS = 5.0
"""Maximum time for a look-up, in seconds. Without a limit, users could send deliberately slow queries."""
MAX_PAGE_CHARS = 1_000_000
"""Maximum number of characters in a response with several messages. Later requests return the remaining messages."""
MAX_HITS = 100
MAX_SESSIONS = 5_000
"""Maximum number of sessions in one response: about 3 MB of JSON."""
MAX_PAGE_ROWS = 500
PAGE_CONVERSATIONS = 100
PAGE_ROWS = 200

_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


_NOT_FOUND = "No chat, session or message{scope} has the id “{name}”."
_REFUSALS = {
    LookupReason.MALFORMED: "That is too long for an id.",
    LookupReason.NOT_FOUND: _NOT_FOUND,
    LookupReason.OTHER_CHAT: "Here you can only look up this chat. For other chats, ask me in a direct chat.",
    LookupReason.MESSAGE_NOT_FOUND: "There is no message {name}{scope}.",
    LookupReason.AMBIGUOUS_CHAT: "Several chats match “{name}”: {candidates}. Use one of these names.",
    LookupReason.AMBIGUOUS_SESSION: "Several session ids start with “{name}”: {candidates}. Use more characters.",
}


def find_place(db: Connection, name: str, within: ChatId | None = None) -> LookupResult:
    """Find a chat, session or message by name. Raises `CommandError` if there is no single match."""
    try:
        return lineage_queries.find_place(db, name, within)
    except LookupRejected as error:
        candidates = ", ".join(map("`{}`".format, error.candidates))
        scope = " in this chat" if within is not None else ""
        text = _REFUSALS.get(error.reason, _NOT_FOUND).format(name=error.name, candidates=candidates, scope=scope)
        raise CommandError(text) from error


def find_chat(db: Connection, name: str, within: ChatId | None = None) -> ChatId:
    """Return the chat with this name. Raises `CommandError` if there is no single match, or if it is not a chat."""
    place = find_place(db, name, within)
    if place.session is not None:
        raise CommandError(f"“{name}” is not a chat. Use a name such as `telegram:42`.")
    return place.chat_id


class LookupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of requests. The fields of a request are the arguments of the command."""

    def read(self, db: Connection) -> Sequence[Any]:
        """Return the requested values. Raises `CommandError` if the request names an unknown chat or session."""
        raise NotImplementedError

    def redacted(self, value: Any, redact: Redact) -> Any:
        """Return a value with its secrets redacted, which is slow for long texts."""
        return value


def fitting(rows: Transcript) -> Transcript:
    """Return as many of the first messages as fit into one response, but at least one."""
    sizes = accumulate(len(row.text or "") for row in rows)
    return rows[: max(1, sum(size <= MAX_PAGE_CHARS for size in sizes))]


class LineageRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for the sessions of a conversation, of a chat or of all chats, oldest first."""

    place: str | None = None
    agent: str | None = None
    limit: _Limit = MAX_SESSIONS

    def read(self, db: Connection) -> list[LineageSession]:
        place = find_place(db, self.place) if self.place is not None else None
        limit, agent = min(self.limit, MAX_SESSIONS), find_agent(db, self.agent)
        return lineage_queries.load_lineage_sessions(db, place, limit, agent)


class SearchRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for matching messages from one chat or from all chats."""

    words: str
    chat: str | None = None
    agent: str | None = None
    role: MessageRole | None = None
    since: int | None = None
    order: Order = "best"
    limit: _Limit = 20

    def read(self, db: Connection, within: ChatId | None = None) -> list[FoundMessage]:
        """Return the matches. If `within` is given, return only matches in that chat."""
        since = Millis(self.since) if self.since is not None else None
        chat_id = find_chat(db, self.chat, within) if self.chat is not None else within
        filters: SearchFilter = {"chat_id": chat_id, "role": self.role, "since": since}
        filters["agent"] = find_agent(db, self.agent)
        return search(db, self.words, order=self.order, limit=min(self.limit, MAX_HITS), **filters)

    def redacted(self, one: FoundMessage, redact: Redact) -> FoundMessage:
        """Return a match with its snippet. The whole text is redacted first: a truncated secret is not recognised."""
        safe = redact(one.text[:INDEXED_CHARACTERS])
        searched = searched_text(one.text, one.body, redact) if one.body else safe
        snippet = snippet_of(searched, self.words)
        # `history` shows the whole text.
        return msgspec.structs.replace(one, text=safe[:100_000], snippet=snippet, body=None)


def incompleteness(db: Connection) -> str | None:
    """Return a sentence that says how incomplete the search index is, or None if it is complete."""
    if (percent := load_progress(db)) is None:
        return None
    return f"The search index is being rebuilt ({percent} % done), so older messages may be missing."


class SearchIndexRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for a notice that the search index is incomplete. The result is empty if the index is complete."""

    def read(self, db: Connection) -> list[str]:
        return [note] if (note := incompleteness(db)) is not None else []


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message in its original form. The JSON output has the same field names. Times are in UTC milliseconds."""

    message: str
    """Recall id, such as `m123`."""
    session: str
    lineage: str
    """Key of the conversation's first session."""
    chat: str
    role: MessageRole
    origin: Origin
    at: Millis
    sender: str | None
    tool: str | None
    calls: tuple[str, ...]
    text: str
    taken_back: bool


class HistoryRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for original messages, oldest first.

    A chat selects its current conversation. A session selects its whole conversation or, if `is_session_only` is set,
    only its own messages. A message selects the messages around it in its session.
    """

    place: str
    limit: _Limit = MAX_PAGE_ROWS
    before: int | None = None
    """If set, only messages before the message with this id are returned."""
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


class SessionsRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for the conversations of one chat or of all chats, most recently used first."""

    chat: str | None = None
    agent: str | None = None
    limit: _Limit = 100

    def read(self, db: Connection) -> list[Conversation]:
        chat_id = find_chat(db, self.chat) if self.chat is not None else None
        return list_conversations(db, chat_id, min(self.limit, MAX_SESSIONS), find_agent(db, self.agent))

    def redacted(self, one: Conversation, redact: Redact) -> Conversation:
        tip, title = msgspec.structs.replace(one.tip, system_prompt=None), one.title and redact(one.title)
        return msgspec.structs.replace(one, tip=tip, title=title, first_words=redact(one.first_words))


class ConversationsRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for conversations with a lineage id above `after`, optionally in a `place` (chat, session or message).

    With `person` (such as `telegram:42`), only those in which this person wrote.
    """

    place: str | None = None
    person: str | None = None
    agent: str | None = None
    since: int = 0
    after: int = 0

    def read(self, db: Connection) -> list[StoredConversation]:
        place = find_place(db, self.place) if self.place is not None else None
        since, after, agent = Millis(self.since), LineageId(self.after), find_agent(db, self.agent)
        return lineage_queries.load_conversations(db, place, since, after, PAGE_CONVERSATIONS, self.person, agent)

    def redacted(self, one: StoredConversation, redact: Redact) -> StoredConversation:
        return msgspec.structs.replace(one, system_prompt=one.system_prompt and redact(one.system_prompt))


class MessagesRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for a conversation's messages after the message `after`.

    `place` can limit it to one session, and `person` to what one person wrote.
    """

    lineage: int
    after: int = 0
    place: str | None = None
    person: str | None = None

    def read(self, db: Connection) -> list[tuple[Message, list[int], list[MessageFile]]]:
        session = find_place(db, self.place).session if self.place is not None else None
        if self.place is not None and session is None:
            raise CommandError(f"“{self.place}” is not a session.")
        session_id = session.id if session is not None else None
        after, lineage_id = MessageId(self.after), LineageId(self.lineage)
        rows = fitting(load_messages_after(db, lineage_id, after, PAGE_ROWS, session_id, self.person))
        ids, files = [row.id for row in rows], defaultdict[int, list[MessageFile]](list)
        for file in load_files(db, ids):
            files[file.message_id].append(file)
        rated = {} if lacks_ratings(db) else ratings.load_values(db, ids)
        return [(row, rated.get(row.id, []), files[row.id]) for row in rows]

    def redacted(self, found: tuple[Message, list[int], list[MessageFile]], redact: Redact) -> FullMessage:
        row, values, files = found
        text, reasoning = row.text or "", row.body.reasoning
        if row.role is MessageRole.USER:
            text = "\n".join(filter(None, said(row)))
        if row.origin is Origin.TALK:
            by = speaker_name(row.sender_name).replace('"', "'")
            text = f'<quoted_message from="{by}">\n{enclosed("quoted_message", text)}\n</quoted_message>'
        is_json = row.role is MessageRole.TOOL and text.lstrip().startswith(("{", "["))
        thought = "" if reasoning is None else "\n\n".join(thoughts(reasoning.blocks))
        return FullMessage(
            id=row.id,
            role=row.role,
            at=row.created_at,
            sender=row.writer,
            files=tuple(msgspec.structs.replace(file, name=redact(file.name)) for file in files),
            content=_value(text, redact) if is_json else redact(text),
            thought=redact(thought.replace("</think>", "")),
            calls=tuple({"name": call.name, "arguments": _value(call.arguments, redact)} for call in row.body.calls),
            tool_call_id=row.tool_call_id,
            tool_name=row.tool_name,
            ratings=tuple(values),
        )


class WhyRequest(LookupRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for the history of one message, from its arrival to its delivery."""

    message: str

    def read(self, db: Connection) -> list[WhyReport]:
        return [load_explained(db, self.message)]

    def redacted(self, one: WhyReport, redact: Redact) -> WhyReport:
        steps = tuple(msgspec.structs.replace(step, outcome=redact(step.outcome)) for step in one.steps)
        return msgspec.structs.replace(one, steps=steps)


LOOKUPS: Mapping[str, type[LookupRequest]] = {
    "lineage": LineageRequest,
    "search": SearchRequest,
    "search_index": SearchIndexRequest,
    "history": HistoryRequest,
    "sessions": SessionsRequest,
    "conversations": ConversationsRequest,
    "messages": MessagesRequest,
    "why": WhyRequest,
}


def _parse_request(name: str, args: Mapping[str, Any]) -> LookupRequest:
    """Return the request with this name and these arguments. Raises `CommandError` for invalid arguments."""
    try:
        return msgspec.convert(args, LOOKUPS[name])
    except msgspec.ValidationError as error:
        raise CommandError(f"{name}: {error}") from None


async def look_up(store: Store, name: str, args: Mapping[str, Any], redact: Redact) -> list[Any]:
    """Run a look-up in the daemon's store. Raises the errors of `read`, or `StoreUnavailable` if it takes too long."""
    request = _parse_request(name, args)
    found = await store.read_within(LOOKUP_SECONDS, request.read)
    return await asyncio.to_thread(_answer, request, found, redact)


def look_up_at_rest(db: Connection, name: str, args: Mapping[str, Any], redact: Redact) -> list[Any]:
    """Run a look-up in a database that no daemon has open. Raises the errors of `LookupRequest.read`."""
    request = _parse_request(name, args)
    return _answer(request, request.read(db), redact)


def _answer(request: LookupRequest, found: Sequence[Any], redact: Redact) -> list[Any]:
    answer: list[Any] = msgspec.to_builtins([request.redacted(one, redact) for one in found])
    return answer


def _value(text: str, redact: Redact) -> object:
    """Parse and redact a JSON value. If the text is not valid JSON before or after that, return the redacted text."""
    try:
        value = json.loads(text)  # keeps long integers exact
        return orjson.loads(redact(orjson.dumps(value).decode()))  # JSON escapes can hide a secret from the redaction
    except (TypeError, ValueError, RecursionError):  # the text is not JSON, or has numbers that the encoder rejects
        return redact(text)


def tool_row(schema: ToolSchema, redact: Redact) -> dict[str, Any]:
    found = _value(orjson.dumps(schema).decode(), redact)
    return found if isinstance(found, dict) else {"name": schema.name}


def compression_details(made: LineageSession) -> list[str]:
    """Return details of the compression that created a session: `95,000 → 40,000 tokens`, `focus “schema”`."""
    details = []
    if made.tokens_before is not None and made.tokens_after is not None:
        details.append(f"{made.tokens_before:,} → {made.tokens_after:,} tokens")
    if made.summary_kind is not None:
        is_by_rule = made.summary_kind == "deterministic"
        details.append("summary without a model" if is_by_rule else f"summary by {made.model}")
    if made.focus:
        details.append(f"focus “{shortened(made.focus)}”")
    return details + (["undone later"] if made.was_undone else [])


def speaker(role: MessageRole, sender: str | None, tool: str | None) -> str:
    return f"tool {tool}" if role is MessageRole.TOOL else sender or role.value


_JSON_ROWS: Final[Mapping[type, str]] = {
    LineageSession: (
        "session=key parent=parent_key depth kind lineage=lineage_key platform=chat.platform account=chat.account "
        "chat=chat.name chat_name=label started_at ended_at end_reason messages=message_count layer tokens_before "
        "tokens_after focus summary_kind model"
    ),
    FoundMessage: "session=session_key lineage=lineage_key chat=chat.name role at=created_at text snippet score",
    Conversation: (
        "session=tip.key platform=chat.platform account=chat.account chat=chat.name chat_name=label title first_words "
        "started_at last_human_at ended_at=tip.ended_at end_reason=tip.end_reason sessions=session_count "
        "messages=message_count is_active"
    ),
}
"""JSON keys of each type. A key is followed by the name of the attribute if the names differ."""


def json_row(one: LineageSession | FoundMessage | HistoryMessage | Conversation) -> Row:
    """Return a value as a JSON object, with the full keys of sessions and conversations, and with recall ids."""
    if isinstance(one, HistoryMessage):
        return msgspec.structs.asdict(one)
    row: Row = {"message": recall_id(one.message_id)} if isinstance(one, FoundMessage) else {}
    for name, _, attribute in (field.partition("=") for field in _JSON_ROWS[type(one)].split()):
        row[name] = attrgetter(attribute or name)(one)
    if isinstance(one, LineageSession | Conversation) and one.agent:
        row["agent"] = one.agent
    return row
