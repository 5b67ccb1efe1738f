import contextlib
import random
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from hermes_state import attachments, inbox, journal
from hermes_state.admin.copy import FORWARD, SLICE_ROWS, TABLES, CopyResult, copy_database
from hermes_state.compressions import plan_undo as plan
from hermes_state.compressions import undo_compression
from hermes_state.engines.opening import COPY_NOTE, name_of, open_ends, open_offline, open_store
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreBroken
from hermes_state.journal import PreparedMessage
from hermes_state.search.full_text import search
from hermes_state.store.sql import Connection, save_note, scalar
from hermes_state.store.writer import Store
from hermes_state.tools.subagents import open_subagent
from hermes_state.transcripts import load_view
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId, Document
from tests.databases import open_store as open_file
from tests.hermes_state.helpers import closed_after, file_states, opened, opened_as_ours
from tests.hermes_state.rows import (
    LONG_CALL_ID,
    START,
    call_tools,
    compress,
    exchange,
    make_chat,
    migrated,
    receive,
    replace_row,
)
from tests.postgres import Postgres

Place: TypeAlias = Path | str

_OTHERS = """
INSERT INTO platform_messages VALUES (1, 'p1', 1, 0);
INSERT INTO tool_offers VALUES (1, '["look"]');
INSERT INTO approvals (turn_id, call_message_id, tool_call_id, tool_name, shape, asked_at, expires_at)
  SELECT turn_id, call_message_id, tool_call_id, 'look', '{}', 1, 2 FROM tool_runs LIMIT 1;
INSERT INTO tool_grants VALUES (7, 1, 0, 'look', '{}', 'telegram:1', 1);
INSERT INTO cursors VALUES ('discord', 'discord', '9', '10'), ('discord', 'Discord', '9', '11');
INSERT INTO attachments VALUES (3, 1, 1, 'ab', 'ab/cd', 'ä.txt', NULL, 4, 5);
INSERT INTO model_profiles (route, model, calibration, updated_at) VALUES ('r', 'm', '{}', 1);
INSERT INTO pairings (code_hash, platform, user_ref, display_name, state, expires_at, created_at)
  VALUES ('00', 'telegram', 'telegram:9', '名前 🙂', 'pending', 1, 1);
INSERT INTO browsers VALUES (4, '00', 'Firefox', 1, 'local:ann', 'Ann');
INSERT INTO audit VALUES (3, 1, 'local:owner', 'read', 'telegram:42');
INSERT INTO todos VALUES (1, 1, 'first', 'pending', 1), (1, 2, 'second', 'done', 1);
INSERT INTO live_buttons VALUES (1, 'undo', 'inbox:1', 'Compressed.');
INSERT INTO ratings VALUES (2, 'telegram:1', 1, -1, 5, 0);
INSERT INTO schedules (chat_id, creator_ref, creator_name, spec, zone, text, next_at, created_at)
  VALUES (1, 'telegram:1', 'Ann', '0 8 * * *', 'UTC', 'wake', 9007199254740993, 1);
INSERT INTO talk VALUES (5, 1, 'm1', 'telegram:2', 'Bob', 0, 'lunch at noon?', 1);
"""


def fill(db: sqlite3.Connection) -> None:
    """Add rows to every table, most through the store's functions, with messages for several slices."""
    chat = make_chat(db)
    for number in range(300):
        turn = exchange(db, chat, f"question {number}", f"answer {number}")
    view = load_view(db, turn.lineage_id)
    replace_row(db, view.session.id, view.transcript[3].id, view.transcript[1].id, "edit", START)
    compress(db, turn.lineage_id, head=1)
    undo = plan(db, turn.lineage_id)
    assert undo is not None
    undo_compression(db, undo, START)
    turn = start_with_part(db, chat, "hand it on")
    asked = call_tools(db, turn, LONG_CALL_ID)
    journal.start_tools(db, turn, asked.id, asked.body.calls, START)
    open_subagent(db, turn, asked.id, LONG_CALL_ID, "a task", START)
    receive(db, chat, "waits")
    db.execute("DELETE FROM inbox WHERE id = ?", (receive(db, chat, "is gone, and its id never comes again"),))
    for number in range(600):
        save_note(db, f"n{number}", "x")
    for statement in _OTHERS.split(";\n"):
        db.execute(statement)
    assert all(db.execute(f"SELECT 1 FROM {table}").fetchone() for table in TABLES)


def start_with_part(db: sqlite3.Connection, chat: ChatId, text: str) -> RunningTurn:
    """Start the turn of a message with a long document. The part is stored before the message it refers to."""
    row = inbox.load(db, receive(db, chat, text))
    assert row is not None
    part = attachments.store_part(db, chat, row, Document(name="long.txt, part 2", text="the end"), START)
    return journal.start_turn(db, chat, [row.id], {row.id: PreparedMessage(parts=(part,))}, START)


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    async with closed_after(open_file(tmp_path / "source" / "state.db")) as store:
        await store.write(fill)
        return store.path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.cluster)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place without a database."""
    if request.param == "sqlite":
        yield tmp_path / "target" / "copy.db"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        with server.database() as url:
            yield url


class Interrupted(Exception):
    pass


def interrupt(source: Place, target: Place, table: str) -> None:
    """Copy up to the first rows of a table that are copied in this run."""
    with pytest.raises(Interrupted):
        copied(source, target, table)


def copied(source: Place, target: Place, stops_in: str = "") -> list[CopyResult]:
    def progress(table: str, _done: int, _total: int) -> None:
        if table == stops_in:
            raise Interrupted

    with open_ends(source, target) as (read, written):
        return copy_database(read, written, name_of(source), progress)


def opened_again(target: Place, tmp_path: Path) -> AbstractAsyncContextManager[Store]:
    """Open a target like a gateway."""
    if isinstance(target, Path):
        return open_store(target)
    return open_store(tmp_path / "home" / "state.db", target)


@contextlib.contextmanager
def offline(place: Place) -> Iterator[Connection]:
    path, url = (place, None) if isinstance(place, Path) else (Path("unused"), place)
    with open_offline(path, url) as db:
        assert db is not None
        yield db


def content(place: Place) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row with its columns by name, except the engine's own rows."""
    found = {}
    with offline(place) as db:
        for table, keys in TABLES.items():
            cursor = db.execute(f"SELECT * FROM {table} ORDER BY {', '.join(keys)}")
            names = [column[0] for column in cursor.description]
            order = sorted(range(len(names)), key=lambda index: names[index])
            found[table] = [tuple((names[index], row[index]) for index in order) for row in cursor.fetchall()]
    found["meta"] = [row for row in found["meta"] if row[0][1].startswith("n") or row[0][1] == COPY_NOTE]
    return found


def test_every_row_survives_a_copy_there_and_back(source: Path, target: Place, tmp_path: Path) -> None:
    before = content(source)
    tables = copied(source, target)
    assert [one.table for one in tables] == list(TABLES)
    assert {one.table: one.rows for one in tables if one.table != "meta"} == {
        table: len(rows) for table, rows in before.items() if table != "meta"
    }
    assert content(target) == before
    assert copied(target, tmp_path / "back.db") == tables
    assert content(tmp_path / "back.db") == before
    with opened(source) as first, opened(tmp_path / "back.db") as last:
        given = [db.execute("SELECT * FROM sqlite_sequence ORDER BY name").fetchall() for db in (first, last)]
    assert given[0] == given[1]


def test_messages_are_searchable_in_a_copy(source: Path, target: Place) -> None:
    copied(source, target)
    with offline(source) as here, offline(target) as there:
        for words in ("question", '"answer 299"'):
            found = [[hit.message_id for hit in search(db, words, order="newest")] for db in (here, there)]
            assert found[0] == found[1] != []


def test_the_search_index_of_a_copied_file_is_fully_merged(source: Path, tmp_path: Path) -> None:
    with opened_as_ours(source) as db:
        columns = "session_id, chat_id, lineage_id, role, origin, created_at"
        texts = [(10_000 + number, f"rare{number} word{number % 50}") for number in range(3 * SLICE_ROWS)]
        insert = f"INSERT INTO messages (seq, text, {columns}) SELECT ?, ?, {columns} FROM messages LIMIT 1"
        db.executemany(insert, texts)
    target = tmp_path / "copied.db"
    copied(source, target)
    with offline(target) as db:
        assert scalar(db, int, "SELECT count(DISTINCT segid) FROM messages_fts_idx") == 1
        assert len(search(db, "word7", limit=50)) == 30


async def test_a_copy_accepts_writes_and_reuses_no_id(source: Path, target: Place, tmp_path: Path) -> None:
    copied(source, target)
    async with opened_again(target, tmp_path) as store:
        highest = await store.read(lambda db: db.execute("SELECT max(id) FROM inbox").fetchone()[0])
        assert await store.write(receive, await store.write(make_chat), "hello") == highest + 2


async def test_an_interrupted_copy_is_refused_and_continues_from_any_table(
    source: Path, target: Place, tmp_path: Path
) -> None:
    for table in TABLES:
        interrupt(source, target, table)
        if table == "messages":
            with pytest.raises(DatabaseRejected, match="unfinished copy"):
                async with opened_again(target, tmp_path):
                    pass
    copied(source, target)
    assert content(target) == content(source)
    before = content(target)
    with pytest.raises(DatabaseRejected, match="not empty"):
        copied(source, target)
    assert content(target) == before


def test_a_copy_of_an_earlier_state_is_not_continued(source: Path, target: Place) -> None:
    interrupt(source, target, "messages")
    before = content(target)
    with opened(source) as db:
        save_note(db, "later", "x")
    with pytest.raises(DatabaseRejected, match="unfinished copy of an earlier state of"):
        copied(source, target)
    assert content(target) == before


def test_the_final_comparison_finds_a_changed_row(source: Path, target: Place) -> None:
    interrupt(source, target, "schedules")
    with opened_as_ours(source) as db:
        db.execute("UPDATE messages SET text = 'other' WHERE id = 7")
    with pytest.raises(StoreBroken, match="differs from its source in messages"):
        copied(source, target)


def test_nul_characters_are_replaced_and_counted(source: Path, target: Place) -> None:
    with opened_as_ours(source) as db:
        db.execute("UPDATE messages SET text = ? WHERE id IN (1, 4)", ("one\0two\0",))
    interrupt(source, target, "messages")
    assert {one.table: one.replaced for one in copied(source, target) if one.replaced} == {"messages": 2}
    with offline(target) as db:
        assert db.execute("SELECT text FROM messages WHERE id = 4").fetchone() == ("one�two�",)


@pytest.mark.cluster
def test_rows_rejected_by_the_target_are_named(source: Path, postgres: Postgres) -> None:
    long_key = "k" + random.Random(1).randbytes(4_000).hex()  # longer than an index of PostgreSQL allows
    with opened_as_ours(source) as db:
        save_note(db, long_key, "x")
        save_note(db, long_key[1:], "x")
    with postgres.database() as url:
        with pytest.raises(DatabaseRejected) as caught:
            copied(source, url)
        said = str(caught.value).splitlines()
        assert said[0] == "the target rejects these rows of meta (the source is unchanged):"
        for line, key in zip(said[1:], sorted((long_key, long_key[1:])), strict=True):
            assert line.startswith(f"key {key[:59]}…: index row size 8")
    with opened_as_ours(source) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("DELETE FROM meta WHERE length(key) > 1000")
        db.execute("UPDATE messages SET session_id = 99999 WHERE id = 7")
    refusal = pytest.raises(DatabaseRejected, match=r"rows of messages.*\nid 7: .*foreign key")
    with postgres.database() as url, refusal:
        copied(source, url)


async def test_both_databases_are_locked_during_a_copy(source: Path, target: Place, tmp_path: Path) -> None:
    before = file_states(source.parent)
    async with opened_again(target, tmp_path):
        with pytest.raises(LockUnavailable):
            copied(source, target)
        with pytest.raises(LockUnavailable):
            copied(target, tmp_path / "other.db")
    assert {name: state for name, state in file_states(source.parent).items() if name in before}.keys() == before.keys()
    assert not (tmp_path / "other.db").exists()


def test_a_missing_or_older_source_is_refused(tmp_path: Path, source: Path) -> None:
    with pytest.raises(DatabaseRejected, match="no database at"):
        copied(tmp_path / "none.db", tmp_path / "copy.db")
    with opened(source) as db:
        db.execute("PRAGMA user_version = 12")
    with pytest.raises(DatabaseRejected, match="schema 12"):
        copied(source, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_tables_are_copied_after_the_tables_they_refer_to() -> None:
    with migrated() as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        names = {name for name in names if not name.startswith(("sqlite_", "messages_"))}
        assert names - {"accounts", "previews"} == set(TABLES)
        order = list(TABLES)
        for table, keys in TABLES.items():
            primary = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[5]]
            assert set(keys) == set(primary), table
            for row in db.execute(f"PRAGMA foreign_key_list({table})"):
                is_before = order.index(row[2]) <= order.index(table)
                assert is_before or FORWARD.get(table) == row[3], (table, row[3])
