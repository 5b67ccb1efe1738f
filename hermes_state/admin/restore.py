"""Replace the database with a backup. The old database is kept next to it."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hermes_state.admin.retention import checkpoint
from hermes_state.disk import flush
from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.connections import refuse_network_disk
from hermes_state.engines.sqlite.file_loss import has_content, leave_marker, side_files
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.engines.sqlite.offline import find_fault
from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.store.lock import FileLock
from hermes_state.store.migrations import newer_version
from hermes_state.store.sql import scalar
from hermes_state.values import Progress

_CHOOSE = "Nothing was changed; choose a file that `hermes-gateway backup` wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    bytes: int
    kept: str | None
    """Path of the old database, or None if there was none."""


def restore_database(path: Path, backup: Path, progress: Progress = lambda *_: None) -> RestoreReport:
    """Replace the database at `path` with a copy of `backup`. A kill leaves the old or the new database.

    Raises `LockUnavailable` while a gateway runs, `DatabaseRejected` if the backup cannot be used, and
    `StoreUnavailable` if the disk fails. Nothing has changed then.
    """
    if path.exists() and backup.exists() and path.samefile(backup):
        raise DatabaseRejected(f"{backup} is the database in use. {_CHOOSE}")
    refuse_network_disk(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock.acquire(path.with_name(path.name + ".lock"), what=f"the database {path}"):
        real = path.resolve()
        new = real.with_name(f"{real.stem}-restore.db")
        for left in (new, *new.parent.glob(f".{new.name}.*")):  # of a restore that was killed
            left.unlink(missing_ok=True)
        try:
            size = _copy(backup, new, progress)
            kept = _keep(real)
            new.rename(real)
            flush(real.parent)
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"{backup} was not restored, and the database is unchanged: {error}") from error
        finally:
            new.unlink(missing_ok=True)
        leave_marker(path)
        return RestoreReport(bytes=size, kept=None if kept is None else str(kept))


@contextmanager
def _opened(backup: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{backup.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as db:
            yield db
    except sqlite3.DatabaseError as error:
        raise DatabaseRejected(f"{backup} is missing, cut short or not a database ({error}). {_CHOOSE}") from error


def _copy(backup: Path, new: Path, progress: Progress) -> int:
    """Check the backup, and copy it, with a log next to it. Return the size of the copy in bytes."""
    with _opened(backup) as db:
        owner, version = scalar(db, int, "PRAGMA application_id"), scalar(db, int, "PRAGMA user_version")
        if owner != APPLICATION_ID or not version:
            raise DatabaseRejected(f"{backup} is not a database of hermes-gateway. {_CHOOSE}")
        if version > newest_schema():
            raise newer_version(str(backup), version, newest_schema())
        if (fault := find_fault(db)) is not None:
            raise DatabaseRejected(f"{backup}: {fault}. {_CHOOSE}")
        return copy_into(db, new, progress=progress)


def _keep(path: Path) -> Path | None:
    """Give the old database a second name, and move its log away. Return the new name, or None if there was nothing.

    The database keeps its first name until the new one replaces it.
    """
    kept = path.with_name(f"{path.stem}-before-restore-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.db")
    log, index = side_files(path)
    was_there = has_content(path) or has_content(log)
    if has_content(path):
        with suppress(StoreUnavailable):  # a damaged database keeps its log
            checkpoint(path, empties=True)
        try:
            os.link(path, kept)
        except OSError:  # the file system has no hard links
            shutil.copyfile(path, kept)
            flush(kept)
    if has_content(log):  # it must not be applied to the new database
        log.rename(side_files(kept)[0])
    log.unlink(missing_ok=True)
    index.unlink(missing_ok=True)
    return kept if was_there else None
