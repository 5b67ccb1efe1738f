"""Upkeep of the search index: looked through at start and when it has failed, and made anew in the background.

PostgreSQL stores a message and its words together. Words that an earlier version has cut are stored anew.
"""

import asyncio
import sqlite3
import time

import structlog

from hermes_state.aio import wait_until
from hermes_state.engines.postgres.words import renew_words
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StoreUnavailable
from hermes_state.search.index import OUTDATED, begin_index, extend_index, find_fault, is_being_made
from hermes_state.store.writer import Store

RETRY_SECONDS = 60.0
"""Pause after a try that the database did not let through, in seconds, unless the index fails once more."""

ROUNDS = 3
"""Looks at the index at most: at the old one, at one that was damaged while it was made, at the next."""

log = structlog.get_logger()


async def keep_index(store: Store) -> None:
    """Keep the index sound, until cancelled. Messages are written meanwhile, and searches find what it holds."""
    if not isinstance(store, SqliteStore):
        return await _renew_words(store)
    while True:
        store.index_failed.clear()
        try:
            await mend_index(store)
            await store.index_failed.wait()
        except (StoreUnavailable, sqlite3.Error, OSError) as error:
            log.warning("search.rebuild_delayed", error=str(error), retry_seconds=RETRY_SECONDS)
            await wait_until(store.index_failed, RETRY_SECONDS)


async def _renew_words(store: Store) -> None:
    is_done = False
    while not is_done:
        began = time.monotonic()
        try:
            is_done = await store.write(renew_words)
            await asyncio.sleep(time.monotonic() - began)
        except StoreUnavailable as error:
            log.warning("search.rebuild_delayed", error=str(error), retry_seconds=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)


async def mend_index(store: SqliteStore) -> None:
    """Look the index through and make it anew until it has no fault; what an earlier process has begun is gone on with.

    Raises `StoreUnavailable` if it has one whenever it was made.
    """
    for _ in range(ROUNDS):
        if not await store.read(is_being_made):
            fault = await asyncio.to_thread(find_fault, store.path)
            if fault is None:
                return
            log.warning("search.rebuild_started", reason=fault, old_serves=fault == OUTDATED)
            await store.write(begin_index, keeps_old=fault == OUTDATED)
        started = began = time.monotonic()
        while not await store.write(extend_index):
            await asyncio.sleep(time.monotonic() - began)  # half of the writer's time is for the chats
            began = time.monotonic()
        log.info("search.rebuilt", seconds=round(time.monotonic() - started, 1))
    raise StoreUnavailable("the search index has a fault whenever it was made")
