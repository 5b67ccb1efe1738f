"""Repair a damaged database by copying its readable rows into a new file, which replaces it. The old file is kept."""

import contextlib
import heapq
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hermes_state.disk import flush
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.file_loss import has_content, refuse_loss, side_files
from hermes_state.engines.sqlite.index import MARK_NOTE, SERVING, complete_index
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, migrate, shipped_migrations
from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.search.index import is_behind, is_current, serving_index
from hermes_state.store.lock import FileLock
from hermes_state.store.sql import load_note, scalar, scalars
from hermes_state.values import Progress

# Purpose: recreate chats whose row was lost, to save their messages.
_MISSING_CHATS = """
INSERT INTO chats (id, platform, account, chat_ref, kind, title, created_at, updated_at)
SELECT chat_id, 'local', 'local', 'lost-' || chat_id, 'local', 'lost chat ' || chat_id, :now, :now
FROM (SELECT chat_id FROM sessions UNION SELECT chat_id FROM messages UNION SELECT chat_id FROM inbox)
WHERE chat_id NOT IN (SELECT id FROM chats)
"""
# Purpose: recreate sessions whose row was lost. Depths are numbered by id, because a parent's id is below its child's.
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
# Purpose: mark the first sessions of sub-agents, which are not conversations.
_SUBAGENT_SESSIONS = """
UPDATE sessions SET kind = 'subagent'
WHERE kind = 'root' AND id IN (SELECT lineage_id FROM turns WHERE parent_turn_id IS NOT NULL)
"""
# Purpose: find the agents of recreated sessions, so that no other agent reads them. The keys begin with `l`.
_LOST_AGENTS = """
UPDATE sessions SET agent = coalesce((SELECT c.agent FROM model_calls c
  WHERE c.chat_id = sessions.chat_id AND c.lineage_id = sessions.lineage_id ORDER BY c.agent DESC LIMIT 1), '')
WHERE key LIKE 'l%'
"""
# Purpose: settle messages that were not answered and whose turn was lost.
_WITHOUT_TURN = """
UPDATE inbox SET state = 'dead', payload = '', settled_at = :now WHERE state = 'claimed' AND turn_id IS NULL
"""


_JSON = frozenset({"body", "payload", "settings", "context_state", "calibration", "image_facts"})
"""JSON columns. A row with invalid JSON in one of them is not saved, because reading it would fail."""


class TableReport(msgspec.Struct, kw_only=True):
    name: str
    rows: int
    expected: int | None
    """Number of rows according to a readable index, or None if no index is readable."""
    lost: str
    """Ranges of lost keys (or `some`, if the keys are not numbers). `all` if the table's definition was lost."""


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a repair: saved rows, sentences for the operator, and the name of the damaged file."""

    tables: list[TableReport]
    notes: list[str]
    kept: str


def repair_database(path: Path, progress: Progress = lambda *_: None) -> RepairReport | None:
    """Replace the damaged database at `path` with a new file that holds its readable rows. Return None if it is intact.

    Needs free disk space of three times the database's size. Nothing changes until the new file has passed every check.
    Raises `LockUnavailable` while a daemon runs, and `DatabaseRejected` if the database was lost or written by a newer
    version. Raises `StoreUnavailable` if there never was a database, nothing is readable, or the disk is full.
    """
    if not path.exists():
        refuse_loss(path)
        raise StoreUnavailable(f"no database at {path}")
    with FileLock.acquire(path.with_name(path.name + ".lock"), what=f"the database {path}"):
        real = path.resolve()
        folder = real.with_name(f"{path.stem}-repair-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            folder.mkdir(mode=0o700)
            return _repair(real, folder, progress)
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"{path} was not repaired and is unchanged: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _repair(path: Path, folder: Path, progress: Progress) -> RepairReport | None:
    damaged, new = folder / "damaged.db", folder / "new.db"
    for source, copy in ((path, damaged), (side_files(path)[0], side_files(damaged)[0])):
        if source.exists():
            shutil.copyfile(source, copy)
    version = _version_of(damaged)
    if version is not None and _is_sound(damaged):
        return None
    notes: list[str] = []
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as db:
        make_schema(db, new, version)
        if version is None:
            _replace_header(damaged, new)
            notes.append("The header of the file was recreated.")
        tables = _salvage(db, damaged, progress)
        if (tool := shutil.which("sqlite3")) is not None:
            before = sum(table.rows for table in tables)
            _recover(tool, damaged, folder / "recovered.db")
            for table, again in zip(tables, _salvage(db, folder / "recovered.db", progress), strict=True):
                table.rows = again.rows
            notes.append(f"SQLite's own tool found {sum(table.rows for table in tables) - before:,} more rows.")
        elif any(table.lost for table in tables):
            notes.append(
                "Install SQLite's command-line tool (sqlite3) and repair the damaged file again to find more rows."
            )
        if not any(table.rows for table in tables if table.name != "meta"):
            raise StoreUnavailable(f"{path} has no readable rows and is unchanged. {' '.join(notes)}")
        notes += _restore_references(db)
    kept = path.with_name(f"{path.stem}-damaged-{folder.name[-15:]}.db")
    flush(new)
    new.chmod(0o600)
    swap_in(new, path, kept, folder / "kept.db")
    return RepairReport(tables=tables, notes=notes, kept=str(kept))


def swap_in(new: Path, path: Path, kept: Path, unfinished: Path) -> None:
    """Replace the database at `path` with `new`, and keep the old one and its log under the name `kept`.

    The database keeps its first name until the new one replaces it. `unfinished` names a copy of it, which is needed
    if the file system has no hard links. Raises `OSError`, and nothing has changed then.
    """
    log, index = side_files(path)
    kept_log = kept.with_name(f"{kept.name}-wal")
    try:
        if has_content(path):
            try:
                os.link(path, kept)
            except OSError:
                os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                shutil.copyfile(path, unfinished)
                flush(unfinished)
                unfinished.rename(kept)
        if has_content(log):  # it must not be applied to the new database
            log.rename(kept_log)
        log.unlink(missing_ok=True)
        index.unlink(missing_ok=True)
        new.rename(path)
    except OSError:
        if kept_log.exists():
            kept_log.rename(log)
        kept.unlink(missing_ok=True)
        raise
    finally:
        unfinished.unlink(missing_ok=True)
    flush(path.parent)


def _version_of(path: Path) -> int | None:
    """Return the schema version of a copy, or None if its header is unreadable or belongs to another program."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            version = scalar(db, int, "PRAGMA user_version")
            is_ours = scalar(db, int, "PRAGMA application_id") == APPLICATION_ID
    except sqlite3.DatabaseError:
        return None
    if is_ours and version > len(shipped_migrations()):
        raise DatabaseRejected(f"a newer hermes-gateway (schema {version}) wrote this database: install that version")
    return version if is_ours and version else None


def _is_sound(path: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(path)) as db:
            register_functions(db)
            _check(db)
    except (sqlite3.DatabaseError, StoreUnavailable, UnicodeDecodeError):  # SQLite's message may contain a damaged name
        return False
    return True


def _check(db: sqlite3.Connection) -> None:
    """Raise `StoreUnavailable`, or SQLite's own error, if the database is damaged."""
    found = scalars(db, str, "PRAGMA integrity_check(3)")
    if found != ["ok"]:
        raise StoreUnavailable(f"the database is damaged: {'; '.join(found)}")
    if broken := db.execute("PRAGMA foreign_key_check").fetchone():
        raise StoreUnavailable(f"rows of {broken[0]} refer to missing rows")
    if serving_index(db) == SERVING:  # an index that is being rebuilt is incomplete
        is_comparable = is_current(db) and not is_behind(db)
        db.execute(f"INSERT INTO {SERVING} ({SERVING}, rank) VALUES ('integrity-check', ?)", (is_comparable,))


def make_schema(db: sqlite3.Connection, path: Path, version: int | None) -> None:
    """Create an empty database with schema `version` (None: the newest). The gateway's next start migrates it."""
    register_functions(db)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA journal_mode = MEMORY")
    db.execute("PRAGMA synchronous = OFF")  # the finished file is flushed later
    migrate(db, path, shipped_migrations()[:version])
    db.execute("PRAGMA foreign_keys = OFF")


def _replace_header(damaged: Path, donor: Path) -> None:
    """Give `damaged` the header of a new database. The two differ only in counters, which SQLite recovers."""
    with donor.open("rb") as file:
        header = bytearray(file.read(100))  # the first 100 bytes describe the file; the schema follows
    page_bytes = int.from_bytes(header[16:18], "big")
    header[18:20] = b"\2\2"  # the file uses a write-ahead log
    header[28:32] = (damaged.stat().st_size // page_bytes).to_bytes(4, "big")
    header[32:40] = bytes(8)  # declare no free pages, because repair ignores the list of free pages
    with damaged.open("r+b") as file:
        file.write(header)


def load_tables(db: sqlite3.Connection) -> list[str]:
    """Load the names of the ordinary tables, sorted."""
    query = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite_%'"
    return sorted(scalars(db, str, query))


def _salvage(db: sqlite3.Connection, source: Path, progress: Progress) -> list[TableReport]:
    """Copy every ordinary table from `source` to `db`, but not the mark of the search index."""
    mark = load_note(db, MARK_NOTE)
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as old:
        with contextlib.suppress(sqlite3.DatabaseError):
            old.execute("PRAGMA writable_schema = ON")  # lets SQLite read a damaged schema
            old.execute("PRAGMA cell_size_check = ON")
        db.execute("BEGIN")
        reports, names = [], load_tables(db)
        for done, name in enumerate(names):
            progress(name, done, len(names))
            reports.append(SalvageJob(name, old, db).run())
        with contextlib.suppress(sqlite3.DatabaseError):  # never reuse an id, not even a lost row's
            for row in old.execute("SELECT seq, name FROM sqlite_sequence").fetchall():
                db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", row)
        if mark is None:  # the triggers of an older schema have added all words
            db.execute("DELETE FROM meta WHERE key = ?", (MARK_NOTE,))
        db.execute("COMMIT")
    return reports


def _recover(tool: str, damaged: Path, into: Path) -> None:
    """Use SQLite's command-line tool to search all pages for rows, including pages that no table refers to any more."""
    quiet = ("-batch", "-init", os.devnull)
    with subprocess.Popen(
        [tool, *quiet, str(damaged), ".recover --ignore-freelist"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as found:
        # The tool skips unreadable rows. On some systems it does not have this command.
        subprocess.run([tool, *quiet, str(into)], stdin=found.stdout, capture_output=True, check=False)


def _restore_references(db: sqlite3.Connection) -> list[str]:
    """Recreate lost rows that saved rows refer to, repair broken references, and check the database.

    Return a sentence for each kind of change.
    """
    now, notes = {"now": int(time.time() * 1000)}, []
    db.execute("BEGIN")
    for what, query in (
        ("chats were recreated without their names", _MISSING_CHATS),
        ("sessions were recreated from their messages", _MISSING_SESSIONS),
    ):
        if count := db.execute(query, now).rowcount:
            notes.append(f"{count:,} {what}.")
    if scalar(db, int, "SELECT count(*) FROM pragma_table_info('turns') WHERE name = 'parent_turn_id'"):
        db.execute(_SUBAGENT_SESSIONS)
    if scalar(db, int, "SELECT count(*) FROM pragma_table_info('sessions') WHERE name = 'agent'"):
        db.execute(_LOST_AGENTS)
    if removed := _mend_references(db):
        notes.append(f"{removed:,} rows that belonged to lost rows were removed.")
    if count := db.execute(_WITHOUT_TURN, now).rowcount:
        notes.append(f"{count:,} messages had not been answered: their authors must send them again.")
    db.execute("COMMIT")
    complete_index(db, serving_index(db))
    _check(db)
    return notes


def _mend_references(db: sqlite3.Connection) -> int:
    """Delete or update rows that refer to lost rows, as their foreign keys specify. Return how many were deleted.

    Rows are also deleted if their foreign key must not be NULL.
    """
    removed = 0
    while broken := db.execute("PRAGMA foreign_key_check").fetchall():
        for table, number in sorted({(row[0], row[3]) for row in broken}):
            query = """SELECT k."from", k."table", k."to", k.on_delete = 'CASCADE' OR c."notnull"
            FROM pragma_foreign_key_list(:table) k JOIN pragma_table_info(:table) c ON c.name = k."from"
            WHERE k.id = :number"""
            column, parent, key, is_row_lost = db.execute(query, {"table": table, "number": number}).fetchone()
            lost = f"{column} IS NOT NULL AND {column} NOT IN (SELECT {key} FROM {parent})"
            if is_row_lost:
                removed += db.execute(f"DELETE FROM {table} WHERE {lost}").rowcount
            else:
                db.execute(f"UPDATE {table} SET {column} = NULL WHERE {lost}")
    return removed


class SalvageJob:
    """Job that copies one table from the damaged database `old` to `new`.

    An unreadable page hides its own rows and the rows on the pages below it in the B-tree. Ranges of keys that cannot
    be read are halved until a single key remains.
    """

    def __init__(self, name: str, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        described = new.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
        key = sorted((position, column, kind) for column, kind, position in described if position)
        self._name, self._old, self._new = name, old, new
        self._columns = [column for column, _, _ in described]
        self._key = [column for _, column, _ in key]
        self._is_numbered = key[0][2] == "INTEGER"  # the key starts with a number or is the row id
        self._failures = 0
        self._lost: list[tuple[int, int]] = []

    def run(self) -> TableReport:
        """Copy every readable row that `new` does not have. Raises `OSError` if the disk of `new` is full."""
        expected, lost = None, "all"
        with contextlib.suppress(sqlite3.DatabaseError):  # the table's definition may be lost
            self._old.execute(f"SELECT {', '.join(self._columns)} FROM {self._name} LIMIT 0")
            expected, greatest = self._size()
            if self._is_numbered:
                self._copy_ranges(greatest)
                lost = _shown(self._lost)
            else:
                lost = "" if self._copy("1", ()) is None else "some"
                self._copy("1", (), is_backward=True)
        rows = self._new.execute(f"SELECT count(*) FROM {self._name}").fetchone()[0]
        return TableReport(name=self._name, rows=rows, expected=expected, lost=lost)

    def _size(self) -> tuple[int | None, int]:
        """Return the number of rows (None if no index is readable) and an upper bound for the key's first column."""
        greatest = f"max(+{self._key[0]})" if self._is_numbered else "0"
        indexes = "SELECT name FROM pragma_index_list(?) WHERE NOT partial AND origin <> 'pk'"
        for (name,) in [("",), *self._new.execute(indexes, (self._name,)).fetchall()]:
            source = f'{self._name} INDEXED BY "{name}"' if name else self._name
            with contextlib.suppress(sqlite3.DatabaseError):
                count, key = self._old.execute(f"SELECT count(*), {greatest} FROM {source}").fetchone()
                return count, key or 0
        with contextlib.suppress(sqlite3.DatabaseError, TypeError):  # the table or its row may be missing
            query = "SELECT seq FROM sqlite_sequence WHERE name = ?"
            return None, self._old.execute(query, (self._name,)).fetchone()[0]
        # No page of any table has more than 1,000 row ids.
        return None, self._old.execute("PRAGMA page_count").fetchone()[0] * 1_000

    def _copy_ranges(self, greatest: int) -> None:
        """Copy ranges of keys, widest first, so that only narrow ranges are lost if too many failures stop the search.

        Each range is a separate query, so a damaged page only affects the rest of its range.
        """
        first, step = self._key[0], greatest // 256 + 1
        ranges = [(-step, low, min(low + step - 1, greatest)) for low in range(1, greatest + 1, step)]
        while ranges:
            _, low, high = heapq.heappop(ranges)
            where, values = (f"{first} BETWEEN ? AND ?", (low, high)) if low < high else (f"{first} = ?", (low,))
            if (reached := self._copy(where, values)) is None:
                continue
            if low >= high or self._failures >= 20_000:  # that many failures take seconds, so stop halving
                self._copy(where, values, is_backward=True)
                self._lost.append((low, high))
            else:
                low = max(low, reached)
                middle = (low + high) // 2
                heapq.heappush(ranges, (low - middle, low, middle))
                heapq.heappush(ranges, (middle + 1 - high, middle + 1, high))

    def _copy(self, where: str, values: Sequence[int], *, is_backward: bool = False) -> int | None:
        """Copy rows in key order. Return None if all were read, otherwise the last key read before the damage.

        Each query reads only one row. If a query read more rows, the driver would fetch one row ahead, and damage in
        one row would also lose the row before it.
        """
        beyond, order = ("<", "DESC") if is_backward else (">", "")
        query = f"SELECT {', '.join(self._columns)} FROM {self._name} NOT INDEXED WHERE {where}"
        tail = f"ORDER BY {', '.join(f'{part} {order}' for part in self._key)} LIMIT 1"
        after = f"AND ({', '.join(self._key)}) {beyond} ({', '.join('?' * len(self._key))})"
        places, last = [self._columns.index(part) for part in self._key], [0]
        seen = set[tuple[object, ...]]()
        try:
            row = self._old.execute(f"{query} {tail}", values).fetchone()
            while row is not None:
                last = [row[place] for place in places]
                if tuple(last) in seen:
                    raise sqlite3.DatabaseError("misplaced pages form a cycle")
                seen.add(tuple(last))
                self._insert(row, last[0])
                if len(last) == len(values) == 1:
                    break  # a row id has only one row, and searching for more may fail on other damage
                if len(values) == 2:  # otherwise each query would search from the first row again
                    values = (values[0], last[0]) if is_backward else (last[0], values[1])
                row = self._old.execute(f"{query} {after} {tail}", [*values, *last]).fetchone()
        except sqlite3.DatabaseError:
            self._failures += 1
            return last[0]
        return None

    def _insert(self, row: tuple[object, ...], key: int) -> None:
        """Insert a row unless its key exists. Skip rows with values that the schema forbids."""
        values = zip(self._columns, row, strict=True)
        try:
            for value in (value for name, value in values if name in _JSON and value):
                json.loads(str(value))
            self._new.execute(f"INSERT OR IGNORE INTO {self._name} VALUES ({', '.join('?' * len(row))})", row)
        except (ValueError, sqlite3.IntegrityError):
            if self._is_numbered:
                self._lost.append((key, key))
        except sqlite3.OperationalError as error:  # a full disk, not damage in the old file
            raise OSError(str(error)) from error


def _shown(ranges: list[tuple[int, int]]) -> str:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            low, high = joined[-1][0], max(joined.pop()[1], high)
        joined.append((low, high))
    return ", ".join(f"{low}-{high}" if low < high else str(low) for low, high in joined)
