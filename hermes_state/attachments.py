"""Attachments: database rows for sent and received files, and the parts of long documents.

`hermes_state.files` stores the files themselves.
"""

import re
from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from hermes_state.inbox import InboxRow
from hermes_state.sessions import ensure_active
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, insert_row, insertion, load_note, scalars, select, select_one
from hermes_state.transcripts import NewMessage, append_part
from hermes_state.values import (
    AttachmentId,
    ChatId,
    Document,
    LineageId,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SentFile,
)


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A stored file. Files with the same bytes share a path."""

    sha256: str
    path: str
    name: str
    mime: str | None
    size_bytes: int


@locks(chat="chat_id")
def insert(
    db: Connection, chat_id: ChatId, file: StoredFile, now: Millis, message_id: MessageId | None = None
) -> AttachmentId:
    """Store the row of a file. Received files get their `message_id` when the turn starts."""
    values = asdict(file) | {"chat_id": chat_id, "message_id": message_id, "created_at": now}
    values["bytes"] = values.pop("size_bytes")
    return insert_row(db, AttachmentId, insertion("attachments", values), values)


class MessageFile(SentFile, frozen=True, kw_only=True):
    """A file that belongs to a message."""

    message_id: MessageId


_FILE = """id AS attachment_id, name, coalesce(mime, 'application/octet-stream') AS mime, bytes AS size_bytes, path,
  created_at"""


def load_file(db: Connection, chat_id: ChatId, attachment_id: int) -> SentFile | None:
    query = f"SELECT {_FILE} FROM attachments WHERE id = ? AND chat_id = ?"
    return select_one(db, SentFile, query, (attachment_id, chat_id))


def load_files(db: Connection, message_ids: Sequence[MessageId]) -> list[MessageFile]:
    """Load the files of these messages, oldest first, whether a person uploaded them or a tool call sent them.

    Leaves out the pictures that the gateway made of a document's pages.
    """
    if not message_ids:  # PostgreSQL rejects `IN ()`
        return []
    marks = ",".join("?" * len(message_ids))
    query = f"SELECT {_FILE}, message_id FROM attachments WHERE message_id IN ({marks}) ORDER BY id"
    files = select(db, MessageFile, query, message_ids)
    pages = {f"{file.name} page " for file in files}
    return [file for file in files if re.sub(r"\d+\.jpg\Z", "", file.name) not in pages]


def load_surplus(db: Connection, max_bytes: int) -> list[str]:
    """Return the paths of the oldest files that must be deleted to reduce the total size to `max_bytes`."""
    query = """WITH files AS (SELECT path, max(bytes) AS size, max(id) AS used FROM attachments GROUP BY path),
      sums AS (SELECT path, used, sum(size) OVER (ORDER BY used DESC) AS total FROM files)
    SELECT path FROM sums WHERE total > ? ORDER BY used"""
    return scalars(db, str, query, (max_bytes,))


@locks(EVERYTHING)
def forget(db: Connection, paths: list[str]) -> None:
    """Delete the rows of removed files, but not the messages to which the files belong."""
    db.executemany("DELETE FROM attachments WHERE path = ?", [(path,) for path in paths])


# ---- parts of long documents

PARTS_NOTE = "parts.{}"
"""Key of the note with the id of a chat's first unbound part, because no index finds unbound parts.

Parts are unbound while their message is being prepared, and after a crash or a withdrawal of the message.
"""


@locks(chat="chat_id")
def store_part(db: Connection, chat_id: ChatId, row: InboxRow, part: Document, now: Millis) -> MessageId:
    """Store a part of a long document that the model does not see, but can search and open.

    Each part has its own transaction, because indexing takes time. `bind_parts` makes it a part of its message. Until
    then, no search finds it.
    """
    new = NewMessage(
        role=MessageRole.USER,
        origin=Origin.HUMAN,
        text=None,
        body=MessageBody(documents=(part,)),
        sender_ref=row.sender_ref,
        sender_name=row.sender_name,
    )
    part_id = append_part(db, ensure_active(db, chat_id, now).id, new, row.sent_at)
    note = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING"
    db.execute(note, (PARTS_NOTE.format(chat_id), str(part_id)))
    return part_id


def bind_parts(
    db: Connection, chat_id: ChatId, lineage_id: LineageId, message_id: MessageId, parts: Sequence[MessageId]
) -> bool:
    """Assign document parts to their message. Return False if they belong to another conversation."""
    ours = f"lineage_id = ? AND id IN ({', '.join('?' * len(parts))})"
    bound = db.execute(f"UPDATE messages SET replaces_id = ? WHERE {ours}", (message_id, lineage_id, *parts))
    db.execute("DELETE FROM meta WHERE key = ?", (PARTS_NOTE.format(chat_id),))
    return bound.rowcount == len(parts)


@locks(chat="chat_id")
def remove_unbound_parts(db: Connection, chat_id: ChatId) -> None:
    """Delete parts of messages without a turn. Do not call this while a message of the chat is being prepared."""
    query = """DELETE FROM messages WHERE lineage_id IN (SELECT lineage_id FROM sessions WHERE chat_id = ?) AND id >= ?
    AND seq < 0 AND indexed = 1 AND replaces_id IS NULL"""
    key = PARTS_NOTE.format(chat_id)
    if (first := load_note(db, key)) is not None:
        db.execute(query, (chat_id, int(first)))
        db.execute("DELETE FROM meta WHERE key = ?", (key,))
