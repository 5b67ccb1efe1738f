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
from tests.hermes_state.helpers import opened, start_python


async def test_a_backup_made_during_writes_is_complete(store: Store, tmp_path: Path) -> None:
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
    copy = await SqliteStore.open(target)
    assert await copy.read(load_note, "n") == "before"
    await copy.close()


async def test_a_backup_ends_despite_constant_writes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        await store.write(save_note, f"long {number}", "x" * 20_000)
    monkeypatch.setattr(backup, "_PAGES_AT_ONCE", 5)
    pieces, loop = 0, asyncio.get_running_loop()

    def write_between() -> bool:
        nonlocal pieces
        pieces += 1
        asyncio.run_coroutine_threadsafe(store.write(save_note, "piece", str(pieces)), loop).result(10)
        return True

    await store.read_within(60.0, copy_into, tmp_path / "copy.db", write_between)
    assert pieces > 30
    with opened(tmp_path / "copy.db") as db:
        assert load_note(db, "piece") is None, "the copy is of one moment"
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
async def test_a_backup_does_not_overwrite_files(store: Store, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "copy.db"
    if kind == "file":
        target.write_text("the older one")
    elif kind == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
    with pytest.raises(StoreUnavailable, match="exists"):
        await store.back_up(target)
    assert not (tmp_path / "nowhere").exists()
    assert kind != "file" or target.read_text() == "the older one"


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_names_of_the_open_database_are_refused_even_after_its_loss(store: Store, suffix: str) -> None:
    for file in store.path.parent.glob("state.db*"):
        file.unlink()
    with pytest.raises(StoreUnavailable, match="in use"):
        await store.back_up(store.path.parent / ".." / store.path.parent.name / f"{store.path.name}{suffix}")


async def test_closing_the_store_cancels_a_backup_and_leaves_no_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        await store.write(save_note, f"long {number}", "x" * 20_000)
    monkeypatch.setattr(backup, "_PAGES_AT_ONCE", 5)
    begun, closing = threading.Event(), threading.Event()

    def may_go_on() -> bool:
        begun.set()
        closing.wait(10)
        return store._is_open

    copying = asyncio.ensure_future(store.read_within(60.0, copy_into, tmp_path / "copy.db", may_go_on))
    await asyncio.to_thread(begun.wait, 10)
    ending = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.set()
    with pytest.raises(StoreUnavailable, match="was cancelled, because the gateway is stopping"):
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


async def test_a_killed_backup_leaves_no_file_with_its_name(store: Store, tmp_path: Path) -> None:
    for number in range(40):
        await store.write(save_note, f"long {number}", "x" * 20_000)
    await store.close()
    killed = start_python(_KILLED, store.path, tmp_path / "copy.db")
    await asyncio.to_thread(killed.communicate)
    assert killed.returncode == -signal.SIGKILL
    assert "copy.db" not in os.listdir(tmp_path)
    again = await SqliteStore.open(store.path)
    assert await again.back_up(tmp_path / "copy.db") > 0
    await again.close()


async def test_an_unwritable_backup_reports_the_reason(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="cannot write the backup"):
        await store.back_up(tmp_path / "file" / "copy.db")


async def test_a_backup_works_without_hard_links(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    await store.back_up(tmp_path / "copy.db")
    with opened(tmp_path / "copy.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
