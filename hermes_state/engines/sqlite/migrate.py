"""SQLite migrations: each numbered file is one transaction that also increases `user_version`."""

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.index import MARK_NOTE, SERVING, index_triggers
from hermes_state.errors import StoreUnavailable
from hermes_state.store.migrations import (
    Migration,
    check_applied,
    newer_version,
    note_applied,
    read_migrations,
    statements,
)
from hermes_state.store.segment import SEGMENT_VERSION
from hermes_state.store.sql import Connection, save_note, scalar

APPLICATION_ID = 0x48475759  # "HGWY", in the header of each database

VERSION_NOTE = "segment_version"  # segmenter version of the index in use
_INDEX = Path(__file__).with_name("index.sql").read_text("utf-8")  # read at import, while the files are known to exist


def shipped_migrations() -> tuple[Migration, ...]:
    return read_migrations(__package__, first=1)


def newest_schema() -> int:
    return len(shipped_migrations())


def migrate(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration] | None = None) -> None:
    """Apply all pending migrations to `db`, the database at `path`, which must have no other writer or transaction.

    A database with content is first copied to `backups/` next to it. Raises `DatabaseRejected` if a newer version wrote
    the file, or an applied migration differs from this version's. After a failed migration, the database keeps its
    previous schema version.
    """
    migrations = shipped_migrations() if migrations is None else migrations
    version = scalar(db, int, "PRAGMA user_version")
    if version > len(migrations):
        raise newer_version(str(path), version, len(migrations))
    if version:
        check_applied(db, str(path), migrations[:version])
    pending = migrations[version:]
    if version and pending:
        copy = path.parent / "backups" / f"{path.stem}-schema{version}-{time.strftime('%Y%m%d-%H%M%S')}.db"
        copy.unlink(missing_ok=True)  # left by a start that failed within this second
        copy_into(db, copy)  # without a transaction, because there is no other writer
    for migration in pending:
        _apply(db, migration)
    if not version and len(migrations) >= newest_schema():  # the index is still empty
        drop_index_triggers(db, SERVING)
        db.execute(f"DROP TABLE {SERVING}")
        define_index(db, SERVING)
        save_note(db, VERSION_NOTE, str(SEGMENT_VERSION))
        save_note(db, MARK_NOTE, "0")


def define_index(db: Connection, index: str, covered: str = "", only: str = "") -> None:
    """Create a search index, with its triggers, for messages that match the SQL condition `covered`.

    Its triggers leave messages above the mark to batches. If `only` is given, run only the statements that contain this
    string.
    """
    covered += f" AND {{0}}.id <= (SELECT CAST(value AS INTEGER) FROM meta WHERE key = '{MARK_NOTE}')"
    for statement in statements(_INDEX.format(index=index, new=covered.format("new"), old=covered.format("old"))):
        if only in statement:
            db.execute(statement)


def drop_index_triggers(db: Connection, index: str) -> None:
    for name in index_triggers(db, index):
        db.execute(f"DROP TRIGGER {name}")


def _apply(db: sqlite3.Connection, migration: Migration) -> None:
    """Run a migration with foreign keys off, and check them before the commit."""
    db.execute("PRAGMA foreign_keys = OFF")  # for table rebuilds; has no effect inside a transaction
    try:
        db.execute("BEGIN IMMEDIATE")
        for statement in statements(migration.sql):
            db.execute(statement)
        if broken := db.execute("PRAGMA foreign_key_check").fetchone():
            raise StoreUnavailable(f"{migration.name} leaves broken references in {broken[0]}; nothing was changed")
        note_applied(db, migration)
        db.execute(f"PRAGMA user_version = {migration.number:d}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.execute("PRAGMA foreign_keys = ON")
