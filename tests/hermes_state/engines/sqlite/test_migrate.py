import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.tools.files.file_tools import ANY_FILE
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, migrate, newest_schema, shipped_migrations
from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.store.migrations import Migration, statements
from hermes_state.store.sql import load_note, save_note
from tests.hermes_state.engines.shipped import make_old_file
from tests.hermes_state.helpers import opened_as_ours

SHIPPED = shipped_migrations()
NEXT = len(SHIPPED) + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with opened_as_ours(path) as connection:
        yield connection


def version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def schema(db: sqlite3.Connection) -> list[tuple[str, str, str]]:
    return db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()


def further(sql: str) -> list[Migration]:
    return [*SHIPPED, Migration(number=NEXT, name=f"{NEXT:04d}_further.sql", sql=sql)]


def backups(path: Path) -> list[Path]:
    folder = path.parent / "backups"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_new_file_gets_the_whole_schema_once(db: sqlite3.Connection, path: Path) -> None:
    migrate(db, path)
    assert version(db) == newest_schema()
    assert {"messages", "inbox", "outbox", "turns", "messages_fts"} <= {name for _, name, _ in schema(db)}
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    before = db.execute("SELECT * FROM meta").fetchall(), schema(db)
    migrate(db, path)
    assert (db.execute("SELECT * FROM meta").fetchall(), schema(db)) == before
    assert backups(path) == [], "there was nothing to back up"


def test_a_new_migration_runs_once_after_a_backup(db: sqlite3.Connection, path: Path) -> None:
    migrate(db, path)
    save_note(db, "n", "from before")
    migrations = further("CREATE TABLE further (id INTEGER PRIMARY KEY) STRICT; INSERT INTO further VALUES (7);")
    migrate(db, path, migrations)
    migrate(db, path, migrations)
    assert version(db) == NEXT
    assert db.execute("SELECT id FROM further").fetchall() == [(7,)]
    (backup,) = backups(path)
    assert backup.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(backup)) as copy:
        assert version(copy) == NEXT - 1
        assert copy.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert load_note(copy, "n") == "from before"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("CREATE TABLE further (id INTEGER); CREATE TABLE further (id INTEGER);", "already exists"),
        ("CREATE TABLE further (id INTEGER); INSERT INTO nowhere VALUES (1);", "no such table"),
        ("CREATE VIRTUAL TABLE further USING fts5(text); INSERT INTO chats (id) VALUES (1);", "NOT NULL"),
        ("INSERT INTO session_context (session_id, pos, message_id) VALUES (1, 0, 1);", "session_context"),
        ("CREATE TABLE further (id INTEGER); CREATE TABLE more (id", "unfinished"),
    ],
)
def test_a_migration_that_fails_leaves_the_version_before_it(
    db: sqlite3.Connection, path: Path, broken: str, said: str
) -> None:
    migrate(db, path)
    before = schema(db)
    with pytest.raises((sqlite3.Error, StoreUnavailable), match=said):
        migrate(db, path, further(broken))
    assert (version(db), schema(db)) == (NEXT - 1, before)
    assert not db.in_transaction
    assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    migrate(db, path, further("CREATE TABLE further (id INTEGER);"))
    assert version(db) == NEXT


def test_a_newer_schema_or_a_different_migration_with_the_same_number_is_refused(
    db: sqlite3.Connection, path: Path
) -> None:
    migrate(db, path, further("CREATE TABLE further (id INTEGER);"))
    migrate(db, path, further("-- What it is for.\nCREATE TABLE further\n  (id INTEGER);  -- The key."))
    with pytest.raises(DatabaseRejected, match="further"):
        migrate(db, path, further("CREATE TABLE otherwise (id INTEGER);"))
    with pytest.raises(DatabaseRejected, match="newer version"):
        migrate(db, path)


def test_shipped_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in SHIPPED] == list(range(1, len(SHIPPED) + 1))


def test_splitting_keeps_triggers_strings_and_comments_intact() -> None:
    sql = """
    -- a comment; with a semicolon
    CREATE TABLE a (b TEXT DEFAULT ';');
    CREATE TRIGGER t AFTER INSERT ON a BEGIN
      DELETE FROM a WHERE b = 'x';
      UPDATE a SET b = 'end;';
    END;
    -- the end; really
    """
    assert [" ".join(statement.split())[-12:] for statement in statements(sql)] == ["EFAULT ';');", "'end;'; END;"]


def test_a_grant_for_file_tools_survives_their_renaming(db: sqlite3.Connection, path: Path) -> None:
    migrate(db, path, [one for one in SHIPPED if one.name < "0022"])
    chat = "platform, account, chat_ref, kind, created_at, updated_at"
    db.execute(f"INSERT INTO chats ({chat}) VALUES ('a', 'a', '1', 'direct', 1, 1)")
    grant = "chat_id, tool_name, shape, granted_by, created_at"
    db.execute(f"INSERT INTO tool_grants ({grant}) VALUES (1, 'write_file', 'any file of the chat', 'a:1', 1)")
    migrate(db, path)
    assert db.execute("SELECT shape FROM tool_grants").fetchall() == [(ANY_FILE,)]


def test_fewer_indexes_keep_rows_unique_and_give_calls_their_chat(path: Path) -> None:
    make_old_file(path, 29)
    with opened_as_ours(path) as db:
        columns = "id, platform, account, event_ref, chat_id, kind, sender_ref, sender_name, message_ref, payload"
        values = "7, 'p', 'a', '1', 1, 'message', 'p:1', 'A', '1', ''"
        db.execute(f"INSERT INTO inbox ({columns}, sent_at, received_at) VALUES ({values}, 1, 1)")
        db.execute("UPDATE messages SET inbox_id = 7 WHERE id = 1")
        columns = "lineage_id, purpose, route, model, outcome, created_at"
        db.execute(f"INSERT INTO model_calls ({columns}) VALUES (1, 'turn', 'r', 'm', 'ok', 1)")
        migrate(db, path)
        assert db.execute("SELECT chat_id FROM model_calls").fetchall() == [(1,)]
        for twice in ("inbox_id = 7 WHERE id = 2", "seq = 1 WHERE id = 2"):
            with pytest.raises(sqlite3.IntegrityError):
                db.execute(f"UPDATE messages SET {twice}")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_deleting_a_row_reads_no_whole_table(db: sqlite3.Connection, path: Path) -> None:
    migrate(db, path)
    tables = [name for (name,) in db.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")]
    query = "SELECT \"from\" FROM pragma_foreign_key_list(?) WHERE \"table\" IN ('messages', 'turns', 'inbox')"
    references = [(table, column) for table in tables for (column,) in db.execute(query, (table,))]
    assert ("turns", "call_message_id") in references
    for table, column in references:
        [plan] = db.execute(f"EXPLAIN QUERY PLAN SELECT 1 FROM {table} WHERE {column} = 1").fetchall()
        assert plan[3].startswith("SEARCH"), (table, column, plan)
