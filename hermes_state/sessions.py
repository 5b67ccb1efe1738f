"""Sessions, and the lineages that they form.

A conversation is one **lineage**: a first session and its continuations, each created by a compression or by undoing
one. `lineage_id` is the first session's id and `depth` counts continuations, so one indexed look-up finds the newest
session (the tip). A reset starts a new lineage. A sub-agent's lineage is not a conversation: its first session has the
kind `subagent` and the calling session as its parent.
"""

import secrets
from enum import StrEnum

import msgspec

from hermes_state.errors import LineageMoved, LookupReason, LookupRejected, SessionNotFound
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, insert_row, scalar, scalar_or_none, scalars, select, select_one
from hermes_state.values import ChatId, ChatKey, LineageId, MessageId, Millis, ReasoningEffort, SessionId


class SessionKind(StrEnum):
    """Kind of a session: first of a conversation, continuation, or first of a sub-agent."""

    ROOT = "root"
    CONTINUATION = "continuation"
    SUBAGENT = "subagent"


class EndReason(StrEnum):
    COMPRESSION = "compression"
    UNDO = "undo"
    RESET = "reset"
    EXPIRED = "expired"
    SWITCHED = "switched"
    FINISHED = "finished"


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A `sessions` row without its totals."""

    id: SessionId
    key: str  # public id; people see the first eight characters
    chat_id: ChatId
    parent_session_id: SessionId | None
    lineage_id: LineageId
    depth: int
    model: str | None
    title: str | None
    system_prompt: str | None
    started_at: Millis
    ended_at: Millis | None
    end_reason: EndReason | None
    version: int
    """Version of the view, which increases with every change. A split planned for an older version is refused."""
    next_seq: int
    next_view_seq: int = -1  # `seq` of the next row made for a view, counting down
    message_count: int
    reported_prompt_tokens: int | None
    reported_at_seq: int | None  # last row included in `reported_prompt_tokens`
    context_state: str | None  # JSON state of the context engine, copied at a split
    chosen_model: str | None = None  # model chosen by a user; None: the configured model

    @property
    def short_key(self) -> str:
        return self.key[:SHORT_KEY_LENGTH]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a conversation, as shown in lists."""

    tip: Session
    chat: ChatKey
    label: str  # name of the chat for people; empty if unknown
    title: str | None
    first_words: str  # start of its first message; empty if that was a file
    message_count: int
    session_count: int
    started_at: Millis
    last_human_at: Millis | None
    is_active: bool
    agent: str = ""


SHORT_KEY_LENGTH = 8
MIN_KEY_PREFIX = 4  # shortest key prefix that people can look up

_COLUMNS = columns(Session, "sessions")
LINEAGE_KEY = "coalesce((SELECT r.key FROM sessions r WHERE r.id = s.lineage_id), s.key)"
"""SQL expression for the conversation key of session `s`. If the first session was removed, it is the key of `s`."""
_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"


def chat_label(lineage: str) -> str:
    """Return SQL for the name of chat `c`: a group's title or, in a direct chat, the newest sender in `lineage`."""
    return f"""coalesce(c.title, CASE WHEN c.kind = 'direct' THEN (SELECT m.sender_name FROM messages m
      WHERE m.lineage_id = {lineage} AND m.origin = 'human' ORDER BY m.id DESC LIMIT 1) END, '')"""


def new_session_key(now: Millis) -> str:
    """Make a public id that sorts by time: nine characters for the time and nine random characters.

    The first eight characters, which people see, differ for sessions that start at least 32 ms apart.
    """
    moment, digits = int(now), []
    for _ in range(9):
        digits.append(_BASE32[moment & 31])
        moment >>= 5
    return "".join(reversed(digits)) + "".join(secrets.choice(_BASE32) for _ in range(9))


def free_session_key(db: Connection, chat_id: ChatId, now: Millis) -> str:
    """Make a public id whose first eight characters are unique in the chat."""
    query = "SELECT 1 FROM sessions WHERE key >= ? AND key < ? AND chat_id = ?"
    while True:
        key = new_session_key(now)
        shown = key[:SHORT_KEY_LENGTH]
        if db.execute(query, (shown, shown + "~", chat_id)).fetchone() is None:
            return key
        now = Millis(now + 32)


def load_session(db: Connection, session_id: SessionId) -> Session:
    """Load a session. Raises `SessionNotFound` if it does not exist."""
    session = select_one(db, Session, f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (session_id,))
    if session is None:
        raise SessionNotFound(f"no session {session_id}")
    return session


def load_tip(db: Connection, lineage_id: LineageId) -> Session:
    """Load the newest session of a lineage, through the index on (lineage_id, depth).

    Raises `SessionNotFound` if the lineage does not exist.
    """
    query = f"SELECT {_COLUMNS} FROM sessions WHERE lineage_id = ? ORDER BY depth DESC LIMIT 1"
    tip = select_one(db, Session, query, (lineage_id,))
    if tip is None:
        raise SessionNotFound(f"no conversation {lineage_id}")
    return tip


def get_compression_tip(db: Connection, session_id: SessionId) -> SessionId:
    """Return the id of the newest session in a session's lineage.

    Raises `SessionNotFound` if the session does not exist.
    """
    return load_tip(db, load_session(db, session_id).lineage_id).id


def load_active(db: Connection, chat_id: ChatId) -> Session | None:
    """Load the chat's active session, which may have ended. Return None before the first message."""
    query = f"SELECT {_COLUMNS} FROM sessions WHERE id = (SELECT active_session_id FROM chats WHERE id = ?)"
    return select_one(db, Session, query, (chat_id,))


def load_open(db: Connection, chat_id: ChatId) -> Session | None:
    """Load the session that the chat's next message will join. Return None if that message will start a new session."""
    active = load_active(db, chat_id)
    return active if active is not None and active.ended_at is None else None


def ensure_active(db: Connection, chat_id: ChatId, now: Millis) -> Session:
    """Load the chat's open session, or start one."""
    return load_open(db, chat_id) or start_session(db, chat_id, now)


IS_SUBAGENT = "EXISTS (SELECT 1 FROM sessions r WHERE r.id = s.lineage_id AND r.kind = 'subagent')"
"""SQL condition for sessions `s` that belong to a sub-agent."""


def is_subagent(db: Connection, lineage_id: LineageId) -> bool:
    query = "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ? AND kind = 'subagent')"
    return scalar(db, bool, query, (lineage_id,))


def start_subagent_session(db: Connection, chat_id: ChatId, call_message_id: MessageId, now: Millis) -> LineageId:
    """Start the lineage of a sub-agent. The chat keeps its active session."""
    query = """INSERT INTO sessions
      (key, chat_id, parent_session_id, lineage_id, kind, agent, chosen_model, reasoning_effort, started_at)
    SELECT :key, s.chat_id, s.id, -s.chat_id, 'subagent', s.agent, s.chosen_model, s.reasoning_effort, :now
    FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.id = :call_message_id"""
    values = {"key": free_session_key(db, chat_id, now), "call_message_id": call_message_id, "now": now}
    lineage_id = insert_row(db, LineageId, query, values)
    db.execute("UPDATE sessions SET lineage_id = id WHERE id = ?", (lineage_id,))
    return lineage_id


@locks(chat="chat_id")
def start_session(db: Connection, chat_id: ChatId, now: Millis) -> Session:
    """Start a new lineage with the chat's agent, and make it the chat's active session."""
    query = """INSERT INTO sessions (key, chat_id, lineage_id, agent, started_at)
    SELECT ?, id, -id, agent, ? FROM chats WHERE id = ?"""
    session_id = insert_row(db, SessionId, query, (free_session_key(db, chat_id, now), now, chat_id))
    db.execute("UPDATE sessions SET lineage_id = id WHERE id = ?", (session_id,))
    db.execute("UPDATE chats SET active_session_id = ?, updated_at = ? WHERE id = ?", (session_id, now, chat_id))
    return load_session(db, session_id)


def end_session(db: Connection, session_id: SessionId, reason: EndReason, now: Millis) -> None:
    """End an open session. Raises `LineageMoved` if it has ended."""
    ended = db.execute(
        """UPDATE sessions SET ended_at = CASE WHEN started_at > :now THEN started_at ELSE :now END,
          end_reason = :reason, version = version + 1 WHERE id = :id AND ended_at IS NULL""",
        {"now": now, "reason": reason, "id": session_id},
    )
    if ended.rowcount != 1:
        raise LineageMoved(f"session {session_id} has already ended")


def reset(db: Connection, chat_id: ChatId, now: Millis) -> Session:
    """End the chat's session and start a new conversation."""
    if (active := load_open(db, chat_id)) is not None:
        end_session(db, active.id, EndReason.RESET, now)
    return start_session(db, chat_id, now)


def resume(db: Connection, chat_id: ChatId, key_prefix: str, now: Millis) -> Session:
    """Reactivate the conversation that has a session whose key starts with `key_prefix`.

    Its agent becomes the chat's agent. Raises `LookupRejected` if the conversation is already active, or if not exactly
    one matches.
    """
    tip = find_conversation(db, chat_id, key_prefix)
    if (active := load_open(db, chat_id)) is not None:
        if active.id == tip.id:
            raise LookupRejected(LookupReason.ALREADY_ACTIVE, tip.short_key)
        end_session(db, active.id, EndReason.SWITCHED, now)
    # Without a new `last_human_at`, the idle reset would end the session immediately.
    reopened = "ended_at = NULL, end_reason = NULL, version = version + 1, last_human_at = ?"
    db.execute(f"UPDATE sessions SET {reopened} WHERE id = ?", (now, tip.id))
    query = """UPDATE chats SET active_session_id = s.id, agent = s.agent, updated_at = ? FROM sessions s
    WHERE s.id = ? AND chats.id = s.chat_id"""
    db.execute(query, (now, tip.id))
    return load_session(db, tip.id)


def find_conversation(db: Connection, chat_id: ChatId, key_prefix: str) -> Session:
    """Load the newest session of the conversation that has a session with this key prefix.

    Raises `LookupRejected` if the prefix is malformed or not exactly one conversation matches.
    """
    prefix = key_prefix.strip().lower()
    if len(prefix) < MIN_KEY_PREFIX or any(letter not in _BASE32 for letter in prefix):
        raise LookupRejected(LookupReason.MALFORMED, prefix)
    query = f"""SELECT DISTINCT s.lineage_id FROM sessions s
    WHERE s.chat_id = ? AND s.key >= ? AND s.key < ? AND NOT {IS_SUBAGENT}"""
    lineages = scalars(db, LineageId, query, (chat_id, prefix, prefix + "~"))
    if not lineages:
        raise LookupRejected(LookupReason.NOT_FOUND, prefix)
    if len(lineages) > 1:
        raise LookupRejected(LookupReason.AMBIGUOUS_SESSION, prefix)
    return load_tip(db, lineages[0])


def find_sessions(db: Connection, key_prefix: str, chat_id: ChatId | None, limit: int) -> list[Session]:
    """Load sessions whose key has this prefix, from one chat or from all chats, oldest first."""
    if not key_prefix or any(letter not in _BASE32 for letter in key_prefix):
        return []
    query = f"""SELECT {_COLUMNS} FROM sessions
    WHERE key >= ? AND key < ? AND (CAST(? AS INTEGER) IS NULL OR chat_id = ?) ORDER BY key LIMIT ?"""
    return select(db, Session, query, (key_prefix, key_prefix + "~", chat_id, chat_id, limit))


@locks(session="session_id")
def set_system_prompt(db: Connection, session_id: SessionId, text: str) -> str:
    """Store a session's system prompt unless it has one. Return the stored prompt."""
    db.execute("UPDATE sessions SET system_prompt = ? WHERE id = ? AND system_prompt IS NULL", (text, session_id))
    stored = load_session(db, session_id).system_prompt
    assert stored is not None
    return stored


def renew_system_prompt(db: Connection, lineage_id: LineageId, text: str) -> None:
    """Replace the system prompt of a conversation's open continuation, unless a model may have seen the old prompt."""
    query = """UPDATE sessions SET system_prompt = ?
    WHERE lineage_id = ? AND depth > 0 AND ended_at IS NULL AND next_seq = 1
      AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.chat_id = sessions.chat_id AND t.state IN ('running','waiting'))"""
    db.execute(query, (text, lineage_id))


@locks(session="session_id")
def set_context_state(db: Connection, session_id: SessionId, state: str) -> None:
    """Store the state of the context engine. The view does not change."""
    db.execute("UPDATE sessions SET context_state = ? WHERE id = ?", (state, session_id))


def load_indebted(db: Connection, chat_id: ChatId) -> list[SessionId]:
    """Load the sessions with the chat's agent whose memory flush is due, because they were compressed before it ran."""
    query = """SELECT s.id FROM sessions s WHERE s.chat_id = ?
      AND s.agent = (SELECT agent FROM chats WHERE id = s.chat_id)
      AND s.context_state LIKE '%"owes_notes":true%' ORDER BY s.id"""
    return scalars(db, SessionId, query, (chat_id,))


def choose_model(db: Connection, session_id: SessionId, choice: str | None) -> None:
    """Set the model of a session and its continuations. None selects the configured model."""
    db.execute("UPDATE sessions SET chosen_model = ? WHERE id = ?", (choice, session_id))


def load_effort(db: Connection, session_id: SessionId) -> ReasoningEffort | None:
    """Load the reasoning effort chosen for a session. None means the configured effort.

    This is not a field of `Session`, because the command line also reads older databases, which do not have the column.
    """
    effort: ReasoningEffort | None  # a CHECK limits the column to these words
    (effort,) = db.execute("SELECT reasoning_effort FROM sessions WHERE id = ?", (session_id,)).fetchone() or (None,)
    return effort


def choose_effort(db: Connection, session_id: SessionId, effort: ReasoningEffort | None) -> None:
    """Set the reasoning effort of a session and its continuations. None selects the configured effort."""
    db.execute("UPDATE sessions SET reasoning_effort = ? WHERE id = ?", (effort, session_id))


def forget_model(db: Connection, lineage_id: LineageId, choice: str) -> bool:
    """Switch back to the configured model if `choice` is still the chosen model. Return False if it is not."""
    tip = load_tip(db, lineage_id)
    if tip.chosen_model != choice:
        return False
    choose_model(db, tip.id, None)
    return True


def set_title(db: Connection, session_id: SessionId, title: str) -> None:
    db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))


def give_title(db: Connection, lineage_id: LineageId, title: str) -> bool:
    """Give a conversation a title. Return False, and change nothing, if it already has one."""
    if load_title(db, lineage_id) is not None:
        return False
    set_title(db, load_tip(db, lineage_id).id, title)
    return True


def load_title(db: Connection, lineage_id: LineageId) -> str | None:
    """Load a conversation's title, which is the newest title of its sessions. Return None if no session has one."""
    query = "SELECT title FROM sessions WHERE lineage_id = ? AND title IS NOT NULL ORDER BY depth DESC LIMIT 1"
    return scalar_or_none(db, str, query, (lineage_id,))


def count_messages(db: Connection, lineage_id: LineageId) -> int:
    """Count the messages of a conversation across its sessions."""
    query = "SELECT coalesce(sum(message_count), 0) FROM sessions WHERE lineage_id = ?"
    return scalar(db, int, query, (lineage_id,))


def list_conversations(
    db: Connection, chat_id: ChatId | None, limit: int, agent: str | None = None
) -> list[Conversation]:
    """Load the conversations that have messages, most recently used first, of a chat and an agent or of all (None)."""
    given = {"chat_id": chat_id, "agent": agent}
    wanted = {name: value for name, value in given.items() if value is not None}
    where = " AND ".join(["1 = 1", *(f"s.{name} = ?" for name in wanted)])
    query = f"""WITH used AS (
      SELECT lineage_id, max(depth) AS depth, sum(message_count) AS message_count, count(*) AS session_count,
        min(started_at) AS started_at, max(last_human_at) AS last_human_at,
        max(coalesce(last_human_at, started_at)) AS used_at
      FROM sessions s WHERE {where} GROUP BY lineage_id
      HAVING sum(message_count) > 0 AND count(*) FILTER (WHERE kind = 'subagent') = 0 ORDER BY used_at DESC LIMIT ?)
    SELECT {columns(Session, "t", "tip")}, {columns(ChatKey, "c", "chat")}, {chat_label("u.lineage_id")} AS label,
      u.message_count, u.session_count, u.started_at, u.last_human_at,
      (SELECT s.title FROM sessions s WHERE s.lineage_id = u.lineage_id AND s.title IS NOT NULL
        ORDER BY s.depth DESC LIMIT 1) AS title,
      coalesce((SELECT substr(m.text, 1, 200) FROM messages m WHERE m.lineage_id = u.lineage_id AND m.origin = 'human'
        AND m.seq > 0 ORDER BY m.id LIMIT 1), '') AS first_words,
      EXISTS (SELECT 1 FROM sessions a WHERE a.id = c.active_session_id AND a.lineage_id = u.lineage_id) AS is_active,
      t.agent
    FROM used u JOIN sessions t ON t.lineage_id = u.lineage_id AND t.depth = u.depth
    JOIN chats c ON c.id = t.chat_id ORDER BY u.used_at DESC"""
    return select(db, Conversation, query, (*wanted.values(), limit))


def load_other_lineages(db: Connection, chat_id: ChatId, lineage_id: LineageId, limit: int) -> list[LineageId]:
    """Load the ids of a chat's newest conversations, except this one and those of sub-agents and other agents."""
    query = """SELECT lineage_id FROM sessions WHERE chat_id = ? AND lineage_id <> ?
      AND agent = (SELECT agent FROM sessions own WHERE own.id = ?)
    GROUP BY lineage_id HAVING count(*) FILTER (WHERE kind = 'subagent') = 0 ORDER BY lineage_id DESC LIMIT ?"""
    return scalars(db, LineageId, query, (chat_id, lineage_id, lineage_id, limit))


def load_idle(db: Connection, before: Millis, limit: int) -> list[SessionId]:
    """Load sessions whose last message from a person is older than `before`. Reads the newest session of every chat."""
    query = """SELECT s.id FROM sessions s JOIN chats c ON c.active_session_id = s.id
    WHERE s.ended_at IS NULL AND s.last_human_at < ?
      AND NOT EXISTS (SELECT 1 FROM turns t
        WHERE t.chat_id = s.chat_id AND t.parent_turn_id IS NULL AND t.state IN ('running','waiting'))
      AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.chat_id = s.chat_id AND i.state = 'new')
    ORDER BY s.last_human_at LIMIT ?"""
    return scalars(db, SessionId, query, (before, limit))


@locks(EVERYTHING)
def expire_idle(db: Connection, before: Millis, limit: int, now: Millis) -> list[SessionId]:
    """End the sessions that `load_idle` finds. Return their ids."""
    idle = load_idle(db, before, limit)
    for session_id in idle:
        end_session(db, session_id, EndReason.EXPIRED, now)
    return idle
