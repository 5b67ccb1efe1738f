"""File lock with one holder at a time: an advisory lock on a side file that tells who holds it.

The kernel drops a `flock` with its process, however that died, so a lock left behind by a crash is free at once. The
file itself stays: removing it would let two processes lock two files of the same name.
"""

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from hermes_state.errors import LockUnavailable, StoreUnavailable

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.05
"""`is_free` holds the lock for an instant; a start at that very moment must not fail because of it."""


class LockHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a lock, as it described itself in the lock file."""

    pid: int
    command: str
    since: int
    """UTC seconds since the epoch."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.since))
        return f"process {self.pid} ({self.command}), since {since}"


class FileLock:
    """A held lock. Use `acquire`; `release` gives it back and may be called again."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path, *, what: str) -> Self:
        """Take the lock at `path`, creating the file (mode 0600) where it is missing.

        `what` names the guarded thing for the message of `LockUnavailable`, which is raised when a living process
        (this one included) holds the lock. `StoreUnavailable` if the file cannot be made.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"cannot open the lock file {path}: {error.strerror}") from error
        if not _take(descriptor):
            found = _read_holder(descriptor)
            os.close(descriptor)
            who = str(found) if found else "another process"
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def is_free(path: Path) -> bool:
    """True while nobody holds the lock at `path`. Creates nothing.

    Raises `StoreUnavailable` if that cannot be seen: the file belongs to somebody else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreUnavailable(f"cannot open the lock file {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def holder(path: Path) -> LockHolder | None:
    """The holder of the lock at `path`; None if it is free, or its holder has not written its name yet.

    Raises `StoreUnavailable` as `is_free` does.
    """
    if is_free(path):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read_holder(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _read_holder(descriptor: int) -> LockHolder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=LockHolder)
    except msgspec.DecodeError:
        return None


def _write_holder(descriptor: int) -> None:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]]).strip() or "python"
    text = msgspec.json.encode(LockHolder(pid=os.getpid(), command=command, since=int(time.time())))
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, only without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
