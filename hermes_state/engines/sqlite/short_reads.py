"""Short reads: a few rows by an index, read on the event loop itself, which costs no visit to a thread.

Nothing waits there. What another process locks, what takes many steps, and what a slow disk holds up is left to the
reader threads; after a disk was slow once, so is everything for a while.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hermes_state.engines.sqlite import connections

T = TypeVar("T")

MAX_STEPS = 2_500
"""Most SQLite virtual machine steps of a short read, some 100 rows: less than a millisecond."""
MAX_ROW_BYTES = 16_384
"""Longest row of a short read."""
SLOW_SECONDS = 0.02
"""Time after which a read was held up, by the disk or by other threads: usual ones take a tenth of a millisecond."""
PAUSE_SECONDS = 5.0
"""Time for which everything is left to the reader threads after that."""

_CHECK_STEPS = 250


class ShortReadExceeded(Exception):
    """The read was not answered at once: it belongs on a reader's thread."""


class ShortReader:
    """A connection of the event loop's own that only reads and never waits for a lock."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        connections.prepare_reader(self._db, 0.0)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
        self._db.set_progress_handler(self._is_over, _CHECK_STEPS)
        self._steps = 0
        self._began = self._paused_until = 0.0

    def run(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """Read with `call` from one snapshot. Raises `ShortReadExceeded`."""
        self._began, self._steps = time.monotonic(), 0
        if self._began < self._paused_until:
            raise ShortReadExceeded
        try:
            self._db.execute("BEGIN")
            return call(self._db)
        except sqlite3.Error as error:
            if not (connections.is_trouble(error) or error.sqlite_errorcode == sqlite3.SQLITE_TOOBIG):
                raise
            raise ShortReadExceeded from error  # the reader that tries again tells what it meets
        finally:
            self._steps = -MAX_STEPS  # ending the snapshot is never to be interrupted
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            ended = time.monotonic()
            if ended - self._began > SLOW_SECONDS:
                self._paused_until = ended + PAUSE_SECONDS

    def close(self) -> None:
        self._db.close()

    def _is_over(self) -> bool:
        self._steps += _CHECK_STEPS
        return self._steps > MAX_STEPS or (self._steps > 0 and time.monotonic() - self._began > SLOW_SECONDS)
