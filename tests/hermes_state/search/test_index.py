"""Damaged, outdated and missing search indexes: messages are stored, search reports it, and the index is rebuilt."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_state.admin.retention import merge_index
from hermes_state.engines.sqlite.connections import register_functions
from hermes_state.search import index as index_module
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
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        register_functions(db)
        db.execute(damage)


async def fill(store: Store, rows: int = 40) -> list[MessageId]:
    session = await store.write(start, "a")
    return [await store.write(say, session, f"door number {number} of the house") for number in range(rows)]


@pytest.fixture(params=DAMAGES)
async def spoiled(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store whose index was damaged while it was closed."""
    path = tmp_path / "state.db"
    store = await open_store(path)
    await fill(store)
    await store.close()
    spoil(path, DAMAGES[request.param])
    store = await open_store(path)
    yield store
    await store.close()


async def found(store: Store) -> int:
    return len(await store.read(search, "door", limit=200))


async def test_a_damaged_index_is_found_and_rebuilt(spoiled: Store) -> None:
    fault = find_fault(spoiled.path)
    assert fault not in (None, OUTDATED)
    await mend_index(spoiled)
    assert find_fault(spoiled.path) is None
    assert await found(spoiled) == 40
    await spoiled.write(
        lambda db: db.execute("INSERT INTO messages_fts (messages_fts, rank) VALUES ('integrity-check', 1)")
    )


async def test_messages_are_stored_despite_a_damaged_index(spoiled: Store) -> None:
    session = await spoiled.write(start, "a")
    for number in range(200):  # enough for the index to read its older parts
        await spoiled.write(say, session, f"door {number} " + "and many other words " * 20)
    assert await spoiled.read(lambda db: db.execute("SELECT count(*) FROM messages").fetchone()[0]) == 240
    await mend_index(spoiled)
    assert await found(spoiled) == 200
    assert find_fault(spoiled.path) is None


@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_index_damaged_during_its_build_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    path = tmp_path / "state.db"
    store = await open_store(path)
    await fill(store)
    await store.write(begin_index, keeps_old=False)
    await store.write(extend_index)
    await store.close()
    spoil(path, DAMAGES[damage].replace("messages_fts", MAKING))
    store = await open_store(path)
    keeping = asyncio.create_task(keep_index(store))
    try:
        async with asyncio.timeout(20):
            while find_fault(path) is not None:
                assert not keeping.done(), keeping
                await asyncio.sleep(0.01)  # the task only logs its end
        assert await found(store) == 40
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()


@pytest.mark.parametrize("is_new", [True, False])
async def test_an_undamaged_index_is_not_rebuilt(store: Store, is_new: bool) -> None:
    if not is_new:
        await fill(store)
    assert find_fault(store.path) is None
    before = await store.read(lambda db: db.execute("SELECT * FROM sqlite_schema").fetchall())
    await mend_index(store)
    assert await store.read(lambda db: db.execute("SELECT * FROM sqlite_schema").fetchall()) == before


async def test_a_row_of_search_results_is_not_a_fault(store: Store) -> None:
    """Its scope has one more word."""
    row_id = (await fill(store))[0]
    named = "UPDATE messages SET tool_name = 'history_search' WHERE id = ?"
    await store.write(lambda db: db.execute(named, (row_id,)))
    assert find_fault(store.path) is None


async def test_a_failing_index_is_rebuilt_while_the_store_is_open(store: Store) -> None:
    await fill(store)
    keeping = asyncio.create_task(keep_index(store))
    try:
        await store.write(lambda db: db.execute(DAMAGES["everything overwritten"]))
        session = await store.write(start, "a")
        await store.write(say, session, "the door after it")
        assert store.index_failed.is_set() or await store.read(load_progress) is not None
        async with asyncio.timeout(20):
            while await store.read(load_progress) is not None or store.index_failed.is_set():  # noqa: ASYNC110 - the
                await asyncio.sleep(0.01)  # task only logs its end
        assert await found(store) == 41
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


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


async def test_a_changed_segmenter_rebuilds_the_index(store: Store) -> None:
    def insert_as_before(db: sqlite3.Connection) -> None:
        """Index a row like an older segmenter, which found no words in it."""
        db.create_function("fts_text", 1, lambda text: "", deterministic=True)
        say(db, start(db, "a"), "findable")
        register_functions(db)
        save_note(db, "segment_version", "0")

    await store.write(insert_as_before)
    assert await store.read(search, "findable") == []
    await mend_index(store)
    assert len(await store.read(search, "findable")) == 1


async def test_a_new_index_follows_changes_during_its_build(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    ids = await fill(store)
    await store.write(begin_index, keeps_old=False)
    assert await found(store) == 0
    session = await store.write(start, "a")
    for step in range(100):
        old, new = ids[step % 5], ids[-1 - step % 5]
        await store.write(
            lambda db, old=old: db.execute("UPDATE messages SET text = text || ' old' WHERE id = ?", (old,))
        )
        await store.write(
            lambda db, new=new: db.execute("UPDATE messages SET text = text || ' new' WHERE id = ?", (new,))
        )
        await store.write(say, session, f"door {step} said meanwhile")
        if await store.write(extend_index):
            break
    assert find_fault(store.path) is None
    assert await found(store) == 40 + step + 1
    await store.write(
        lambda db: db.execute("INSERT INTO messages_fts (messages_fts, rank) VALUES ('integrity-check', 1)")
    )


async def test_a_restart_continues_an_unfinished_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    path = tmp_path / "state.db"
    store = await open_store(path)
    await fill(store)
    await store.write(begin_index, keeps_old=False)
    await store.write(extend_index)
    await store.close()
    store = await open_store(path)
    try:
        assert await store.read(is_being_made)
        assert await store.read(load_progress) == 25
        assert await found(store) == 10
        await mend_index(store)
        assert await found(store) == 40
        assert find_fault(path) is None
    finally:
        await store.close()


async def test_other_damage_is_not_blamed_on_the_index(store: Store) -> None:
    await fill(store)

    def fail(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO meta (key, value) VALUES (NULL, NULL)")

    with pytest.raises(sqlite3.IntegrityError):
        await store.write(fail)
    assert not store.index_failed.is_set()
    assert find_fault(store.path) is None


async def test_merging_continues_while_an_index_is_built(store: Store) -> None:
    await fill(store)
    await store.write(begin_index, keeps_old=False)
    await store.write(merge_index)
    assert await store.read(load_progress) == 0


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


async def fill_in_blocks(store: Store, blocks: int = 30) -> None:
    """Fill the store so that its index has several parts, as after a load in blocks."""
    session = await store.write(start, "a")
    for block in range(blocks):
        text = " ".join(f"word{block * 400 + number}" for number in range(400))
        await store.write(say, session, f"door {text}")


async def test_a_rebuilt_index_is_fully_merged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 3)
    await fill_in_blocks(store)
    await store.write(begin_index, keeps_old=True)
    while await store.read(load_progress) != 100:
        await store.write(extend_index)
    assert await store.read(parts, MAKING) > 4
    await mend_index(store)
    assert await store.read(parts) == 1
    assert len(await store.read(search, "door", limit=50)) == 30
    assert find_fault(store.path) is None


async def test_merging_continues_after_a_restart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 3)
    await fill_in_blocks(store)
    await store.write(begin_index, keeps_old=True)
    while await store.read(load_progress) != 100:
        await store.write(extend_index)
    assert not await store.write(extend_index), "a first step"
    session = await store.write(start, "b")
    await store.write(say, session, "the door meanwhile")
    await mend_index(store)  # like the next start
    assert await store.read(parts) <= 2, "the rest, and the new message"
    assert len(await store.read(search, "door", limit=50)) == 31
    assert find_fault(store.path) is None
