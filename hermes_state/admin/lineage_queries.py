"""Admin queries about conversations: chains of sessions, exports, and look-ups by the ids that people see."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hermes_state.attachments import MessageFile
from hermes_state.chats import find_chats_named
from hermes_state.errors import LookupReason, LookupRejected
from hermes_state.models.ledger import OF_SESSIONS
from hermes_state.sessions import (
    LINEAGE_KEY,
    MIN_KEY_PREFIX,
    SHORT_KEY_LENGTH,
    EndReason,
    Session,
    SessionKind,
    chat_label,
    find_sessions,
    load_session,
)
from hermes_state.store.sql import Connection, columns, select
from hermes_state.transcripts import load_own_rows
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    LineageId,
    MessageId,
    MessageRole,
    Millis,
    SessionId,
    Transcript,
    parse_recall_id,
    recall_id,
)

MAX_CANDIDATES = 5


class LineageSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session, its place in the chain of sessions, and the compression that created it."""

    session_id: SessionId
    key: str
    parent_key: str | None
    child_key: str | None
    lineage_key: str
    depth: int
    kind: SessionKind
    """`subagent` for a sub-agent's first session. Its parent is the calling session."""
    chat: ChatKey
    label: str
    """Display name of the chat, or an empty string if it is unknown."""
    started_at: Millis
    ended_at: Millis | None
    end_reason: EndReason | None
    message_count: int
    layer: str | None
    """Layer of the compression that created the session. None for a first session, or one that an undo created."""
    tokens_before: int | None
    tokens_after: int | None
    focus: str | None
    summary_kind: str | None
    model: str | None
    was_undone: bool
    undone_key: str | None
    """For a session that an undo created: the key of the session whose compression was undone."""
    title: str | None = None
    """Title of the conversation."""
    agent: str = ""


class LookupResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a look-up by id: a chat, a session, or a message with its session."""

    chat_id: ChatId
    session: Session | None = None
    message_id: MessageId | None = None
    message_seq: int | None = None


def find_place(db: Connection, name: str, within: ChatId | None = None) -> LookupResult:
    """Find a chat by its name (`telegram:42`), a session by a prefix of its id, or a message by its id (`m123`).

    Raises `LookupRejected` if the name matches nothing, is ambiguous, or matches only outside the chat `within`.
    """
    name = name.strip()
    if len(name) > 200:  # longer than any id
        raise LookupRejected(LookupReason.MALFORMED, name)
    if (message_id := parse_recall_id(name)) is not None:
        return _place_of_message(db, message_id, within)
    chats = find_chats_named(db, name)
    if not chats:
        return _place_of_session(db, name, within)
    if len(chats) > 1:
        names = tuple(chat.key.name for chat in chats[:MAX_CANDIDATES])
        raise LookupRejected(LookupReason.AMBIGUOUS_CHAT, name, names)
    if within not in (None, chats[0].id):
        raise LookupRejected(LookupReason.OTHER_CHAT, name)
    return LookupResult(chat_id=chats[0].id)


def _place_of_message(db: Connection, message_id: MessageId, within: ChatId | None) -> LookupResult:
    # A part of a long document is shown as the message that it came with.
    query = """SELECT m.id, m.session_id, m.seq FROM messages named JOIN messages m
      ON m.id = CASE WHEN named.seq < 0 AND named.indexed = 1 THEN named.replaces_id ELSE named.id END
    WHERE named.id = ? AND m.seq > 0"""
    for shown_id, session_id, seq in db.execute(query, (message_id,)).fetchall():
        session = load_session(db, session_id)
        if within in (None, session.chat_id):
            return LookupResult(chat_id=session.chat_id, session=session, message_id=shown_id, message_seq=seq)
    raise LookupRejected(LookupReason.MESSAGE_NOT_FOUND, recall_id(message_id))


def _place_of_session(db: Connection, name: str, within: ChatId | None) -> LookupResult:
    prefix = name.lower()
    found = find_sessions(db, prefix, within, MAX_CANDIDATES + 1) if len(prefix) >= MIN_KEY_PREFIX else []
    if not found:
        raise LookupRejected(LookupReason.NOT_FOUND, name)
    if len(found) > 1:
        keys = tuple(session.key for session in found[:MAX_CANDIDATES])
        raise LookupRejected(LookupReason.AMBIGUOUS_SESSION, name, keys)
    return LookupResult(chat_id=found[0].chat_id, session=found[0])


# Purpose: load sessions with their neighbours in the chain and their compression, newest first.
_SESSIONS = f"""
SELECT s.id AS session_id, s.key, p.key AS parent_key,
  (SELECT n.key FROM sessions n WHERE n.lineage_id = s.lineage_id AND n.depth = s.depth + 1) AS child_key,
  {LINEAGE_KEY} AS lineage_key, s.depth, s.kind, {columns(ChatKey, "c", "chat")}, {chat_label("s.lineage_id")} AS label,
  s.started_at, s.ended_at, s.end_reason, s.message_count,
  (SELECT t.title FROM sessions t WHERE t.lineage_id = s.lineage_id AND t.title IS NOT NULL
    ORDER BY t.depth DESC LIMIT 1) AS title,
  CASE WHEN s.depth > 0 AND k.id IS NULL THEN
    (SELECT u.key FROM compressions x JOIN sessions u ON u.id = x.child_id
     WHERE u.lineage_id = s.lineage_id AND x.undone_by = s.id) END AS undone_key,
  s.agent,
  k.layer, k.tokens_before, k.tokens_after, k.focus, k.summary_kind, k.model, k.undone_by IS NOT NULL AS was_undone
FROM sessions s JOIN chats c ON c.id = s.chat_id
LEFT JOIN sessions p ON p.id = s.parent_session_id
LEFT JOIN compressions k ON k.child_id = s.id
WHERE {{scope}} ORDER BY s.id DESC LIMIT :limit
"""


def load_lineage_sessions(
    db: Connection, place: LookupResult | None, limit: int, agent: str | None = None
) -> list[LineageSession]:
    """Load the newest `limit` sessions of a chat, a conversation (with sub-agents) or all chats, in creation order."""
    if place is None:
        return _load_sessions(db, "1 = :value", 1, limit, agent)
    if place.session is None:
        return _load_sessions(db, "s.chat_id = :value", place.chat_id, limit, agent)
    called = "s.parent_session_id IN (SELECT id FROM sessions WHERE lineage_id = :value)"
    return _load_sessions(db, f"(s.lineage_id = :value OR {called})", place.session.lineage_id, limit, agent)


def load_lineage_session(db: Connection, session_id: SessionId) -> LineageSession:
    """Load a session that is known to exist."""
    return _load_sessions(db, "s.id = :value", session_id, 1)[0]


def _load_sessions(
    db: Connection, scope: str, value: int, limit: int, agent: str | None = None
) -> list[LineageSession]:
    scope = scope if agent is None else f"{scope} AND s.agent = :agent"
    query = _SESSIONS.format(scope=scope)
    return select(db, LineageSession, query, {"value": value, "limit": limit, "agent": agent})[::-1]


def load_around(db: Connection, session_id: SessionId, seq: int | None, before: int, limit: int) -> Transcript:
    """Load at most `limit` rows of a session, starting at most `before` rows before `seq` (None: the first row)."""
    return load_own_rows(db, session_id, max(1, (seq or 1) - before), limit)


def short_key(key: str) -> str:
    return key[:SHORT_KEY_LENGTH]


class StoredConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, described by its oldest stored session."""

    lineage_id: LineageId
    key: str
    chat: ChatKey
    chat_kind: ChatKind
    parent: str | None
    """For a sub-agent, the key of the calling session."""
    kind: str
    model: str | None
    system_prompt: str | None
    started_at: Millis
    tools: str
    """Names of the tools that the model was offered at the start, as JSON."""


class FullMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its whole content. Secrets are redacted."""

    id: MessageId
    role: MessageRole
    at: Millis
    sender: str | None = None
    files: tuple[MessageFile, ...] = ()
    content: Any
    """Text, or the JSON value if a tool's result is an object or a list."""
    thought: str = ""
    """Readable reasoning of the model, stored only if the answer calls tools."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """`name` and `arguments` of each tool call. Arguments that are not valid JSON are kept as text."""
    tool_call_id: str | None = None
    tool_name: str | None = None
    ratings: tuple[int, ...] = ()
    """Ratings of an answer: 1 for each thumbs-up, and -1 for each thumbs-down."""


# Purpose: load the lineages with messages since a given time, in one place or in all chats, oldest first.
_BEGUN = f"""
SELECT s.lineage_id, s.key, {columns(ChatKey, "c", "chat")}, c.kind AS chat_kind,
  p.key AS parent, s.kind, s.system_prompt, s.started_at,
  coalesce((SELECT c.model FROM model_calls c WHERE c.lineage_id = s.lineage_id AND c.outcome = 'ok'
    AND c.purpose IN ('turn', 'schedule', 'subagent') AND {OF_SESSIONS}
    ORDER BY c.created_at DESC LIMIT 1), s.model) AS model,
  coalesce((SELECT o.names FROM tool_offers o JOIN sessions f ON f.id = o.session_id
    WHERE f.lineage_id = s.lineage_id ORDER BY f.id LIMIT 1), '[]') AS tools
FROM sessions s JOIN chats c ON c.id = s.chat_id
LEFT JOIN sessions p ON p.id = s.parent_session_id AND p.lineage_id <> s.lineage_id
WHERE c.deleted_at IS NULL AND s.lineage_id > ?
  AND s.depth = (SELECT min(f.depth) FROM sessions f WHERE f.lineage_id = s.lineage_id)
  AND (CAST(? AS INTEGER) IS NULL OR s.chat_id = ?)
  AND (CAST(? AS INTEGER) IS NULL OR ? IN (s.lineage_id, p.lineage_id))
  AND EXISTS (SELECT 1 FROM messages m WHERE m.lineage_id = s.lineage_id AND m.seq > 0 AND m.created_at >= ?
    AND (CAST(? AS TEXT) IS NULL OR m.sender_ref = ?))
  AND (CAST(? AS TEXT) IS NULL OR s.agent = ?)
ORDER BY s.lineage_id LIMIT ?
"""


def load_conversations(
    db: Connection,
    place: LookupResult | None,
    since: Millis,
    after: LineageId,
    limit: int,
    person: str | None = None,
    agent: str | None = None,
) -> list[StoredConversation]:
    """Load at most `limit` conversations, with sub-agents, of `place` (None: all chats) whose ids are above `after`.

    With `person`, load only the conversations in which this person wrote, and with `agent`, only those of this agent.
    """
    chat_id = place.chat_id if place is not None else None
    lineage_id = place.session.lineage_id if place is not None and place.session is not None else None
    values = (after, chat_id, chat_id, lineage_id, lineage_id, since, person, person, agent, agent, limit)
    return select(db, StoredConversation, _BEGUN, values)
