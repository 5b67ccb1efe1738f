"""Detect a lost database, whose files were moved or deleted, or are missing at start.

SQLite continues to write to an open file that was deleted or replaced. The next start would not find those writes.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from hermes_state.errors import DatabaseRejected
from hermes_state.store.sql import scalar

_PATH_ONLY: int | None = getattr(os, "O_PATH", None)
"""Flag that opens a file without access to its content (Linux).

Closing a descriptor that was opened without this flag would release SQLite's locks.
"""

_MARKER = """A database of hermes-gateway belongs next to this file. If it is missing, the gateway refuses to start
instead of creating an empty one. `hermes-gateway run --fresh` creates an empty database.
"""


class DatabaseHandle:
    """Descriptors of the database file, its log and its shared memory, as they were when the store opened them."""

    def __init__(self, path: Path) -> None:
        names = (path, *side_files(path))
        self._held = {
            name: (None if _PATH_ONLY is None else os.open(name, _PATH_ONLY | os.O_CLOEXEC), name.stat())
            for name in names
            if name.exists()
        }

    def uses(self, path: Path) -> bool:
        """Return True if `path` names one of the database's files, even if that file is missing."""
        return path.parent.resolve() / path.name in {name.parent.resolve() / name.name for name in self._held}

    def find_loss(self) -> str | None:
        """Return a sentence that reports a moved, deleted or replaced file, or None if all files are in place."""
        for name, (descriptor, before) in self._held.items():
            held = before if descriptor is None else os.fstat(descriptor)
            try:
                now = name.stat()
            except (FileNotFoundError, NotADirectoryError):
                return _loss(name, _moved_to(descriptor), is_replaced=False)
            except OSError:
                continue
            if not os.path.samestat(held, now):
                return _loss(name, _moved_to(descriptor), is_replaced=True)
        return None

    def close(self) -> None:
        for descriptor, _ in self._held.values():
            if descriptor is not None:
                os.close(descriptor)
        self._held.clear()


def side_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the write-ahead log and the shared memory of the database at `path`. Follows links."""
    real = path.resolve()
    return real.with_name(real.name + "-wal"), real.with_name(real.name + "-shm")


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def refuse_loss(path: Path) -> None:
    """Raise `DatabaseRejected` if a marker or attachments show that a database existed at `path`."""
    files = path.parent / "attachments"
    signs = [marker_of(path), *(list(files.iterdir())[:1] if files.is_dir() else [])]
    if (sign := next((sign for sign in signs if sign.exists()), None)) is not None:
        raise DatabaseRejected(
            f"the database {path} is {'empty' if path.exists() else 'missing'}, but {sign} shows that it existed: "
            "restore it or a backup (docs/reference/operations.md, A lost database). `hermes-gateway run --fresh` "
            "starts with an empty database, without the conversations"
        )


def refuse_empty(db: sqlite3.Connection, path: Path) -> None:
    """Call `refuse_loss` if the open database has no tables."""
    if not scalar(db, int, "PRAGMA user_version"):
        refuse_loss(path)


def marker_of(path: Path) -> Path:
    """Return the path of the marker for the database at `path`. Deleting `state.db*` does not delete the marker."""
    return path.with_suffix(".made")


def leave_marker(path: Path) -> None:
    """Write the marker of the database at `path` (mode 0600)."""
    with suppress(OSError):  # the marker exists already, or the disk is full: the gateway can run without it
        descriptor = os.open(marker_of(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(_MARKER)


def _moved_to(descriptor: int | None) -> str | None:
    if descriptor is None or not os.fstat(descriptor).st_nlink:
        return None
    with suppress(OSError):
        where = os.readlink(f"/proc/self/fd/{descriptor}")
        return None if where.endswith(" (deleted)") else where
    return None


def _loss(name: Path, where: str | None, *, is_replaced: bool) -> str:
    happened = f"was moved to {where}" if where is not None else "was deleted"
    if is_replaced:
        happened = f"{happened} and replaced by another file"
    elif where is not None:
        happened = f"{happened}; move it back, and the gateway continues"
    return (
        f"{name} {happened}. New messages are not accepted. Before you stop the gateway, save all data with "
        "`hermes-gateway backup FILE`; then see docs/reference/operations.md, A lost database."
    )
