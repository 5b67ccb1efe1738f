"""Files that are written durably, and the free room on a disk."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Room(NamedTuple):
    """Free room on a disk, in bytes and in files that can still be created (inodes)."""

    bytes: int
    files: int

    @classmethod
    def on(cls, folder: Path) -> "Room":
        """Return the room on the disk of a folder. File systems that count no files have no limit. Raises `OSError`."""
        disk = os.statvfs(folder)
        return cls(disk.f_bavail * disk.f_frsize, disk.f_favail if disk.f_files else 1 << 62)

    @classmethod
    def is_used_up(cls, folder: Path) -> bool:
        """Return True when the disk of a folder is too full to open a database reliably."""
        with suppress(OSError):
            return cls.on(folder).is_short(_RESERVE_FILES * _RESERVE_BYTES // 2, _RESERVE_FILES // 2)
        return False

    def is_short(self, bytes: int, files: int) -> bool:
        return self.bytes < bytes or self.files < files


MIN_ROOM = Room(200_000_000, 50_000)
"""Room at which a command is ended, on a disk that had more when it began."""
MIN_ROOM_OF_TOOLS = Room(20_000_000, 200)  # room that file tools leave to the database
_RESERVE_FILES, _RESERVE_BYTES = 16, 1 << 18


def take_reserve(home: Path) -> None:
    """Keep files in `home` that the gateway deletes to start on a full disk; fewer when there is no room for all."""
    with suppress(OSError):
        (home / "reserve").mkdir(mode=0o700, exist_ok=True)
        for file in (home / "reserve" / str(number) for number in range(_RESERVE_FILES)):
            if not file.exists():
                file.write_bytes(os.urandom(_RESERVE_BYTES))  # random, because some file systems compress


def release_reserve(home: Path) -> None:
    for file in (home / "reserve").glob("*"):
        file.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Put a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
