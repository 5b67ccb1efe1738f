"""The store in one SQLite file: one connection writes, a few read, each on its own thread.

Short reads (a few rows by an index) run directly on the event loop. If such a read finds the database locked, takes too
many steps or waits for a slow disk, a reader's thread repeats it. After a slow read, all reads run on threads for 5 s.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from hermes_state.engines.sqlite import connections
from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.connections import StoreConnection, refuse_network_disk
from hermes_state.engines.sqlite.file_loss import DatabaseHandle, has_content, leave_marker, refuse_empty, refuse_loss
from hermes_state.engines.sqlite.index import detach_index, is_index_trouble
from hermes_state.engines.sqlite.migrate import migrate
from hermes_state.errors import StoreBroken, StoreUnavailable
from hermes_state.store.lock import FileLock, refuse_held
from hermes_state.store.sql import Connection, TransactionRules, WriteRequest, run_batch
from hermes_state.store.writer import Store

P = ParamSpec("P")
T = TypeVar("T")


def _begin(db: sqlite3.Connection, batch: Sequence[WriteRequest]) -> list[Sequence[WriteRequest]]:
    db.execute("BEGIN IMMEDIATE")
    return [batch]


RULES = TransactionRules(
    begin=_begin,
    run_all=lambda _, queues: queues[0](),
    ends_batch=lambda error: connections.is_trouble(error) or is_index_trouble(error),
    failure=sqlite3.Error,
    rejection=sqlite3.IntegrityError,
)


class _Reader:
    """Connection for reading, with the deadline of its current read."""

    def __init__(self, connection: StoreConnection) -> None:
        self.connection = connection
        self.pending = 0
        self._deadline = 0.0
        self._is_closing = False

    def prepare(self, db: sqlite3.Connection, busy_seconds: float) -> None:
        connections.prepare_reader(db, busy_seconds)
        # 20,000 steps of SQLite's virtual machine take well under a millisecond.
        db.set_progress_handler(self._is_over, 20_000)

    def run(self, db: sqlite3.Connection, seconds: float, call: Callable[[sqlite3.Connection], T]) -> T:
        self._deadline = time.monotonic() + seconds
        db.execute("BEGIN")
        try:
            return call(db)
        finally:
            self._deadline = float("inf")  # nothing may interrupt the ROLLBACK
            if db.in_transaction:
                db.execute("ROLLBACK")

    def stop(self) -> None:
        """Interrupt the current read, and all later reads as soon as they start."""
        self._is_closing = True

    def _is_over(self) -> bool:
        return (self._is_closing and self._deadline != float("inf")) or time.monotonic() > self._deadline


class SqliteStore(Store):
    """The database of one gateway in one file. `open` it, and always `close` it, which takes at most `busy_seconds`."""

    def __init__(
        self, path: Path, lock: FileLock, writer: StoreConnection, readers: list[_Reader], busy_seconds: float
    ) -> None:
        self.path = path
        self._short_reader = ShortReader(path)
        self._lock = lock
        self._writer = writer
        self._readers: list[_Reader] = readers
        self._busy_seconds = busy_seconds
        self._files = DatabaseHandle(path)
        self._damage: str | None = None
        super().__init__(path.name)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        synchronous: connections.Synchronous = "FULL",
        readers: int = 2,
        busy_seconds: float = 30.0,
        is_fresh: bool = False,
    ) -> Self:
        """Create, migrate or open the database at `path`, and lock it (`<path>.lock`) until `close`.

        A write waits at most `busy_seconds` if another process has locked the file. `is_fresh` allows an empty database
        where an earlier one was lost. Raises `ConfigError` on a network disk, `LockUnavailable` if another gateway has
        opened the database, `DatabaseRejected` if the file is not usable, or `StoreUnavailable` if it cannot be opened
        now.
        """
        connections.check_engine()
        refuse_network_disk(path)
        connections.check_ours(path)
        what, lock_file = f"the database {path}", path.with_name(path.name + ".lock")
        if not is_fresh and not has_content(path):
            refuse_held(lock_file, what=what)  # a running gateway may have just lost the file
            refuse_loss(path)
        connections.ensure_private(path)
        lock = FileLock.acquire(lock_file, what=what)
        opened: list[StoreConnection] = []
        try:
            opened.append(writer := await connections.connect(path))
            if not is_fresh:
                await writer.run(refuse_empty, path)
            await writer.run(connections.prepare_writer, path, synchronous, busy_seconds)
            await writer.run(migrate, path)
            await writer.run(connections.limit_busy_wait, busy_seconds)
            reading = []
            for _ in range(readers):
                opened.append(connection := await connections.connect(path))
                reading.append(reader := _Reader(connection))
                await connection.run(reader.prepare, busy_seconds)
            leave_marker(path)
            return cls(path, lock, writer, reading, busy_seconds)
        except BaseException as error:
            for connection in reversed(opened):
                await connection.close()
            lock.release()
            if connections.is_trouble(error):
                raise connections.unavailable(path, error) from error
            raise

    async def read_short(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_open:
            with suppress(ShortReadExceeded):
                return self._short_reader.run(lambda db: fn(db, *args, **kwargs))
        return await self.read(fn, *args, **kwargs)

    async def read_within(
        self, seconds: float, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if not self._is_open:
            raise StoreUnavailable(f"{self.path.name}: the database is closed")
        reader = min(self._readers, key=lambda one: one.pending)
        reader.pending += 1
        try:
            return await reader.connection.run(reader.run, seconds, lambda db: fn(db, *args, **kwargs))
        except sqlite3.Error as error:
            if is_index_trouble(error):
                self.index_failed.set()
            elif not connections.is_trouble(error):
                raise
            raise self._unavailable(error) from error
        finally:
            reader.pending -= 1

    async def back_up(self, target: Path) -> int:
        # An open connection can still read a file that has been deleted or replaced.
        if self._files.uses(target):
            raise StoreUnavailable(f"{target} is in use: choose a new file for the backup")
        # An hour is enough for a terabyte on a fast disk or 100 gigabytes on a slow one.
        return await self.read_within(3_600.0, copy_into, target, lambda: self._is_open)

    def check_files(self) -> None:
        self.loss = self._files.find_loss()

    @property
    def trouble(self) -> str | None:
        return self.loss or self._damage

    async def _run(self, writer: int, batch: list[WriteRequest]) -> Exception | None:
        started = time.monotonic()
        while True:
            try:
                await self._writer.run(run_batch, batch, RULES)
            except sqlite3.Error as error:
                if is_index_trouble(error) and await self._writer.run(detach_index):
                    self.index_failed.set()
                    continue  # store messages without the index, which can be rebuilt from them
                begun = started if self._is_open else min(started, self._closed_at)
                if connections.is_busy(error) and time.monotonic() < begun + self._busy_seconds:
                    await asyncio.sleep(0.02)  # no event signals the release of another process's lock
                    continue
                if connections.is_busy(error) and not self._is_open:
                    self._fail_waiting("closed while another process had locked the database")
                return error
            except StoreUnavailable as error:
                return error
            else:
                return None

    def _translated(self, error: BaseException) -> BaseException:
        return self._unavailable(error) if connections.is_trouble(error) else error

    async def _disconnect(self) -> None:
        try:
            self._short_reader.close()
            for reader in self._readers:
                reader.stop()
                await reader.connection.close()
        finally:
            try:
                await self._writer.close()
            finally:
                self._files.close()
                self._lock.release()

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        told = connections.unavailable(self.path, error)
        if isinstance(told, StoreBroken):
            self._damage = str(told)
        return told


MAX_STEPS = 2_500
"""Maximum number of SQLite virtual machine steps in a short read: about 100 rows, in less than a millisecond."""
SLOW_SECONDS = 0.02
"""Seconds after which a read counts as slow, whether the disk or other threads delayed it. Most reads take 0.1 ms."""

_CHECK_STEPS = 250


class ShortReadExceeded(Exception):
    """A short read cannot finish on the event loop. Run it on a reader's thread."""


class ShortReader:
    """Read-only connection for reads on the event loop. It never waits for a lock."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        connections.prepare_reader(self._db, 0.0)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 16_384)  # maximum size of a row in a short read
        self._db.set_progress_handler(self._is_over, _CHECK_STEPS)
        self._steps = 0
        self._began = self._paused_until = 0.0

    def run(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """Run `call` on one snapshot. Raises `ShortReadExceeded` if a reader's thread must run it instead."""
        self._began, self._steps = time.monotonic(), 0
        if self._began < self._paused_until:
            raise ShortReadExceeded
        try:
            self._db.execute("BEGIN")
            return call(self._db)
        except sqlite3.Error as error:
            if not (connections.is_trouble(error) or error.sqlite_errorcode == sqlite3.SQLITE_TOOBIG):
                raise
            raise ShortReadExceeded from error  # the caller repeats the read on a thread, which reports the error
        finally:
            self._steps = -MAX_STEPS  # nothing may interrupt the ROLLBACK
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            ended = time.monotonic()
            if ended - self._began > SLOW_SECONDS:
                self._paused_until = ended + 5.0  # until then, all reads run on threads

    def close(self) -> None:
        self._db.close()

    def _is_over(self) -> bool:
        self._steps += _CHECK_STEPS
        return self._steps > MAX_STEPS or (self._steps > 0 and time.monotonic() - self._began > SLOW_SECONDS)
