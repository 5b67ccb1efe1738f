"""A PostgreSQL database as one side of a copy: opened for one process alone, and what the engine keeps for itself."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.migrate import load_version, migrate, shipped_migrations
from hermes_state.engines.postgres.store import be_the_only_one, name_of, refusal
from hermes_state.engines.postgres.words import store_words
from hermes_state.errors import DatabaseRejected
from hermes_state.store.sql import Connection

ROW_ERRORS: tuple[type[Exception], ...] = (
    psycopg.IntegrityError,
    psycopg.DataError,
    psycopg.errors.ProgramLimitExceeded,
)

_SLICE_ROWS = 500


@contextmanager
def open_source(url: str) -> Iterator[Connection]:
    """A connection that only reads, to a database that this process alone has open.

    Raises `LockUnavailable`, `DatabaseRejected` (also where there is none, or an older one) or `StoreUnavailable`.
    """
    with _open_alone(url) as db:
        version = load_version(db)
        if version != _newest():
            raise DatabaseRejected(
                f"{name_of(url)} has schema {version}, {_newest()} is needed: start the gateway once"
            )
        db.execute("SET default_transaction_read_only = on")
        yield db


@contextmanager
def open_target(url: str) -> Iterator[Connection]:
    """A connection to a database that this process alone has open, with the newest schema.

    Raises what `PostgresStore.open` raises; `DatabaseRejected`, too, for an older one.
    """
    with _open_alone(url) as db:
        if load_version(db) not in (0, _newest()):
            raise DatabaseRejected(f"{name_of(url)} has the schema of an older version: name an empty database")
        migrate(db)
        yield db


def _newest() -> int:
    return shipped_migrations()[-1].number


@contextmanager
def _open_alone(url: str) -> Iterator[PostgresConnection]:
    try:
        with contextlib.closing(PostgresConnection.open(url)) as db:
            be_the_only_one(db)
            yield db
    except psycopg.Error as error:
        raise refusal(url, error) from error


def load_sequences(db: Connection) -> dict[str, int]:
    """The highest id that was ever given, by table."""
    query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()"
    return {name.removesuffix("_id_seq"): last or 0 for name, last in db.execute(query).fetchall()}


def set_sequences(db: Connection, highest: dict[str, int]) -> None:
    """Let the next id of each table be above the given one."""
    for table, last in highest.items():
        if last:
            db.execute("SELECT setval(pg_get_serial_sequence(?, 'id'), ?)", (table, last))


def make_search_index(db: Connection) -> None:
    """Make the search index of the messages that were copied; may be called again after it was interrupted."""
    last: int | None = 0
    while last is not None:
        db.execute("BEGIN")  # one that fails ends with the connection
        last = store_words(db, last, _SLICE_ROWS)
        db.execute("COMMIT")
    db.execute("VACUUM (ANALYZE)")  # or the first searches would do it, page by page
