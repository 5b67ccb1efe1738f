import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_state.errors import LockUnavailable, StoreUnavailable
from hermes_state.store.lock import FileLock, holder
from tests.hermes_state.helpers import start_python

_HOLDING = """
import os, sys
from pathlib import Path
from hermes_state.store.lock import FileLock
path, user = sys.argv[1:]
if user:
    os.setgid(int(user))
    os.setuid(int(user))
lock = FileLock.acquire(Path(path), what="the token", is_shared=bool(user))
print("held", flush=True)
sys.stdin.read()
"""

_NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db.lock"


def test_a_held_lock_names_its_holder(path: Path) -> None:
    assert holder(path) is None
    assert not path.exists()
    with FileLock.acquire(path, what="the database") as lock:
        assert lock.path == path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        found = holder(path)
        assert is_us(found)
        assert json.loads(path.read_text()).keys() == {"pid", "command", "since"}
        with pytest.raises(LockUnavailable, match=f"the database is in use by process {os.getpid()}") as caught:
            FileLock.acquire(path, what="the database")
        assert caught.value.holder == found == holder(path)


def is_us(found: str | None) -> bool:
    return found is not None and found.startswith(f"process {os.getpid()} ")


@contextmanager
def held_by_another(path: Path, user: int | str = "") -> Iterator[int]:
    """Hold the lock in another process during the block, and yield its id. The process is killed at the end."""
    process = start_python(_HOLDING, path, user)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_released_lock_is_free_and_names_no_holder(path: Path) -> None:
    lock = FileLock.acquire(path, what="the database")
    lock.release()
    lock.release()
    assert holder(path) is None
    FileLock.acquire(path, what="the database").release()


def test_the_lock_of_a_killed_process_is_free_at_once(path: Path) -> None:
    with held_by_another(path) as pid, pytest.raises(LockUnavailable, match=f"process {pid} "):
        FileLock.acquire(path, what="the token")
    assert path.read_text(), "the dead process could not take its name back"
    assert holder(path) is None
    with FileLock.acquire(path, what="the token"):
        assert is_us(holder(path))


def test_a_lock_without_a_holders_name_still_holds(path: Path) -> None:
    with FileLock.acquire(path, what="the token"):
        path.write_text("")
        with pytest.raises(LockUnavailable, match="another process"):
            FileLock.acquire(path, what="the token")
        assert holder(path) == "another process"


def test_an_unreadable_lock_or_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="lock file"):
        holder(tmp_path / ("x" * 300))
    with pytest.raises(StoreUnavailable, match="lock file"):
        FileLock.acquire(tmp_path / "missing" / "x.lock", what="the token")


@pytest.fixture
def meeting_place() -> Iterator[Path]:
    """A lock file in a folder that every user may write to, like `/run/lock`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder / "token.lock"


def test_a_shared_lock_file_is_writable_for_all_despite_the_umask(meeting_place: Path) -> None:
    before = os.umask(0o077)
    try:
        with FileLock.acquire(meeting_place, what="the token", is_shared=True):
            assert stat.S_IMODE(meeting_place.stat().st_mode) == 0o666
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("is_made_by_us", [True, False])
def test_users_share_a_lock_created_by_any_of_them(meeting_place: Path, is_made_by_us: bool) -> None:
    if is_made_by_us:
        FileLock.acquire(meeting_place, what="the token", is_shared=True).release()
    with held_by_another(meeting_place, _NOBODY) as pid:
        assert meeting_place.stat().st_uid == (0 if is_made_by_us else _NOBODY)
        with pytest.raises(LockUnavailable, match=f"process {pid} "):
            FileLock.acquire(meeting_place, what="the token", is_shared=True)
    with FileLock.acquire(meeting_place, what="the token", is_shared=True):
        assert is_us(holder(meeting_place))


@pytest.mark.parametrize("planted", ["a symbolic link", "a hard link", "a pipe"])
def test_a_shared_lock_refuses_planted_links_and_special_files(meeting_place: Path, planted: str) -> None:
    ours = meeting_place.with_name("ours")
    ours.write_text("precious")
    if planted == "a pipe":
        os.mkfifo(meeting_place)
    elif planted == "a hard link":
        os.link(ours, meeting_place)
    else:
        meeting_place.symlink_to(ours)
    with pytest.raises(StoreUnavailable, match="cannot open the lock file"):
        FileLock.acquire(meeting_place, what="the token", is_shared=True)
    assert ours.read_text() == "precious"
