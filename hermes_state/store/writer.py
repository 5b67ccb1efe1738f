"""The durable store of both engines: group commit of plain functions, and reads from one snapshot.

Every transaction is one plain function `fn(db, ...)`. Writers queue, and up to 256 of their functions share one commit,
which makes the wait for the disk cheap.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from hermes_state.aio import retried
from hermes_state.errors import StoreBroken, StoreUnavailable
from hermes_state.store.batch import WriteRequest
from hermes_state.store.sql import Connection

P = ParamSpec("P")
T = TypeVar("T")

QUEUE_SIZE = 10_000
"""Most writes that wait; later callers wait for room, so that memory stays bounded while the disk is slow."""

READ_SECONDS = 5.0
"""Time limit of a read: an old snapshot makes the write-ahead log grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHealth:
    """State of the writers, for checks of liveness."""

    last_commit_seconds: float
    """Duration of the last batch, from leaving the queue to being on disk."""
    since_commit_seconds: float  # time since then, or since the store was opened
    oldest_wait_seconds: float
    """Age of the write that waits longest (or runs now); 0 when there is none."""
    waiting: int
    writers: int
    busy: int  # writers that have a batch to store


@dataclass(frozen=True, slots=True)
class ReaderHealth:
    """State of the connections for reading."""

    readers: int
    busy: int
    waiting: int  # reads that wait for one of them


class Store(ABC):
    """The database of one gateway, with its `name` in errors. An engine opens it; `close` it in any case.

    `writers`: transactions at a time. With more than one, only an awaited write is sure to come before the next one.
    """

    _readers: Sequence[Any] = ()  # connections, each with the number of its `pending` reads
    batch_size = 256
    """Most functions in one transaction: enough to hide the disk's sync, few enough for the latency of the last."""

    def __init__(self, name: str, writers: int = 1) -> None:
        self.name = name
        self.id = os.urandom(16).hex()  # of this process among those that share the database
        self.loss: str | None = None
        """Loss of the database files; meanwhile writes are refused."""
        self.index_failed = asyncio.Event()
        """Set after an error that a damaged search index may have caused."""
        self._queue: deque[WriteRequest] = deque()
        self._callers_outside: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._running: list[list[WriteRequest]] = [[] for _ in range(writers)]
        self._last_commit_seconds = 0.0
        self._committed_at = time.monotonic()
        self._is_open = True
        self._closed_at = 0.0
        self._shutdown: asyncio.Task[None] | None = None
        self._drainers = [
            asyncio.create_task(self._drain(writer), name=f"store.writer-{writer}") for writer in range(writers)
        ]

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, *args)` inside a transaction and return its result once its changes are on disk.

        `fn` is only SQL: no network, no files, no `with db:` (it would commit), at most some 500 rows. It runs again
        when the database was locked or another function of its batch raised, so it must change nothing but the
        database. Its own error takes back its changes and reaches the caller unchanged. After `StoreUnavailable`
        nothing is stored. A cancelled caller does not know the outcome: keys in the rows make a second try safe.
        """
        if not self._is_open:
            raise StoreUnavailable(f"{self.name}: the store is closed")
        if self.loss is not None:
            raise StoreBroken(self.loss)
        if self._callers_outside or len(self._queue) >= QUEUE_SIZE:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._callers_outside.append(turn)
            await turn
            if not self._is_open:
                raise StoreUnavailable(f"{self.name}: the store is closed")
        write = WriteRequest(self._loop.create_future(), fn, args, kwargs)
        if not self._queue:  # otherwise the drainers know already
            self._arrived.set()
        self._queue.append(write)
        result: T = await write.future
        return result

    async def write_with_retry(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Repeat `write` while the database cannot be written; cancellation ends it.

        For functions with an effect that must not be lost (a paid answer), and that are safe to run twice.
        """
        call = partial(self.write, fn, *args, **kwargs)
        return await retried(call, StoreUnavailable, "store.write_delayed", function=fn.__name__)

    async def read(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, *args)` on one snapshot within `READ_SECONDS` and return its result.

        `fn` keeps no cursor. Raises `StoreUnavailable` when it takes too long or the database fails.
        """
        return await self.read_within(READ_SECONDS, fn, *args, **kwargs)

    async def read_short(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read a few rows by an index, as quickly as the engine can; `fn` may run twice."""
        return await self.read(fn, *args, **kwargs)

    @abstractmethod
    async def read_within(
        self, seconds: float, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Read with another time limit, which starts with the run."""

    @abstractmethod
    async def back_up(self, target: Path) -> int:
        """Copy the database to the new file `target` while writers go on; return its size in bytes.

        Raises `StoreUnavailable` if it cannot be written, and for a `target` that exists or that the store uses.
        """

    @abstractmethod
    def check_files(self) -> None:
        """Check that the files are still under their names, and set `loss`; after a loss writes raise `StoreBroken`."""

    @property
    @abstractmethod
    def trouble(self) -> str | None:
        """Sentence about trouble that only operators can repair: loss, or damage that was met once."""

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
        )

    @property
    def readers(self) -> ReaderHealth:
        """State of the connections for reading."""
        pending = [reader.pending for reader in self._readers]
        return ReaderHealth(len(pending), sum(map(bool, pending)), sum(max(0, reads - 1) for reads in pending))

    async def close(self) -> None:
        """Store waiting writes, end reads, close all connections and release all locks. May be called again."""
        if self._shutdown is None:
            self._is_open = False
            self._closed_at = time.monotonic()
            self._shutdown = asyncio.create_task(self._shut_down(), name="store.close")
        await asyncio.shield(self._shutdown)  # a caller who is cancelled must not leave threads behind

    @abstractmethod
    async def _run(self, writer: int, batch: list[WriteRequest]) -> Exception | None:
        """Store a batch on one of the writers; return the error that ended all of it, if any."""

    @abstractmethod
    def _told(self, error: BaseException) -> BaseException:
        """Translate an engine's error for callers; return any other unchanged."""

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
                drainer.result()  # raise an error there, which is a fault of this module

    async def _drain(self, writer: int) -> None:
        batch: list[WriteRequest] = []
        try:
            while self._queue or self._is_open:
                if not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                # Idle writers find as many writes as this one takes.
                share = -(-len(self._queue) // sum(not running for running in self._running))
                batch = self._running[writer] = [self._queue.popleft() for _ in range(min(self.batch_size, share))]
                self._admit_callers()
                await self._store_batch(writer, batch)
                batch = self._running[writer] = []
        except asyncio.CancelledError:
            for write in batch:
                write.future.cancel()  # it may or may not be on disk
            raise
        except BaseException as error:
            for write in batch:
                write.fail(error)
            raise
        finally:
            self._is_open = False
            self._fail_waiting("the writer has stopped")
            self._arrived.set()  # the other drainers end, too

    def _fail_waiting(self, reason: str) -> None:
        while self._queue:
            self._queue.popleft().fail(StoreUnavailable(f"{self.name}: {reason}"))
        self._admit_callers()

    def _admit_callers(self) -> None:
        """Admit as many waiting callers as there is room."""
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
        self._committed_at = time.monotonic()
        self._last_commit_seconds = self._committed_at - started
        for write in batch:
            if write.error is not None:
                # An error that ended the whole batch becomes an exception for each caller.
                is_shared = type(write.error) is StoreUnavailable
                write.fail(StoreUnavailable(*write.error.args) if is_shared else self._told(write.error))
            elif not write.future.done():  # the caller may have stopped waiting
                write.future.set_result(write.result)
