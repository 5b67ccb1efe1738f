"""The store of both engines: group commit of plain functions, and reads from one snapshot.

Each transaction is a plain function `fn(db, ...)`. Up to 256 queued functions share one commit and its disk sync.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from hermes_state.aio import retried
from hermes_state.errors import StoreBroken, StoreUnavailable
from hermes_state.store.sql import Connection, WriteRequest

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_SIZE = 10_000
"""Maximum number of queued writes. Later callers wait, so memory stays bounded while the disk is slow."""

READ_SECONDS = 5.0
"""Time limit for a read in seconds. It is short because the write-ahead log grows during a read."""


class WriterHealth(msgspec.Struct, frozen=True, kw_only=True):
    last_commit_seconds: float
    """Seconds that it took to store the last batch, after it had left the queue."""
    since_commit_seconds: float  # since the last commit, or since the store was opened
    oldest_wait_seconds: float
    """Seconds since the oldest waiting or running write was queued, or 0 if there is none."""
    waiting: int
    writers: int
    busy: int  # writers that are storing a batch
    batches: int
    """Batches since the store was opened, including failed ones."""
    writes: int
    """Functions in these batches."""


class ReaderHealth(msgspec.Struct, frozen=True):
    readers: int
    busy: int
    waiting: int  # reads waiting for a connection


class Store(ABC):
    """The database of one gateway, opened by an engine. Always `close` it. `name` appears in errors.

    `writers` is the number of parallel transactions. With several writers, a later write can run first unless you await
    the earlier write.
    """

    _readers: Sequence[Any] = ()  # connections, each with its number of `pending` reads
    batch_size = 256
    """Maximum number of functions per transaction: enough to share the cost of a disk sync, few enough to be fast."""

    def __init__(self, name: str, writers: int = 1) -> None:
        self.name = name
        self.id = os.urandom(16).hex()  # identifies this process among those that share the database
        self.loss: str | None = None
        """Description of lost database files. Writes are refused while this is set."""
        self.index_failed = asyncio.Event()
        """Set after an error that may be caused by a damaged search index."""
        self.written = asyncio.Event()
        """Set after each batch of writes."""
        self._queue: deque[WriteRequest] = deque()
        self._callers_outside: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._running: list[list[WriteRequest]] = [[] for _ in range(writers)]
        self._last_commit_seconds = 0.0
        self._batches = self._writes = 0
        self._committed_at = time.monotonic()
        self._is_open = True
        self._closed_at = 0.0
        self._shutdown: asyncio.Task[None] | None = None
        self._drainers = [
            asyncio.create_task(self._drain(writer), name=f"store.writer-{writer}") for writer in range(writers)
        ]

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, *args)` in a transaction. Return its result once the changes are on disk.

        `fn` may only run SQL on at most about 500 rows: no network, no files, and no `with db:`, which would commit. It
        runs again if the database was locked or another function of its batch raised, so it must change nothing but the
        database. An error in `fn` undoes its changes and reaches the caller unchanged. `StoreUnavailable` means that
        nothing is stored. A cancelled caller does not know the outcome, but unique keys make a retry safe.
        """
        if not self._is_open:
            raise StoreUnavailable(f"{self.name}: the database is closed")
        if self.loss is not None:
            raise StoreBroken(self.loss)
        if self._callers_outside or len(self._queue) >= QUEUE_SIZE:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._callers_outside.append(turn)
            await turn
            if not self._is_open:
                raise StoreUnavailable(f"{self.name}: the database is closed")
        write = WriteRequest(self._loop.create_future(), fn, args, kwargs)
        if not self._queue:  # otherwise `_arrived` is already set
            self._arrived.set()
        self._queue.append(write)
        result: T = await write.future
        return result

    async def write_with_retry(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Retry `write` until the database can be written or the caller is cancelled.

        Use this for functions that can safely run twice and store something that must not be lost, such as a paid
        answer.
        """
        call = partial(self.write, fn, *args, **kwargs)
        return await retried(call, StoreUnavailable, "store.write_delayed", function=fn.__name__)

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, *args)` on one snapshot within `READ_SECONDS` and return its result.

        `fn` must not keep a cursor. Raises `StoreUnavailable` if `fn` takes too long or the database fails.
        """
        return await self.read_within(READ_SECONDS, fn, *args, **kwargs)

    async def read_short(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a few rows by an index, as fast as the engine can. `fn` may run twice."""
        return await self.read(fn, *args, **kwargs)

    @abstractmethod
    async def read_within(
        self, seconds: float, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `fn` like `read`, but with a limit of `seconds`, counted from the start of `fn`."""

    @abstractmethod
    async def back_up(self, target: Path) -> int:
        """Copy the database to the new file `target` while writes continue. Return its size in bytes.

        Raises `StoreUnavailable` if `target` exists, cannot be written, or is one of the database's own files.
        """

    @abstractmethod
    def check_files(self) -> None:
        """Set `loss` if database files were moved, deleted or replaced. Writes then raise `StoreBroken`."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Sentence about lost or damaged files, which only operators can repair. None if there are none."""

    @property
    def pulse(self) -> WriterHealth:
        oldest = [waiting[0].queued_at for waiting in (*self._running, self._queue) if waiting]
        return WriterHealth(
            last_commit_seconds=self._last_commit_seconds,
            oldest_wait_seconds=time.monotonic() - min(oldest) if oldest else 0.0,
            waiting=len(self._queue),
            since_commit_seconds=time.monotonic() - self._committed_at,
            writers=len(self._running),
            busy=sum(map(bool, self._running)),
            batches=self._batches,
            writes=self._writes,
        )

    @property
    def readers(self) -> ReaderHealth:
        pending = [reader.pending for reader in self._readers]
        return ReaderHealth(len(pending), sum(map(bool, pending)), sum(max(0, reads - 1) for reads in pending))

    async def close(self) -> None:
        """Store queued writes, end reads, close all connections and release all locks. Can be called more than once."""
        if self._shutdown is None:
            self._is_open = False
            self._closed_at = time.monotonic()
            self._shutdown = asyncio.create_task(self._shut_down(), name="store.close")
        await asyncio.shield(self._shutdown)  # cancelling the caller must not leave threads running

    @abstractmethod
    async def _run(self, writer: int, batch: list[WriteRequest]) -> Exception | None:
        """Store a batch on one writer. Return the error if the whole batch failed, otherwise None."""

    @abstractmethod
    def _translated(self, error: BaseException) -> BaseException:
        """Convert an engine's error to the error that callers receive. Return any other error unchanged."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Close all connections and release all locks."""

    async def _shut_down(self) -> None:
        try:
            self._arrived.set()
            await asyncio.wait(self._drainers)
        finally:
            await self._disconnect()
        for drainer in self._drainers:
            if not drainer.cancelled():
                drainer.result()  # re-raise an error of the drainer, which is a bug in this module

    async def _drain(self, writer: int) -> None:
        batch: list[WriteRequest] = []
        try:
            while self._queue or self._is_open:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                # Leave an equal share of the queue to each idle writer.
                share = -(-len(self._queue) // sum(not running for running in self._running))
                batch = self._running[writer] = [self._queue.popleft() for _ in range(min(self.batch_size, share))]
                self._admit_callers()
                await self._store_batch(writer, batch)
                batch = self._running[writer] = []
        except asyncio.CancelledError:
            for write in batch:
                write.future.cancel()  # the batch may or may not be on disk
            raise
        except BaseException as error:
            for write in batch:
                write.fail(error)
            raise
        finally:
            self._is_open = False
            self._fail_waiting("the writer has stopped")
            self._arrived.set()  # wake the other drainers, so that they end

    def _fail_waiting(self, reason: str) -> None:
        while self._queue:
            self._queue.popleft().fail(StoreUnavailable(f"{self.name}: {reason}"))
        self._admit_callers()

    def _admit_callers(self) -> None:
        room = QUEUE_SIZE - len(self._queue)
        while room > 0 and self._callers_outside:
            turn = self._callers_outside.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1

    async def _store_batch(self, writer: int, batch: list[WriteRequest]) -> None:
        started = time.monotonic()
        if (failure := await self._run(writer, batch)) is not None:
            for write in batch:
                write.error = failure
        self.written.set()
        self._committed_at = time.monotonic()
        self._last_commit_seconds = self._committed_at - started
        self._batches, self._writes = self._batches + 1, self._writes + len(batch)
        for write in batch:
            if write.error is not None:
                # After a failed batch, each caller gets its own exception.
                is_shared = type(write.error) is StoreUnavailable
                write.fail(StoreUnavailable(*write.error.args) if is_shared else self._translated(write.error))
            elif not write.future.done():  # the caller may have stopped waiting
                write.future.set_result(write.result)
