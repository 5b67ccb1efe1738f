import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from hermes_state.admin.retention import checkpoint
from hermes_state.engines.opening import open_offline
from hermes_state.engines.sqlite.connections import refuse_network_disk
from hermes_state.engines.sqlite.file_loss import marker_of
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import ConfigError, DatabaseRejected, StoreBroken, StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from tests.databases import open_store
from tests.hermes_state.helpers import closed_after, opened

TABLE = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:45 / /srv/team\\040files rw,relatime - nfs4 nas:/files rw
31 30 8:2 / /srv/team\\040files/local rw,relatime - xfs /dev/sdb1 rw
"""


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
@pytest.mark.parametrize("is_replaced", [False, True], ids=["deleted", "replaced"])
async def test_a_deleted_or_replaced_file_stops_the_writer_and_its_rows_can_be_copied_out(
    noted: Store, suffix: str, is_replaced: bool, tmp_path: Path
) -> None:
    path = Path(f"{noted.path}{suffix}")
    other = shutil.copy(path, tmp_path / "other")
    os.replace(other, path) if is_replaced else os.unlink(path)
    words = "replaced by another file" if is_replaced else f"{path.name} was deleted"
    await assert_stopped(noted, words, tmp_path / "copy.db")


async def test_a_moved_file_is_found_and_the_store_continues_once_it_returns(noted: Store, tmp_path: Path) -> None:
    away = tmp_path / "elsewhere.db"
    noted.path.rename(away)
    await assert_stopped(noted, f"was moved to {away}", tmp_path / "copy.db")
    away.rename(noted.path)
    noted.check_files()
    assert noted.trouble is None
    await noted.write(save_note, "n", "goes on")


async def test_a_moved_replaced_or_deleted_folder_stops_the_writer(noted: Store, tmp_path: Path) -> None:
    home = noted.path.parent
    home.rename(tmp_path / "old")
    await assert_stopped(noted, f"was moved to {tmp_path / 'old' / noted.path.name}", tmp_path / "copy.db")
    home.mkdir()
    (home / noted.path.name).touch()
    await assert_stopped(noted, "replaced by another file", tmp_path / "copy2.db")
    shutil.rmtree(home)
    shutil.rmtree(tmp_path / "old")
    await assert_stopped(noted, "was deleted", tmp_path / "copy3.db")


async def test_a_changed_symbolic_link_is_noticed(tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "state.db", tmp_path / "home" / "state.db"
    await (await open_store(real)).close()
    link.parent.mkdir()
    link.symlink_to(real)
    descriptors = len(os.listdir("/proc/self/fd"))
    async with closed_after(SqliteStore.open(link)) as store:
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
    assert len(os.listdir("/proc/self/fd")) == descriptors


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
    async with closed_after(SqliteStore.open(path, is_fresh=True)) as store:
        await store.write(save_note, "n", "anew")
    for is_fresh in (False, True):  # which does not change an existing database
        async with closed_after(SqliteStore.open(path, is_fresh=is_fresh)) as store:
            assert await store.read(load_note, "n") == "anew"


async def test_a_first_start_and_one_without_a_marker_make_the_marker(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("local: {port: 1}")
    (tmp_path / "attachments").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "state.db").touch()  # left by a start on a full disk
    await (await SqliteStore.open(tmp_path / "state.db")).close()
    marker = marker_of(tmp_path / "state.db")
    marker.unlink()  # the database is older than the marker
    (tmp_path / "attachments" / "1.png").touch()
    await (await SqliteStore.open(tmp_path / "state.db")).close()
    assert marker.stat().st_mode & 0o777 == 0o600


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


async def test_a_damaged_header_of_our_database_is_reported_as_damage(store: Store) -> None:
    await store.close()
    with store.path.open("r+b") as file:
        file.write(b"\xff" * 100)
    with pytest.raises(StoreUnavailable, match="stop the gateway"):
        await SqliteStore.open(store.path)


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    return table


def test_a_network_disk_is_refused_and_named(mounts: Path) -> None:
    with pytest.raises(ConfigError, match="nfs4"):
        refuse_network_disk(Path("/srv/team files/home/state.db"), mounts)


@pytest.mark.parametrize("path", ["/home/ada/state.db", "/srv/team files/local/state.db", "/srv/team/state.db"])
def test_a_local_disk_is_accepted(mounts: Path, path: str) -> None:
    refuse_network_disk(Path(path), mounts)


def test_a_missing_mount_table_is_accepted(tmp_path: Path) -> None:
    refuse_network_disk(tmp_path / "state.db", tmp_path / "missing")
