"""Replacing the database with a backup."""

import os
import shutil
import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from hermes_state.admin.restore import restore_database
from hermes_state.engines.sqlite.migrate import APPLICATION_ID, newest_schema
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import DatabaseRejected, LockUnavailable, StoreUnavailable
from hermes_state.store.sql import load_note, save_note
from tests.hermes_state.helpers import closed_after, opened


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    """A backup with the note `new`. The database in `home` has the note `old`, in its write-ahead log."""
    home = tmp_path / "home"
    async with closed_after(SqliteStore.open(home / "state.db")) as store:
        await store.write(save_note, "state", "new")
        await store.back_up(tmp_path / "backup.db")
        await store.write(save_note, "state", "old")
        for name in ("state.db", "state.db-wal"):
            (tmp_path / "before").mkdir(exist_ok=True)
            shutil.copyfile(home / name, tmp_path / "before" / name)
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "before", home)
    return tmp_path / "backup.db"


def noted(path: Path) -> str | None:
    """Return the note of a sound database."""
    with opened(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return load_note(db, "state")


async def test_the_backup_replaces_the_database_and_the_old_one_stays_beside_it(backup: Path, tmp_path: Path) -> None:
    path = tmp_path / "home" / "state.db"
    report = restore_database(path, backup)
    assert (noted(path), noted(Path(str(report.kept))), noted(backup)) == ("new", "old", "new")
    async with closed_after(SqliteStore.open(path)) as store:
        assert await store.read(load_note, "state") == "new"
        with pytest.raises(LockUnavailable):
            restore_database(path, backup)
    assert restore_database(tmp_path / "empty" / "state.db", backup).kept is None
    (tmp_path / "log").mkdir()
    shutil.copyfile(tmp_path / "before" / "state.db-wal", tmp_path / "log" / "state.db-wal")
    kept = restore_database(tmp_path / "log" / "state.db", backup).kept
    assert sorted(os.listdir(tmp_path / "log")) == [Path(f"{kept}-wal").name, "state.db", "state.db.lock", "state.made"]
    assert noted(tmp_path / "log" / "state.db") == "new"


def test_only_the_database_changes(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "home" / "state.db"
    given = backup.rename(path.with_name("state-restore.db"))
    with opened(given) as db:  # like a copy of a database in use
        db.execute("PRAGMA journal_mode = WAL")
    with opened(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM meta").fetchall()
        with pytest.raises(StoreUnavailable, match="a reader still needs the write-ahead log"):
            restore_database(path, given)
        reader.execute("COMMIT")
    assert noted(path) == "old"
    rename = Path.rename

    def refuse(source: Path, target: Path) -> Path:
        if target == path:
            raise OSError(16, "Device or resource busy")
        return rename(source, target)

    log = Path(f"{path}-wal")
    for gone, there in ((log, path), (path, log)):
        gone.unlink(missing_ok=True)
        there.write_bytes(b"not a database" * 1_000)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", refuse)
            with pytest.raises(StoreUnavailable, match="busy"):
                restore_database(path, given)
        names = {"state.db.lock", "state-restore.db"}
        assert set(os.listdir(path.parent)) - {"state.db-shm"} == {there.name, *names}
        assert there.read_bytes().startswith(b"not a database")
    path.write_bytes(log.read_bytes())
    log.unlink()
    monkeypatch.setattr(os, "link", refuse_links)
    kept = Path(str(restore_database(path, given).kept))
    assert (noted(path), kept.stat().st_mode & 0o77, given.exists()) == ("new", 0, True)
    assert set(os.listdir(path.parent)) == {*names, "state.db", kept.name, "state.made"}


def refuse_links(*_: object) -> None:
    raise OSError(1, "Operation not permitted")


def killed_at(number: int, path: Path, backup: Path) -> bool:
    """Restore in another process, which kills itself before its n-th change of a file. Return False if it finished."""
    if (child := os.fork()) == 0:
        left = iter(range(number))

        def kill(event: str, _: object) -> None:
            if event.partition(".")[0] in ("os", "sqlite3") and next(left, None) is None:
                signal.raise_signal(signal.SIGKILL)

        try:
            sys.addaudithook(kill)
            restore_database(path, backup)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_a_kill_leaves_the_old_or_the_new_database(backup: Path, tmp_path: Path) -> None:
    seen, was_killed = list[str | None](), True
    while was_killed:
        home = tmp_path / f"home{len(seen)}"
        shutil.copytree(tmp_path / "before", home)
        was_killed = killed_at(len(seen), home / "state.db", backup)
        seen.append(noted(home / "state.db"))
        restore_database(home / "state.db", backup)
        assert noted(home / "state.db") == "new"
        assert not list(home.glob("*restoring*")), "a later restore removes what a killed one left"
        assert len(list(home.glob("*-before-restore-*.db"))) == (2 if seen[-1] == "new" else 1)
        shutil.rmtree(home)
    changed = seen.index("new")
    assert changed > 10
    assert seen == ["old"] * changed + ["new"] * (len(seen) - changed)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("missing", "is missing, cut short"),
        ("text", "or not a database"),
        ("other", "is not a database of hermes-gateway"),
        ("newer", "was written by a newer version"),
        ("short", "cut short"),
        ("damaged", "database is damaged"),
        ("without tables", "lacks the table chats"),
        ("own", "is the database in use"),
        ("unfinished", "left by an unfinished restore"),
    ],
)
def test_a_bad_backup_changes_nothing(backup: Path, tmp_path: Path, kind: str, told: str) -> None:
    path = tmp_path / "home" / "state.db"
    data = backup.read_bytes()
    if kind == "missing":
        backup.unlink()
    elif kind == "text":
        backup.write_text("state: new\n" * 100)
    elif kind in ("short", "damaged"):
        backup.write_bytes(data[:-8_192] if kind == "short" else data[:8_192] + b"\xff" * 40_000 + data[48_192:])
    elif kind in ("other", "newer"):
        with opened(backup) as db:
            db.execute(f"PRAGMA application_id = {7 if kind == 'other' else APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {newest_schema() + 1}")
    elif kind == "without tables":
        with opened(backup) as db:
            db.execute("PRAGMA foreign_keys = OFF")
            db.execute("DROP TABLE chats")
    elif kind == "unfinished":
        backup = backup.rename(path.with_name(".state.db.restoring"))
    given = path if kind == "own" else backup
    before = {file.name for file in path.parent.iterdir()}
    with pytest.raises(DatabaseRejected, match=told) as told_error:
        restore_database(path, given)
    assert str(given) in str(told_error.value)
    assert noted(path) == "old"
    assert {file.name for file in path.parent.iterdir()} - before <= {"state.db.lock", "state.db-shm"}


def test_a_damaged_database_is_replaced_and_kept(backup: Path, tmp_path: Path) -> None:
    path = tmp_path / "home" / "state.db"
    for file in (path, Path(f"{path}-wal")):
        file.write_bytes(b"not a database" * 1_000)
    kept = restore_database(path, backup).kept
    assert noted(path) == "new"
    assert kept is not None
    assert Path(kept).read_bytes().startswith(b"not a database")
    with pytest.raises(sqlite3.DatabaseError):
        noted(Path(kept))
