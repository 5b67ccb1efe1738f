"""Migrations of both engines: numbered SQL files, applied in order and never undone."""

import hashlib
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources

import msgspec

from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.store.sql import Connection, load_note, save_note

_COMMENT = re.compile(r"--[^\n]*")
_NEW_COLUMN = re.compile(
    r"""^ALTER TABLE (\w+) ADD COLUMN (\w+) (\w+)( COLLATE "C")?[^;]*?(?:DEFAULT ('[^']*'|\d+)[^;]*)?;""", re.MULTILINE
)


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Hash of the statements. Comments and spacing are left out, because they can change after a release."""
        return hashlib.sha256(" ".join(_COMMENT.sub("", self.sql).split()).encode()).hexdigest()


def read_migrations(package: str, first: int) -> tuple[Migration, ...]:
    """Read the `migrations` folder of `package`, numbered from `first` without gaps."""
    folder = resources.files(package).joinpath("migrations")
    files = (file for file in folder.iterdir() if file.name.endswith(".sql"))
    read = (Migration(number=int(file.name[:4]), name=file.name, sql=file.read_text("utf-8")) for file in files)
    found = sorted(read, key=lambda migration: migration.number)
    if [m.number for m in found] != list(range(first, first + len(found))):
        raise StoreUnavailable(f"the numbers of the migration files have gaps: {[m.name for m in found]}")
    return tuple(found)


def statements(sql: str) -> Iterator[str]:
    """Yield the statements of `sql` one by one, because running a whole script would commit the open transaction."""
    statement = ""
    *pieces, rest = sql.split(";")
    for piece in pieces:
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if _COMMENT.sub("", statement + rest).strip():
        raise StoreUnavailable(f"a migration ends with an unfinished statement: {(statement + rest).strip()[:80]}")


def show_newer_columns(db: Connection, pending: Sequence[Migration], schema: str, tables: Iterable[str]) -> None:
    """Let queries see the columns of newer versions, with their defaults, in a database that was not migrated yet.

    A temporary view stands in front of each of the `tables` that lacks columns. The database does not change.
    """
    missing = defaultdict[str, list[str]](list)
    for migration in pending:
        for table, column, kind, collation, default in _NEW_COLUMN.findall(migration.sql):
            missing[table].append(f"CAST({default or 'NULL'} AS {kind}){collation} AS {column}")
    for table in missing.keys() & tables:
        columns = ", ".join(missing[table])
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {columns} FROM {schema}.{table}")


def note_applied(db: Connection, migration: Migration) -> None:
    """Store the checksum of a migration, inside the migration's transaction."""
    save_note(db, f"migration:{migration.number:04d}", migration.checksum)


def check_applied(db: Connection, name: str, applied: Sequence[Migration]) -> None:
    """Raise `DatabaseRejected` if the database was created with different versions of these migrations."""
    for migration in applied:
        if load_note(db, f"migration:{migration.number:04d}") != migration.checksum:
            raise DatabaseRejected(
                f"{name} was created with a different {migration.name}, perhaps by an unreleased build: "
                "move it away to create a new database, or run the version that created it"
            )


def newer_version(name: str, version: int, newest: int) -> DatabaseRejected:
    """Return the error for a schema that is newer than this gateway."""
    return DatabaseRejected(
        f"{name} was written by a newer version of hermes-gateway (schema {version}, this version supports {newest}): "
        "install that version, or restore a backup"
    )
