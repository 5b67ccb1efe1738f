"""Attachments: files that people sent or were given, one row each; `hermes_state.files` has the bytes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, insert_row, scalars, select, select_one
from hermes_state.values import AttachmentId, ChatId, MessageId, Millis, SentFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file whose bytes are kept."""

    sha256: str
    path: str
    """Path among the kept files; the same bytes have the same path."""
    name: str
    mime: str | None
    size_bytes: int


@locks(chat="chat_id")
def insert(
    db: Connection, chat_id: ChatId, file: StoredFile, now: Millis, message_id: MessageId | None = None
) -> AttachmentId:
    """Remember a stored file; of one that somebody sent, the message is set when its turn starts."""
    query = """INSERT INTO attachments (chat_id, message_id, sha256, path, name, mime, bytes, created_at)
    VALUES (:chat_id, :message_id, :sha256, :path, :name, :mime, :size_bytes, :now)"""
    values = asdict(file) | {"chat_id": chat_id, "message_id": message_id, "now": now}
    return insert_row(db, AttachmentId, query, values)


_SENT_FILE = """
SELECT id AS attachment_id, name, coalesce(mime, 'application/octet-stream') AS mime, bytes AS size_bytes, path,
  created_at FROM attachments
"""


def load_file(db: Connection, chat_id: ChatId, attachment_id: int) -> SentFile | None:
    """A file of this chat; None where it has no such file."""
    return select_one(db, SentFile, f"{_SENT_FILE} WHERE id = ? AND chat_id = ?", (attachment_id, chat_id))


def load_sent(db: Connection, message_ids: Sequence[MessageId]) -> list[SentFile]:
    """Files that calls in these messages have given to their chat, oldest first."""
    if not message_ids:  # PostgreSQL has no empty lists
        return []
    marks = ",".join("?" * len(message_ids))
    return select(db, SentFile, f"{_SENT_FILE} WHERE message_id IN ({marks}) ORDER BY id", message_ids)


def load_surplus(db: Connection, max_bytes: int) -> list[str]:
    """Paths of the oldest files that must go so that the rest takes at most `max_bytes`."""
    query = """WITH files AS (SELECT path, max(bytes) AS size, max(id) AS used FROM attachments GROUP BY path),
      sums AS (SELECT path, used, sum(size) OVER (ORDER BY used DESC) AS total FROM files)
    SELECT path FROM sums WHERE total > ? ORDER BY used"""
    return scalars(db, str, query, (max_bytes,))


@locks(EVERYTHING)
def forget(db: Connection, paths: list[str]) -> None:
    """Forget files whose bytes were removed; the messages that showed them stay."""
    db.executemany("DELETE FROM attachments WHERE path = ?", [(path,) for path in paths])
