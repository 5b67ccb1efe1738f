"""Copy a whole database into an empty one. Each can be a SQLite or a PostgreSQL database.

Tables are copied in slices, ordered by key, with one transaction per slice. An interrupted copy continues after the
last row in the target. Until the databases have been compared, a note in the target names the source, and gateways
refuse to open the target. The source is not changed. No other process may use either database during the copy.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import msgspec

from hermes_state.engines.opening import COPY_NOTE, engine_of
from hermes_state.errors import DatabaseRejected, StoreBroken
from hermes_state.store.sql import Connection, load_note, nested, save_note, scalar
from hermes_state.text import shortened
from hermes_state.values import Progress

MAX_NAMED = 10
"""Maximum number of rejected rows that an error message lists."""
SLICE_ROWS = 500
"""Number of rows per transaction. Even this many rows with the longest texts fit into memory."""

TABLES: Final = {
    "meta": ("key",),
    "chats": ("id",),
    "sessions": ("id",),
    "turns": ("id",),
    "inbox": ("id",),
    "messages": ("id",),
    "platform_messages": ("chat_id", "ref"),
    "session_context": ("session_id", "pos"),
    "view_edits": ("session_id", "message_id"),
    "tool_runs": ("id",),
    "tool_offers": ("session_id",),
    "approvals": ("id",),
    "tool_grants": ("id",),
    "model_calls": ("id",),
    "compressions": ("id",),
    "outbox": ("id",),
    "cursors": ("platform", "account", "channel_ref"),
    "attachments": ("id",),
    "model_profiles": ("route", "model"),
    "pairings": ("code_hash",),
    "browsers": ("id",),
    "audit": ("id",),
    "todos": ("lineage_id", "id"),
    "live_buttons": ("chat_id", "topic"),
    "schedules": ("id",),
    "talk": ("id",),
    "ratings": ("message_id", "person"),
}
"""Every table with its key columns, ordered so that references point to earlier tables.

`accounts` and `previews` are left out, because they describe the running gateways.
"""

FORWARD: Final = {"chats": "active_session_id", "turns": "call_message_id", "messages": "replaces_id"}
"""Columns that refer to later rows, of the same or a later table. They are filled after all tables have been copied.

Parts of a long document are stored before their message, which `replaces_id` names.
"""

# Rows of `meta` that are not copied: application mark, versions, checksums, search index state, and the copy's note.
_ENGINES_OWN = f"""key IN ('application', 'schema_version', 'schema_readable_from', '{COPY_NOTE}')
  OR substr(key, 1, 10) = 'migration:' OR substr(key, 1, 7) = 'search_' OR substr(key, 1, 8) = 'segment_'"""

_Row: TypeAlias = Sequence[Any]  # `Any` because column types vary


class CopyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of copying one table. The checksum covers the copied rows."""

    table: str
    rows: int
    checksum: str
    replaced: int
    """Number of texts in which NUL was replaced with U+FFFD, because PostgreSQL cannot store NUL."""


def copy_database(source: Connection, target: Connection, name: str, progress: Progress) -> list[CopyResult]:
    """Copy every row of `source` into `target`, or continue an earlier copy. At the end, compare the two databases.

    Both must have the newest schema. `name` identifies the source in the target's note. Raises `DatabaseRejected`, and
    changes nothing, if the target contains rows from another source. Raises `StoreBroken` if the databases differ at
    the end.
    """
    _begin(source, target, name)
    for table in TABLES:
        _copy_table(source, target, table, progress)
    for table, column in FORWARD.items():  # a continued copy can safely fill a column twice
        update = f"UPDATE {table} SET {column} = ? WHERE id = ?"
        for rows in _slices(source, table, (column, "id")):
            _store(target, table, update, [row for row in rows if row[0] is not None], (column, "id"))
    with _transaction(target):
        engine_of(target).set_sequences(target, _highest_ids(source))
    compared = [_compared(source, target, table) for table in TABLES]
    engine_of(target).make_search_index(target)
    with _transaction(target):
        target.execute("DELETE FROM meta WHERE key = ?", (COPY_NOTE,))
    return compared


def _begin(source: Connection, target: Connection, name: str) -> None:
    counts = [_count(source, table) for table in TABLES]
    origin = f"{name}, {hashlib.sha256(repr((counts, _highest_ids(source))).encode()).hexdigest()[:16]}"
    begun = load_note(target, COPY_NOTE)
    if begun is not None and begun != origin:
        raise DatabaseRejected(
            f"the target contains an unfinished copy of an earlier state of {begun.rpartition(',')[0]}: "
            "choose an empty database"
        )
    if begun is None:
        if filled := [table for table in TABLES if _count(target, table)]:
            raise DatabaseRejected(f"the target is not empty (it has rows in {filled[0]}): choose an empty database")
        with _transaction(target):
            save_note(target, COPY_NOTE, origin)


def _copy_table(source: Connection, target: Connection, table: str, progress: Progress) -> None:
    columns, keys = _columns(source, table), TABLES[table]
    done, total = _count(target, table), _count(source, table)
    after: _Row | None = None
    if done:
        query = f"SELECT {', '.join(keys)} FROM {table}{_where(table)} ORDER BY {', '.join(keys)} LIMIT 1 OFFSET ?"
        after = source.execute(query, (done - 1,)).fetchone()
    insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    later = columns.index(FORWARD[table]) if table in FORWARD else None
    for rows in _slices(source, table, columns, after):
        copied = [_without_nul(row) for row in rows]
        if later is not None:
            copied = [(*row[:later], None, *row[later + 1 :]) for row in copied]
        _store(target, table, insert, copied, columns)
        done += len(rows)
        progress(table, done, total)


def _store(target: Connection, table: str, statement: str, rows: Sequence[_Row], columns: Sequence[str]) -> None:
    """Store all rows or none. If the target rejects rows, raise a `DatabaseRejected` that names them."""
    errors = engine_of(target).ROW_ERRORS
    try:
        with _transaction(target):
            target.executemany(statement, rows)
    except errors:
        faults = []
        with suppress(_RolledBackError), _transaction(target):
            for row in rows:
                try:
                    with nested(target):
                        target.execute(statement, row)
                except errors as error:
                    name = ", ".join(f"{key} {shortened(str(row[columns.index(key)]))}" for key in TABLES[table])
                    faults.append(f"{name}: {str(error).splitlines()[0]}")
            raise _RolledBackError from None
        if not faults:
            raise
        faults[MAX_NAMED:] = [f"and {len(faults) - MAX_NAMED} more"] if len(faults) > MAX_NAMED else []
        head = f"the target rejects these rows of {table} (the source is unchanged):"
        raise DatabaseRejected("\n".join([head, *faults])) from None


def _compared(source: Connection, target: Connection, table: str) -> CopyResult:
    columns = _columns(source, table)
    read, found = _read_through(source, table, columns), _read_through(target, table, columns)
    if (found.rows, found.checksum) != (read.rows, read.checksum):
        raise StoreBroken(
            f"the copy differs from its source in {table} ({found.rows} of {read.rows} rows) because the source has "
            "changed since the copy began: start again with an empty target"
        )
    return read


def _read_through(db: Connection, table: str, columns: Sequence[str]) -> CopyResult:
    count, replaced, digest = 0, 0, hashlib.sha256()
    for rows in _slices(db, table, columns):
        count += len(rows)
        for row in rows:
            replaced += sum(isinstance(value, str) and "\0" in value for value in row)
            digest.update(msgspec.msgpack.encode(_without_nul(row)))
    return CopyResult(table=table, rows=count, checksum=digest.hexdigest(), replaced=replaced)


def _slices(
    db: Connection, table: str, columns: Sequence[str], after: _Row | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table whose key is greater than `after` (None: all rows), in slices ordered by key."""
    keys = TABLES[table]
    wanted = f"SELECT {', '.join((*keys, *columns))} FROM {table}"
    order = f" ORDER BY {', '.join(keys)} LIMIT {SLICE_ROWS}"
    behind = f"({', '.join(keys)}) > ({', '.join('?' * len(keys))})"
    while True:
        query = wanted + _where(table, behind if after is not None else "") + order
        found = db.execute(query, tuple(after or ())).fetchall()
        if not found:
            return
        yield [tuple(row[len(keys) :]) for row in found]
        after = found[-1][: len(keys)]


def _where(table: str, condition: str = "") -> str:
    parts = [part for part in ({"meta": f"NOT ({_ENGINES_OWN})"}.get(table), condition) if part]
    return f" WHERE {' AND '.join(parts)}" if parts else ""


def _count(db: Connection, table: str) -> int:
    return scalar(db, int, f"SELECT count(*) FROM {table}{_where(table)}")


def _columns(db: Connection, table: str) -> tuple[str, ...]:
    return tuple(column[0] for column in db.execute(f"SELECT * FROM {table} LIMIT 0").description)


def _highest_ids(db: Connection) -> dict[str, int]:
    """Return the highest known id of each table, including ids of deleted rows."""
    given = engine_of(db).load_sequences(db)
    tables = [table for table, keys in TABLES.items() if keys == ("id",)]
    highest = {table: scalar(db, int, f"SELECT coalesce(max(id), 0) FROM {table}") for table in tables}
    return {table: max(given.get(table, 0), last) for table, last in highest.items()}


def _without_nul(row: _Row) -> tuple[Any, ...]:
    return tuple(
        value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) and "\0" in value else value
        for value in row
    )


class _RolledBackError(Exception):
    """Raised inside a transaction to roll it back."""


@contextmanager
def _transaction(db: Connection) -> Iterator[None]:
    db.execute("BEGIN")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
