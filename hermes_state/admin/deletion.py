"""Delete a chat on request: hide it immediately, then remove its rows in the background.

The row of the chat stays without any text, so that usage figures are kept and the chat's id is never used again. All
other rows are removed in slices. After a restart, the next run continues with the remaining rows. On SQLite, the
deleted text is also erased from the file: freed pages are overwritten (`secure_delete`), the parts of the search index
are merged, and the write-ahead log is emptied. See docs/decisions/0028.
"""

import asyncio
from collections.abc import Callable

import msgspec

from hermes_state import outbox
from hermes_state.admin.retention import checkpoint, merge_index
from hermes_state.attachments import load_orphans
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import CommandError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.outbox import Reply
from hermes_state.sessions import load_active
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar, scalars, select_one
from hermes_state.store.writer import Store
from hermes_state.text import counted
from hermes_state.values import ChatId, ChatKey, LineageId, Millis
from hermes_state.web_chats import existing, load_listed

SLICE_ROWS = 200
_TABLES = (
    *("platform_messages", "live_buttons", "talk", "ratings", "outbox", "inbox"),
    *("schedules", "attachments", "tool_grants", "turns", "sessions"),
)


class DeletionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Number of messages, files and schedules that deleting a chat would remove."""

    id: ChatId
    messages: int
    files: int
    schedules: int


def load_extent(db: Connection, key: ChatKey) -> DeletionReport:
    query = """SELECT c.id, (SELECT count(*) FROM attachments a WHERE a.chat_id = c.id) AS files,
      (SELECT count(*) FROM schedules s WHERE s.chat_id = c.id) AS schedules,
      (SELECT coalesce(sum(s.message_count), 0) FROM sessions s WHERE s.chat_id = c.id) AS messages
    FROM chats c WHERE c.id = ?"""
    found = select_one(db, DeletionReport, query, (existing(db, key).id,))
    assert found is not None
    return found


@locks(chat="key")
def hide(db: Connection, key: ChatKey, now: Millis) -> LineageId | None:
    """Hide a chat, free its name, and end its schedules. Return its conversation, if any.

    Raises `CommandError` if the chat is busy.
    """
    chat = existing(db, key)
    busy = """SELECT EXISTS (SELECT 1 FROM turns WHERE chat_id = :id AND state IN ('running','waiting'))
      OR EXISTS (SELECT 1 FROM inbox WHERE chat_id = :id AND state IN ('new','claimed') AND kind <> 'notice')
      OR EXISTS (SELECT 1 FROM outbox WHERE chat_id = :id AND state IN ('pending','sending'))"""
    if scalar(db, bool, busy, {"id": chat.id}):
        raise CommandError(
            "A message in this chat is being answered. Stop the answer or wait for it, then delete the chat."
        )
    active = load_active(db, chat.id)
    query = """UPDATE chats SET deleted_at = ?, chat_ref = ?, title = NULL, settings = '{}', pinned_at = NULL,
      archived_at = NULL, active_session_id = NULL WHERE id = ?"""
    db.execute(query, (now, f"deleted {chat.id}", chat.id))
    db.execute("DELETE FROM schedules WHERE chat_id = ?", (chat.id,))  # otherwise they would start hidden turns
    return None if active is None else active.lineage_id


def load_hidden_chats(db: Connection) -> list[ChatId]:
    query = "SELECT id FROM chats WHERE deleted_at IS NOT NULL AND removed_at IS NULL ORDER BY id"
    return scalars(db, ChatId, query)


@locks(chat="chat_id")
def remove_slice(db: Connection, chat_id: ChatId) -> bool:
    """Remove some messages of a chat, or all other rows if no messages are left. Return True if rows may be left."""
    messages = "SELECT m.id FROM sessions s JOIN messages m ON m.session_id = s.id WHERE s.chat_id = ? LIMIT ?"
    if db.execute(f"DELETE FROM messages WHERE id IN ({messages})", (chat_id, SLICE_ROWS)).rowcount:
        return True
    for table in _TABLES:
        db.execute(f"DELETE FROM {table} WHERE chat_id = ?", (chat_id,))
    return False


@locks(chat="chat_id")
def finish(db: Connection, chat_id: ChatId, now: Millis) -> ChatId | None:
    """Mark a chat as removed. Enqueue a notice in the first chat of its owner's list, and return that chat, if any."""
    query = "UPDATE chats SET removed_at = ? WHERE id = ? RETURNING platform, account, user_ref, deleted_at"
    platform, account, user_ref, deleted_at = db.execute(query, (now, chat_id)).fetchone()
    key = ChatKey(platform=platform, account=account, chat_ref="", user_ref=user_ref)
    if not (others := load_listed(db, key, 1)):
        return None
    seconds = max(1, round((now - deleted_at) / 1_000))
    text = f"The chat that you deleted {counted(seconds, 'second')} ago is now completely removed from the database."
    outbox.enqueue(db, Reply(chat_id=others[0].id, markdown=text, dedupe_key=f"deleted:{chat_id}"), now)
    return others[0].id


async def remove_deleted(
    store: Store, files: AttachmentFolder, forget_notes: Callable[[ChatId], None], now: Callable[[], Millis]
) -> list[ChatId]:
    """Remove all data of hidden chats. Return the chats in which a notice was enqueued.

    Raises `StoreUnavailable` if the database is not available, and `OSError` if a file cannot be removed.
    """
    hidden = await store.read(load_hidden_chats)
    for chat_id in hidden:
        # Remove files before their rows. Otherwise a restart in between would leave files that no row names.
        await asyncio.to_thread(files.remove, await store.read(load_orphans, chat_id))
        await asyncio.to_thread(forget_notes, chat_id)
        while await store.write(remove_slice, chat_id):  # noqa: ASYNC110
            await asyncio.sleep(0)  # let the chats write in between
    if hidden and isinstance(store, SqliteStore):
        while await store.write(merge_index, merges_all=True):  # noqa: ASYNC110
            await asyncio.sleep(0.03)  # as long as a step takes, so that the chats get half of the writer's time
        await asyncio.to_thread(checkpoint, store.path, empties=True)
    told = [await store.write(finish, chat_id, now()) for chat_id in hidden]
    return [chat_id for chat_id in told if chat_id is not None]
