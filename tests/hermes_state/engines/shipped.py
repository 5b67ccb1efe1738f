"""Schemas of all versions, as text in `tests/fixtures/schemas`. Databases of earlier versions are created from them.

After a new migration, `python -m tests.hermes_state.engines.shipped` stores its schema. It never changes a stored one.
"""

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from hermes_state.engines.postgres.migrate import shipped_migrations as postgres_migrations
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, shipped_migrations
from hermes_state.store.migrations import Migration, statements
from hermes_state.store.sql import Connection
from tests.hermes_state.helpers import ROOT

STORED = ROOT / "tests" / "fixtures" / "schemas"
SQLITE = shipped_migrations()
POSTGRES = postgres_migrations()
_HEAD = re.compile(r"^-- (dropped )?(table|view|index|trigger) (\w+)\n", re.MULTILINE)
_ORDER = ("table", "view", "virtual table", "index", "trigger")

Objects = dict[tuple[str, str], str]
"""Statements that create the objects of a schema, by kind and name."""

ROWS = """
INSERT INTO chats (platform, account, chat_ref, kind, created_at, updated_at) VALUES
  ('telegram', 'telegram', '42', 'direct', 1767225600000, 1767225600000);
INSERT INTO sessions (key, chat_id, lineage_id, started_at, next_seq, message_count, last_human_at) VALUES
  ('1kdv000000aaaaaaaa', 1, 1, 1767225600000, 3, 2, 1767225600000);
UPDATE chats SET active_session_id = 1;
INSERT INTO messages (session_id, chat_id, lineage_id, seq, role, origin, text, created_at) VALUES
  (1, 1, 1, 1, 'user', 'human', 'The heron nests at the mill.', 1767225600000),
  (1, 1, 1, 2, 'assistant', 'assistant', 'I will remember the heron.', 1767225601000);
"""
"""A conversation that each version could have stored."""


def objects_of(db: sqlite3.Connection) -> Objects:
    """Return the schema of a database, without the tables that full-text search creates for itself."""
    rows = db.execute(
        """SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%'
        AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow') ORDER BY rowid"""
    )
    return {(kind, name): sql for kind, name, sql in rows.fetchall()}


def stored_objects(number: int) -> Objects:
    """Return the stored schema with this number: all changes up to it."""
    found: Objects = {}
    for migration in SQLITE[:number]:
        _, *parts = _HEAD.split((STORED / migration.name).read_text(encoding="utf-8"))
        for dropped, kind, name, sql in zip(*(parts[first::4] for first in range(4)), strict=True):
            if dropped:
                del found[kind, name]
            else:
                found[kind, name] = sql.rstrip("\n")
    return found


def stored_checksums() -> dict[str, str]:
    """Return the stored checksum of each migration, by engine and file name."""
    lines = (STORED / "checksums.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


def checksums() -> dict[str, str]:
    both = (("sqlite", SQLITE), ("postgres", POSTGRES))
    return {f"{engine} {one.name}": one.checksum for engine, migrations in both for one in migrations}


def make_old_file(path: Path, number: int) -> None:
    """Create a SQLite database as the version with schema `number` left it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        register_functions(db)
        for statement in ("PRAGMA journal_mode = WAL", f"PRAGMA application_id = {APPLICATION_ID}", "BEGIN"):
            db.execute(statement)
        objects = stored_objects(number)
        for kind, name in sorted(objects, key=lambda key: _ORDER.index(_full_kind(objects, key))):
            db.execute(objects[kind, name])
        fill(db, SQLITE[:number], "sqlite")
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
    path.chmod(0o600)


def _full_kind(objects: Objects, key: tuple[str, str]) -> str:
    return "virtual table" if objects[key].startswith("CREATE VIRTUAL") else key[0]


def fill(db: Connection, applied: Sequence[Migration], engine: str) -> None:
    """Store a conversation, and the stored checksums of the applied migrations."""
    stored = stored_checksums()
    for migration in applied:
        values = f"migration:{migration.number:04d}", stored[f"{engine} {migration.name}"]
        db.execute("INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", values)
    for statement in ROWS.split(";\n")[:-1]:
        db.execute(statement)


def schema_after(number: int) -> Objects:
    """Return the schema that the first migrations create."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        register_functions(db)
        for statement in chain.from_iterable(statements(migration.sql) for migration in SQLITE[:number]):
            db.execute(statement)
        return objects_of(db)


def _store(migration: Migration) -> None:
    before, after = (schema_after(number) for number in (migration.number - 1, migration.number))
    parts = [f"-- dropped {kind} {name}\n" for kind, name in before if (kind, name) not in after]
    parts += [f"-- {kind} {name}\n{sql}\n" for (kind, name), sql in after.items() if before.get((kind, name)) != sql]
    (STORED / migration.name).write_text(f"-- What changed with {migration.name}\n" + "".join(parts), encoding="utf-8")


def main() -> None:
    """Store the schemas and checksums of migrations that have none."""
    STORED.mkdir(exist_ok=True)
    for migration in SQLITE:
        if not (STORED / migration.name).exists():
            _store(migration)
    path = STORED / "checksums.txt"
    kept = stored_checksums() if path.exists() else {}
    path.write_text("".join(f"{name} {value}\n" for name, value in (checksums() | kept).items()), encoding="utf-8")


if __name__ == "__main__":
    main()
