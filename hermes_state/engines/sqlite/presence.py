"""Loss of the database: its files are not under their names any more, or are missing at a start.

SQLite goes on writing into an open file that was deleted or replaced, which no restart finds again.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from hermes_state.errors import DatabaseRejected
from hermes_state.store.sql import scalar

_PATH_ONLY: int | None = getattr(os, "O_PATH", None)
"""Flag for a descriptor without access to the content (Linux): closing another one would drop SQLite's locks."""

_MARKER = """A database of hermes-gateway belongs beside this file. A start that does not find it says so, instead of
beginning with an empty one; `hermes-gateway run --fresh` begins anew.
"""


class DatabaseHandle:
    """The database file, its log and its shared memory, held as they were when they were opened."""

    def __init__(self, path: Path) -> None:
        names = (path, *side_files(path))
        self._held = {
            name: (None if _PATH_ONLY is None else os.open(name, _PATH_ONLY | os.O_CLOEXEC), name.stat())
            for name in names
            if name.exists()
        }

    def uses(self, path: Path) -> bool:
        """Return True if `path` is the name of one of the files, present or not."""
        return path.parent.resolve() / path.name in {name.parent.resolve() / name.name for name in self._held}

    def find_loss(self) -> str | None:
        """Return a sentence for operators about the first file that is not under its name any more."""
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
        """Close the descriptors."""
        for descriptor, _ in self._held.values():
            if descriptor is not None:
                os.close(descriptor)
        self._held.clear()


def side_files(path: Path) -> tuple[Path, Path]:
    """Return the write-ahead log and the shared memory of the database at `path`, next to the real file."""
    real = path.resolve()
    return real.with_name(real.name + "-wal"), real.with_name(real.name + "-shm")


def has_content(path: Path) -> bool:
    """Return True if the file at `path` is not empty."""
    return path.exists() and path.stat().st_size > 0


def refuse_loss(path: Path) -> None:
    """Raise `DatabaseRejected` if a marker or attachments show that there was a database at `path`."""
    files = path.parent / "attachments"
    signs = [marker_of(path), *(list(files.iterdir())[:1] if files.is_dir() else [])]
    if (sign := next((sign for sign in signs if sign.exists()), None)) is not None:
        raise DatabaseRejected(
            f"the database {path} is {'empty' if path.exists() else 'missing'}, but {sign} shows that there was one: "
            "restore it or a backup of it (docs/reference/operations.md, A lost database), or start with an empty "
            "database, without the conversations, with `hermes-gateway run --fresh`"
        )


def refuse_empty(db: sqlite3.Connection, path: Path) -> None:
    """`refuse_loss` for the open database at `path`, if it has no tables."""
    if not scalar(db, int, "PRAGMA user_version"):
        refuse_loss(path)


def marker_of(path: Path) -> Path:
    """Return the marker of the database at `path`, which no pattern such as `state.db*` matches."""
    return path.with_suffix(".made")


def leave_marker(path: Path) -> None:
    """Write the marker of the database at `path` (mode 0600)."""
    with suppress(OSError):  # there already, or a full disk: no reason not to start
        descriptor = os.open(marker_of(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(_MARKER)


def _moved_to(descriptor: int | None) -> str | None:
    """Return the present path of an open file, if it has one."""
    if descriptor is None or not os.fstat(descriptor).st_nlink:
        return None
    with suppress(OSError):
        where = os.readlink(f"/proc/self/fd/{descriptor}")
        return None if where.endswith(" (deleted)") else where
    return None


def _loss(name: Path, where: str | None, *, is_replaced: bool) -> str:
    happened = f"was moved to {where}" if where is not None else "was deleted"
    if is_replaced:
        happened = f"{happened}, and another file has its place"
    elif where is not None:
        happened = f"{happened}; once it is back, the gateway goes on"
    return (
        f"{name} {happened}. Nothing new is taken. Everything is still open here: `hermes-gateway backup FILE` copies "
        "it out, before the gateway stops; docs/reference/operations.md, A lost database, says how to put it back."
    )
