import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hermes_state.engines.sqlite.store import ShortReader, ShortReadExceeded, SqliteStore
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from tests.gateway.helpers import eventually, serving
from tests.hermes_state.engines.sqlite.slow_disk import SlowDisk, slow_disk
from tests.hermes_state.helpers import closed_after, locked_by_another_process, opened

NUMBERS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT max(x) FROM c"


class Counter:
    """A read that records the threads on which it started."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.threads: list[int] = []

    def __call__(self, db: sqlite3.Connection) -> int:
        self.threads.append(threading.get_ident())
        return int(db.execute(NUMBERS, (self.count,)).fetchone()[0])

    @property
    def began_here(self) -> list[bool]:
        return [thread == threading.get_ident() for thread in self.threads]


async def test_a_few_rows_are_read_on_the_event_loop_right_after_a_write(store: Store) -> None:
    counter = Counter(20)
    assert await store.read_short(counter) == 20
    assert counter.began_here == [True]
    for number in range(50):
        await store.write(save_note, "n", str(number))
        assert await store.read_short(load_note, "n") == str(number)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.read_short(counter)


async def test_a_long_read_moves_to_a_thread(store: Store) -> None:
    counter = Counter(100_000)
    assert await store.read_short(counter) == 100_000
    assert counter.began_here == [True, False]
    assert await store.read_short(Counter(20)) == 20, "the connection is as before"


async def test_a_short_read_changes_nothing(store: Store) -> None:
    with pytest.raises((StoreUnavailable, sqlite3.OperationalError)):
        await store.read_short(save_note, "n", "written")
    assert await store.read(load_note, "n") is None


async def test_a_database_that_another_process_locks_is_read_at_once(store: Store) -> None:
    await store.write(save_note, "n", "kept")
    counter = Counter()
    with locked_by_another_process(store.path, 30):
        writing = asyncio.create_task(store.write(save_note, "n", "waits"))
        assert await store.read_short(load_note, "n") == "kept"
        assert await store.read_short(counter) == 1
        assert not writing.done()
    await writing
    assert counter.began_here == [True]


def test_a_short_read_does_not_wait_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "plain.db"  # without a write-ahead log, unlike the store's, a writer blocks readers
    with opened(path) as other:
        other.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)")
        reader = ShortReader(path)
        assert reader.run(lambda db: load_note(db, "n")) is None
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ShortReadExceeded):
            reader.run(lambda db: load_note(db, "n"))
        other.execute("ROLLBACK")
        assert reader.run(lambda db: load_note(db, "n")) is None
        reader.close()


@asynccontextmanager
async def on_a_slow_disk(folder: Path) -> AsyncIterator[tuple[Store, SlowDisk]]:
    with slow_disk() as disk:
        async with closed_after(SqliteStore.open(folder / "home" / "state.db")) as store:
            yield store, disk
            disk.seconds = 0.0


async def test_a_slow_disk_blocks_the_event_loop_only_once(tmp_path: Path) -> None:
    async with on_a_slow_disk(tmp_path) as (store, disk):
        await store.write(save_note, "n", "0")
        assert await store.read_short(load_note, "n") == "0"
        disk.seconds = 0.03
        for number in range(10):
            await store.write(save_note, "n", str(number))  # every commit empties the other connections' caches
            assert await store.read_short(load_note, "n") == str(number)
        here = disk.waits.count(threading.get_ident())
        assert 1 <= here <= 4, "one look, broken off at its first slow page or so"
        assert len(disk.waits) > here, "the rest was read on threads"


async def test_chats_are_answered_while_the_disk_is_slow(tmp_path: Path) -> None:
    async with on_a_slow_disk(tmp_path) as (store, disk), serving(store, tmp_path) as gateway:
        assert await gateway.ask("before") == "echo: before"
        disk.seconds = 0.005
        for number in range(3):
            assert await gateway.ask(f"m{number}") == f"echo: m{number}"
        disk.seconds = 0.0
        await eventually(lambda: not gateway.lanes._lanes, "the chat rests")
        assert disk.waits
