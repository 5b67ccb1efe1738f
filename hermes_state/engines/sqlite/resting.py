"""A database file that no daemon has open, as the command line reads it."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_state.engines.sqlite.connections import check_ours, register_functions, unavailable
from hermes_state.engines.sqlite.presence import refuse_empty, refuse_loss
from hermes_state.store.lock import refuse_held
from hermes_state.store.sql import scalar


@contextmanager
def open_resting_file(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A read-only connection to a database that no daemon has open.

    None where there is no database yet: no file, or one that a first start left behind before it had made the tables.

    Raises `LockUnavailable` while somebody holds its lock: then ask the holder, a second process stays away from the
    file. `DatabaseRejected` and `StoreUnavailable` as `SqliteStore.open` does.
    """
    refuse_held(path.with_name(path.name + ".lock"), what=f"the database {path}")
    check_ours(path)
    if not path.exists():
        refuse_loss(path)
        yield None
        return
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            db.execute("PRAGMA query_only = ON")
            register_functions(db)
            refuse_empty(db, path)
            is_made = scalar(db, int, "PRAGMA user_version") > 0
            yield db if is_made else None
    except sqlite3.DatabaseError as error:
        raise unavailable(path, error) from error
