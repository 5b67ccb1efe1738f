"""The durable store: one SQLite file, one connection that writes, a few that read.

Every transaction is one plain function `fn(db, ...)`. Writers queue; the store runs up to 256 of their functions in one
transaction with one commit, which makes waiting for the disk cheap. When `write` returns, the change is on disk.
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import aiosqlite

from hermes_state.aio import Backoff
from hermes_state.errors import StoreBroken, StoreUnavailable
from hermes_state.store import connections
from hermes_state.store.backup import copy_into
from hermes_state.store.batch import WriteRequest, run_batch
from hermes_state.store.filesystem import refuse_network_disk
from hermes_state.store.index import detach_index, is_index_trouble
from hermes_state.store.lock import FileLock, refuse_held
from hermes_state.store.migrate import migrate
from hermes_state.store.presence import DatabaseHandle, has_content, leave_marker, refuse_empty, refuse_loss
from hermes_state.store.short_reads import ShortReader, ShortReadExceeded

P = ParamSpec("P")
T = TypeVar("T")

BATCH_SIZE = 256
"""Most functions in one transaction: enough to hide the disk's sync, short enough for the latency of the last."""

QUEUE_SIZE = 10_000
"""Writes that may wait; later callers wait for room, so that memory stays bounded while the disk is slow."""

READ_SECONDS = 5.0
"""Time limit of a read: an old snapshot keeps the write-ahead log from being cleared."""

BACKUP_SECONDS = 3_600.0
"""Time limit of a backup: enough for a terabyte on a fast disk, and for a hundred gigabytes on a slow one."""

_BUSY_PAUSE_SECONDS = 0.02
_DEADLINE_CHECK_STEPS = 20_000
"""SQLite virtual machine steps between two looks at the clock, well under a millisecond of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHealth:
    """State of the writer, for liveness checks."""

    last_commit_seconds: float
    """Duration of the last batch, from leaving the queue to being on disk."""
    oldest_wait_seconds: float
    """Age of the write that waits longest (or runs now); 0 when there is none."""
    waiting: int


class _Reader:
    """A connection for reading and the deadline of what it runs now."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.connection = connection
        self.pending = 0
        self._deadline = 0.0
        self._is_closing = False

    def prepare(self, db: sqlite3.Connection, busy_seconds: float) -> None:
        connections.prepare_reader(db, busy_seconds)
        db.set_progress_handler(self._is_over, _DEADLINE_CHECK_STEPS)

    def run(self, db: sqlite3.Connection, seconds: float, call: Callable[[sqlite3.Connection], T]) -> T:
        self._deadline = time.monotonic() + seconds
        db.execute("BEGIN")
        try:
            return call(db)
        finally:
            self._deadline = float("inf")  # ending the snapshot is never to be interrupted
            if db.in_transaction:
                db.execute("ROLLBACK")

    def stop(self) -> None:
        """End what is running and whatever still comes."""
        self._is_closing = True

    def _is_over(self) -> bool:
        return (self._is_closing and self._deadline != float("inf")) or time.monotonic() > self._deadline


class Store:
    """The database of one gateway. `open` it, and `close` it whatever happens."""

    def __init__(
        self, path: Path, lock: FileLock, writer: aiosqlite.Connection, readers: list[_Reader], busy_seconds: float
    ) -> None:
        self.path = path
        self._short_reader = ShortReader(path)
        self._lock = lock
        self._writer = writer
        self._readers = readers
        self._busy_seconds = busy_seconds
        self._queue: deque[WriteRequest] = deque()
        self._callers_outside: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._running: list[WriteRequest] = []
        self._last_commit_seconds = 0.0
        self.index_failed = asyncio.Event()
        """Set when a write or a search has met an error that a damaged search index may have caused."""
        self._is_open = True
        self._closed_at = 0.0
        self._shutdown: asyncio.Task[None] | None = None
        self._files = DatabaseHandle(path)
        self.loss: str | None = None
        """Loss of the files that was last found."""
        self._damage: str | None = None
        self._drainer = asyncio.create_task(self._drain(), name="store.writer")

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
        """Open the database at `path`, making or migrating it; takes its lock (`<path>.lock`) until `close`.

        `busy_seconds` bounds how long a write waits while another process locks the file. `is_fresh`: an empty one may
        be made where there was one before.

        Raises `ConfigError` on a network disk, `LockUnavailable` if a living process has the database open,
        `DatabaseRejected` (nothing is touched then), or `StoreUnavailable`.
        """
        connections.check_engine()
        refuse_network_disk(path)
        connections.check_ours(path)
        what, lock_file = f"the database {path}", path.with_name(path.name + ".lock")
        if not is_fresh and not has_content(path):
            refuse_held(lock_file, what=what)  # whoever holds it has only just lost it
            refuse_loss(path)
        connections.ensure_private(path)
        lock = FileLock.acquire(lock_file, what=what)
        opened: list[aiosqlite.Connection] = []
        try:
            opened.append(writer := await connections.connect(path))
            if not is_fresh:
                await connections.on_thread(writer, refuse_empty, path)
            await connections.on_thread(writer, connections.prepare_writer, path, synchronous, busy_seconds)
            await connections.on_thread(writer, migrate, path)
            await connections.on_thread(writer, connections.limit_busy_wait, busy_seconds)
            reading = []
            for _ in range(readers):
                opened.append(connection := await connections.connect(path))
                reading.append(reader := _Reader(connection))
                await connections.on_thread(connection, reader.prepare, busy_seconds)
            leave_marker(path)
            return cls(path, lock, writer, reading, busy_seconds)
        except BaseException as error:
            for connection in reversed(opened):
                await connection.close()
            lock.release()
            if connections.is_trouble(error):
                raise connections.unavailable(path, error) from error
            raise

    async def write(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, *args)` inside a transaction and return its result once that is on disk.

        `fn` is SQL and nothing else: no network, no files, no `with db:` (it would commit), at most some 500 rows. It
        runs again when the database was locked or another function of its batch raised, so it must not change anything
        but the database. What it raises takes back its own changes and reaches the caller as it is; `StoreUnavailable`
        says that nothing was stored. A caller who is cancelled does not know whether it was: keys in the rows make a
        second try safe.
        """
        if not self._is_open:
            raise StoreUnavailable(f"{self.path.name}: the store is closed")
        if self.loss is not None:
            raise StoreBroken(self.loss)
        if self._callers_outside or len(self._queue) >= QUEUE_SIZE:
            await self._wait_for_room()
        write = WriteRequest(self._loop.create_future(), fn, args, kwargs)
        if not self._queue:  # otherwise the drainer knows already
            self._arrived.set()
        self._queue.append(write)
        result: T = await write.future
        return result

    async def write_with_retry(
        self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`write`, tried again for as long as the database cannot be written; cancellation ends it.

        For functions whose effect must not be lost (an answer that cost a model call) and whose second run is harmless.
        """
        for pause in Backoff():
            try:
                return await self.write(fn, *args, **kwargs)
            except StoreUnavailable as error:
                import structlog  # takes its time, and the command line imports this module at every start

                log = structlog.get_logger()
                log.warning("store.write_delayed", function=fn.__name__, retry_seconds=pause, error=str(error))
            await asyncio.sleep(pause)  # the database gives no sign when it has room again
        raise AssertionError("a backoff never ends")

    async def read(self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, *args)` on one consistent snapshot and return its result; `READ_SECONDS` bound it.

        `fn` fetches all it needs and keeps no cursor. Raises `StoreUnavailable` when it takes too long or the file
        fails.
        """
        return await self.read_within(READ_SECONDS, fn, *args, **kwargs)

    async def read_short(
        self, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`read` for a few rows by an index, at once where nothing is in the way.

        `fn` may run twice: on the event loop, where it is broken off as soon as it takes many steps, and then as any.
        """
        if self._is_open:
            with suppress(ShortReadExceeded):
                return self._short_reader.run(lambda db: fn(db, *args, **kwargs))
        return await self.read(fn, *args, **kwargs)

    async def read_within(
        self, seconds: float, fn: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`read` with a time limit of its own, counted from when it starts to run."""
        if not self._is_open:
            raise StoreUnavailable(f"{self.path.name}: the store is closed")
        reader = min(self._readers, key=lambda one: one.pending)
        reader.pending += 1
        try:
            return await connections.on_thread(
                reader.connection, reader.run, seconds, lambda db: fn(db, *args, **kwargs)
            )
        except sqlite3.Error as error:
            if is_index_trouble(error):
                self.index_failed.set()
            elif not connections.is_trouble(error):
                raise
            raise self._unavailable(error) from error
        finally:
            reader.pending -= 1

    async def back_up(self, target: Path) -> int:
        """Copy the database as it is now to the new file `target`; returns its size in bytes. Writers go on meanwhile.

        The copy is read through an open connection: it has what was deleted or replaced under its name, too.

        Raises `StoreUnavailable` if it cannot be written, and for a `target` that exists or that the store uses.
        """
        if self._files.uses(target):
            raise StoreUnavailable(f"{target} is in use: name another file")
        return await self.read_within(BACKUP_SECONDS, copy_into, target, lambda: self._is_open)

    def check_files(self) -> None:
        """Compare the open files with those under their names; while they differ, writes are refused: `StoreBroken`."""
        self.loss = self._files.find_loss()

    @property
    def trouble(self) -> str | None:
        """Trouble with the files, in words for operators, who alone can mend it: loss, or damage met once."""
        return self.loss or self._damage

    @property
    def pulse(self) -> WriterHealth:
        """State of the writer right now."""
        oldest = self._running[0] if self._running else self._queue[0] if self._queue else None
        return WriterHealth(
            last_commit_seconds=self._last_commit_seconds,
            oldest_wait_seconds=time.monotonic() - oldest.queued_at if oldest else 0.0,
            waiting=len(self._queue),
        )

    async def close(self) -> None:
        """Store what waits, close every connection and give the lock back. May be called again, by anyone.

        Takes at most `busy_seconds` when another process locks the file, and ends reads that still run.
        """
        if self._shutdown is None:
            self._is_open = False
            self._closed_at = time.monotonic()
            self._shutdown = asyncio.create_task(self._shut_down(), name="store.close")
        await asyncio.shield(self._shutdown)  # a caller who is cancelled must not leave threads behind

    async def _shut_down(self) -> None:
        try:
            self._arrived.set()
            await asyncio.wait([self._drainer])
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
        if not self._drainer.cancelled():
            self._drainer.result()  # an error there is a fault of this module: let it be seen

    async def _drain(self) -> None:
        try:
            while self._queue or self._is_open:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                self._running = [self._queue.popleft() for _ in range(min(BATCH_SIZE, len(self._queue)))]
                self._admit_callers()
                await self._store_batch(self._running)
                self._running = []
        except asyncio.CancelledError:
            for write in self._running:
                write.future.cancel()  # it may or may not be on disk
            raise
        except BaseException as error:
            for write in self._running:
                write.fail(error)
            raise
        finally:
            self._is_open = False
            self._fail_waiting("the writer has stopped")

    def _fail_waiting(self, reason: str) -> None:
        while self._queue:
            self._queue.popleft().fail(StoreUnavailable(f"{self.path.name}: {reason}"))
        self._admit_callers()

    async def _wait_for_room(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._callers_outside.append(turn)
        await turn
        if not self._is_open:
            raise StoreUnavailable(f"{self.path.name}: the store is closed")

    def _admit_callers(self) -> None:
        """Let as many callers in as there is room; those who gave up meanwhile take none."""
        room = QUEUE_SIZE - len(self._queue)
        while room > 0 and self._callers_outside:
            turn = self._callers_outside.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1

    async def _store_batch(self, batch: list[WriteRequest]) -> None:
        started = time.monotonic()
        while True:
            try:
                await connections.on_thread(self._writer, run_batch, batch)
            except sqlite3.Error as error:
                if is_index_trouble(error) and await connections.on_thread(self._writer, detach_index):
                    self.index_failed.set()
                    continue  # the index is derived: what people say is stored without it
                begun = started if self._is_open else min(started, self._closed_at)
                if connections.is_busy(error) and time.monotonic() < begun + self._busy_seconds:
                    await asyncio.sleep(_BUSY_PAUSE_SECONDS)  # another process's lock: no event tells its end
                    continue
                failure: Exception = error
            except StoreUnavailable as error:
                failure = error
            else:
                break
            for write in batch:
                write.error = failure
            if connections.is_busy(failure) and not self._is_open:
                self._fail_waiting("closed while another process kept the database locked")
            break
        self._last_commit_seconds = time.monotonic() - started
        for write in batch:
            if write.error is None:
                if not write.future.done():  # the caller may have stopped waiting
                    write.future.set_result(write.result)
            else:
                write.fail(self._for_caller(write.error))

    def _for_caller(self, error: BaseException) -> BaseException:
        """The error as one caller gets it; one that ended the whole batch becomes an exception for each."""
        if connections.is_trouble(error):
            return self._unavailable(error)
        return StoreUnavailable(*error.args) if type(error) is StoreUnavailable else error

    def _unavailable(self, error: BaseException) -> StoreUnavailable:
        told = connections.unavailable(self.path, error)
        if isinstance(told, StoreBroken):
            self._damage = str(told)
        return told
