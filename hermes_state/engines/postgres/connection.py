"""PostgreSQL connections with the interface of SQLite connections, and functions that classify their errors.

The driver is psycopg. Both engines run the same statements, so this module converts what differs: placeholders,
integers, booleans, sums, and strings with a NUL.

Inside a transaction, a statement is not sent until its result or the result of a later statement is needed. Then all
waiting statements are sent in one round trip (libpq's pipeline mode), and their errors are raised. At the latest, this
happens at the end of a savepoint or at the COMMIT.
"""

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from itertools import count
from select import POLLIN, POLLOUT, poll
from typing import Any, TypeAlias

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from hermes_state.engines.postgres.nodes import NAME

_Key: TypeAlias = "tuple[bytes, tuple[int, ...] | None]"  # a statement and its parameters' types
_Awaited: TypeAlias = "Result | _Key | None"  # a statement's result, its preparation's result, or neither

_PREPARED = 512  # maximum number of prepared statements per connection; the store uses fewer

GONE_SECONDS = 30
"""Seconds of silence after which a machine counts as lost.

By default, the server would keep the machine's locks for two hours.
"""


_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|(?P<mark>\?)|:(?P<name>[a-z_][a-z_0-9]*)")


class PostgresConnection:
    """Open connection in autocommit mode, wrapping psycopg's connection `raw`. Its owner closes it."""

    silence_seconds: float | None = None
    """Maximum time to wait for a response. A server can hang while its connection stays open. None means no limit."""

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
        try:  # a copy, because another thread may close libpq's socket
            self._wire = socket.socket(fileno=os.dup(raw.pgconn.socket))
        except OSError:
            raw.close()
            raise
        self._is_broken_off = False
        self._is_ending = False  # a ROLLBACK was sent and its result is pending
        self.share_trip: Callable[[bool], None] | None = None
        """Function set by `run_pipelined`. It runs all functions until they need results, then sends their statements.

        If its argument is True, the other functions run until they end. Raises the first error of any function.
        """

    @classmethod
    def open(cls, url: str, name: str = NAME, seconds: int = 10) -> "PostgresConnection":
        """Connect to `url` within `seconds`, with the session name `name`.

        Raises `psycopg.OperationalError` if the connection fails.
        """
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
        except OSError as error:  # no file descriptor left
            raise psycopg.OperationalError(str(error)) from error
        db.silence_seconds = seconds
        # The server probes a machine that was silent for ten seconds. This has no effect without TCP.
        query = f"""SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4;
        SET tcp_user_timeout = {1000 * GONE_SECONDS}"""
        with ExitStack() as undo:
            undo.callback(db.close)
            db.execute(query)
            undo.pop_all()
        db.silence_seconds = None
        return db

    @property
    def is_over(self) -> bool:
        """True if the connection was lost, closed, or aborted by `break_off`."""
        return self._is_broken_off or self.raw.closed

    @property
    def in_transaction(self) -> bool:
        """True inside a transaction, even after a failed statement or before the BEGIN is sent."""
        if self._waiting:
            return True
        if self._is_ending:
            return False
        return self.raw.pgconn.transaction_status != TransactionStatus.IDLE and not self.raw.closed

    def execute(self, sql: str, parameters: Any = (), /) -> "Result":
        """Run one statement with parameters, or any number of statements without parameters."""
        if self.share_trip is not None and sql.startswith("SAVEPOINT"):
            self.share_trip(True)  # a savepoint must contain only one function's changes
        if sql.startswith("ROLLBACK"):
            self._waiting.clear()  # discard the unsent statements since the BEGIN or savepoint
        if not parameters and not sql.startswith(("BEGIN", "COMMIT")):
            self.sync()
            return Result(self, (b"", None), None, self._run_at_once(sql))
        waits = sql.startswith("BEGIN") or (self.in_transaction and sql != "COMMIT")
        result = self._queue(sql, parameters)
        if not waits or len(self._waiting) >= 1_000:  # keeps memory bounded
            self.sync()
        if sql == "COMMIT" and result.status != b"COMMIT":  # a function caught an error and did not raise it again
            raise psycopg.errors.InFailedSqlTransaction("the transaction failed; nothing was stored")
        return result

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> None:
        for one in parameters:
            self.execute(sql, one)

    def roll_back_soon(self) -> None:
        """Roll back a read-only transaction without waiting for the server. The next statement waits instead."""
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
        """Send the waiting statements and fetch their results. Raises the first error."""
        if self._waiting and self.share_trip is not None:
            self.share_trip(False)
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
                        self._prepared.pop(one, None)  # unless a later statement has evicted it
                elif isinstance(one, Result):
                    one.fetched = result
                self._next()  # the end of the statement's results
            self._next_result()  # the result of the sync
            self.raw.pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            self.close()  # late results would be mistaken for those of later statements
            raise psycopg.OperationalError(str(failure or error)) from error
        if failure is not None:
            raise failure

    def break_off(self) -> None:
        """Abort the connection, even while a thread is waiting for the server. The owner must still close it."""
        self._is_broken_off = True
        with suppress(OSError):  # already closed
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._wire.close()
        self.raw.close()

    def load(self, result: PGresult) -> "list[tuple[Any, ...]]":
        if not result.ntuples:
            return []
        self._values.set_pgresult(result)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _run_at_once(self, sql: str) -> PGresult:
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
            self.close()  # libpq has lost the connection, even if its status does not say so yet
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
        """Send statements, preparing new ones first. Return one item for each result that the server will send."""
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
        """Consume the results of a ROLLBACK sent earlier."""
        if self._is_ending:
            self._is_ending = False
            for _ in range(3):  # the ROLLBACK's result, the end of its results, and the sync's result
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
            server.consume_input()  # otherwise both sides may wait for each other

    def _next(self) -> PGresult | None:
        server = self.raw.pgconn
        while server.is_busy():
            self._await_server(POLLIN)
            server.consume_input()
        return server.get_result()

    def _await_server(self, events: int) -> None:
        self._socket.modify(self.raw.pgconn.socket, events)
        if not self._socket.poll(None if self.silence_seconds is None else 1000 * self.silence_seconds):
            raise psycopg.OperationalError(f"the server has not answered for {self.silence_seconds:g} seconds")

    def _next_result(self) -> PGresult:
        if (result := self._next()) is None:
            raise psycopg.OperationalError(self.raw.pgconn.get_error_message())
        return result


class Result:
    """Rows that a statement returned, all in memory."""

    def __init__(
        self, db: PostgresConnection, key: _Key, values: Sequence[Buffer | None] | None, fetched: PGresult | None = None
    ) -> None:
        self.key, self.values, self.fetched = key, values, fetched
        self._db = db
        self._unread: Iterator[tuple[Any, ...]] | None = None

    @property
    def status(self) -> bytes | None:
        """The server's command tag, such as `COMMIT`."""
        return self._ensure_fetched().command_status

    @property
    def rowcount(self) -> int:
        return self._ensure_fetched().command_tuples or 0

    @property
    def description(self) -> list[tuple[str]]:
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
            raise psycopg.errors.InFailedSqlTransaction("the transaction failed before this statement")
        return self.fetched


@lru_cache(maxsize=2 * _PREPARED)
def _numbered(sql: str, has_names: bool) -> tuple[bytes, tuple[str, ...]]:
    """Return `sql` with its parameters replaced with `$1`, `$2` and so on, and the names of named parameters."""
    names, marks = dict[str, int](), count(1)

    def written(token: re.Match[str]) -> str:
        if token["mark"]:
            return f"${next(marks)}"
        if token["name"] and has_names:
            return f"${names.setdefault(token['name'], len(names) + 1)}"
        return token[0]

    return _TOKEN.sub(written, sql).encode(), tuple(names)


class _IntDumper(Int8Dumper):
    """Dump integers as bigint, so that each statement is prepared only once."""


class _BoolDumper(Int8Dumper):
    """Dump booleans as 0 and 1, because they are stored in integer columns."""

    def dump(self, obj: Any) -> Buffer | None:
        return b"1" if obj else b"0"


class _StrDumper(StrDumperUnknown):
    """Dump strings with each NUL replaced by U+FFFD, because PostgreSQL rejects NUL."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in obj else obj)


class _SumLoader(Loader):
    """Load a `numeric` without a decimal point as an integer. PostgreSQL returns sums of integers as `numeric`."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text else int(text)


# Codes and classes of errors: https://www.postgresql.org/docs/current/errcodes-appendix.html
_SERVERS = frozenset({"08", "28", "40", "53", "55", "57", "58", "72", "F0"})
"""SQLSTATE classes of errors that are caused by the server or by other transactions.

In order: connection, login, serialization, resources, locks, intervention, system, old snapshots, settings.
"""

_SESSIONS = frozenset({"0A000", "25006", "26000", "42P05"})
"""SQLSTATE codes of errors that a new session might avoid.

They have three causes: a migration made a plan outdated, the server has become a read-only replica, or a pooler mixed
up prepared statements.
"""

DAMAGE = frozenset({"XX001", "XX002"})  # a damaged table or index

RIGHTS = "42501"  # the role lacks a privilege


def is_trouble(error: BaseException) -> bool:
    """Return True if the error was not caused by the statement, so running the statement again may succeed.

    Return False if a statement's own values exceed a limit (class 54), because the statement would always fail.
    """
    code = error.sqlstate if isinstance(error, psycopg.Error) else None
    if code is None:  # raised by psycopg or libpq, not by the server
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    # The last two codes end a session whose transaction was idle or open for too long.
    return code[:2] in _SERVERS or code in _SESSIONS or code in ("25P03", "25P04")


def ends_session(error: BaseException) -> bool:
    """Return True if the error would recur in the same session, so the session must end."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _SESSIONS
