"""Overview of a database, for `status` and `doctor`: inside the daemon and on a file at rest alike."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hermes_state.engines.sqlite.connections import check_ours, register_functions, unavailable
from hermes_state.engines.sqlite.presence import refuse_empty, refuse_loss
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.lock import refuse_held
from hermes_state.store.sql import Connection, scalar, select_one


class DatabaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what is stored."""

    schema: int
    database_bytes: int
    """Size of the main file, without the write-ahead log."""
    chats: int
    conversations: int
    messages: int
    waiting: int
    """Accepted messages that no finished turn has answered."""
    open_turns: int
    undelivered: int


# Purpose: one count of each table, and the file itself. A chat has one open turn, whatever sub-agents work for it; a
# file at rest of an older version cannot tell them apart.
_OVERVIEW = f"""
SELECT (SELECT user_version FROM pragma_user_version) AS schema,
  (SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size) AS database_bytes,
  (SELECT count(*) FROM chats) AS chats,
  (SELECT count(DISTINCT s.lineage_id) FROM sessions s WHERE NOT {IS_SUBAGENT}) AS conversations,
  (SELECT count(*) FROM messages) AS messages,
  (SELECT count(*) FROM inbox WHERE state IN ('new','claimed')) AS waiting,
  (SELECT count(DISTINCT chat_id) FROM turns WHERE state IN ('running','waiting')) AS open_turns,
  (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous')) AS undelivered
"""


def load_overview(db: Connection) -> DatabaseStatus:
    """Counts of every table, each read once; some tens of milliseconds with a million messages."""
    overview = select_one(db, DatabaseStatus, _OVERVIEW)
    assert overview is not None, "an aggregate has always one row"
    return overview


def quick_check(db: Connection) -> str:
    """SQLite's check of the file: `ok`, or its first complaint. Reads every page: seconds per gigabyte."""
    return scalar(db, str, "PRAGMA quick_check(1)")


@contextmanager
def open_resting(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A read-only connection to a database that no daemon has open; for the command line.

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
