"""Replace the database with a backup. The old database is kept next to it."""

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hermes_state.admin.repair import load_tables, make_schema, swap_in
from hermes_state.admin.retention import checkpoint
from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.connections import refuse_network_disk
from hermes_state.engines.sqlite.file_loss import has_content, leave_marker, side_files
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.engines.sqlite.offline import find_fault, open_foreign
from hermes_state.errors import DatabaseRejected, StoreBroken, StoreUnavailable
from hermes_state.store.lock import FileLock
from hermes_state.store.migrations import newer_version
from hermes_state.store.sql import scalar
from hermes_state.values import Progress

_CHOOSE = "Nothing was changed; choose a file that `hermes-gateway backup` wrote"
_KEPT = "-before-restore-"


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    bytes: int
    kept: str | None
    """Path of the old database, or None if there was none."""


def restore_database(path: Path, backup: Path, progress: Progress = lambda *_: None) -> RestoreReport:
    """Replace the database at `path` with a copy of `backup`. A kill leaves the old or the new database.

    Raises `LockUnavailable` while a gateway runs, `DatabaseRejected` if the backup cannot be used, and
    `StoreUnavailable` if the disk fails. Nothing has changed then.
    """
    refuse_network_disk(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with FileLock.acquire(path.with_name(path.name + ".lock"), what=f"the database {path}"):
        real = path.resolve()
        new = real.with_name(f".{real.name}.restoring")
        left = [new, *new.parent.glob(f".{new.name}.*")]  # by a restore that was killed
        seconds = (one for one in real.parent.glob(f"{real.stem}{_KEPT}*.db") if not side_files(one)[0].exists())
        left += [one for one in seconds if real.exists() and one.samefile(real)]
        if any(file.exists() and backup.exists() and file.samefile(backup) for file in (path, *left)):
            raise DatabaseRejected(f"{backup} is the database in use, or was left by an unfinished restore. {_CHOOSE}")
        for file in left:
            file.unlink(missing_ok=True)
        kept = real.with_name(f"{real.stem}{_KEPT}{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.db")
        try:
            size = _copy(backup, new, progress)
            with suppress(StoreBroken):  # a damaged database keeps its log
                if has_content(real):
                    checkpoint(real, empties=True)
            swap_in(new, real, kept, new.with_name(f".{new.name}.kept"))
        except (OSError, sqlite3.Error, StoreUnavailable) as error:
            hint = "Close the programs that read the database, or free disk space, and try again"
            told = f"{backup} was not restored, and the database is unchanged: {error}. {hint}"
            raise StoreUnavailable(told) from error
        finally:
            new.unlink(missing_ok=True)
        leave_marker(path)
        was_there = any(map(has_content, (kept, side_files(kept)[0])))
        return RestoreReport(bytes=size, kept=str(kept) if was_there else None)


def _copy(backup: Path, new: Path, progress: Progress) -> int:
    """Check the backup, and copy it, with a log next to it. Return the size of the copy in bytes."""
    try:
        with closing(open_foreign(backup)) as db:
            owner, version = scalar(db, int, "PRAGMA application_id"), scalar(db, int, "PRAGMA user_version")
            if owner != APPLICATION_ID or not version:
                raise DatabaseRejected(f"{backup} is not a database of hermes-gateway. {_CHOOSE}")
            if version > newest_schema():
                raise newer_version(str(backup), version, newest_schema())
            if (fault := find_fault(db)) is not None:
                raise DatabaseRejected(f"{backup}: {fault}. {_CHOOSE}")
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
                make_schema(model, new, version)
                if missing := sorted({*load_tables(model)} - {*load_tables(db)}):
                    raise DatabaseRejected(f"{backup} lacks the table {missing[0]}. {_CHOOSE}")
            return copy_into(db, new, progress=progress)
    except (FileNotFoundError, sqlite3.DatabaseError) as error:
        raise DatabaseRejected(f"{backup} is missing, cut short or not a database ({error}). {_CHOOSE}") from error
