"""A copy of the database that is whole and compact, made while the daemon goes on writing."""

import contextlib
import os
import sqlite3
from pathlib import Path

from hermes_state.errors import StoreUnavailable


def back_up(source: Path, target: Path) -> None:
    """Write a copy of the database `source` to `target` (mode 0600); an existing `target` is replaced.

    Blocks for about two seconds per gigabyte, so call it in a thread. It reads on a connection of its own and holds a
    snapshot meanwhile: the write-ahead log grows until it is done. `target` is either the whole copy or untouched.

    Raises `StoreUnavailable` if the copy cannot be written or the source cannot be read.
    """
    if not source.exists():
        raise StoreUnavailable(f"there is no database at {source}")
    uri = f"{source.absolute().as_uri()}?mode=ro"
    try:
        db = sqlite3.connect(uri, uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"cannot read {source}: {error}") from error
    with contextlib.closing(db):
        copy_into(db, target)


def copy_into(db: sqlite3.Connection, target: Path) -> None:
    """`back_up` for a connection that is already open and in no transaction."""
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # SQLite fills an empty file
        db.execute("VACUUM INTO ?", (str(unfinished),))
        _flush(unfinished)
        unfinished.replace(target)
        _flush(target.parent)
    except (OSError, sqlite3.Error) as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            unfinished.unlink(missing_ok=True)
        raise StoreUnavailable(f"cannot write the backup {target}: {error}") from error


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
