"""A connection to PostgreSQL that functions of the store use like one to SQLite.

psycopg does the work. Here are the differences that one text for both engines must not see: how parameters are written,
and which type an integer, a truth value, a sum or a text with a NUL has.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

_Key: TypeAlias = "tuple[bytes, tuple[int, ...] | None]"  # a statement and its parameters' types

_PREPARED = 512
"""Statements that stay prepared on a connection: more than the store has."""

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|(?P<mark>\?)|:(?P<name>[a-z_][a-z_0-9]*)")


class PostgresConnection:
    """An open connection in autocommit mode; `raw` is psycopg's. Its owner closes it."""

    def __init__(self, raw: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self.raw = raw
        self.has_locks = False
        """The statement that takes the locks of a batch is prepared."""
        raw.adapters.register_dumper(int, _IntDumper)
        raw.adapters.register_dumper(bool, _BoolDumper)
        raw.adapters.register_dumper(str, _StrDumper)
        raw.adapters.register_loader("numeric", _SumLoader)
        self._values = Transformer(raw)
        self._prepared: dict[_Key, bytes] = {}
        self._numbers = count()

    @classmethod
    def open(cls, url: str, seconds: int = 10) -> "PostgresConnection":
        """Connect to `url`, waiting at most `seconds`. Raises `psycopg.OperationalError`."""
        return cls(
            psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=seconds,
                client_encoding="utf-8",
                application_name="hermes-gateway",
                keepalives_idle=30,
                tcp_user_timeout=30_000,  # milliseconds until a server that does not answer counts as gone
            )
        )

    @property
    def in_transaction(self) -> bool:
        """True also in a transaction that a failed statement has ended."""
        return self.raw.pgconn.transaction_status != TransactionStatus.IDLE and not self.raw.closed

    def execute(self, sql: str, parameters: Any = (), /) -> "Result":
        """Run one statement with parameters, or any number without.

        Past psycopg's cursors, whose own work takes about as long as the server's for most of our statements.
        """
        server = self.raw.pgconn
        if not parameters:
            result = self._result(server.exec_(sql.encode()))
            if sql == "COMMIT" and result.status != b"COMMIT":  # a function has kept a failed statement to itself
                raise psycopg.errors.InFailedSqlTransaction("the transaction had failed; nothing was stored")
            return result
        statement, names = _numbered(sql, isinstance(parameters, Mapping))
        values = [parameters[name] for name in names] if names else parameters
        sent = self._values.dump_sequence(values, [PyFormat.TEXT] * len(values))
        key = (statement, self._values.types)
        if key not in self._prepared:
            self._prepare(key)
        return self._result(server.exec_prepared(self._prepared[key], sent))  # type: ignore[arg-type]  # None is NULL

    def _result(self, result: PGresult) -> "Result":
        self._checked(result)
        if not result.ntuples:
            return Result(result, [])
        self._values.set_pgresult(result)
        return Result(result, self._values.load_rows(0, result.ntuples, tuple))

    def _prepare(self, key: _Key) -> None:
        statement, types = key
        if len(self._prepared) >= _PREPARED:
            oldest = next(iter(self._prepared))
            self._checked(self.raw.pgconn.exec_(b"DEALLOCATE " + self._prepared.pop(oldest)))
        name = b"text_%d" % next(self._numbers)
        self._checked(self.raw.pgconn.prepare(name, statement, types))
        self._prepared[key] = name

    def _checked(self, result: PGresult) -> PGresult:
        if result.status != ExecStatus.FATAL_ERROR:
            return result
        if self.raw.closed:
            raise psycopg.OperationalError(self.raw.pgconn.get_error_message())
        raise psycopg.errors.error_from_result(result)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> None:
        """Run a statement once for each of the parameters."""
        for one in parameters:
            self.execute(sql, one)

    def close(self) -> None:
        self.raw.close()


class Result:
    """Rows of a statement, all of them in memory, and their number."""

    def __init__(self, result: PGresult, rows: list[tuple[Any, ...]]) -> None:
        self.status = result.command_status
        self.rowcount = result.command_tuples or 0
        self._result, self._rows = result, iter(rows)

    @property
    def description(self) -> list[tuple[str]]:
        """A tuple for each column, its name first."""
        return [((self._result.fname(index) or b"").decode(),) for index in range(self._result.nfields)]

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


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
