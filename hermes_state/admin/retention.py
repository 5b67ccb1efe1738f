"""Retention and maintenance: remove old settled rows, and tidy the database when the gateway is idle.

Rows are removed in slices. Each slice is a separate write, so that other writes can run in between.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hermes_state.engines.sqlite.connections import unavailable
from hermes_state.engines.sqlite.index import merge_step
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StoreUnavailable
from hermes_state.search.index import serving_index
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalars
from hermes_state.store.writer import Store
from hermes_state.talk import MAX_AGE_MS
from hermes_state.values import LineageId, Millis

SLICE_ROWS = 500

_EXPIRED: Final = {
    # One-time schedules that have fired.
    "schedules": ("id", "state = 'done' AND fired_at < ?"),
    # Expired codes. Approved and revoked people stay.
    "pairings": ("code_hash", "state = 'pending' AND expires_at < ?"),
    # Talk between mentions, which no turn shows any more.
    "talk": ("id", "sent_at < ?"),
}
"""Key column of each table, and the SQL condition for its rows that ended long enough ago to be removed."""
_SETTLED: Final = {"inbox": "received_at", "outbox": "created_at"}
"""Tables from which settled rows are removed, each with the column that holds the time when a row was stored."""


async def remove_expired(store: Store, now: Millis, max_age_millis: int) -> Mapping[str, int]:
    """Remove inbox rows, outbox rows and schedules settled over `max_age_millis` ago, expired codes, and old talk.

    Return the number of removed rows by table. Settled inbox rows must be kept for at least a day, because a platform
    can deliver an event again for that long.
    """
    counts = dict.fromkeys((*_SETTLED, *_EXPIRED), 0)
    for table in _SETTLED:
        after: int | None = 0
        while after is not None:
            removed, after = await store.write(_remove_settled, table, after, Millis(now - max_age_millis), now)
            counts[table] += removed
    for table in _EXPIRED:
        ages = {"pairings": 0, "talk": MAX_AGE_MS}
        before = Millis(now - ages.get(table, max_age_millis))
        removed = SLICE_ROWS
        while removed == SLICE_ROWS:
            removed = await store.write(_remove_slice, table, before)
            counts[table] += removed
    return counts


# Purpose: load the conversations that are not open, oldest first. `total` is the size of a conversation and of all that
# were used later.
_OLD = """
SELECT lineage_id FROM (
  SELECT lineage_id, used_at, is_closed, {total} AS total FROM (
    SELECT s.lineage_id, max(coalesce(s.last_human_at, s.started_at)) AS used_at,
      min(CASE WHEN s.ended_at IS NULL THEN 0 ELSE 1 END) AS is_closed
    FROM sessions s JOIN chats c ON c.id = s.chat_id WHERE c.deleted_at IS NULL AND c.pinned_at IS NULL
      AND NOT {subagent}
    GROUP BY s.lineage_id) used) found
WHERE is_closed = 1 AND (total > :most OR (used_at < :before AND NOT EXISTS (SELECT 1 FROM messages m
  WHERE m.lineage_id = found.lineage_id AND m.created_at >= :before))) ORDER BY used_at, lineage_id LIMIT :limit
"""
_TOTAL = """sum((SELECT coalesce(sum(coalesce(length(m.text), 0) + coalesce(length(m.body), 0)), 0) FROM messages m
  WHERE m.lineage_id = used.lineage_id)) OVER (ORDER BY used_at DESC, lineage_id DESC)"""


def load_old(db: Connection, before: Millis | None, most: int | None, limit: int) -> list[LineageId]:
    """Load the ended conversations that were last used before `before`, or that exceed `most` characters in total.

    Conversations of pinned chats stay.
    """
    query = _OLD.format(total="0" if most is None else _TOTAL, subagent=IS_SUBAGENT)
    return scalars(db, LineageId, query, {"before": before or 0, "most": most or 0, "limit": limit})


async def maintain(store: SqliteStore) -> tuple[int, int]:
    """Merge the search index, refresh the query planner's statistics, and return the result of `checkpoint`.

    Run this when the gateway is idle. The first two steps stop early if a write is waiting.
    """
    for _ in range(50):  # the next call continues
        if store.pulse.waiting or not await store.write(merge_index):
            break
    if not store.pulse.waiting:
        await store.write(refresh_statistics)
    return await asyncio.to_thread(checkpoint, store.path)


@locks(EVERYTHING)
def merge_index(db: Connection, *, merges_all: bool = False) -> bool:
    """Merge a few pages of the search index. Return True if there may be more to merge.

    `merges_all` merges all parts into one, so that no word of a deleted message remains in the index.
    """
    return merge_step(db, serving_index(db), merges_all=merges_all)


@locks(EVERYTHING)
def refresh_statistics(db: Connection) -> None:
    """Let SQLite sample a few hundred rows of each index whose table has grown a lot."""
    db.execute("PRAGMA analysis_limit = 400")
    db.execute("PRAGMA optimize")


def checkpoint(path: Path, *, empties: bool = False) -> tuple[int, int]:
    """Copy the write-ahead log into the main file at `path`, as far as open readers allow.

    Return the number of pages in the log, and how many of them were copied. Pages that readers still need are not
    copied. Blocks its thread but no reader or writer, because it uses its own connection.

    With `empties`, also empty the log. This waits up to a second for readers. Raises `StoreUnavailable` if a reader
    still needs the log.
    """
    mode = "TRUNCATE" if empties else "PASSIVE"
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # never create the file: it may just have been lost
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA busy_timeout = 1000")
            is_busy, pages, copied = db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
    if empties and is_busy:
        raise StoreUnavailable(f"{path.name}: a reader still needs the write-ahead log")
    return pages, copied


@locks(EVERYTHING)
def _remove_slice(db: Connection, table: str, before: Millis) -> int:
    key, condition = _EXPIRED[table]
    query = f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE {condition} LIMIT ?)"
    return db.execute(query, (before, SLICE_ROWS)).rowcount


@locks(EVERYTHING)
def _remove_settled(db: Connection, table: str, after: int, before: Millis, now: Millis) -> tuple[int, int | None]:
    """Remove rows settled before `before` from the next slice. Return their number, and the slice's last id.

    Rows are stored in the order of their ids. Return None instead of the id if the slice ends with a newer row. A row
    from the future was stored while the clock was ahead, so later rows can be older.
    """
    query = f"SELECT id, {_SETTLED[table]} FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
    rows = db.execute(query, (after, SLICE_ROWS)).fetchall()
    if not rows:
        return 0, None
    last, stored_at = rows[-1]
    query = f"DELETE FROM {table} WHERE id > ? AND id <= ? AND settled_at < ?"
    return db.execute(query, (after, last, before)).rowcount, last if stored_at < before or stored_at > now else None
