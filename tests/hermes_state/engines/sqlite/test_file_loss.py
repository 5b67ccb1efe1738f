"""Database files that are moved, deleted, replaced or missing."""

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from hermes_state.admin.retention import checkpoint
from hermes_state.engines.opening import open_offline
from hermes_state.engines.sqlite.file_loss import marker_of
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import DatabaseRejected, StoreBroken, StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from tests.databases import open_store
from tests.hermes_state.helpers import opened


@pytest.fixture
async def noted(store: Store) -> Store:
    """A store with one note."""
    await store.write(save_note, "n", "kept")
    store.check_files()
    assert store.trouble is None
    return store


async def rescued(store: Store, target: Path) -> str | None:
    """Read the note through a backup."""
    await store.back_up(target)
    with opened(target) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return load_note(db, "n")


async def assert_stopped(store: Store, words: str, target: Path) -> None:
    """Check that the store refuses writes, says why, and can be backed up."""
    store.check_files()
    said = store.trouble
    assert said is not None
    assert words in said
    assert "hermes-gateway backup" in said
    with pytest.raises(StoreBroken, match="New messages are not accepted"):
        await store.write(save_note, "n", "lost")
    both = threading.Barrier(2, timeout=10)
    reads = [store.read(lambda db: (both.wait(), load_note(db, "n"))[1]) for _ in range(2)]
    assert await asyncio.gather(*reads) == ["kept", "kept"], "each reader has the lost files open"
    assert await rescued(store, target) == "kept"


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_a_deleted_file_stops_the_writer_and_its_rows_can_be_copied_out(
    noted: Store, suffix: str, tmp_path: Path
) -> None:
    noted.path.with_name(noted.path.name + suffix).unlink()
    await assert_stopped(noted, f"{noted.path.name}{suffix} was deleted", tmp_path / "copy.db")


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
async def test_a_replaced_file_stops_the_writer(noted: Store, suffix: str, tmp_path: Path) -> None:
    path = Path(f"{noted.path}{suffix}")
    other = Path(shutil.copy(path, tmp_path / "other"))
    os.replace(other, path)
    await assert_stopped(noted, "replaced by another file", tmp_path / "copy.db")


async def test_a_moved_file_is_found_and_the_store_continues_once_it_returns(noted: Store, tmp_path: Path) -> None:
    away = tmp_path / "elsewhere.db"
    noted.path.rename(away)
    await assert_stopped(noted, f"was moved to {away}", tmp_path / "copy.db")
    away.rename(noted.path)
    noted.check_files()
    assert noted.trouble is None
    await noted.write(save_note, "n", "goes on")


async def test_a_replaced_folder_stops_the_writer(noted: Store, tmp_path: Path) -> None:
    home = noted.path.parent
    home.rename(tmp_path / "old")
    await assert_stopped(noted, f"was moved to {tmp_path / 'old' / noted.path.name}", tmp_path / "copy.db")
    home.mkdir()
    (home / noted.path.name).touch()
    await assert_stopped(noted, "replaced by another file", tmp_path / "copy2.db")


async def test_a_deleted_folder_stops_the_writer(noted: Store, tmp_path: Path) -> None:
    shutil.rmtree(noted.path.parent)
    await assert_stopped(noted, "was deleted", tmp_path / "copy.db")


async def test_a_changed_symbolic_link_is_noticed(tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "state.db", tmp_path / "home" / "state.db"
    await (await open_store(real)).close()
    link.parent.mkdir()
    link.symlink_to(real)
    store = await SqliteStore.open(link)
    try:
        await store.write(save_note, "n", "kept")
        store.check_files()
        assert store.trouble is None
        other = Path(shutil.copy(real, tmp_path / "other.db"))
        link.unlink()
        link.symlink_to(other)
        await assert_stopped(store, "replaced by another file", tmp_path / "copy.db")
        link.unlink()
        link.symlink_to(real)
        store.check_files()
        assert store.trouble is None
        real.with_name("state.db-wal").unlink()
        await assert_stopped(store, "state.db-wal was deleted", tmp_path / "copy2.db")
    finally:
        await store.close()


async def test_housekeeping_does_not_recreate_a_lost_file(noted: Store) -> None:
    noted.path.unlink()
    with pytest.raises(StoreUnavailable):
        checkpoint(noted.path)
    assert not noted.path.exists()


async def test_a_renamed_copy_or_hard_link_is_not_a_loss(noted: Store, tmp_path: Path) -> None:
    shutil.copy(noted.path, tmp_path / "copy.db")
    os.link(noted.path, tmp_path / "second.db")
    noted.path.chmod(0o600)
    noted.check_files()
    assert noted.trouble is None
    (tmp_path / "second.db").unlink()
    noted.check_files()
    assert noted.trouble is None


async def test_checking_for_loss_leaks_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await (await open_store(tmp_path / "state.db")).close()
    assert len(os.listdir("/proc/self/fd")) == before


# -- a start without the earlier database
# -------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "an empty file", "a file without tables"])
@pytest.mark.parametrize("sign", ["marker", "attachments"])
async def test_a_start_without_the_lost_database_is_refused_unless_fresh(tmp_path: Path, left: str, sign: str) -> None:
    path = tmp_path / "state.db"
    await (await SqliteStore.open(path)).close()
    path.unlink()
    if sign == "attachments":
        marker_of(path).unlink()
        (tmp_path / "attachments").mkdir()
        (tmp_path / "attachments" / "1.png").touch()
    if left == "an empty file":
        path.touch()
    elif left == "a file without tables":
        with opened(path) as db:
            db.execute("PRAGMA application_id = 1212634969")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(DatabaseRejected, match="--fresh"):
        await SqliteStore.open(path)
    with pytest.raises(DatabaseRejected, match="--fresh"), open_offline(path):
        pass
    assert sorted(os.listdir(tmp_path)) == before
    store = await SqliteStore.open(path, is_fresh=True)
    await store.write(save_note, "n", "anew")
    await store.close()
    store = await SqliteStore.open(path)
    assert await store.read(load_note, "n") == "anew"
    await store.close()


async def test_a_folder_with_only_a_configuration_is_a_first_start(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("local: {port: 1}")
    (tmp_path / "attachments").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "state.db").touch()  # left by a start on a full disk
    await (await SqliteStore.open(tmp_path / "state.db")).close()
    assert marker_of(tmp_path / "state.db").exists()


async def test_a_database_older_than_the_marker_opens(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await (await SqliteStore.open(path)).close()
    marker_of(path).unlink()
    (tmp_path / "attachments").mkdir()
    (tmp_path / "attachments" / "1.png").touch()
    await (await SqliteStore.open(path)).close()
    assert marker_of(path).stat().st_mode & 0o777 == 0o600


async def test_a_database_with_tables_only_in_its_log_is_not_empty(tmp_path: Path) -> None:
    """A process that was killed right after its first start."""
    path, killed = tmp_path / "state.db", tmp_path / "killed" / "state.db"
    store = await SqliteStore.open(path)
    killed.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
    shutil.copy(marker_of(path), marker_of(killed))
    await store.close()
    with opened(killed.parent / "state.db") as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] > 0
    await (await SqliteStore.open(killed)).close()


async def test_fresh_does_not_change_an_existing_database(store: Store) -> None:
    await store.write(save_note, "n", "kept")
    await store.close()
    again = await SqliteStore.open(store.path, is_fresh=True)
    assert await again.read(load_note, "n") == "kept"
    await again.close()


async def test_a_damaged_header_of_our_database_is_reported_as_damage(store: Store) -> None:
    await store.close()
    with store.path.open("r+b") as file:
        file.write(b"\xff" * 100)
    with pytest.raises(StoreUnavailable, match="stop the gateway"):
        await SqliteStore.open(store.path)
