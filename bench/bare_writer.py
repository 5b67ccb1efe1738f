"""Minimal group-commit writer: the yardstick for the overhead of our own writer with a hundred waiting tasks.

It uses futures, one thread, and one `executemany` and one synced commit for everyone who is waiting. It lacks all
features of the store: functions as jobs, error handling, locks by other processes, cancelled callers, a size limit.
"""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor


class BareWriter:
    """Commits texts in groups. `db` must allow use from another thread and have a table `bench`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[asyncio.Future[None], str]] = []
        self._is_busy = False
        self._thread = ThreadPoolExecutor(1)

    async def write(self, text: str) -> None:
        """Return when `text` has been synced to disk."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((future, text))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._start)
        await future

    def close(self) -> None:
        self._thread.shutdown()

    def _start(self) -> None:
        group, self._waiting = self._waiting, []
        self._thread.submit(self._commit, group)

    def _commit(self, group: list[tuple[asyncio.Future[None], str]]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO bench (text) VALUES (?)", [(text,) for _, text in group])
        self._db.execute("COMMIT")
        self._loop.call_soon_threadsafe(self._finish, group)

    def _finish(self, group: list[tuple[asyncio.Future[None], str]]) -> None:
        for future, _ in group:
            future.set_result(None)
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            self._loop.call_soon(self._start)
