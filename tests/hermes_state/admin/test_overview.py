import sqlite3
from pathlib import Path

import pytest

from hermes_state import inbox
from hermes_state.admin.overview import load_overview, load_queues
from hermes_state.engines.opening import engine_of, open_offline
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.errors import DatabaseRejected, LockUnavailable
from hermes_state.store.writer import Store
from hermes_state.tools.schedules import NewSchedule, insert_schedule
from hermes_state.values import Millis, UserRef
from tests.databases import open_store
from tests.hermes_state.helpers import closed_after, opened
from tests.hermes_state.rows import START, exchange, make_chat, receive, start


async def filled(path: Path) -> None:
    def fill(db: sqlite3.Connection) -> None:
        exchange(db, make_chat(db, "1"), "q", "a")
        start(db, make_chat(db, "2"), "go")
        receive(db, make_chat(db, "2"), "waits")
        inbox.settle(db, receive(db, make_chat(db, "2"), "gone"), inbox.InboxState.DROPPED, START)

    async with closed_after(open_store(path)) as store:
        await store.write(fill)


async def test_an_overview_of_a_closed_database_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await filled(path)
    before = path.read_bytes()
    with open_offline(path) as db:
        assert db is not None
        seen = load_overview(db)
        assert engine_of(db).find_fault(db) is None
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("DELETE FROM meta")
    assert (seen.schema, seen.database_bytes) == (newest_schema(), len(before))
    assert (seen.chats, seen.conversations, seen.messages) == (2, 2, 3)
    assert (seen.waiting, seen.open_turns, seen.undelivered) == (2, 1, 1)
    assert path.read_bytes() == before


async def test_queues_have_the_age_of_the_oldest_entry_and_unreachable_chats_are_not_late(store: Store) -> None:
    def fill(db: sqlite3.Connection) -> None:
        for number, next_at in ((1, START), (2, START + 9_000), (3, START + 90_000), (4, START - 5_000)):
            chat = make_chat(db, str(number))
            when = {"spec": "0 8 * * *", "zone": "UTC", "text": "wake up", "next_at": next_at, "created_at": START}
            insert_schedule(db, NewSchedule(chat_id=chat, creator_ref=UserRef("x:1"), creator_name="X", **when))
        db.execute("UPDATE chats SET unreachable_since = 1 WHERE id = ?", (chat,))
        receive(db, chat, "waits")
        receive(db, chat, "waits too")

    empty = await store.read(load_queues, START)
    assert (empty.waiting, empty.undelivered, empty.late_schedules) == (0, 0, 0)
    assert empty.waiting_since is empty.undelivered_since is empty.late_since is None
    await store.write(fill)
    found = await store.read(load_queues, Millis(START + 80_000))
    assert (found.late_schedules, found.late_since) == (2, START)
    assert (found.waiting, found.waiting_since) == (2, START)
    assert found.database_bytes > 0


async def test_a_database_in_use_is_not_opened(store: Store) -> None:
    with pytest.raises(LockUnavailable, match="in use by process"), open_offline(store.path):
        pass


def test_a_missing_database_has_no_overview_and_another_programs_file_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with open_offline(path) as db:
        assert db is None
    assert list(tmp_path.iterdir()) == []
    with opened(path) as made:
        made.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    with open_offline(path) as db:
        assert db is None
    with opened(tmp_path / "other.db") as made:
        made.execute("CREATE TABLE sessions (id TEXT)")
    with pytest.raises(DatabaseRejected), open_offline(tmp_path / "other.db"):
        pass
