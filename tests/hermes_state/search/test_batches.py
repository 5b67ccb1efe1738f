"""Words of new messages, which batches add to SQLite's index. Until then, searches read the messages themselves."""

import asyncio
import random
import sqlite3
import threading
from pathlib import Path

import pytest

from hermes_state.engines.sqlite import index as engine_index
from hermes_state.engines.sqlite.index import (
    SERVING,
    add_words,
    detach_index,
    index_triggers,
    is_kept_up,
    load_mark,
    newest_id,
)
from hermes_state.engines.sqlite.migrate import drop_index_triggers
from hermes_state.engines.sqlite.offline import open_offline_file
from hermes_state.search import index as index_module
from hermes_state.search.full_text import load_beside, search, search_and_tell
from hermes_state.search.index import find_fault, is_behind, is_current, keep_index, mend_index
from hermes_state.search.ranking import SearchFilter
from hermes_state.store.migrations import statements
from hermes_state.store.segment import segment
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, LineageId, MessageRole, Millis, TurnId
from tests.databases import open_store, sqlite_only
from tests.hermes_state.helpers import add_all_words, check_index, closed_after, execute
from tests.hermes_state.rows import migrated
from tests.hermes_state.search.test_engines import asked, said
from tests.hermes_state.search.test_full_text import say, start

pytestmark = sqlite_only
FILTERS: list[SearchFilter] = [
    {},
    {"agent": ""},
    {"chat_id": ChatId(1), "role": MessageRole.USER},
    {"lineage_id": LineageId(2), "turn_id": TurnId(99)},
    {"since": Millis(75)},
    {"until": Millis(120)},
]


def test_a_search_finds_the_same_wherever_the_mark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_index, "BLOCK_ROWS", 50)
    chosen, found = random.Random(3), list[object]()
    queries = [*(asked(chosen) for _ in range(30)), "dooor red", "doriann x1"]
    with migrated() as db:
        sessions = [start(db, chat) for chat in "ab"]
        for number in range(150):
            say(
                db,
                sessions[number % 2],
                said(chosen),
                at=number,
                role=(MessageRole.USER, MessageRole.ASSISTANT)[number % 3 == 0],
            )
        for has_more in (True, True, False):
            hits = [
                ([(hit.message_id, hit.score, hit.snippet) for hit in hits], words)
                for query in queries
                for narrow in FILTERS
                for order in ("best", "newest")
                for hits, words in [search_and_tell(db, query, order=order, **narrow)]
            ]
            found = found or hits
            assert hits == found
            assert sum(bool(ids) for ids, _ in hits) > len(hits) / 2
            assert any(words == ("red", "door") for _, words in hits)
            assert add_words(db) is has_more
        assert load_mark(db) == newest_id(db)


def test_a_search_reads_only_the_messages_without_words_that_it_can_find() -> None:
    read = list[str]()

    def noted(text: str) -> str:
        read.append(text)
        return segment(text)

    with migrated() as db:
        assert isinstance(db, sqlite3.Connection)
        here, there = (start(db, chat) for chat in "ab")
        say(db, here, "a red door")
        say(db, there, "a long book with a door")
        say(db, here, "a blue door", role=MessageRole.ASSISTANT)
        db.create_function("fts_text", 1, noted, deterministic=True)
        [hit] = search(db, "door", lineage_id=here.lineage_id, role=MessageRole.USER)
        assert read == ["a red door"]
        load_beside(db, [hit], TurnId(99))
        assert read == ["a red door"], "this looks for no words"
        assert len(search(db, "door", chat_ids=[there.chat_id])) == 1
        assert len(search(db, "door", other_than=[there.chat_id])) == 2


async def test_changes_of_messages_without_words_keep_the_index_correct(store: Store) -> None:
    session = await store.write(start, "a")
    ids = [await store.write(say, session, f"door {number}") for number in range(4)]
    await add_all_words(store)
    ids += [await store.write(say, session, f"door {number}") for number in range(4, 8)]
    for row_id in (ids[1], ids[5]):
        await execute(store, "UPDATE messages SET text = 'the window' WHERE id = ?", row_id)
    for row_id in (ids[3], ids[7]):
        await execute(store, "DELETE FROM messages WHERE id = ?", row_id)
    for row_id in (ids[2], ids[6]):
        await execute(store, "UPDATE messages SET indexed = 0 WHERE id = ?", row_id)
    assert find_fault(store.path) is None
    for _ in range(2):
        assert [hit.message_id for hit in await store.read(search, "door", order="newest")] == [ids[4], ids[0]]
        assert [hit.message_id for hit in await store.read(search, "window", order="newest")] == [ids[5], ids[1]]
        await check_index(store)  # adds all words
    assert find_fault(store.path) is None


async def test_words_are_added_a_second_later_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "IDLE_SECONDS", 0.01)
    path = tmp_path / "state.db"

    async def until_added(store: Store) -> None:
        async with asyncio.timeout(20):
            while await store.read(is_behind):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the task tells nobody

    async with closed_after(open_store(path)) as store:
        await store.write(say, await store.write(start, "a"), "a door")
        assert await store.read(is_behind)
    with open_offline_file(path) as db:
        assert db is not None
        assert len(search(db, "door")) == 1, "the command line also finds it"
    async with closed_after(open_store(path)) as store:
        keeping = asyncio.create_task(keep_index(store))
        await until_added(store)
        for _ in range(3):
            await store.write(say, await store.write(start, "a"), "a door")
            await until_added(store)
        keeping.cancel()
        await asyncio.wait([keeping])
        await check_index(store)


async def test_a_database_of_an_earlier_version_keeps_its_index(store: Store) -> None:
    """Triggers of that version added the words, and there was no mark."""

    def as_before(db: sqlite3.Connection) -> None:
        drop_index_triggers(db, SERVING)
        text = Path(engine_index.__file__).with_name("index.sql").read_text("utf-8")
        for statement in statements(text.format(index=SERVING, new="", old="")):
            if "CREATE TRIGGER" in statement:
                db.execute(statement)
        db.execute("DELETE FROM meta WHERE key = 'search_mark'")

    def parts(db: sqlite3.Connection) -> list[object]:
        return db.execute("SELECT segid, hex(term), pgno FROM messages_fts_idx ORDER BY 1, 2").fetchall()

    await store.write(as_before)
    session = await store.write(start, "a")
    await store.write(say, session, "the first door")
    assert not await store.read(is_behind)
    before = await store.read(parts)
    await mend_index(store)
    assert await store.read(parts) == before, "it was not rebuilt"
    assert int(await store.read(load_note, "search_mark") or 0) > 0
    assert len(await store.read(index_triggers, SERVING)) == 4
    await store.write(say, session, "the second door")
    assert await store.read(is_behind)
    assert len(await store.read(search, "door")) == 2
    await check_index(store)


async def test_the_check_after_a_start_waits_until_the_gateway_is_idle(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "IDLE_SECONDS", 3_600.0)
    waiting = threading.Event()

    def check(_: Path, pause) -> None:
        waiting.set()
        assert pause(), "it ends only because it was cancelled"
        raise sqlite3.OperationalError

    monkeypatch.setattr(index_module, "find_fault", check)
    keeping = asyncio.create_task(keep_index(store))
    assert await asyncio.to_thread(waiting.wait, 20)
    assert not keeping.done()
    keeping.cancel()
    await asyncio.wait([keeping])
    async with asyncio.timeout(20):
        await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize("idle_seconds", [0.0, 3_600.0])
async def test_a_check_ends_after_many_writes_so_that_the_log_can_be_emptied(
    store: Store, monkeypatch: pytest.MonkeyPatch, idle_seconds: float
) -> None:
    monkeypatch.setattr(index_module, "IDLE_SECONDS", 0.0)
    last, is_cancelled = store.pulse.batches + 1, threading.Event()
    assert not index_module._pause(store, last, is_cancelled)
    monkeypatch.setattr(index_module, "IDLE_SECONDS", idle_seconds)
    waiting = asyncio.create_task(asyncio.to_thread(index_module._pause, store, last, is_cancelled))
    for chat in "abc":
        await store.write(start, chat)
    try:
        async with asyncio.timeout(20):
            await asyncio.wait([waiting])
        is_over = await asyncio.to_thread(index_module._pause, store, last, is_cancelled)
    finally:
        is_cancelled.set()
    assert is_over


@pytest.mark.parametrize("when", ["detached before", "outdated before", "detached during the check"])
async def test_an_unusable_index_is_rebuilt_even_if_the_gateway_is_never_idle(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(index_module, "IDLE_SECONDS", 3_600.0)
    await store.write(say, await store.write(start, "a"), "a door")
    if when == "outdated before":
        await store.write(save_note, "segment_version", "0")
    elif when == "detached before":
        await store.write(detach_index)
    keeping = asyncio.create_task(keep_index(store))
    if when == "detached during the check":
        await asyncio.sleep(0.1)
        await store.write(detach_index)
        store.index_failed.set()
    async with asyncio.timeout(20):
        while not await store.read(lambda db: is_kept_up(db, SERVING) and is_current(db)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the task only logs its end
    keeping.cancel()
    await asyncio.wait([keeping])
    assert find_fault(store.path) is None
