import asyncio
import stat
from pathlib import Path

import pytest

from hermes_state.errors import StoreUnavailable
from hermes_state.store.backup import back_up
from hermes_state.store.meta import load_note, save_note
from hermes_state.store.writer import Store
from tests.hermes_state.helpers import opened


async def test_a_backup_made_while_writing_is_whole_and_opens_as_a_store(store: Store, tmp_path: Path) -> None:
    await store.write(save_note, "n", "before")
    target = tmp_path / "copies" / "copy.db"
    stop = asyncio.Event()

    async def keep_writing() -> int:
        number = 0
        while not stop.is_set():
            await store.write(save_note, f"n{number}", "x" * 1_000)
            number += 1
        return number

    writing = asyncio.ensure_future(keep_writing())
    for _ in range(3):
        await asyncio.to_thread(back_up, store.path, target)
    stop.set()
    assert await writing > 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with opened(target) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    copy = await Store.open(target)
    assert await copy.read(load_note, "n") == "before"
    await copy.close()


async def test_a_backup_does_not_open_the_store_to_a_second_writer(store: Store, tmp_path: Path) -> None:
    await asyncio.to_thread(back_up, store.path, tmp_path / "copy.db")
    await store.write(save_note, "n", "the store goes on")
    assert await store.read(load_note, "n") == "the store goes on"


async def test_a_backup_that_cannot_be_written_leaves_the_older_one(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("the older one")
    (tmp_path / "copy.db.unfinished").mkdir()
    with pytest.raises(StoreUnavailable, match=r"copy\.db"):
        await asyncio.to_thread(back_up, store.path, target)
    assert target.read_text() == "the older one"


def test_there_is_no_backup_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="no database"):
        back_up(tmp_path / "state.db", tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []
