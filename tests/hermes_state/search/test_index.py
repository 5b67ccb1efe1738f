import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hermes_state.admin.retention import merge_index
from hermes_state.engines.sqlite import index as index_module
from hermes_state.search.full_text import search
from hermes_state.search.index import (
    MAKING,
    OUTDATED,
    begin_index,
    extend_index,
    find_fault,
    is_being_made,
    keep_index,
    load_progress,
    mend_index,
)
from hermes_state.store.sql import Connection, save_note, scalar
from hermes_state.store.writer import Store
from hermes_state.values import MessageId
from tests.databases import open_store
from tests.hermes_state.helpers import add_all_words, check_index, closed_after, execute, opened_as_ours
from tests.hermes_state.search.test_full_text import say, start

DAMAGES: dict[str, str] = {
    "leaves gone": "DELETE FROM messages_fts_data WHERE id > 10",
    "leaves overwritten": "UPDATE messages_fts_data SET block = zeroblob(60) WHERE id > 10",
    "everything overwritten": "UPDATE messages_fts_data SET block = x'ff'",
    "structure gone": "DELETE FROM messages_fts_data",
    "sizes gone": "DELETE FROM messages_fts_docsize",
    "sizes overwritten": "UPDATE messages_fts_docsize SET sz = x'010203'",
    "sizes of no kind": "UPDATE messages_fts_docsize SET sz = NULL",
    "totals overwritten": "UPDATE messages_fts_data SET block = x'ff' WHERE id = 1",
    "totals wrong": "UPDATE messages_fts_data SET block = x'010101' WHERE id = 1",
    "totals gone": "DELETE FROM messages_fts_data WHERE id = 1",
    "settings gone": "DELETE FROM messages_fts_config",
    "a table gone": "DROP TABLE messages_fts_idx",
    "emptied": "INSERT INTO messages_fts (messages_fts) VALUES ('delete-all')",
    "a row missing": (
        "INSERT INTO messages_fts (messages_fts, rowid, text, scope) "
        "SELECT 'delete', id, text, scope FROM messages_search WHERE id = 2"
    ),
    "a row's words others": (
        "INSERT INTO messages_fts (messages_fts, rowid, text, scope) "
        "SELECT 'delete', id, 'door of somebody', scope FROM messages_search WHERE id = 2"
    ),
    "triggers gone": "DROP TRIGGER messages_fts_ai",
}


def spoil(path: Path, damage: str) -> None:
    with opened_as_ours(path) as db:
        db.execute(damage)


async def fill(store: Store, rows: int = 40) -> list[MessageId]:
    session = await store.write(start, "a")
    ids = [await store.write(say, session, f"door number {number} of the house") for number in range(rows)]
    await add_all_words(store)
    return ids


@pytest.fixture(params=DAMAGES)
async def spoiled(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store whose index was damaged while it was closed."""
    path = tmp_path / "state.db"
    async with closed_after(open_store(path)) as store:
        await fill(store)
    spoil(path, DAMAGES[request.param])
    async with closed_after(open_store(path)) as store:
        yield store


async def found(store: Store) -> int:
    return len(await store.read(search, "door", limit=200, order="newest"))


async def test_a_damaged_index_is_found_and_rebuilt(spoiled: Store) -> None:
    fault = find_fault(spoiled.path)
    assert fault not in (None, OUTDATED)
    await mend_index(spoiled)
    assert find_fault(spoiled.path) is None
    assert await found(spoiled) == 40
    await check_index(spoiled)


async def test_messages_are_stored_despite_a_damaged_index(spoiled: Store) -> None:
    session = await spoiled.write(start, "a")
    for number in range(200):  # enough for the index to read its older parts
        await spoiled.write(say, session, f"door {number} " + "and many other words " * 20)
        await add_all_words(spoiled)
    assert await spoiled.read(lambda db: db.execute("SELECT count(*) FROM messages").fetchone()[0]) == 240
    await mend_index(spoiled)
    assert await found(spoiled) == 200
    assert find_fault(spoiled.path) is None


@asynccontextmanager
async def kept(store: Store) -> AsyncIterator[asyncio.Task[None]]:
    """Keep the store's index sound during the block."""
    keeping = asyncio.create_task(keep_index(store))
    try:
        async with asyncio.timeout(20):
            yield keeping
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_index_damaged_during_its_build_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    path = tmp_path / "state.db"
    async with closed_after(open_store(path)) as store:
        await fill(store)
        await store.write(begin_index, keeps_old=False)
        await store.write(extend_index)
    spoil(path, DAMAGES[damage].replace("messages_fts", MAKING))
    async with closed_after(open_store(path)) as store:
        async with kept(store) as keeping:
            while find_fault(path) is not None:
                assert not keeping.done(), keeping
                await asyncio.sleep(0.01)  # the task only logs its end
        assert await found(store) == 40


@pytest.mark.parametrize("is_new", [True, False])
async def test_an_undamaged_index_is_not_rebuilt(store: Store, is_new: bool) -> None:
    if not is_new:
        await fill(store)
        await execute(store, "UPDATE messages SET tool_name = 'history_search' WHERE id = 1")  # one more word of scope
        with pytest.raises(sqlite3.IntegrityError):
            await execute(store, "INSERT INTO meta (key, value) VALUES (NULL, NULL)")
    assert not store.index_failed.is_set(), "other errors are not blamed on the index"
    assert find_fault(store.path) is None
    before = await store.read(lambda db: db.execute("SELECT * FROM sqlite_schema").fetchall())
    await mend_index(store)
    assert await store.read(lambda db: db.execute("SELECT * FROM sqlite_schema").fetchall()) == before


async def test_a_failing_index_is_rebuilt_while_the_store_is_open(store: Store) -> None:
    await fill(store)
    async with kept(store):
        await execute(store, DAMAGES["everything overwritten"])
        await store.write(say, await store.write(start, "a"), "the door after it")
        await add_all_words(store)
        assert store.index_failed.is_set() or await store.read(load_progress) is not None
        while await store.read(load_progress) is not None or store.index_failed.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the task only logs its end
        assert await found(store) == 41


async def test_the_old_index_is_used_until_the_new_one_is_complete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    ids = await fill(store)
    await store.write(save_note, "segment_version", "0")
    fault = find_fault(store.path)
    assert fault == OUTDATED
    await store.write(begin_index, keeps_old=True)
    assert await store.read(load_progress) == 0
    shown = []
    while not await store.write(extend_index):
        shown.append(await store.read(load_progress))
        assert await found(store) == 40
    assert shown[:4] == [25, 50, 75, 100]
    assert {*shown[4:]} <= {100}, "while its parts are merged"
    assert await store.read(load_progress) is None
    assert find_fault(store.path) is None
    assert len(ids) == await found(store)


async def test_a_new_index_follows_changes_during_its_build(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    ids = await fill(store)
    await store.write(begin_index, keeps_old=False)
    assert await found(store) == 0
    session = await store.write(start, "a")
    for step in range(100):
        for row_id in (ids[step % 5], ids[-1 - step % 5]):
            await execute(store, "UPDATE messages SET text = text || ' changed' WHERE id = ?", row_id)
        await store.write(say, session, f"door {step} said meanwhile")
        if await store.write(extend_index):
            break
    assert find_fault(store.path) is None
    assert await found(store) == 40 + step + 1
    await check_index(store)


async def test_a_restart_continues_an_unfinished_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    path = tmp_path / "state.db"
    async with closed_after(open_store(path)) as store:
        await fill(store)
        await store.write(begin_index, keeps_old=False)
        await store.write(merge_index)
        assert await store.read(load_progress) == 0, "merging continues while an index is built"
        await store.write(extend_index)
    async with closed_after(open_store(path)) as store:
        assert await store.read(is_being_made)
        assert await store.read(load_progress) == 25
        assert await found(store) == 10
        await mend_index(store)
        assert await found(store) == 40
        assert find_fault(path) is None


async def test_a_rebuilt_index_has_the_same_definition(store: Store) -> None:
    def definitions(db: sqlite3.Connection) -> list[str]:
        query = "SELECT sql FROM sqlite_schema WHERE sql LIKE '%messages_fts%' ORDER BY name"
        return [
            " ".join(sql.replace('"', "").replace("'messages_fts_", "messages_fts_").replace("'(", "(").split())
            for (sql,) in db.execute(query)
        ]

    before = await store.read(definitions)
    await store.write(begin_index, keeps_old=True)
    while not await store.write(extend_index):
        pass
    assert await store.read(definitions) == before


def parts(db: Connection, index: str = "messages_fts") -> int:
    """Count the parts of an index, which later appends must merge."""
    return scalar(db, int, f"SELECT count(DISTINCT segid) FROM {index}_idx")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_rebuilt_index_is_fully_merged_even_after_a_restart(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 3)
    session = await store.write(start, "a")
    for block in range(30):  # the index gets several parts, as after a load in blocks
        text = " ".join(f"word{block * 400 + number}" for number in range(400))
        await store.write(say, session, f"door {text}")
    await add_all_words(store)
    await store.write(begin_index, keeps_old=True)
    while await store.read(load_progress) != 100:
        await store.write(extend_index)
    assert await store.read(parts, MAKING) > 4
    if is_restarted:
        assert not await store.write(extend_index), "a first step"
        await store.write(say, session, "the door meanwhile")
    await mend_index(store)  # like the next start
    assert await store.read(parts) <= 1 + is_restarted, "the rest, and the new message"
    assert await found(store) == 30 + is_restarted
    assert find_fault(store.path) is None
