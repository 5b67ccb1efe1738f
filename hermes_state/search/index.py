"""Maintain the search index: check it at start and after a failure, and rebuild it in the background.

A new index is filled next to the old one in blocks, from the newest message to the oldest. A row in `meta` stores the
oldest id that the new index contains, so a rebuild continues there after a restart. Batches add new messages to both
indexes. When the new index is complete, it replaces the old one. A damaged index is removed immediately, and searches
use the unfinished index.

PostgreSQL stores a message together with its words. Words stored by an earlier version are replaced.
"""

import asyncio
import contextlib
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path

import structlog

from hermes_state.aio import wait_until
from hermes_state.engines.postgres.tsvector import load_renewed, renew_words
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import (
    MAKING,
    MARK_NOTE,
    SERVING,
    add_words,
    block_end,
    copy_words,
    has_table,
    index_triggers,
    is_index_trouble,
    is_kept_up,
    load_mark,
    merge_step,
    newest_id,
)
from hermes_state.engines.sqlite.migrate import VERSION_NOTE, define_index, drop_index_triggers
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StoreUnavailable
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.segment import SEGMENT_VERSION, phrase
from hermes_state.store.sql import Connection, load_note, save_note, scalar, scalar_or_none
from hermes_state.store.writer import Store

log = structlog.get_logger()

RETRY_SECONDS = 60.0
"""Seconds to wait after a failure before the next attempt. A new index error ends the wait early."""
OUTDATED = "it was built by an older version and finds fewer words"
"""Reason why an index is outdated. The index can still be used until its replacement is ready."""
IDLE_SECONDS = 1.0
"""Seconds without a write after which the gateway counts as idle, and between the batches of new words."""
CHECKED_BATCHES = 500
"""Maximum number of batches of writes during a check. The write-ahead log cannot be emptied until the check ends."""
_FLOOR_NOTE = "search_floor"  # id of the oldest message in the unfinished index
_MADE_NOTE = "search_making_version"
_COVERED = f" AND {{0}}.id >= (SELECT CAST(value AS INTEGER) FROM meta WHERE key = '{_FLOOR_NOTE}')"


def serving_index(db: Connection) -> str:
    """Return the table for searches. This is the unfinished index if there is no complete index."""
    return SERVING if has_table(db, SERVING) else MAKING


def is_behind(db: Connection) -> bool:
    """Return True if words of new messages are missing from the index."""
    return load_mark(db) < newest_id(db)


def is_current(db: Connection) -> bool:
    """Return True if this version built the index in use."""
    return load_note(db, VERSION_NOTE) == str(SEGMENT_VERSION)


def load_progress(db: Connection) -> int | None:
    """Return the percentage of the unfinished index that is done, or None if there is no unfinished index."""
    if not isinstance(db, sqlite3.Connection):
        done = load_renewed(db)
        return None if done is None else 100 * done // max(1, done, newest_id(db))
    floor = load_note(db, _FLOOR_NOTE)
    if floor is None or not is_kept_up(db, MAKING):
        return None if index_triggers(db, SERVING) else 0
    top = load_mark(db)
    return 100 * (top - max(0, int(floor) - 1)) // max(1, top)


def load_totals(db: Connection, index: str) -> list[int]:
    """Load the total numbers of rows, text words and scope words from the index, which may be damaged."""
    totals = scalar(db, sizes_of, f"SELECT CAST(coalesce((SELECT block FROM {index}_data WHERE id = 1), '') AS BLOB)")
    return totals or [0, 0, 0]  # an index that never contained a row has no totals


def sizes_of(blob: bytes) -> list[int]:
    """Decode FTS5's variable-length integers: seven bits per byte, with the eighth bit set in all but the last byte."""
    varints = re.findall(rb"[\x80-\xff]*[\x00-\x7f]", blob)
    return [reduce(lambda value, byte: value << 7 | byte & 0x7F, varint, 0) for varint in varints]


def find_fault(path: Path, pause: Callable[[], bool] = lambda: False) -> str | None:
    """Describe the fault of the index in the database at `path`. Return None if it is intact. Raises `sqlite3.Error`.

    Reads the whole index on a separate connection, which takes seconds per million messages. FTS5's own check would
    block writers. `pause` is called every millisecond. If it returns True, the check ends with SQLITE_INTERRUPT.
    """
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        register_functions(db)
        pause()
        db.set_progress_handler(pause, 20_000)
        db.execute("BEGIN")
        try:
            return _damage(db) or (_misfit(db) if is_current(db) else OUTDATED)
        except sqlite3.DatabaseError as error:
            if not is_index_trouble(error):
                raise
            return str(error)


def _damage(db: Connection) -> str | None:
    if not is_kept_up(db, SERVING):
        return "it is no longer updated because of an earlier error"
    # Count messages without an entry, and entries without a message or with impossible numbers of words and scopes.
    query = f"""SELECT (SELECT count(*) FROM messages m WHERE m.indexed = 1 AND m.id <= {load_mark(db)} AND NOT EXISTS (
        SELECT 1 FROM {SERVING}_docsize d WHERE d.id = m.id))
      + (SELECT count(*) FROM {SERVING}_docsize d WHERE NOT EXISTS (
        SELECT 1 FROM messages m WHERE m.id = d.id AND m.indexed = 1) OR NOT (hex(d.sz) GLOB '[0-7]?0[34]'
          OR hex(d.sz) GLOB '[89A-F]?[0-7]?0[34]' OR hex(d.sz) GLOB '[89A-F]?[89A-F]?[0-7]?0[34]'))"""
    if stray := scalar(db, int, query):
        return f"{stray} messages are missing from it or should not be in it"
    db.execute(f"CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, {SERVING}, 'col')")
    words = dict(db.execute("SELECT col, sum(cnt) FROM temp.terms GROUP BY col"))
    rows = scalar(db, int, f"SELECT count(*) FROM {SERVING}_docsize")
    if load_totals(db, SERVING) != [rows, words.get("text", 0), words.get("scope", 0)]:
        return f"its totals do not match the {sum(words.values())} words of {rows} messages in it"
    return None


def _misfit(db: Connection) -> str | None:
    """Check a sample of messages. Return a sentence if the words of a message are not indexed, otherwise None.

    Only ASCII texts are checked, because all versions split them alike.
    """
    query = """SELECT id, substr(fts_row(text, body), 1, 61) FROM messages
    WHERE indexed = 1 AND id <= :top AND (id > :top - 30 OR id % (1 + :top / 30) = 0) LIMIT 60"""
    for row_id, text in db.execute(query, {"top": load_mark(db)}).fetchall():
        start = text.rpartition(" ")[0] if text and len(text) > 60 else text
        if start and start.isascii() and any(map(str.isalnum, start)):
            match = (f"text:({phrase(start)})", row_id)
            if scalar_or_none(db, int, f"SELECT 1 FROM {SERVING} WHERE {SERVING} MATCH ? AND rowid = ?", match) is None:
                return f"it does not contain the words of message {row_id}"
    return None


@locks(EVERYTHING)
def begin_index(db: Connection, *, keeps_old: bool) -> None:
    """Create a new, empty index to be filled. Remove the index in use unless `keeps_old` is True."""
    for index in (MAKING,) if keeps_old else (MAKING, SERVING):
        _drop(db, index)
    save_note(db, _FLOOR_NOTE, str(load_mark(db) + 1))
    save_note(db, _MADE_NOTE, str(SEGMENT_VERSION))
    define_index(db, MAKING, _COVERED)


@locks(EVERYTHING)
def begin_batches(db: Connection) -> None:
    """Leave the words of new messages to batches, in a database whose triggers add them."""
    save_note(db, MARK_NOTE, str(newest_id(db)))
    for index, covered in ((SERVING, ""), (MAKING, _COVERED)):
        if is_kept_up(db, index):
            drop_index_triggers(db, index)
            define_index(db, index, covered, only="CREATE TRIGGER")


def is_being_made(db: Connection) -> bool:
    """Return True if there is an unfinished index that this version can continue."""
    return load_note(db, _MADE_NOTE) == str(SEGMENT_VERSION) and is_kept_up(db, MAKING)


@locks(EVERYTHING)
def extend_index(db: Connection) -> bool:
    """Add a block of messages to the unfinished index, or merge parts of it. Return True when it is done and in use."""
    floor = int(load_note(db, _FLOOR_NOTE) or 0)
    low = block_end(db, 0, floor - 1, "DESC")
    if low is None:
        save_note(db, _FLOOR_NOTE, "0")
        if merge_step(db, MAKING, merges_all=floor > 0):
            return False
        _drop(db, SERVING)
        drop_index_triggers(db, MAKING)
        db.execute(f"ALTER TABLE {MAKING} RENAME TO {SERVING}")
        define_index(db, SERVING, only="CREATE TRIGGER")
        save_note(db, VERSION_NOTE, str(SEGMENT_VERSION))
        db.execute("DELETE FROM meta WHERE key IN (?, ?)", (_FLOOR_NOTE, _MADE_NOTE))
        return True
    copy_words(db, MAKING, low, floor - 1)
    save_note(db, _FLOOR_NOTE, str(low))
    return False


def _drop(db: Connection, index: str) -> None:
    """Remove an index, even if it is so damaged that SQLite cannot open it and `DROP TABLE` fails."""
    drop_index_triggers(db, index)
    try:
        db.execute(f"DROP TABLE IF EXISTS {index}")
    except sqlite3.DatabaseError as error:
        if not is_index_trouble(error):
            raise
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema WHERE type = 'table' AND name = ?", (index,))
        db.execute("PRAGMA writable_schema = RESET")
        for part in ("data", "idx", "content", "docsize", "config"):
            db.execute(f"DROP TABLE IF EXISTS {index}_{part}")


async def keep_index(store: Store) -> None:
    """Keep the index healthy until cancelled. Writes and searches continue meanwhile."""
    if isinstance(store, SqliteStore):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_add_new_words(store))
            tasks.create_task(_mend_after_failures(store))
    is_done = isinstance(store, SqliteStore)
    while not is_done:
        began = time.monotonic()
        try:
            is_done = await store.write(renew_words)
            await asyncio.sleep(time.monotonic() - began)
        except StoreUnavailable as error:
            log.warning("search.rebuild_delayed", error=str(error), retry_seconds=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)


async def _add_new_words(store: SqliteStore) -> None:
    """Add the words of new messages to the index, about a second after the messages were stored."""
    while True:
        try:
            store.written.clear()
            while await store.read(is_behind) and await store.write(add_words):  # noqa: ASYNC110
                await asyncio.sleep(0)  # let the chats write in between
        except (StoreUnavailable, sqlite3.Error) as error:
            log.warning("search.batch_delayed", error=str(error), retry_seconds=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
        await store.written.wait()
        await asyncio.sleep(IDLE_SECONDS)


async def _mend_after_failures(store: SqliteStore) -> None:
    is_urgent = False
    while True:
        store.index_failed.clear()
        try:
            await mend_index(store, is_urgent=is_urgent)
            is_urgent = await store.index_failed.wait()
        except (StoreUnavailable, sqlite3.Error, OSError) as error:
            log.warning("search.rebuild_delayed", error=str(error), retry_seconds=RETRY_SECONDS)
            is_urgent = await wait_until(store.index_failed, RETRY_SECONDS)


async def mend_index(store: SqliteStore, *, is_urgent: bool = True) -> None:
    """Check the index and rebuild it until it has no fault, at most three times.

    Unless urgent, an index that looks complete is checked when the gateway is idle.

    Raises `StoreUnavailable` if the index still has a fault or the database is not available.
    """
    if await store.read(load_note, MARK_NOTE) is None:
        await store.write(begin_batches)
    for _ in range(3):
        if not await store.read(is_being_made):
            may_wait = not is_urgent and await store.read(_looks_complete)
            fault = await (_find_fault_when_idle(store) if may_wait else asyncio.to_thread(find_fault, store.path))
            if fault is None:
                return
            log.warning("search.rebuild_started", reason=fault, old_serves=fault == OUTDATED)
            await store.write(begin_index, keeps_old=fault == OUTDATED)
        started = began = time.monotonic()
        while not await store.write(extend_index):
            await asyncio.sleep(time.monotonic() - began)  # leave half of the writer's time to the chats
            began = time.monotonic()
        log.info("search.rebuilt", seconds=round(time.monotonic() - started, 1))
    raise StoreUnavailable("the search index still has a fault after three attempts to rebuild it")


def _looks_complete(db: Connection) -> bool:
    return is_kept_up(db, SERVING) and is_current(db)


async def _find_fault_when_idle(store: SqliteStore) -> str | None:
    """Call `find_fault`, which pauses until nothing was written for a second. Start again after many writes.

    After an error of the index, the check does not wait any more.
    """
    is_cancelled = threading.Event()
    try:
        while True:
            pause = partial(_pause, store, store.pulse.batches + CHECKED_BATCHES, is_cancelled)
            try:
                return await asyncio.to_thread(find_fault, store.path, pause)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                    raise
            if await wait_until(store.index_failed, RETRY_SECONDS):
                return await asyncio.to_thread(find_fault, store.path)
    finally:
        is_cancelled.set()


def _pause(store: SqliteStore, last_batch: int, is_cancelled: threading.Event) -> bool:
    """Wait until the gateway is idle. Return True if the check must end: to empty the log, or because it is urgent."""
    while not (is_cancelled.is_set() or store.index_failed.is_set() or store.pulse.batches > last_batch):
        if (seconds := IDLE_SECONDS - store.pulse.since_commit_seconds) <= 0:
            return False
        is_cancelled.wait(min(seconds, 1.0))
    return True
