import asyncio
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from hermes_state.engines.sqlite import backup
from hermes_state.engines.sqlite.backup import copy_into
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from tests.hermes_state.helpers import closed_after, opened, start_python


@pytest.mark.parametrize("has_links", [True, False], ids=["", "without hard links"])
async def test_a_backup_made_during_writes_is_complete(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    await store.write(save_note, "n", "before")
    stop = asyncio.Event()

    async def keep_writing() -> int:
        number = 0
        while not stop.is_set():
            await store.write(save_note, f"n{number}", "x" * 1_000)
            number += 1
        return number

    writing = asyncio.ensure_future(keep_writing())
    for number in range(3):
        target = tmp_path / "copies" / f"{number}.db"
        assert await store.back_up(target) == target.stat().st_size
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
        with opened(target) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",), "one file"
    stop.set()
    assert await writing > 0
    assert sorted(os.listdir(target.parent)) == ["0.db", "1.db", "2.db"]
    async with closed_after(SqliteStore.open(target)) as copy:
        assert await copy.read(load_note, "n") == "before"


@pytest.fixture
async def long(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose backup takes many steps."""
    monkeypatch.setattr(backup, "_PAGES_AT_ONCE", 5)
    for number in range(40):
        await store.write(save_note, f"long {number}", "x" * 20_000)
    return store


async def test_a_backup_ends_despite_constant_writes(long: Store, tmp_path: Path) -> None:
    pieces, loop = 0, asyncio.get_running_loop()

    def write_between() -> bool:
        nonlocal pieces
        pieces += 1
        asyncio.run_coroutine_threadsafe(long.write(save_note, "piece", str(pieces)), loop).result(10)
        return True

    await long.read_within(60.0, copy_into, tmp_path / "copy.db", write_between)
    assert pieces > 30
    with opened(tmp_path / "copy.db") as db:
        assert load_note(db, "piece") is None, "the copy is of one moment"
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("kind", ["file", "link", "folder", "unwritable"])
async def test_a_backup_overwrites_no_file_and_reports_the_reason(store: Store, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "copy.db"
    if kind == "folder":
        target.mkdir()
    elif kind == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.write_text("the older one")
    place = target / "copy.db" if kind == "unwritable" else target
    with pytest.raises(StoreUnavailable, match="cannot write the backup" if kind == "unwritable" else "exists"):
        await store.back_up(place)
    assert not (tmp_path / "nowhere").exists()
    assert not target.is_file() or target.read_text() == "the older one"


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_names_of_the_open_database_are_refused_even_after_its_loss(store: Store, suffix: str) -> None:
    for file in store.path.parent.glob("state.db*"):
        file.unlink()
    with pytest.raises(StoreUnavailable, match="in use"):
        await store.back_up(store.path.parent / ".." / store.path.parent.name / f"{store.path.name}{suffix}")


async def test_closing_the_store_cancels_a_backup_and_leaves_no_file(long: Store, tmp_path: Path) -> None:
    begun, closing = threading.Event(), threading.Event()

    def may_go_on() -> bool:
        begun.set()
        closing.wait(10)
        return long._is_open

    copying = asyncio.ensure_future(long.read_within(60.0, copy_into, tmp_path / "copy.db", may_go_on))
    await asyncio.to_thread(begun.wait, 10)
    ending = asyncio.ensure_future(long.close())
    await asyncio.sleep(0)
    closing.set()
    with pytest.raises(StoreUnavailable, match="was cancelled because the gateway is stopping"):
        await copying
    await ending
    assert [name for name in os.listdir(tmp_path) if "copy" in name] == []


_KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from hermes_state.engines.sqlite import backup
backup._PAGES_AT_ONCE = 5
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
backup.copy_into(db, Path(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


async def test_a_killed_backup_leaves_no_file_with_its_name(long: Store, tmp_path: Path) -> None:
    await long.close()
    killed = start_python(_KILLED, long.path, tmp_path / "copy.db")
    await asyncio.to_thread(killed.communicate)
    assert killed.returncode == -signal.SIGKILL
    assert "copy.db" not in os.listdir(tmp_path)
    async with closed_after(SqliteStore.open(long.path)) as again:
        assert await again.back_up(tmp_path / "copy.db") > 0
