"""Access to a PostgreSQL database without the store: for a copy, the command line, or a check before the start."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.migrate import load_server, load_version, migrate, shipped_migrations
from hermes_state.engines.postgres.nodes import POOLED, find_differences, is_one_session
from hermes_state.engines.postgres.store import lock_database, name_of, refusal
from hermes_state.engines.postgres.tsvector import store_words
from hermes_state.errors import ConfigError, DatabaseRejected
from hermes_state.store.migrations import show_newer_columns
from hermes_state.store.seats import NodeInfo
from hermes_state.store.sql import Connection, scalar, scalars
from hermes_state.values import Millis

ROW_ERRORS: tuple[type[Exception], ...] = (
    psycopg.IntegrityError,
    psycopg.DataError,
    psycopg.errors.ProgramLimitExceeded,
)
SCHEMA = "(SELECT CAST(value AS bigint) FROM meta WHERE key = 'schema_version')"
BYTES = "pg_database_size(current_database())"


@contextmanager
def open_source(url: str) -> Iterator[Connection]:
    """Open a database exclusively and read-only. Raises the errors of `opening.open_ends`."""
    with _open(url, is_alone=True) as db:
        version, newest = load_version(db), shipped_migrations()[-1].number
        if version != newest:
            raise DatabaseRejected(
                f"{name_of(url)} has schema {version}, not {newest}: start the gateway once to migrate it"
            )
        db.execute("SET default_transaction_read_only = on")
        yield db


@contextmanager
def open_target(url: str) -> Iterator[Connection]:
    """Open a database exclusively, creating its tables if needed. Raises the errors of `opening.open_ends`."""
    with _open(url, is_alone=True) as db:
        if load_version(db) not in (0, shipped_migrations()[-1].number):
            raise DatabaseRejected(f"{name_of(url)} has the schema of an older version: choose an empty database")
        migrate(db)
        yield db


def load_sequences(db: Connection) -> dict[str, int]:
    """Load the highest id that each table has ever used."""
    query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()"
    return {name.removesuffix("_id_seq"): last or 0 for name, last in db.execute(query).fetchall()}


def set_sequences(db: Connection, highest: dict[str, int]) -> None:
    """Make the next id of each table in `highest` greater than the id given there."""
    for table, last in highest.items():
        if last:
            db.execute("SELECT setval(pg_get_serial_sequence(?, 'id'), ?)", (table, last))


def make_search_index(db: Connection) -> None:
    """Create the search index of copied messages. Can be run again after an interruption."""
    last: int | None = 0
    while last is not None:
        db.execute("BEGIN")  # a failed transaction ends with the connection
        last = store_words(db, last, 500)
        db.execute("COMMIT")
    db.execute("VACUUM (ANALYZE)")  # otherwise the first searches would clean up each page that they read


@contextmanager
def open_offline_database(url: str) -> Iterator[PostgresConnection | None]:
    """Open a database for reading in one snapshot. Yield None if it has no tables yet.

    Raises `DatabaseRejected` if the database belongs to another program or refuses the role, and `StoreUnavailable` if
    no server responds.
    """
    with _open(url) as db:
        version = load_version(db)
        if version:
            pending = [migration for migration in shipped_migrations() if migration.number > version]
            tables = scalars(db, str, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            show_newer_columns(db, pending, scalar(db, str, "SELECT quote_ident(current_schema())"), tables)
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield db if version else None


def check_place(url: str, node: NodeInfo, now: Millis) -> bool:
    """Check that a node may join a database, without changing it. Return True if the database has tables.

    Settings are compared only if the database has this version's schema. Taking a seat always compares them. Raises
    the errors of `open_offline_database`, `DatabaseRejected` for a pooler, and `ConfigError`.
    """
    with _open(url) as db:
        version = load_version(db)
        if not is_one_session(db):
            raise DatabaseRejected(POOLED)
        if version >= shipped_migrations()[-1].number and (found := find_differences(db, node, now)):
            raise ConfigError("\n".join(found))
        return version > 0


@contextmanager
def _open(url: str, *, is_alone: bool = False) -> Iterator[PostgresConnection]:
    try:
        with contextlib.closing(PostgresConnection.open(url)) as db:
            if is_alone:
                lock_database(db)
            yield db
    except psycopg.Error as error:
        raise refusal(url, error) from error


def find_fault(db: Connection) -> str | None:
    """Return a sentence about tables that the role cannot use, or None. The server itself checks for damaged pages."""
    query = """SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = CAST(CAST(current_schema() AS text) AS regnamespace)
      AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
    ORDER BY relname"""
    if closed := scalars(db, str, query):
        role = load_server(db).role
        found = f"The role {role} cannot read and write all tables, for example {closed[0]}"
        return f"{found}: make this role their owner."
    return None


def describe(db: Connection) -> str:
    server = load_server(db)
    return f"PostgreSQL {server.release}, database {server.database} ({server.encoding}), role {server.role}"
