"""The store in a PostgreSQL database: parallel writers, whose batches lock their chats first."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hermes_state.engines.postgres.connection import DAMAGE, RIGHTS, PostgresConnection, ends_session, is_trouble
from hermes_state.engines.postgres.locks import begin
from hermes_state.engines.postgres.migrate import migrate
from hermes_state.engines.postgres.nodes import session_name
from hermes_state.engines.postgres.reads import ANSWER_SECONDS, ShortReader, milliseconds, read, run_pipelined
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreBroken, StoreUnavailable
from hermes_state.store.locks import locks_of
from hermes_state.store.sql import Connection, TransactionRules, WriteRequest, run_batch
from hermes_state.store.writer import READ_SECONDS, Store

P = ParamSpec("P")
T = TypeVar("T")

REPEATS = 10  # retries of a batch that PostgreSQL aborted because of another transaction

TAKEOVER_SECONDS = 5.0
"""Seconds to wait for a lock on the whole database. The server needs time to release the lock of a killed process."""

CLOSE_SECONDS = 10.0  # the server may no longer answer

# HGWY; keys of two integers never equal bigint keys. Gateways share the lock; a copy holds it exclusively.
_ALONE, _TOGETHER = "SELECT pg_advisory_lock(1212634969, 1)", "SELECT pg_advisory_lock_shared(1212634969, 1)"
_REFUSED = re.compile(
    r"^connection is bad: (?!connection to server)"  # libpq did not try to connect
    r"|invalid (integer )?value|unrecognized configuration parameter"
    r"|password authentication failed|no password supplied|no pg_hba.conf entry|is not permitted to log in"
    r'|(role|database) ".*" does not exist|permission denied for database'
    r"|certificate|private key file|SSL was required|channel binding required|authentication method requirement"
)
"""Pattern for the messages of connection errors that a later attempt would not fix.

libpq has no codes for these errors. Messages in another language do not match, so the gateway tries to connect again,
as if the server were still starting.
"""


def _begin(db: PostgresConnection, batch: Sequence[WriteRequest]) -> list[list[WriteRequest]]:
    queues = begin(db, [locks_of(write.fn, *write.args, **write.kwargs) for write in batch])
    return [[batch[at] for at in queue] for queue in queues]


RULES = TransactionRules(
    begin=_begin, run_all=run_pipelined, ends_batch=is_trouble, failure=psycopg.Error, rejection=psycopg.IntegrityError
)


class _Session:
    """Connection with its own thread. If the connection is lost, a new one replaces it.

    With `joins`, the connection holds the shared lock that blocks copies.
    """

    def __init__(self, url: str, name: str, busy_seconds: float, *, joins: bool) -> None:
        self.pending = 0
        self._url, self._name = url, name
        self._busy_seconds, self._joins = busy_seconds, joins
        self._thread = ThreadPoolExecutor(1, "postgres")
        self._db: PostgresConnection | None = None
        self._has_ended = False

    async def run(self, fn: Callable[Concatenate[PostgresConnection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, ...)` as one job on the connection's thread."""
        work = partial(self._work, lambda db: fn(db, *args, **kwargs))
        job = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self.pending += 1

        def note_end(job: asyncio.Future[Any]) -> None:
            self.pending -= 1
            if not job.cancelled():
                job.exception()  # the caller receives the error, unless it has stopped waiting

        job.add_done_callback(note_end)
        return await asyncio.shield(job)  # the thread finishes the job even without its caller

    def _work(self, call: Callable[[PostgresConnection], T]) -> T:
        db = self._connect()
        try:
            return call(db)
        except psycopg.Error as error:
            if ends_session(error):
                db.close()
            raise

    def _connect(self) -> PostgresConnection:
        if not self._has_ended and (self._db is None or self._db.is_over):
            self._disconnect()
            self._db = PostgresConnection.open(self._url, self._name)
            self._db.silence_seconds = self._busy_seconds + ANSWER_SECONDS
            with ExitStack() as undo:
                undo.callback(self._db.close)
                self._prepare(self._db)
                undo.pop_all()
        if self._has_ended or self._db is None:
            raise psycopg.OperationalError("the database is closed")
        return self._db

    def _prepare(self, db: PostgresConnection) -> None:
        if self._joins:
            # Writes find rows by index, so one plan fits all values. Otherwise the server would scan tables that have
            # grown since their statistics were collected.
            db.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
            refusal = "the database is being copied, or an older version of the gateway uses it"
            _lock(db, _TOGETHER, refusal, "another process")
        else:
            db.execute(f"SET statement_timeout = {milliseconds(READ_SECONDS)}")
        # An idle transaction must not keep its chats locked.
        pause, wait = milliseconds(5.0), int(self._busy_seconds * 1000)
        db.execute(f"SET idle_in_transaction_session_timeout = {pause}; SET lock_timeout = {wait}")
        db.execute("SET idle_session_timeout = 0")  # a limit set for the role would end an unused connection

    def break_off(self) -> None:
        """Abort the connection, even while a job is using it."""
        if self._db is not None:
            self._db.break_off()

    def end(self) -> None:
        """Abort the running job and refuse new jobs."""
        self._has_ended = True
        self.break_off()

    async def close(self) -> None:
        """Close the connection after its last job."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()


class PostgresStore(Store):
    """The database of one gateway on a PostgreSQL server. `open` it, and always `close` it.

    If a connection is lost, its open transaction fails with `StoreUnavailable`, even if only the server's answer was
    lost. Unique keys make a retry safe. The next transaction opens a new connection.
    """

    batch_size = 32
    """Maximum size of a batch. It is smaller than for SQLite, because functions take longer and chats stay locked."""

    def __init__(self, url: str, writers: int, readers: int, busy_seconds: float) -> None:
        super().__init__(name_of(url), writers)
        self.url = url
        self._close_seconds = min(busy_seconds, CLOSE_SECONDS)
        name = session_name(self.id)
        self._writers = [_Session(url, name, busy_seconds, joins=True) for _ in range(writers)]
        self._readers: list[_Session] = [_Session(url, name, busy_seconds, joins=False) for _ in range(readers)]
        self._short_reads = ShortReader(lambda job: self._reader.run(job), readers)
        self._lost: str | None = None
        self._damage: str | None = None

    @classmethod
    async def open(cls, url: str, *, writers: int = 2, readers: int = 2, busy_seconds: float = 30.0) -> Self:
        """Open the database at `url`, a `postgresql://` address, and migrate it to the newest schema.

        A write waits at most `busy_seconds` for other processes' locks. Closing also takes at most that long, or
        `CLOSE_SECONDS` if shorter. Raises `LockUnavailable` if a process has locked the whole database,
        `DatabaseRejected` for another program's database or a wrong name or password, or `StoreUnavailable` if the
        database cannot be opened now.
        """
        store = cls(url, writers, readers, busy_seconds)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(store.close)
            try:
                await store._writers[0].run(_migrate)
            except psycopg.Error as error:
                raise refusal(url, error) from error
            undo.pop_all()
        return store

    async def read_within(
        self, seconds: float, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if not self._is_open:
            raise StoreUnavailable(f"{self.name}: the database is closed")
        return await self._told_of(self._reader.run(read, seconds, lambda db: fn(db, *args, **kwargs)))

    async def read_short(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._is_open:
            raise StoreUnavailable(f"{self.name}: the database is closed")
        return await self._told_of(self._short_reads.run(lambda db: fn(db, *args, **kwargs)))

    @property
    def _reader(self) -> _Session:
        return min(self._readers, key=lambda one: one.pending)

    async def _told_of(self, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except psycopg.errors.ReadOnlySqlTransaction:  # a bug in the function, not a server fault
            raise
        except psycopg.Error as error:
            if (told := self._translated(error)) is error:
                raise
            raise told from error

    def break_off(self) -> None:
        """Abort all connections. Each one reconnects when it is used again."""
        for session in (*self._writers, *self._readers):
            session.break_off()

    async def back_up(self, target: Path) -> int:
        raise StoreUnavailable(f"{self.name}: the gateway cannot back up a PostgreSQL database; use pg_dump")

    def check_files(self) -> None:
        """Do nothing, because the server owns the files."""

    @property
    def trouble(self) -> str | None:
        return self._damage or self._lost

    async def _run(self, writer: int, batch: list[WriteRequest]) -> Exception | None:
        for repeat in range(REPEATS + 1):
            try:
                await self._writers[writer].run(run_batch, batch, RULES)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                if repeat == REPEATS:
                    return error
            except LockUnavailable as error:  # a copy began while this process had no connection
                self._lost = str(error)
                return StoreUnavailable(self._lost)
            except (psycopg.Error, StoreUnavailable) as error:
                self._lost = str(self._translated(error))
                return error
            else:
                self._lost = None
                break
        return None

    def _translated(self, error: BaseException) -> BaseException:
        code = error.sqlstate if isinstance(error, psycopg.Error) else None
        if code in DAMAGE:
            self._damage = str(unavailable(self.url, error))
            return StoreBroken(self._damage)
        return unavailable(self.url, error) if is_trouble(error) or code == RIGHTS else error

    async def _shut_down(self) -> None:
        given_up = self._loop.call_later(self._close_seconds, self._give_up)
        try:
            await super()._shut_down()
        finally:
            given_up.cancel()

    def _give_up(self) -> None:
        self._fail_waiting("closed while the server did not accept writes")
        for session in self._writers:
            session.end()

    async def _disconnect(self) -> None:
        sessions = (*self._readers, *self._writers)
        for session in sessions:
            session.end()
        for session in sessions:
            await session.close()


def name_of(url: str) -> str:
    """Return the database's address for use in messages, without the password."""
    parts = conninfo_to_dict(url)
    return f"PostgreSQL database {parts.get('dbname', '')} at {parts.get('host', 'this machine')}"


def unavailable(url: str, error: BaseException) -> StoreUnavailable:
    """Return a `StoreUnavailable` that describes a failure of the server."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return StoreUnavailable(f"{name_of(url)}: {lines[0]}")


def refusal(url: str, error: psycopg.Error) -> DatabaseRejected | StoreUnavailable:
    """Return the error for a failed start: `StoreUnavailable` if waiting may help, otherwise `DatabaseRejected`."""
    told = unavailable(url, error)
    if error.sqlstate is None and _REFUSED.search(str(error)):
        return DatabaseRejected(f"{told}; check store.url, and see docs/reference/operations.md, PostgreSQL")
    return told


def lock_database(db: PostgresConnection) -> None:
    """Lock the whole database until this connection closes. Raises `LockUnavailable` if a gateway uses the database."""
    _lock(db, _ALONE, "the database is in use by another gateway", "another gateway")


def _lock(db: PostgresConnection, statement: str, refusal: str, holder: str) -> None:
    db.execute(f"SET lock_timeout = {milliseconds(TAKEOVER_SECONDS)}")
    try:
        db.execute(statement)
    except psycopg.errors.LockNotAvailable as error:
        raise LockUnavailable(refusal, holder=holder) from error
    db.execute("SET lock_timeout = 0")


def _migrate(db: PostgresConnection) -> None:
    limit, db.silence_seconds = db.silence_seconds, None  # creating an index on a large table takes a long time
    migrate(db)
    db.silence_seconds = limit
