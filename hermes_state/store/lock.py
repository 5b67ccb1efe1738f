"""File lock with one holder at a time: an advisory lock on a side file that tells who holds it.

The kernel drops a `flock` with its process, however that died, so a lock left behind by a crash is free at once. The
file itself stays: removing it would let two processes lock two files of the same name.
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

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.05
"""`holder` takes the lock for an instant; a start at that very moment must not fail because of it."""


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a lock, as it described itself in the lock file."""

    pid: int
    command: str
    since: int  # UTC seconds since the epoch


class FileLock:
    """A held lock. Use `acquire`; `release` gives it back and may be called again."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path, *, what: str, is_shared: bool = False) -> Self:
        """Take the lock at `path`, creating the file (mode 0600) where it is missing.

        `what` names the guarded thing for the message of `LockUnavailable`, which is raised when a living process
        (this one included) holds the lock. `StoreUnavailable` if the file cannot be made. `is_shared`: the file lies
        where every user may write, and every user may take the lock.
        """
        try:
            descriptor = (_open_shared if is_shared else _open)(path)
        except OSError as error:
            raise StoreUnavailable(f"cannot open the lock file {path}: {error.strerror or error}") from error
        if not _take(descriptor):
            who = _read_holder(descriptor)
            os.close(descriptor)
            raise LockUnavailable(f"{what} is in use by {who}", holder=who)
        _write_holder(descriptor)
        return cls(path, descriptor)

    def release(self) -> None:
        """Give the lock back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # an old name in a free file does no harm
                os.ftruncate(descriptor, 0)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def refuse_held(path: Path, *, what: str) -> None:
    """Raise `LockUnavailable` if a living process holds the lock at `path`. Creates nothing; `what` as in `acquire`."""
    if (who := holder(path)) is not None:
        raise LockUnavailable(f"{what} is in use by {who}", holder=who)


def holder(path: Path) -> str | None:
    """The process that holds the lock at `path`, in words; None while it is free. Creates nothing.

    Raises `StoreUnavailable` if that cannot be seen: the file belongs to somebody else.
    """
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
    """Descriptor of a lock file of all users; a link, or anything else that somebody may have put there, is refused."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    before = os.umask(0)
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666))
    finally:
        os.umask(before)
    descriptor = os.open(path, flags)  # without O_CREAT, which a sticky folder denies for another user's file
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EEXIST, "it is no plain file")
    return descriptor


def _take(descriptor: int) -> bool:
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _read_holder(descriptor: int) -> str:
    try:
        found = msgspec.json.decode(os.pread(descriptor, 4096, 0), type=ProcessInfo)
    except msgspec.DecodeError:  # it has not written its name yet
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.since))
    return f"process {found.pid} ({found.command}), since {since}"


def _write_holder(descriptor: int) -> None:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]]).strip() or "python"
    text = msgspec.json.encode(ProcessInfo(pid=os.getpid(), command=command, since=int(time.time())))
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, only without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
