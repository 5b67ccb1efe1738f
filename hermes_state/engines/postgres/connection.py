"""A connection to PostgreSQL that functions of the store use like one to SQLite.

psycopg does the work. Here are the differences that one text for both engines must not see: how parameters are written,
and which type an integer, a truth value, a sum or a text with a NUL has.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

_PREPARED = 512
"""Statements that stay prepared on a connection: more than the store has."""

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|(?P<mark>\?)|:(?P<name>[a-z_][a-z_0-9]*)|(?P<percent>%)")


class PostgresConnection:
    """An open connection in autocommit mode; `raw` is psycopg's. Its owner closes it."""

    def __init__(self, raw: "psycopg.Connection[tuple[Any, ...]]") -> None:
        self.raw = raw
        raw.prepared_max = _PREPARED
        raw.adapters.register_dumper(int, _IntDumper)
        raw.adapters.register_dumper(bool, _BoolDumper)
        raw.adapters.register_dumper(str, _StrDumper)
        raw.adapters.register_loader("numeric", _SumLoader)

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

    def execute(self, sql: str, parameters: Any = (), /) -> "psycopg.Cursor[tuple[Any, ...]]":
        """Run one statement with parameters, or any number without."""
        if not parameters:
            cursor = self.raw.execute(sql.encode())
            if sql == "COMMIT" and cursor.statusmessage != sql:  # a function has kept a failed statement to itself
                raise psycopg.errors.InFailedSqlTransaction("the transaction had failed; nothing was stored")
            return cursor
        return self.raw.execute(_translated(sql, isinstance(parameters, Mapping)), parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> "psycopg.Cursor[tuple[Any, ...]]":
        """Run a statement once for each of the parameters."""
        cursor, rows = self.raw.cursor(), list(parameters)
        if rows:
            cursor.executemany(_translated(sql, isinstance(rows[0], Mapping)), rows)
        return cursor

    def close(self) -> None:
        self.raw.close()


@lru_cache(maxsize=2 * _PREPARED)
def _translated(sql: str, has_names: bool) -> bytes:
    """`sql` as psycopg wants it: `%s` for `?`, `%(name)s` for `:name`, and its own percent signs doubled."""

    def written(token: re.Match[str]) -> str:
        if token["mark"]:
            return "%s"
        if token["name"] and has_names:
            return f"%({token['name']})s"
        return token[0].replace("%", "%%")

    return _TOKEN.sub(written, sql).encode()


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
