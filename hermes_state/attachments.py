"""Attachments: files that people sent, one row each; the bytes lie under the state directory, named by their hash."""

from dataclasses import asdict, dataclass
from sqlite3 import Connection

from hermes_state.store.sql import insert_row, scalars
from hermes_state.values import AttachmentId, ChatId, Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that was fetched and lies in `attachments/`."""

    sha256: str
    path: str
    """Relative to `attachments/`; the same bytes have the same path."""
    name: str
    mime: str | None
    size_bytes: int


def insert(db: Connection, chat_id: ChatId, file: StoredFile, now: Millis) -> AttachmentId:
    """Remember a stored file; the message that it belongs to is set when its turn starts."""
    query = """INSERT INTO attachments (chat_id, sha256, path, name, mime, bytes, created_at)
    VALUES (:chat_id, :sha256, :path, :name, :mime, :size_bytes, :now)"""
    return insert_row(db, AttachmentId, query, asdict(file) | {"chat_id": chat_id, "now": now})


# Purpose: files that do not fit beside those that were used later, the longest unused first.
_SURPLUS = """
WITH files AS (SELECT path, max(bytes) AS size, max(id) AS used FROM attachments GROUP BY path),
  sums AS (SELECT path, used, sum(size) OVER (ORDER BY used DESC) AS total FROM files)
SELECT path FROM sums WHERE total > ? ORDER BY used
"""


def load_surplus(db: Connection, max_bytes: int) -> list[str]:
    """Paths of the oldest files that must go so that the rest takes at most `max_bytes`."""
    return scalars(db, str, _SURPLUS, (max_bytes,))


def forget(db: Connection, paths: list[str]) -> None:
    """Forget files whose bytes were removed; the messages that showed them stay."""
    db.executemany("DELETE FROM attachments WHERE path = ?", [(path,) for path in paths])
