"""Retention and maintenance: rows that are settled and old are removed, files are put in order at quiet moments.

Removing goes in slices, each a write of its own, so that a chat never waits behind it.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from hermes_state.engines.sqlite.connections import unavailable
from hermes_state.engines.sqlite.index import merge_step
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.search.index import serving_index
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.values import Millis

SLICE_ROWS = 500

_MERGE_STEPS = 50
"""Merges in one visit at most: an index that needs more merging gets it at the next quiet moment."""

# Purpose: the keys of events that are dealt with; their payload was emptied when they settled.
_REMOVE_INBOX = """DELETE FROM inbox WHERE id IN (
  SELECT id FROM inbox WHERE settled_at IS NOT NULL AND settled_at < ? ORDER BY settled_at LIMIT ?)"""
# Purpose: replies that were delivered or given up.
_REMOVE_OUTBOX = """DELETE FROM outbox WHERE id IN (
  SELECT id FROM outbox WHERE settled_at IS NOT NULL AND settled_at < ? ORDER BY settled_at LIMIT ?)"""
# Purpose: codes that nobody approved in time. Approved and revoked people stay.
_REMOVE_PAIRINGS = """DELETE FROM pairings WHERE code_hash IN (
  SELECT code_hash FROM pairings WHERE state = 'pending' AND expires_at < ? LIMIT ?)"""
# Purpose: schedules for one time that has come.
_REMOVE_SCHEDULES = """DELETE FROM schedules WHERE id IN (
  SELECT id FROM schedules WHERE state = 'done' AND fired_at < ? LIMIT ?)"""


async def remove_expired(store: Store, now: Millis, max_age_millis: int) -> Mapping[str, int]:
    """Remove settled inbox keys, outbox rows and schedules older than `max_age_millis`, and expired pairing codes.

    Returns the numbers of rows by table. Platforms repeat an event for a day at most.
    """
    before = Millis(now - max_age_millis)
    return {
        "inbox": await _in_slices(store, _REMOVE_INBOX, before),
        "outbox": await _in_slices(store, _REMOVE_OUTBOX, before),
        "schedules": await _in_slices(store, _REMOVE_SCHEDULES, before),
        "pairings": await _in_slices(store, _REMOVE_PAIRINGS, now),
    }


async def maintain(store: SqliteStore) -> tuple[int, int]:
    """Put the files in order at a quiet moment; stops early when someone wants to write.

    Merges the search index, refreshes what the query planner knows, and returns what `checkpoint` does.
    """
    for _ in range(_MERGE_STEPS):
        if store.pulse.waiting or not await store.write(merge_index):
            break
    if not store.pulse.waiting:
        await store.write(refresh_statistics)
    return await asyncio.to_thread(checkpoint, store.path)


@locks(EVERYTHING)
def merge_index(db: Connection) -> bool:
    """Merge a few pages of the search index; True when there may be more to merge."""
    return merge_step(db, serving_index(db))


@locks(EVERYTHING)
def refresh_statistics(db: Connection) -> None:
    """Let SQLite look again at tables that have grown much; it samples some hundred rows of each index."""
    db.execute("PRAGMA analysis_limit = 400")
    db.execute("PRAGMA optimize")


def checkpoint(path: Path) -> tuple[int, int]:
    """Copy the write-ahead log of the database at `path` into its main file, as far as no reader needs it.

    Returns the pages of the log, and how many of them are in the main file now: fewer where an old reader holds the
    rest back. Blocks its thread, but no reader and no writer: it works on a connection of its own.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"  # never make the file: it may just have been lost
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            _, pages, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
    return pages, copied


async def _in_slices(store: Store, query: str, before: Millis) -> int:
    total = 0
    while True:
        removed = await store.write(_remove_slice, query, before)
        total += removed
        if removed < SLICE_ROWS:
            return total


@locks(EVERYTHING)
def _remove_slice(db: Connection, query: str, before: Millis) -> int:
    return db.execute(query, (before, SLICE_ROWS)).rowcount
