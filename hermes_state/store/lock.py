"""File lock with one holder: an advisory lock on a side file that names the holder.

The kernel releases a `flock` when its process ends, even after a crash. The file is never deleted: otherwise two
processes could lock two files with the same name.
"""

import contextlib
import errno
import fcntl
import os
import stat
import sys
import time
from pathlib import Path
from typing import Self

import msgspec

from hermes_state.errors import LockUnavailable, StoreUnavailable


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Holder of a lock, as written to the lock file."""

    pid: int
    command: str
    since: int  # UTC seconds since the epoch


class FileLock:
    """A lock held by this process, returned by `acquire`. `release` can be called more than once."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path, *, what: str, is_shared: bool = False) -> Self:
        """Acquire the lock at `path`, creating its file (mode 0600) if needed.

        `what` is the name of the protected resource in error messages. `is_shared` lets the processes of several users
        lock the same file. Raises `LockUnavailable` if a running process (even this one) holds the lock, and
        `StoreUnavailable` if the lock file cannot be opened.
        """
        try:
            descriptor = (_open_shared if is_shared else _open)(path)
        except OSError as error:
            raise StoreUnavailable(f"cannot open the lock file {path}: {error.strerror or error}") from error
        if not _take(descriptor):
            who = _read_holder(descriptor)
            os.close(descriptor)
            raise LockUnavailable(f"{what} is in use by {who}", holder=who)
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]]).strip() or "python"
        text = msgspec.json.encode(ProcessInfo(pid=os.getpid(), command=command, since=int(time.time())))
        with contextlib.suppress(OSError):  # on a full disk, the file does not name the holder
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)
        return cls(path, descriptor)

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # the name of an old holder in an unlocked file is harmless
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def refuse_held(path: Path, *, what: str) -> None:
    """Raise `LockUnavailable` if a process holds the lock at `path`. Does not create the lock file."""
    if (who := holder(path)) is not None:
        raise LockUnavailable(f"{what} is in use by {who}", holder=who)


def holder(path: Path) -> str | None:
    """Describe the holder of the lock at `path` (None: free). Raises `StoreUnavailable` if the file is unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(f"cannot open the lock file {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(descriptor)
    else:
        return None
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _open_shared(path: Path) -> int:
    """Open a lock file that the processes of all users share. Refuse links and special files."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    before = os.umask(0)
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666))
    finally:
        os.umask(before)
    descriptor = os.open(path, flags)  # without O_CREAT, which fails for another user's file in a sticky folder
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EEXIST, "not a regular file")
    return descriptor


def _take(descriptor: int) -> bool:
    for attempt in range(3):  # `holder` takes the lock for an instant, which must not make a start fail
        if attempt:
            time.sleep(0.05)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _read_holder(descriptor: int) -> str:
    try:
        found = msgspec.json.decode(os.pread(descriptor, 4096, 0), type=ProcessInfo)
    except msgspec.DecodeError:  # the holder has not written its name yet
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.since))
    return f"process {found.pid} ({found.command}), since {since}"
