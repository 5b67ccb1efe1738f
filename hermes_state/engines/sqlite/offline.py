"""Access to a database file while its daemon is not running, for a copy or the command line."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from hermes_state.engines.sqlite.connections import (
    check_engine,
    check_ours,
    ensure_private,
    prepare_writer,
    refuse_network_disk,
    register_functions,
    unavailable,
)
from hermes_state.engines.sqlite.file_loss import has_content, leave_marker, refuse_empty, refuse_loss
from hermes_state.engines.sqlite.index import complete_index
from hermes_state.engines.sqlite.migrate import migrate, newest_schema, shipped_migrations
from hermes_state.errors import DatabaseRejected
from hermes_state.store.lock import FileLock, refuse_held
from hermes_state.store.migrations import show_newer_columns
from hermes_state.store.sql import Connection, scalar, scalars

ROW_ERRORS: tuple[type[Exception], ...] = (sqlite3.IntegrityError, sqlite3.DataError)

SCHEMA = "(SELECT user_version FROM pragma_user_version)"
BYTES = "(SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)"


@contextmanager
def open_source(path: Path) -> Iterator[Connection]:
    """Open a database exclusively and read-only. Raises the errors of `opening.open_ends`."""
    check_ours(path)
    if not path.exists():
        raise DatabaseRejected(f"no database at {path}")
    with _open_alone(path, "ro") as db:
        if (version := scalar(db, int, "PRAGMA user_version")) != newest_schema():
            raise DatabaseRejected(
                f"{path} has schema {version}, but {newest_schema()} is needed: start the gateway once to migrate it"
            )
        yield db


@contextmanager
def open_target(path: Path) -> Iterator[Connection]:
    """Open a database exclusively, creating it if needed. Raises the errors of `opening.open_ends`."""
    check_engine()
    refuse_network_disk(path)
    check_ours(path)
    ensure_private(path)
    with _open_alone(path, "rw") as db:
        if scalar(db, int, "PRAGMA user_version") not in (0, newest_schema()):
            raise DatabaseRejected(f"{path} has the schema of an older version: choose an empty database")
        register_functions(db)
        prepare_writer(db, path, "FULL", 30.0)
        migrate(db, path)
        leave_marker(path)
        yield db


def open_foreign(path: Path) -> sqlite3.Connection:
    """Open a database that can be another program's, for reading, without a change in its folder.

    A database with a journal is copied to a temporary folder first. Raises `OSError` or `sqlite3.Error`.
    """
    real = path.resolve(strict=True)
    journals = [one for suffix in ("wal", "journal") if has_content(one := real.with_name(f"{real.name}-{suffix}"))]
    if not journals:
        return sqlite3.connect(f"{real.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    with tempfile.TemporaryDirectory() as folder:  # SQLite can read open files without their names
        for file in (real, *journals):
            shutil.copyfile(file, Path(folder, file.name))
        db = sqlite3.connect(Path(folder, real.name), isolation_level=None)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return db


@contextmanager
def _open_alone(path: Path, mode: Literal["ro", "rw"]) -> Iterator[sqlite3.Connection]:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with FileLock.acquire(path.with_name(path.name + ".lock"), what=f"the database {path}"):
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                yield db
        except sqlite3.Error as error:
            raise unavailable(path, error) from error


def load_sequences(db: Connection) -> dict[str, int]:
    """Load the highest id ever used, for each table that never reuses an id."""
    return dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())


def set_sequences(db: Connection, highest: dict[str, int]) -> None:
    """Make the next id of each table in `highest` greater than the id given there."""
    for table in scalars(db, str, "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"):
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, highest[table]))


def make_search_index(db: Connection) -> None:
    complete_index(db)


@contextmanager
def open_offline_file(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open a database for reading while its daemon is not running. Yield None if it has no tables yet.

    Raises `DatabaseRejected` if another program or a newer version wrote the file, `StoreUnavailable` if it cannot be
    read, and `LockUnavailable` if the daemon is running. In that case, ask the daemon for the data.
    """
    refuse_held(path.with_name(path.name + ".lock"), what=f"the database {path}")
    check_ours(path)
    if not path.exists():
        refuse_loss(path)
        yield None
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            register_functions(db)
            pending = shipped_migrations()[scalar(db, int, "PRAGMA user_version") :]
            tables = scalars(db, str, "SELECT name FROM sqlite_schema WHERE type = 'table'")
            show_newer_columns(db, pending, "main", tables)
            db.execute("PRAGMA query_only = ON")
            refuse_empty(db, path)
            yield db if scalar(db, int, "PRAGMA user_version") else None
    except sqlite3.DatabaseError as error:
        raise unavailable(path, error) from error


def find_fault(db: Connection) -> str | None:
    """Return the first fault that SQLite finds in the file, or None. Takes seconds per gigabyte."""
    verdict = scalar(db, str, "PRAGMA quick_check(1)")
    return f"The database is damaged: {verdict}" if verdict != "ok" else None


def describe(_db: Connection) -> str:
    return "The database is sound"
