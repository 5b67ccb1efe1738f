"""The store in a PostgreSQL database: writers side by side, whose batches lock their chats first."""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.locks import begin
from hermes_state.engines.postgres.migrate import migrate
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreUnavailable
from hermes_state.store.batch import TransactionRules, WriteRequest, run_batch
from hermes_state.store.locks import locks_of
from hermes_state.store.sql import Connection
from hermes_state.store.writer import ReaderHealth, Store

P = ParamSpec("P")
T = TypeVar("T")

REPEATS = 10
"""Times that a batch is run again which PostgreSQL broke off for another transaction's sake."""

TAKEOVER_SECONDS = 5.0
"""Time in which the server notices that a process was killed that had the database alone."""

PAUSE_SECONDS = 5.0
"""Time after which the server takes back the transaction of a process that was stopped or cut off in it: its chats must
not stay locked."""

# HGWY; keys of two integers are a space of their own. Gateways share it, a copy has it alone.
_ALONE, _TOGETHER = "SELECT pg_advisory_lock(1212634969, 1)", "SELECT pg_advisory_lock_shared(1212634969, 1)"
_REFUSED = re.compile(
    r"^connection is bad: (?!connection to server)"  # libpq could not even try
    r"|invalid (integer )?value|unrecognized configuration parameter"
    r"|password authentication failed|no password supplied|no pg_hba.conf entry|is not permitted to log in"
    r'|(role|database) ".*" does not exist|permission denied for database'
    r"|certificate|private key file|SSL was required|channel binding required|authentication method requirement"
)
"""Refusals of a connection in which waiting does not help. libpq tells no code of them: a server that speaks another
language is tried again, as one that is not up yet."""
_REPEATABLE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


def _begin(db: PostgresConnection, batch: Sequence[WriteRequest]) -> None:
    begin(db, reduce(or_, (locks_of(write.fn, *write.args, **write.kwargs) for write in batch)))


RULES = TransactionRules(
    begin=_begin,
    ends_batch=lambda error: isinstance(error, psycopg.OperationalError | psycopg.InterfaceError),
    failure=psycopg.Error,
    rejection=psycopg.IntegrityError,
)


class _Session:
    """A connection on a thread of its own, made anew when it was lost."""

    def __init__(self, url: str, prepare: Callable[[PostgresConnection], None] | None = None) -> None:
        self.pending = 0
        self._url, self._prepare = url, prepare
        self._thread = ThreadPoolExecutor(1, "postgres")
        self._db: PostgresConnection | None = None
        self._broken: PostgresConnection | None = None
        """Connection that was broken off: what comes after that gets another one."""

    async def run(self, fn: Callable[Concatenate[PostgresConnection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn(db, ...)` as one job on the connection's thread."""
        self.pending += 1
        try:
            job = asyncio.get_running_loop().run_in_executor(self._thread, lambda: fn(self._connect(), *args, **kwargs))
            return await job
        finally:
            self.pending -= 1

    def _connect(self) -> PostgresConnection:
        if self._db is None or self._db is self._broken or self._db.raw.closed:
            self._disconnect()
            db = PostgresConnection.open(self._url)
            try:
                if self._prepare is not None:
                    self._prepare(db)
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def break_off(self) -> None:
        """End the connection under whoever waits for it."""
        self._broken = self._db
        if self._db is not None and not self._db.raw.closed:
            with suppress(OSError), socket.socket(fileno=os.dup(self._db.raw.pgconn.socket)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    async def close(self, *, breaks_off: bool = False) -> None:
        """Close the connection once its thread has nothing left to do; `breaks_off` what runs now."""
        if breaks_off and self.pending and self._db is not None:
            with suppress(psycopg.Error):
                await asyncio.to_thread(self._db.raw.cancel_safe, timeout=5.0)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()


class PostgresStore(Store):
    """The database of one gateway on a PostgreSQL server. `open` it, and `close` it whatever happens.

    A connection that is lost is made anew for the next transaction. What was in one then is `StoreUnavailable`, also
    where the server had stored it and only the answer did not come back: keys in the rows make a second try safe.
    """

    def __init__(self, url: str, writers: list[_Session], readers: list[_Session]) -> None:
        super().__init__(name_of(url), len(writers))
        self.url = url
        self._writers, self._readers = writers, readers
        self._lost: str | None = None

    @classmethod
    async def open(cls, url: str, *, writers: int = 2, readers: int = 2, busy_seconds: float = 30.0) -> Self:
        """Open the database at `url`, a `postgresql://` address, and bring it to the newest schema.

        `busy_seconds` bounds how long a write waits for locks of other processes, and with it how long `close` takes.

        Raises `LockUnavailable` if a process has it alone, `DatabaseRejected` for one that is not ours (nothing
        is touched then) or whose name or password is wrong, or `StoreUnavailable`.
        """
        prepare, join = partial(_bound_waits, busy_seconds), partial(_join, busy_seconds)
        sessions = [_Session(url, prepare if number else join) for number in range(writers + readers)]
        try:
            await sessions[0].run(migrate)
            return cls(url, sessions[:writers], sessions[writers:])
        except BaseException as error:
            for session in sessions:
                await session.close()
            if isinstance(error, psycopg.Error):
                raise refusal(url, error) from error
            raise

    async def read_within(
        self, seconds: float, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if not self._is_open:
            raise StoreUnavailable(f"{self.name}: the store is closed")
        reader = min(self._readers, key=lambda one: one.pending)
        try:
            return await reader.run(_read, seconds, lambda db: fn(db, *args, **kwargs))
        except psycopg.Error as error:
            if (told := self._told(error)) is error:
                raise
            raise told from error

    def break_off(self) -> None:
        for session in (*self._writers, *self._readers):
            session.break_off()

    async def back_up(self, target: Path) -> int:
        raise StoreUnavailable(f"{self.name}: backups of PostgreSQL are made with pg_dump, not by the gateway")

    def check_files(self) -> None:
        """Nothing: the files are the server's."""

    @property
    def readers(self) -> ReaderHealth:
        return ReaderHealth.of([reader.pending for reader in self._readers])

    @property
    def trouble(self) -> str | None:
        return self._lost

    async def _run(self, writer: int, batch: list[WriteRequest]) -> Exception | None:
        for repeat in range(REPEATS + 1):
            try:
                await self._writers[writer].run(run_batch, batch, RULES)
            except _REPEATABLE as error:
                if repeat == REPEATS:
                    return error
            except LockUnavailable as error:  # a copy began while this one had no connection
                self._lost = str(error)
                return StoreUnavailable(self._lost)
            except (psycopg.Error, StoreUnavailable) as error:
                self._lost = str(self._told(error))
                return error
            else:
                self._lost = None
                break
        return None

    def _told(self, error: BaseException) -> BaseException:
        return unavailable(self.url, error) if RULES.ends_batch(error) else error

    async def _disconnect(self) -> None:
        for session in self._readers:
            await session.close(breaks_off=True)
        for session in self._writers:
            await session.close()


def name_of(url: str) -> str:
    """The database in sentences, without the address's password."""
    parts = conninfo_to_dict(url)
    return f"PostgreSQL database {parts.get('dbname', '')} at {parts.get('host', 'this machine')}"


def unavailable(url: str, error: BaseException) -> StoreUnavailable:
    """The error that a caller gets for trouble with the server."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return StoreUnavailable(f"{name_of(url)}: {lines[0]}")


def refusal(url: str, error: psycopg.Error) -> DatabaseRejected | StoreUnavailable:
    """The error of a process that cannot begin without the server; what waiting does not mend is `DatabaseRejected`."""
    told = unavailable(url, error)
    if error.sqlstate is None and _REFUSED.search(str(error)):
        return DatabaseRejected(f"{told}; see store.url, and docs/operations.md, PostgreSQL")
    return told


def be_the_only_one(db: PostgresConnection) -> None:
    """Have the database alone for as long as the connection lives; raises `LockUnavailable`."""
    _lock(db, _ALONE, "the database is in use by another gateway", "another gateway")


def _join(busy_seconds: float, db: PostgresConnection) -> None:
    """Keep out who wants the database alone, for as long as the connection lives; raises `LockUnavailable`."""
    _lock(db, _TOGETHER, "the database is being copied, or a gateway of an older version has it", "another process")
    _bound_waits(busy_seconds, db)


def _bound_waits(busy_seconds: float, db: PostgresConnection) -> None:
    pause, wait = int(PAUSE_SECONDS * 1000), int(busy_seconds * 1000)
    db.execute(f"SET idle_in_transaction_session_timeout = {pause}; SET lock_timeout = {wait}")


def _lock(db: PostgresConnection, statement: str, refusal: str, holder: str) -> None:
    db.execute(f"SET lock_timeout = {int(TAKEOVER_SECONDS * 1000)}")
    try:
        db.execute(statement)
    except psycopg.errors.LockNotAvailable as error:
        raise LockUnavailable(refusal, holder=holder) from error
    db.execute("SET lock_timeout = 0")


def _read(db: PostgresConnection, seconds: float, call: Callable[[Connection], T]) -> T:
    try:
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        db.execute("SELECT set_config('statement_timeout', ?, true)", (str(max(1, int(seconds * 1000))),))
        result = call(db)
        db.sync()
        return result
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
