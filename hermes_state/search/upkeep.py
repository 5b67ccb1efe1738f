"""Upkeep of the search index: looked through at start and when it has failed, and made anew in the background."""

import asyncio
import contextlib
import sqlite3
import time

import structlog

from hermes_state.errors import StoreUnavailable
from hermes_state.search.index import begin_index, extend_index, find_fault, is_being_made
from hermes_state.store.connections import unavailable
from hermes_state.store.writer import Store

RETRY_SECONDS = 60.0
"""Pause after a try that the database did not let through, in seconds, unless the index fails once more."""

log = structlog.get_logger()


async def keep_index(store: Store) -> None:
    """Keep the index sound, until cancelled. Messages are written meanwhile, and searches find what it holds."""
    while True:
        store.index_failed.clear()
        try:
            await mend_index(store)
            await store.index_failed.wait()
        except StoreUnavailable as error:
            log.warning("search.rebuild_delayed", error=str(error), retry_seconds=RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(store.index_failed.wait(), RETRY_SECONDS)


async def mend_index(store: Store) -> None:
    """Look the index through and make it anew if it has a fault, or go on where an earlier process has stopped."""
    if not await store.read(is_being_made):
        try:
            fault = await asyncio.to_thread(find_fault, store.path)
        except sqlite3.Error as error:
            raise unavailable(store.path, error) from error
        if fault is None:
            return
        log.warning("search.rebuild_started", reason=fault.reason, old_serves=fault.can_serve)
        await store.write(begin_index, keeps_old=fault.can_serve)
    started = time.monotonic()
    while True:
        began = time.monotonic()
        if await store.write(extend_index):
            break
        await asyncio.sleep(time.monotonic() - began)  # half of the writer's time is for the chats
    log.info("search.rebuilt", seconds=round(time.monotonic() - started, 1))
