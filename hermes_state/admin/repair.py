"""Repair of a damaged database: readable rows go into a new file, which takes its place; the old file is kept."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from hermes_state.admin.salvage import SalvageJob, TableReport
from hermes_state.disk import flush
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.index import SERVING, merge_all
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, migrate, shipped_migrations
from hermes_state.engines.sqlite.presence import refuse_loss, side_files
from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.search.index import is_current, serving_index
from hermes_state.store.lock import FileLock
from hermes_state.store.sql import scalar, scalars

# Purpose: chats whose row was lost, so that their messages are not lost with it.
_MISSING_CHATS = """
INSERT INTO chats (id, platform, account, chat_ref, kind, title, created_at, updated_at)
SELECT chat_id, 'local', 'local', 'lost-' || chat_id, 'local', 'lost chat ' || chat_id, :now, :now
FROM (SELECT chat_id FROM sessions UNION SELECT chat_id FROM messages UNION SELECT chat_id FROM inbox)
WHERE chat_id NOT IN (SELECT id FROM chats)
"""
# Purpose: the same for sessions. Depths follow ids, because a session is made after its parent.
_MISSING_SESSIONS = """
WITH lost AS (
  SELECT session_id AS id, chat_id, lineage_id, min(created_at) AS began, max(created_at) AS ended, max(seq) AS top,
    min(seq) AS bottom, sum(seq > 0) AS said
  FROM messages WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id),
placed AS (
  SELECT lost.*, (SELECT count(*) FROM (SELECT id, lineage_id FROM sessions UNION SELECT id, lineage_id FROM lost) o
    WHERE o.lineage_id = lost.lineage_id AND o.id < lost.id) AS depth FROM lost)
INSERT OR IGNORE INTO sessions (id, key, chat_id, lineage_id, depth, kind, started_at, ended_at, end_reason, next_seq,
  next_view_seq, message_count, last_human_at)
SELECT id, printf('l%07d', id), chat_id, lineage_id, depth, iif(depth, 'continuation', 'root'), began,
  iif(id IN (SELECT active_session_id FROM chats), NULL, ended),
  iif(id IN (SELECT active_session_id FROM chats), NULL, 'finished'), max(top, 0) + 1, min(bottom, 0) - 1, said, ended
FROM placed
"""
# Purpose: the first sessions of sub-agents among those, which are not conversations.
_SUBAGENT_SESSIONS = """
UPDATE sessions SET kind = 'subagent'
WHERE kind = 'root' AND id IN (SELECT lineage_id FROM turns WHERE parent_turn_id IS NOT NULL)
"""
# Purpose: accepted messages whose turn was lost. They were not answered.
_WITHOUT_TURN = """
UPDATE inbox SET state = 'dead', payload = '', settled_at = :now WHERE state = 'claimed' AND turn_id IS NULL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """Result of a repair: the saved rows, sentences for the operator, and the name of the damaged file."""

    tables: list[TableReport]
    notes: list[str]
    kept: str


def repair_database(path: Path) -> RepairReport | None:
    """Replace the damaged database at `path` by one with all readable rows; None if it is sound.

    Holds the database's lock meanwhile, and needs three times its size on the disk. Nothing is changed before the new
    database has passed every check. Raises `LockUnavailable` while a daemon runs, `DatabaseRejected` as
    `SqliteStore.open` does, and `StoreUnavailable` if nothing can be read, the disk is full, or there is no database.
    """
    if not path.exists():
        refuse_loss(path)
        raise StoreUnavailable(f"there is no database at {path}")
    with FileLock.acquire(path.with_name(path.name + ".lock"), what=f"the database {path}"):
        real = path.resolve()
        folder = real.with_name(f"{path.stem}-repair-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            folder.mkdir(mode=0o700)
            return _repair(real, folder)
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"{path} was not repaired, nothing was changed: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _repair(path: Path, folder: Path) -> RepairReport | None:
    damaged, new = folder / "damaged.db", folder / "new.db"
    for source, copy in ((path, damaged), (side_files(path)[0], side_files(damaged)[0])):
        if source.exists():
            shutil.copyfile(source, copy)
    version = _version_of(damaged)
    if version is not None and _is_sound(damaged):
        return None
    notes: list[str] = []
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        _make_schema(db, new, version)
        if version is None:
            _replace_header(damaged, new)
            notes.append("The head of the file was made anew.")
        tables = _salvage(db, damaged)
        if (tool := shutil.which("sqlite3")) is not None:
            before = sum(table.rows for table in tables)
            _recover(tool, damaged, folder / "recovered.db")
            for table, again in zip(tables, _salvage(db, folder / "recovered.db"), strict=True):
                table.rows = again.rows
            notes.append(f"SQLite's own tool found {sum(table.rows for table in tables) - before:,} rows more.")
        elif any(table.lost for table in tables):
            notes.append("With SQLite's command line tool (sqlite3) installed, a repair of the old file may find more.")
        if not any(table.rows for table in tables if table.name != "meta"):
            raise StoreUnavailable(f"nothing of {path} can be read, and nothing was changed. {' '.join(notes)}")
        notes += _set_right(db)
    kept = path.with_name(f"{path.stem}-damaged-{folder.name[-15:]}.db")
    flush(new)
    log, index = side_files(path)
    if log.exists():
        log.rename(side_files(kept)[0])
    index.unlink(missing_ok=True)
    path.rename(kept)
    new.rename(path)
    path.chmod(0o600)
    return RepairReport(tables=tables, notes=notes, kept=str(kept))


def _version_of(path: Path) -> int | None:
    """Return the schema version of a copy; None if its header cannot be read, or is not that of our databases."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            version = scalar(db, int, "PRAGMA user_version")
            is_ours = scalar(db, int, "PRAGMA application_id") == APPLICATION_ID
    except sqlite3.DatabaseError:
        return None
    if is_ours and version > len(shipped_migrations()):
        raise DatabaseRejected(f"a newer version of hermes-gateway wrote this database (schema {version})")
    return version if is_ours and version else None


def _is_sound(path: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            register_functions(db)
            _check(db)
    except (sqlite3.DatabaseError, StoreUnavailable, UnicodeDecodeError):  # a damaged name in what SQLite says
        return False
    return True


def _check(db: sqlite3.Connection) -> None:
    """Raise `StoreUnavailable`, or SQLite's own error, unless the database is sound."""
    found = scalars(db, str, "PRAGMA integrity_check(3)")
    if found != ["ok"]:
        raise StoreUnavailable(f"the database is damaged: {'; '.join(found)}")
    if broken := db.execute("PRAGMA foreign_key_check").fetchone():
        raise StoreUnavailable(f"rows of {broken[0]} point nowhere")
    if serving_index(db) == SERVING:  # one that is being made anew is not whole yet
        db.execute(f"INSERT INTO {SERVING} ({SERVING}, rank) VALUES ('integrity-check', ?)", (is_current(db),))


def _make_schema(db: sqlite3.Connection, path: Path, version: int | None) -> None:
    """Make an empty database of the same schema, which the next start migrates like the old one."""
    register_functions(db)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA journal_mode = MEMORY")
    db.execute("PRAGMA synchronous = OFF")  # flushed at the end
    migrate(db, path, shipped_migrations()[:version])
    db.execute("PRAGMA foreign_keys = OFF")


def _replace_header(damaged: Path, donor: Path) -> None:
    """Give the copy the header of a new database: ours differ only in counters, which SQLite recovers."""
    with donor.open("rb") as file:
        header = bytearray(file.read(100))  # SQLite's description of the file; the schema follows it
    page_bytes = int.from_bytes(header[16:18], "big")
    header[18:20] = b"\2\2"  # a write-ahead log, if there is one, belongs to the file
    header[28:32] = (damaged.stat().st_size // page_bytes).to_bytes(4, "big")
    header[32:40] = bytes(8)  # no free pages: nothing reads them either way
    with damaged.open("r+b") as file:
        file.write(header)


def _salvage(db: sqlite3.Connection, source: Path) -> list[TableReport]:
    """Copy every ordinary table; the search index fills itself from the messages."""
    query = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite_%'"
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as old:
        with contextlib.suppress(sqlite3.DatabaseError):
            old.execute("PRAGMA writable_schema = ON")  # read the rest of a damaged schema
            old.execute("PRAGMA cell_size_check = ON")
        db.execute("BEGIN")
        reports = [SalvageJob(name, old, db).run() for name in sorted(scalars(db, str, query))]
        with contextlib.suppress(sqlite3.DatabaseError):  # ids that were used stay used, also those of lost rows
            for row in old.execute("SELECT seq, name FROM sqlite_sequence").fetchall():
                db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", row)
        db.execute("COMMIT")
    return reports


def _recover(tool: str, damaged: Path, into: Path) -> None:
    """Let SQLite's command line tool look at every page by itself, also at those that nothing leads to any more."""
    quiet = ("-batch", "-init", os.devnull)
    with subprocess.Popen(
        [tool, *quiet, str(damaged), ".recover --ignore-freelist"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as found:
        # It leaves unreadable rows out; the tool of some systems cannot do this at all.
        subprocess.run([tool, *quiet, str(into)], stdin=found.stdout, capture_output=True, check=False)


def _set_right(db: sqlite3.Connection) -> list[str]:
    """Add rows that saved rows need, mend references that lead nowhere, then check everything."""
    now, notes = {"now": int(time.time() * 1000)}, []
    db.execute("BEGIN")
    for what, query in (
        ("chats were made anew, without their names", _MISSING_CHATS),
        ("sessions were made anew from their messages", _MISSING_SESSIONS),
    ):
        if count := db.execute(query, now).rowcount:
            notes.append(f"{count:,} {what}.")
    if scalar(db, int, "SELECT count(*) FROM pragma_table_info('turns') WHERE name = 'parent_turn_id'"):
        db.execute(_SUBAGENT_SESSIONS)
    if removed := _mend_references(db):
        notes.append(f"{removed:,} rows belonged to lost ones and were left out.")
    if count := db.execute(_WITHOUT_TURN, now).rowcount:
        notes.append(f"{count:,} messages were being answered: whoever wrote them has to send them again.")
    db.execute("COMMIT")
    merge_all(db, serving_index(db))
    _check(db)
    return notes


def _mend_references(db: sqlite3.Connection) -> int:
    """Treat lost rows as deleted ones for the rows that refer to them; returns the number of removed rows."""
    removed = 0
    while broken := db.execute("PRAGMA foreign_key_check").fetchall():
        for table, number in sorted({(row[0], row[3]) for row in broken}):
            query = 'SELECT "from", "table", "to", on_delete FROM pragma_foreign_key_list(?) WHERE id = ?'
            column, parent, key, on_delete = db.execute(query, (table, number)).fetchone()
            lost = f"{column} IS NOT NULL AND {column} NOT IN (SELECT {key} FROM {parent})"
            if on_delete == "CASCADE":
                removed += db.execute(f"DELETE FROM {table} WHERE {lost}").rowcount
            else:
                db.execute(f"UPDATE {table} SET {column} = NULL WHERE {lost}")
    return removed
