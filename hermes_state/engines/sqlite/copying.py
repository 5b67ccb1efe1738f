"""A database file as one side of a copy: opened for one process alone, and what SQLite keeps for itself."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hermes_state.engines.sqlite import connections
from hermes_state.engines.sqlite.filesystem import refuse_network_disk
from hermes_state.engines.sqlite.index import merge_all
from hermes_state.engines.sqlite.migrate import migrate, newest_schema
from hermes_state.engines.sqlite.presence import leave_marker
from hermes_state.errors import DatabaseRejected
from hermes_state.store.lock import FileLock
from hermes_state.store.sql import Connection, scalar, scalars

ROW_ERRORS: tuple[type[Exception], ...] = (sqlite3.IntegrityError, sqlite3.DataError)

_LOCKED_SECONDS = 30.0


@contextmanager
def open_source(path: Path) -> Iterator[Connection]:
    """A read-only connection to a database that this process alone has open.

    Raises `LockUnavailable`, `DatabaseRejected` (also where there is none, or an older one) or `StoreUnavailable`.
    """
    connections.check_ours(path)
    if not path.exists():
        raise DatabaseRejected(f"there is no database {path}")
    with _open_alone(path, "ro") as db:
        if (version := scalar(db, int, "PRAGMA user_version")) != newest_schema():
            raise DatabaseRejected(
                f"{path} has schema {version}, {newest_schema()} is needed: start the gateway with it once"
            )
        yield db


@contextmanager
def open_target(path: Path) -> Iterator[Connection]:
    """A connection to a database that this process alone has open, with the newest schema; it is made if it is missing.

    Raises what `SqliteStore.open` raises; `DatabaseRejected`, too, for an older one.
    """
    connections.check_engine()
    refuse_network_disk(path)
    connections.check_ours(path)
    connections.ensure_private(path)
    with _open_alone(path, "rw") as db:
        if scalar(db, int, "PRAGMA user_version") not in (0, newest_schema()):
            raise DatabaseRejected(f"{path} has the schema of an older version: name an empty database")
        connections.register_functions(db)
        connections.prepare_writer(db, path, "FULL", _LOCKED_SECONDS)
        migrate(db, path)
        leave_marker(path)
        yield db


@contextmanager
def _open_alone(path: Path, mode: Literal["ro", "rw"]) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with FileLock.acquire(path.with_name(path.name + ".lock"), what=f"the database {path}"):
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                yield db
        except sqlite3.Error as error:
            raise connections.unavailable(path, error) from error


def load_sequences(db: Connection) -> dict[str, int]:
    """The highest id that was ever given, by table; of those whose ids never come again."""
    return dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())


def set_sequences(db: Connection, highest: dict[str, int]) -> None:
    """Let the next id of each table be above the given one."""
    for table in scalars(db, str, "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"):
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, highest[table]))


def make_search_index(db: Connection) -> None:
    """Merge the parts of the search index: triggers have indexed each message that was copied."""
    merge_all(db)
