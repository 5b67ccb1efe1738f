"""Durable file writes, and free disk space."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Room(NamedTuple):
    """Free bytes and inodes on a disk."""

    bytes: int
    files: int

    @classmethod
    def on(cls, folder: Path) -> "Room":
        """Return the free space on the disk of `folder`. Without an inode limit, `files` is 2**62.

        Raises `OSError` if the folder cannot be accessed.
        """
        disk = os.statvfs(folder)
        return cls(disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 1 << 62)

    @classmethod
    def is_used_up(cls, folder: Path) -> bool:
        """Return True if the disk is too full to open a database reliably."""
        with suppress(OSError):
            return cls.on(folder).is_short(_RESERVE_FILES * _RESERVE_BYTES // 2, _RESERVE_FILES // 2)
        return False

    def is_short(self, bytes: int, files: int) -> bool:
        return self.bytes < bytes or self.files < files


MIN_ROOM = Room(200_000_000, 50_000)
"""Free space below which running commands are stopped, if there was more than this when they started."""
MIN_ROOM_OF_TOOLS = Room(20_000_000, 200)  # free space that file tools must leave for the database
_RESERVE_FILES, _RESERVE_BYTES = 16, 1 << 18


def take_reserve(home: Path) -> None:
    """Create as many reserve files in `home` as will fit. Deleting them lets the gateway start on a full disk."""
    with suppress(OSError):
        (home / "reserve").mkdir(mode=0o700, exist_ok=True)
        for file in (home / "reserve" / str(number) for number in range(_RESERVE_FILES)):
            if not file.exists():
                file.write_bytes(os.urandom(_RESERVE_BYTES))  # random bytes, because some file systems compress files


def release_reserve(home: Path) -> None:
    for file in (home / "reserve").glob("*"):
        file.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
