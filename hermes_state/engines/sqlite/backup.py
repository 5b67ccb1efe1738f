"""Copy the whole database while the daemon writes to it."""

import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

from hermes_state.disk import flush
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import Connection, scalar
from hermes_state.values import Progress

_PAGES_AT_ONCE = 1_024  # 4 MiB


def copy_into(
    db: Connection, target: Path, may_go_on: Callable[[], bool] = lambda: True, progress: Progress = lambda *_: None
) -> int:
    """Copy the open database `db` to the new file `target` (mode 0600). Return its size in bytes.

    Blocks for seconds per gigabyte, so run this in a thread. While others write, `db` must be in a transaction, so that
    its snapshot is copied. Meanwhile the write-ahead log grows. Damaged pages are copied too. A failed copy leaves no
    `target`.

    Raises `StoreUnavailable` if `target` exists, the copy fails, or `may_go_on` returns False.
    """
    if os.path.lexists(target):
        raise StoreUnavailable(f"{target} already exists: choose a new file for the backup")

    def look_up(_status: int, remaining: int, total: int) -> None:
        progress("pages", total - remaining, total)
        if not may_go_on():
            raise StoreUnavailable(f"the backup {target} was cancelled because the gateway is stopping")

    unfinished: Path | None = None
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".unfinished", dir=target.parent)
        os.close(descriptor)
        unfinished = Path(name)
        scalar(db, int, "PRAGMA schema_version")  # starts the snapshot; otherwise every write restarts the copy
        with contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
            copy.execute("PRAGMA synchronous = OFF")  # flushed once, below
            cast("sqlite3.Connection", db).backup(copy, pages=_PAGES_AT_ONCE, progress=look_up)
            copy.execute("PRAGMA journal_mode = DELETE")  # no write-ahead log, so that the backup stays a single file
        flush(unfinished)
        try:
            os.link(unfinished, target)  # fails if another process has created `target` meanwhile
        except FileExistsError:
            raise
        except OSError:  # the file system has no hard links, as on many USB sticks
            unfinished.rename(target)
        flush(target.parent)
        return target.stat().st_size
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable(f"cannot write the backup {target}: {error}") from error
    finally:
        if unfinished is not None:
            with contextlib.suppress(OSError):  # an earlier error must stay visible
                unfinished.unlink(missing_ok=True)
