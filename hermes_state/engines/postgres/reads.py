"""Short reads that share a transaction, and functions that share round trips to the server.

Short reads that arrive together share a transaction. Reading a few rows costs the server little, but each transaction
needs round trips and a switch to the connection's thread and back.

Functions that share round trips run in separate greenlets until they need a result. Then all their statements are sent
together (libpq's pipeline mode). Together they take as many round trips as the function that needs the most. See
docs/decisions/0024.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import psycopg
from greenlet import getcurrent, greenlet

from hermes_state.aio import track
from hermes_state.engines.postgres.connection import PostgresConnection, ends_session
from hermes_state.store.sql import Connection, Cursor
from hermes_state.store.writer import READ_SECONDS

T = TypeVar("T")

ANSWER_SECONDS = 10.0  # extra seconds for the server to answer after its own time limits

MOST_TOGETHER = 16  # maximum number of short reads per transaction; all wait for the last to end


def milliseconds(seconds: float) -> int:
    """Convert a time limit to milliseconds for the server. Return at least 1, because 0 would mean no limit."""
    return max(1, int(seconds * 1000))


def read(db: PostgresConnection, seconds: float, call: Callable[[Connection], T]) -> T:
    """Run `call` on one snapshot. No statement starts after `seconds`, or takes longer."""
    with _snapshot(db, seconds):
        return call(_Limited(db, seconds))


class _Limited:
    """Connection for a function whose statements together have a time limit."""

    def __init__(self, db: PostgresConnection, seconds: float) -> None:
        self._db, self._limit, self._ends_at = db, seconds, time.monotonic() + seconds
        self.raw = db.raw

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def execute(self, sql: str, parameters: Any = (), /) -> Cursor:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            raise psycopg.errors.QueryCanceled("the statements took too long")
        if left < self._limit / 2:  # so that a few statements are enough to change the limit
            self._limit = left
            _set_limit(self._db, left)
        return self._db.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> None:
        for one in parameters:
            self.execute(sql, one)


def _set_limit(db: Connection, seconds: float) -> None:
    """Set the time limit for each of the next statements of this transaction."""
    db.execute("SELECT set_config('statement_timeout', ?, true)", (str(milliseconds(seconds)),))


@contextmanager
def _snapshot(db: PostgresConnection, seconds: float) -> Iterator[None]:
    db.silence_seconds = seconds + ANSWER_SECONDS
    try:
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if seconds != READ_SECONDS:
            _set_limit(db, seconds)
        yield
        db.sync()
    finally:
        db.roll_back_soon()


class ShortReader:
    """Run reads of a few rows. Reads that had to wait for a free connection share a transaction."""

    def __init__(
        self, run_job: Callable[[Callable[[PostgresConnection], None]], Awaitable[None]], connections: int
    ) -> None:
        self._run_job, self._connections = run_job, connections
        self._waiting: list[_ReadRequest] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0

    async def run(self, call: Callable[[Connection], T]) -> T:
        """Run `call` on one snapshot, possibly in the same transaction as other reads. Return its result.

        If the server rejects a shared transaction, each of its reads is retried alone. Propagates errors from `call`
        and psycopg.
        """
        read = _ReadRequest(call, asyncio.get_running_loop().create_future())
        self._waiting.append(read)
        if self._busy < self._connections:
            self._busy += 1
            track(self._tasks, asyncio.create_task(self._work(), name="store.short-reads"))
        result: T = await read.future
        return result

    async def _work(self) -> None:
        try:
            while self._waiting:
                reads, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
                await self._read(reads)
        finally:  # done here because a caller may read again before this task has ended
            self._busy -= 1

    async def _read(self, reads: "Sequence[_ReadRequest]") -> None:
        try:
            await self._run_job(partial(_read_together, reads))
        except BaseException as error:  # the connection failed
            for one in reads:
                one.error = error
            if not isinstance(error, Exception):
                raise
        for one in reads:
            one.tell()


@dataclass(slots=True, eq=False)
class _ReadRequest:
    call: Callable[[Connection], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None

    def run(self, db: Connection) -> None:
        try:
            self.result, self.error = self.call(db), None
        except BaseException as error:  # passed on to the waiting caller
            self.error = error
            if not isinstance(error, Exception):
                raise

    def tell(self) -> None:
        if self.future.done():  # the caller has stopped waiting
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def _read_together(reads: Sequence[_ReadRequest], db: PostgresConnection) -> None:
    """Run the reads in one transaction. If a server error makes all of them fail, retry them one by one."""
    with _snapshot(db, READ_SECONDS):
        run_pipelined(db, [partial(one.run, db) for one in reads])
    for one in reads:
        if isinstance(one.error, psycopg.Error):
            if ends_session(one.error):
                raise one.error
            read(db, READ_SECONDS, one.run)


def run_pipelined(db: PostgresConnection, functions: Sequence[Callable[[], None]]) -> None:
    """Run functions concurrently inside the open transaction, so that they share round trips.

    A function that begins a savepoint waits until all others have ended. The first error ends all functions and is
    raised. A server error is raised in every function that waits for a result.
    """
    if len(functions) == 1:
        functions[0]()
        return
    scheduler, running = getcurrent(), [greenlet(function) for function in functions]
    postponed: list[greenlet] = []
    failure: BaseException | None = None

    def share_trip(waits_for_all: bool) -> None:
        if waits_for_all:
            postponed.append(getcurrent())
        scheduler.switch()
        if failure is not None:
            raise failure

    try:
        while running:
            db.share_trip = share_trip
            try:
                for one in running:
                    one.switch()
            finally:
                db.share_trip = None
            running = [one for one in running if not one.dead and one not in postponed]
            try:
                db.sync()
            except psycopg.Error as error:
                failure = error
        for one in postponed:
            one.switch()
    except BaseException as error:
        failure = error
        for one in (*running, *postponed):  # no function may continue after the error
            with suppress(BaseException):  # the first error is raised below
                one.throw(error)
        raise
