"""A connection to PostgreSQL that functions of the store use like one to SQLite.

psycopg does the work. Here are the differences that one text for both engines must not see: how parameters are written,
and which type an integer, a truth value, a sum or a text with a NUL has.

Inside a transaction, statements whose results nobody has looked at yet wait and travel with the next one whose result
is needed: one trip to the server for all of them (libpq's pipeline mode). The error of one that waited is raised there,
at the latest at the end of its savepoint or at the COMMIT.
"""

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count
from select import POLLIN, POLLOUT, poll
from typing import Any, Protocol, TypeAlias

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from hermes_state.engines.postgres.nodes import NAME

_Key: TypeAlias = "tuple[bytes, tuple[int, ...] | None]"  # a statement and its parameters' types
_Awaited: TypeAlias = "Result | _Key | None"  # what a result is of: a statement, its preparation, something else

_PREPARED = 512
"""Statements that stay prepared on a connection: more than the store has."""

_MOST_WAITING = 1_000
"""Statements that travel together, so that memory stays bounded."""

GONE_SECONDS = 30
"""Seconds after which a machine that does not answer counts as gone, here and at the server, whose own default is two
hours: so long it would keep the locks of a session that has lost its other end."""


_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|(?P<mark>\?)|:(?P<name>[a-z_][a-z_0-9]*)")


class SharedTrips(Protocol):
    """Functions that run side by side on a connection, seen by the one that runs now."""

    def wait(self) -> None:
        """Let the others go on, and come back once the statements of all were sent; raises an error of any of them."""

    def wait_for_all(self) -> None:
        """Come back once the others have ended, with the connection for this function alone."""


class PostgresConnection:
    """An open connection in autocommit mode; `raw` is psycopg's. Its owner closes it."""

    silence_seconds: float | None = None
    """Longest wait for a word from the server, None: for ever. A server that is stopped, or one behind a proxy that
    has lost its way, keeps the connection alive and says nothing."""

    def __init__(self, raw: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self.raw = raw
        raw.adapters.register_dumper(int, _IntDumper)
        raw.adapters.register_dumper(bool, _BoolDumper)
        raw.adapters.register_dumper(str, _StrDumper)
        raw.adapters.register_loader("numeric", _SumLoader)
        self._values = Transformer(raw)
        self._waiting: list[Result] = []
        self._prepared: dict[_Key, bytes] = {}
        self._numbers = count()
        self._socket = poll()
        self._socket.register(raw.pgconn.socket, POLLIN)
        try:  # ours: libpq's may be closed by another thread
            self._wire = socket.socket(fileno=os.dup(raw.pgconn.socket))
        except OSError:
            raw.close()
            raise
        self._is_broken_off = False
        self._is_ending = False
        """A ROLLBACK was sent, and nobody has looked at its result yet."""
        self.shared_trips: SharedTrips | None = None
        """Set while functions share their trips to the server."""

    @classmethod
    def open(cls, url: str, name: str = NAME, seconds: int = 10) -> "PostgresConnection":
        """Connect to `url`, waiting at most `seconds`; `name`: of the session. Raises `psycopg.OperationalError`."""
        try:
            raw = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=seconds,
                client_encoding="utf-8",
                application_name=name,
                keepalives_idle=GONE_SECONDS,
                tcp_user_timeout=1000 * GONE_SECONDS,
            )
            db = cls(raw)
        except OSError as error:  # the process has no descriptor left
            raise psycopg.OperationalError(str(error)) from error
        db.silence_seconds = seconds
        query = f"""SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
        SET tcp_user_timeout = {1000 * GONE_SECONDS}"""
        try:
            db.execute(query)
        except BaseException:
            db.close()
            raise
        db.silence_seconds = None
        return db

    @property
    def is_over(self) -> bool:
        """True once it is lost, closed or broken off."""
        return self._is_broken_off or self.raw.closed

    @property
    def in_transaction(self) -> bool:
        """True also in a transaction that a failed statement has ended, and in one that only waits to begin."""
        if self._waiting:
            return True
        if self._is_ending:
            return False
        return self.raw.pgconn.transaction_status != TransactionStatus.IDLE and not self.raw.closed

    def execute(self, sql: str, parameters: Any = (), /) -> "Result":
        """Run one statement with parameters, or any number without.

        In a transaction one with parameters waits until its result, or a later one's, is needed.
        """
        if self.shared_trips is not None and sql.startswith("SAVEPOINT"):
            self.shared_trips.wait_for_all()  # what it takes back must be one function's
        if sql.startswith("ROLLBACK"):
            self._waiting.clear()  # since the BEGIN or the savepoint: nothing of it is to stay
        if not parameters and not sql.startswith(("BEGIN", "COMMIT")):
            self.sync()
            return Result(self, (b"", None), None, self._run_at_once(sql))
        waits = sql.startswith("BEGIN") or (self.in_transaction and sql != "COMMIT")
        result = self._queue(sql, parameters)
        if not waits or len(self._waiting) >= _MOST_WAITING:
            self.sync()
        if sql == "COMMIT" and result.status != b"COMMIT":  # a function has kept a failed statement to itself
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed; nothing was stored")
        return result

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> None:
        """Run a statement once for each of the parameters."""
        for one in parameters:
            self.execute(sql, one)

    def roll_back_soon(self) -> None:
        """End the transaction, which has only read, without waiting for the server: the next statement does."""
        self._waiting.clear()
        if not self.in_transaction:
            return
        server = self.raw.pgconn
        try:
            server.enter_pipeline_mode()
            server.send_query_params(b"ROLLBACK", None)
            server.pipeline_sync()
            self._flush()
        except psycopg.Error:
            self.close()
            raise
        self._is_ending = True

    def sync(self) -> None:
        """Send the statements that wait and fetch all their results; raises the first error among those."""
        if self._waiting and self.shared_trips is not None:
            self.shared_trips.wait()
            return
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        failure: psycopg.Error | None = None
        try:
            sent = self._send(waiting)
            self._await_end()
            for one in sent:
                result = self._next_result()
                if result.status in (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED):
                    failure = failure or self._failure(result)
                    if isinstance(one, tuple):
                        self._prepared.pop(one, None)  # it may have made room for another one behind it
                elif isinstance(one, Result):
                    one.fetched = result
                self._next()  # the end of a statement's results
            self._next_result()  # of the sync
            self.raw.pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            self.close()  # what is still under way would pass for answers to later statements
            raise psycopg.OperationalError(str(failure or error)) from error
        if failure is not None:
            raise failure

    def break_off(self) -> None:
        """End the connection under the thread that waits for the server; its owner closes it all the same."""
        self._is_broken_off = True
        with suppress(OSError):  # it has ended by itself
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._wire.close()
        self.raw.close()

    def load(self, result: PGresult) -> "list[tuple[Any, ...]]":
        """The rows of a result with their values."""
        if not result.ntuples:
            return []
        self._values.set_pgresult(result)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _run_at_once(self, sql: str) -> PGresult:
        """Run statements of a text; returns the last one's result."""
        try:
            if self._is_ending:
                self._await_end()
                self.raw.pgconn.exit_pipeline_mode()
            self.raw.pgconn.send_query(sql.encode())
            self._flush()
            results = [self._next_result()]
            while (result := self._next()) is not None:
                results.append(result)
        except psycopg.Error:
            self.close()
            raise
        if results[-1].status == ExecStatus.FATAL_ERROR:
            raise self._failure(results[-1])
        return results[-1]

    def _failure(self, result: PGresult) -> psycopg.Error:
        if result.status == ExecStatus.FATAL_ERROR and result.error_field(DiagnosticField.SQLSTATE) is None:
            self.close()  # libpq's own words: it has lost the connection, also where its status does not say so yet
            return psycopg.OperationalError(result.get_error_message())
        return psycopg.errors.error_from_result(result)

    def _queue(self, sql: str, parameters: Any) -> "Result":
        if not parameters:
            result = Result(self, (sql.encode(), None), None)
        else:
            statement, names = _numbered(sql, isinstance(parameters, Mapping))
            values = [parameters[name] for name in names] if names else parameters
            dumped = self._values.dump_sequence(values, [PyFormat.TEXT] * len(values))
            result = Result(self, (statement, self._values.types), dumped)
        self._waiting.append(result)
        return result

    def _send(self, waiting: "list[Result]") -> "list[_Awaited]":
        """Send statements; returns of what the server will tell the result: these, and what was prepared for them."""
        server = self.raw.pgconn
        sent: list[_Awaited] = []
        if not self._is_ending:
            server.enter_pipeline_mode()
        for one in waiting:
            if one.values is None:
                server.send_query_params(one.key[0], None)
            else:
                if one.key not in self._prepared:
                    sent += self._prepare(one.key)
                server.send_query_prepared(self._prepared[one.key], one.values)
            sent.append(one)
        server.pipeline_sync()
        self._flush()
        return sent

    def _await_end(self) -> None:
        """Take the results of a ROLLBACK that was sent before, if there was one."""
        if self._is_ending:
            self._is_ending = False
            for _ in range(3):  # its own, the end of its results, and of the sync
                self._next()

    def _prepare(self, key: _Key) -> "list[_Awaited]":
        server = self.raw.pgconn
        told: list[_Awaited] = []
        if len(self._prepared) >= _PREPARED:
            server.send_query_params(b"DEALLOCATE " + self._prepared.pop(next(iter(self._prepared))), None)
            told.append(None)
        name = b"text_%d" % next(self._numbers)
        server.send_prepare(name, *key)
        self._prepared[key] = name
        return [*told, key]

    def _flush(self) -> None:
        server = self.raw.pgconn
        while server.flush():
            self._await_server(POLLIN | POLLOUT)
            server.consume_input()  # otherwise the server may wait for us, too

    def _next(self) -> PGresult | None:
        server = self.raw.pgconn
        while server.is_busy():
            self._await_server(POLLIN)
            server.consume_input()
        return server.get_result()

    def _await_server(self, events: int) -> None:
        self._socket.modify(self.raw.pgconn.socket, events)
        if not self._socket.poll(None if self.silence_seconds is None else 1000 * self.silence_seconds):
            raise psycopg.OperationalError(f"the server has said nothing for {self.silence_seconds:g} seconds")

    def _next_result(self) -> PGresult:
        if (result := self._next()) is None:
            raise psycopg.OperationalError(self.raw.pgconn.get_error_message())
        return result


class Result:
    """Rows of a statement, all of them in memory, and their number."""

    def __init__(
        self, db: PostgresConnection, key: _Key, values: Sequence[Buffer | None] | None, fetched: PGresult | None = None
    ) -> None:
        self.key, self.values, self.fetched = key, values, fetched
        self._db = db
        self._unread: Iterator[tuple[Any, ...]] | None = None

    @property
    def status(self) -> bytes | None:
        """The server's name for what it has done, such as `COMMIT`."""
        return self._ensure_fetched().command_status

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement has changed or found."""
        return self._ensure_fetched().command_tuples or 0

    @property
    def description(self) -> list[tuple[str]]:
        """A tuple for each column, its name first."""
        result = self._ensure_fetched()
        return [((result.fname(index) or b"").decode(),) for index in range(result.nfields)]

    def fetchone(self) -> Any:
        return next(iter(self), None)

    def fetchall(self) -> list[Any]:
        return list(self)

    def __iter__(self) -> Iterator[Any]:
        if self._unread is None:
            self._unread = iter(self._db.load(self._ensure_fetched()))
        return self._unread

    def _ensure_fetched(self) -> PGresult:
        if self.fetched is None:
            self._db.sync()
        if self.fetched is None:
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed before this statement")
        return self.fetched


@lru_cache(maxsize=2 * _PREPARED)
def _numbered(sql: str, has_names: bool) -> tuple[bytes, tuple[str, ...]]:
    """`sql` with `$1` and so on for its parameters, and the names of those that have names."""
    names, marks = dict[str, int](), count(1)

    def written(token: re.Match[str]) -> str:
        if token["mark"]:
            return f"${next(marks)}"
        if token["name"] and has_names:
            return f"${names.setdefault(token['name'], len(names) + 1)}"
        return token[0]

    return _TOKEN.sub(written, sql).encode(), tuple(names)


class _IntDumper(Int8Dumper):
    """Every integer is a bigint: a statement has one type for each parameter, and is prepared once."""


class _BoolDumper(Int8Dumper):
    """Truth values are 0 and 1, as the columns have them."""

    def dump(self, obj: Any) -> Buffer | None:
        return b"1" if obj else b"0"


class _StrDumper(StrDumperUnknown):
    """Text, in which PostgreSQL allows no NUL."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in obj else obj)


class _SumLoader(Loader):
    """Sums of integers are integers."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text else int(text)


_SERVERS = frozenset({"08", "28", "40", "53", "55", "57", "58", "72", "F0"})
"""Classes of trouble with the server or with others: connections, rights to come in, a transaction that was broken off
for another one's sake, too little memory or room, locks, what operators end, the system, old snapshots, settings."""

_SESSIONS = frozenset({"0A000", "25006", "26000", "42P05"})
"""Codes that another session may not meet: a plan that a migration has outdated, a server that is read-only (or has
become a replica), and prepared statements that a pooler has lost or kept."""

_ENDED = frozenset({"25P03", "25P04"})
"""Codes of a session that the server has ended for its transaction: it was silent or open for too long."""

DAMAGE = frozenset({"XX001", "XX002"})
"""Codes of a damaged table or index."""

RIGHTS = "42501"
"""Code of a right that the role does not have."""


def is_trouble(error: BaseException) -> bool:
    """True for trouble that has nothing to do with the statement: it may run again, and so may its neighbours.

    Limits that a statement's own values have passed (class 54) are none: it would fail for ever.
    """
    code = _code(error)
    if code is None:  # of the library: there is no server to ask
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code[:2] in _SERVERS or code in _SESSIONS or code in _ENDED


def ends_session(error: BaseException) -> bool:
    """True for trouble that stays for as long as the session does."""
    return _code(error) in _SESSIONS


def _code(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, psycopg.Error) else None
