"""Chats: their keys, active sessions, and complete history."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec.structs import asdict, astuple, fields, replace

from hermes_state.sessions import IS_SUBAGENT, chat_label
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, insertion, scalar, select, select_one
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    ChatScope,
    LineageId,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    TurnId,
)


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    id: ChatId
    key: ChatKey
    kind: ChatKind
    title: str | None
    active_session_id: SessionId | None
    scope: ChatScope


_KEY, _SCOPE = columns(ChatKey, "chats", "key"), columns(ChatScope, "chats", "scope")
_COLUMNS = f"id, {_KEY}, kind, title, active_session_id, {_SCOPE}"

_IS_CHAT = "platform = ? AND account = ? AND chat_ref = ? AND thread_ref = ? AND user_ref = ?"


@locks(chat="key")
def ensure_chat(db: Connection, key: ChatKey, kind: ChatKind, title: str | None, now: Millis) -> ChatId:
    """Return the chat's id, creating the chat if needed."""
    return meet_chat(db, key, kind, title, now)[0]


@locks(chat="key")
def meet_chat(
    db: Connection, key: ChatKey, kind: ChatKind, title: str | None, now: Millis, scope: ChatScope | None = None
) -> tuple[ChatId, Millis | None]:
    """Return the chat's id, and when the bot lost access (None if it has access). Create the chat if needed.

    `scope` is stored without the roles if several people share the session. None keeps the stored scope.
    """
    query = f"SELECT id, kind, title, unreachable_since, {_SCOPE} FROM chats WHERE {_IS_CHAT}"
    known = db.execute(query, astuple(key)).fetchone()
    if scope is not None and not key.user_ref:
        scope = replace(scope, role_refs="")
    is_scoped = scope is None or (known is not None and astuple(scope) == known[4:])
    if known is not None and is_scoped and known[1] == kind and (title is None or title == known[2]):
        return known[0], known[3]
    values = {**asdict(key), "kind": kind, "title": title, "created_at": now, "updated_at": now}
    placed = "".join(f", {field.name} = excluded.{field.name}" for field in fields(ChatScope) if scope is not None)
    values |= asdict(scope) if scope is not None else {}
    query = f"""{insertion("chats", values)}
    ON CONFLICT (platform, account, chat_ref, thread_ref, user_ref) DO UPDATE
    SET kind = excluded.kind, title = coalesce(excluded.title, chats.title), updated_at = excluded.updated_at{placed}
    RETURNING id"""
    chat_id = scalar(db, ChatId, query, values)
    return chat_id, None if known is None else known[3]


@locks(chat="chat_id")
def note_reach(db: Connection, chat_id: ChatId, since: Millis | None) -> bool:
    """Store when the bot lost access to a chat (`since`), or None if it has access. Return False if nothing changed."""
    query = """UPDATE chats SET unreachable_since = CAST(:since AS BIGINT)
    WHERE id = :id AND (unreachable_since IS NULL) = (CAST(:since AS BIGINT) IS NOT NULL)"""
    return db.execute(query, {"id": chat_id, "since": since}).rowcount > 0


def is_unreachable(db: Connection, chat_id: ChatId) -> bool:
    """Return True if the bot cannot write to the chat, because it was blocked or removed, or the chat was deleted."""
    return scalar(db, bool, "SELECT unreachable_since IS NOT NULL FROM chats WHERE id = ?", (chat_id,))


def find_chat(db: Connection, key: ChatKey) -> Chat | None:
    """Load the chat with this key, or return None if there is none."""
    query = f"SELECT {_COLUMNS} FROM chats WHERE {_IS_CHAT}"
    return select_one(db, Chat, query, astuple(key))


def find_chats_at(db: Connection, key: ChatKey) -> list[Chat]:
    """Load all chats with this platform id and thread. Without `sessions.groups: per_user`, there is at most one."""
    query = f"SELECT {_COLUMNS} FROM chats WHERE platform = ? AND account = ? AND chat_ref = ? AND thread_ref = ?"
    return select(db, Chat, query, (key.platform, key.account, key.chat_ref, key.thread_ref))


def find_chats_named(db: Connection, name: str) -> list[Chat]:
    """Load people's chats that have this name (such as `telegram:42`) or this platform id (such as `42`)."""
    query = f"""SELECT {_COLUMNS} FROM chats WHERE platform <> 'webhook' AND (account || ':' || chat_ref
      || CASE thread_ref WHEN '' THEN '' ELSE '/' || thread_ref END
      || CASE user_ref WHEN '' THEN '' ELSE '#' || user_ref END = :name
    OR (chat_ref = :name AND thread_ref = '' AND user_ref = '')) ORDER BY id"""
    return select(db, Chat, query, {"name": name})


def has_chats(db: Connection, account: str) -> bool:
    """Return True if a chat of this account is stored."""
    return db.execute("SELECT 1 FROM chats WHERE account = ? LIMIT 1", (account,)).fetchone() is not None


def load_groups(db: Connection, limit: int = 20) -> list[ChatKey]:
    """Load the groups that the bot can write to and that changed last, without their threads and people."""
    query = """SELECT platform, account, chat_ref FROM chats WHERE kind NOT IN ('direct','local')
      AND unreachable_since IS NULL GROUP BY platform, account, chat_ref ORDER BY max(updated_at) DESC LIMIT ?"""
    return select(db, ChatKey, query, (limit,))


def load_chat(db: Connection, chat_id: ChatId) -> Chat:
    """Load a chat that is known to exist."""
    chat = select_one(db, Chat, f"SELECT {_COLUMNS} FROM chats WHERE id = ?", (chat_id,))
    assert chat is not None, f"there is no chat {chat_id}"
    return chat


def load_label(db: Connection, chat_id: ChatId) -> str:
    """Return the chat's display name: a group's title, or the person who wrote last. Empty if unknown."""
    query = f"""SELECT {chat_label("a.lineage_id")} FROM chats c
    LEFT JOIN sessions a ON a.id = c.active_session_id WHERE c.id = ?"""
    return scalar(db, str, query, (chat_id,))


@locks(EVERYTHING)
def move_chat(db: Connection, platform: str, account: str, old_ref: str, new_ref: str, now: Millis) -> list[ChatId]:
    """Move a chat, with its threads and per-person chats, to a new platform id. Return the surviving chats.

    If a chat with the new id exists, only one of the two survives. It gets the other chat's waiting messages and unsent
    replies. The new chat survives if it has a conversation, otherwise the old chat does.
    """
    query = f"SELECT {_COLUMNS} FROM chats WHERE platform = ? AND account = ? AND chat_ref = ?"
    living = []
    for old in select(db, Chat, query, (platform, account, old_ref)):
        new = find_chat(db, replace(old.key, chat_ref=new_ref))
        if new is not None and new.active_session_id is not None:
            _move_open_rows(db, old.id, new.id)
            living.append(new.id)
            continue
        if new is not None:
            # The two chats swap platform ids. Neither row is deleted, because other rows refer to both.
            _move_open_rows(db, new.id, old.id)
            db.execute("UPDATE chats SET chat_ref = 'moving ' || chat_ref WHERE id = ?", (new.id,))
        db.execute("UPDATE chats SET chat_ref = ?, updated_at = ? WHERE id = ?", (new_ref, now, old.id))
        if new is not None:
            db.execute("UPDATE chats SET chat_ref = ? WHERE id = ?", (old_ref, new.id))
        living.append(old.id)
    return living


def _move_open_rows(db: Connection, source: ChatId, target: ChatId) -> None:
    db.execute("UPDATE inbox SET chat_id = ? WHERE chat_id = ? AND state = 'new'", (target, source))
    db.execute("UPDATE schedules SET chat_id = ? WHERE chat_id = ?", (target, source))
    known = "SELECT message_ref FROM talk WHERE chat_id = ?"
    query = f"UPDATE talk SET chat_id = ? WHERE chat_id = ? AND message_ref NOT IN ({known})"
    db.execute(query, (target, source, target))
    owed = "state IN ('pending','sending','ambiguous')"
    db.execute(f"UPDATE outbox SET chat_id = ? WHERE chat_id = ? AND {owed}", (target, source))


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat in its original form, with its delivery state and whether it was undone."""

    id: MessageId
    lineage_id: LineageId
    role: MessageRole
    origin: Origin
    text: str | None
    body: MessageBody | None
    turn_id: TurnId | None
    tool_call_id: str | None
    tool_state: str | None  # for a tool result, the state of its tool run
    created_at: Millis
    taken_up_at: Millis | None  # start of the turn that answers this message
    ref: str | None  # in a web chat, the page's id of the message or its first part
    is_owed: bool  # delivery is not finished
    is_undone: bool  # hidden from the model
    files: tuple[str, ...] = ()  # attachment names


# Purpose: load the messages of a session, newest first.
_HISTORY = """
SELECT m.id, m.lineage_id, m.role, m.origin, m.text, m.body, m.turn_id, m.tool_call_id, m.created_at,
  (SELECT r.state FROM tool_runs r WHERE r.turn_id = m.turn_id AND r.tool_call_id = m.tool_call_id
    ORDER BY r.id DESC LIMIT 1) AS tool_state,
  (SELECT t.started_at FROM turns t WHERE t.id = m.turn_id AND m.origin = 'human') AS taken_up_at,
  (SELECT p.ref FROM platform_messages p WHERE p.message_id = m.id AND p.ref >= 'A' ORDER BY p.part LIMIT 1) AS ref,
  EXISTS (SELECT 1 FROM outbox o WHERE o.chat_id = m.chat_id AND o.message_id = m.id
    AND o.state IN ('pending','sending','ambiguous') AND o.kind <> 'voice') AS is_owed,
  EXISTS (SELECT 1 FROM view_edits v WHERE v.message_id = m.id AND v.replacement_id IS NULL) AS is_undone
FROM messages m WHERE m.session_id = ? AND m.seq > 0 AND m.id < ? ORDER BY m.seq DESC LIMIT ?
"""


def load_history(db: Connection, chat_id: ChatId, limit: int, before: int | None = None) -> list[HistoryRow]:
    """Load the newest `limit` messages of a chat with ids below `before`, across all conversations, oldest first."""
    rows: list[HistoryRow] = []
    bound = before if before is not None else 2**62
    query = f"SELECT s.id FROM sessions s WHERE s.chat_id = ? AND NOT {IS_SUBAGENT} ORDER BY s.id DESC"
    files = """SELECT m.id, a.name FROM messages m JOIN attachments a ON a.message_id = m.id
    WHERE m.session_id = ? AND m.seq > 0 AND m.id BETWEEN ? AND ? ORDER BY a.id"""
    for (session_id,) in db.execute(query, (chat_id,)):  # read lazily, because a chat can have many sessions
        if len(rows) >= limit:
            break
        found = select(db, HistoryRow, _HISTORY, (session_id, bound, limit - len(rows)))
        names = defaultdict[int, list[str]](list)
        for message_id, name in db.execute(files, (session_id, found[-1].id, found[0].id)) if found else ():
            names[message_id].append(name)
        rows += (msgspec.structs.replace(row, files=tuple(names[row.id])) for row in found)
    return sorted(rows, key=lambda row: row.id)


class SpokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a person or of an answer."""

    origin: Origin
    sender_name: str | None
    text: str
    created_at: Millis
    is_undone: bool


def load_spoken(db: Connection, chat_id: ChatId, limit: int, skip: int) -> list[SpokenRow]:
    """Load texts of the chat's active conversation, oldest first: the newest `limit` before the last `skip`."""
    query = """SELECT m.origin, m.sender_name, m.text, m.created_at,
      EXISTS (SELECT 1 FROM view_edits v WHERE v.message_id = m.id AND v.replacement_id IS NULL) AS is_undone
    FROM chats c JOIN sessions s ON s.id = c.active_session_id JOIN messages m ON m.lineage_id = s.lineage_id
    WHERE c.id = ? AND m.seq > 0 AND m.origin IN ('human','assistant') AND m.text <> ''
    ORDER BY m.id DESC LIMIT ? OFFSET ?"""
    return select(db, SpokenRow, query, (chat_id, limit, skip))[::-1]


def known_refs(db: Connection, chat_id: ChatId, refs: Iterable[str]) -> frozenset[str]:
    """Return the platform ids among `refs` that belong to messages in the chat's transcript."""
    query = "SELECT 1 FROM platform_messages WHERE chat_id = ? AND ref = ?"
    return frozenset(ref for ref in refs if db.execute(query, (chat_id, ref)).fetchone())
