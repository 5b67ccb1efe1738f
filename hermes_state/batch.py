"""What happens on the writer's thread: many functions, one transaction, one commit."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_state.connections import is_trouble
from hermes_state.errors import StoreUnavailable

_BROKEN_OFF = "the transaction broke off inside a function; nothing was stored"


@dataclass(slots=True, eq=False)
class Write:
    """A function that waits for its turn, and what became of it."""

    call: Callable[[sqlite3.Connection], Any]  # every function has its own result; `Store.write` gives it its type back
    future: asyncio.Future[Any]
    queued_at: float = field(default_factory=time.monotonic)
    result: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Tell the caller, unless it has stopped waiting."""
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        elif isinstance(self.error, StopIteration):  # a future cannot carry it
            self.future.set_exception(RuntimeError("a stored function raised StopIteration"))
        else:
            self.future.set_exception(self.error)

    def fail(self, error: BaseException) -> None:
        """Tell the caller that nothing of its function was stored."""
        self.error = error
        self.settle()


def commit_batch(db: sqlite3.Connection) -> None:
    """Commit the batch. Everything that the store ever acknowledges has come through here."""
    db.execute("COMMIT")


def run_batch(db: sqlite3.Connection, batch: Sequence[Write]) -> None:
    """Run every function of `batch` in one transaction and commit it.

    A function that raises takes back its own changes only and keeps its exception in `error`; the others are stored.
    On return each write has its `result` or `error`. If this raises (`StoreUnavailable`, or SQLite's error about the
    disk, a lock or the commit), nothing of the batch is stored, its outcomes mean nothing, and it may be run again.
    """
    _roll_back(db)  # a rollback may have failed earlier, when the disk did
    try:
        db.execute("BEGIN IMMEDIATE")
        for write in batch:
            _run_one(db, write, is_alone=len(batch) == 1)
        if any(write.error is None for write in batch):
            commit_batch(db)
    except sqlite3.IntegrityError:
        # Only a constraint that is checked at the commit comes here. Alone, each function gets its own verdict.
        _roll_back(db)
        if len(batch) == 1:
            raise
        for write in batch:
            _run_apart(db, write)
    finally:
        _roll_back(db)


def _run_one(db: sqlite3.Connection, write: Write, *, is_alone: bool) -> None:
    write.result = write.error = None
    if not is_alone:
        db.execute("SAVEPOINT one")
    try:
        write.result = write.call(db)
    except BaseException as error:  # whatever it is, it belongs to the caller who waits
        if is_trouble(error):
            raise
        if not db.in_transaction:
            raise StoreUnavailable(_BROKEN_OFF) from error
        write.error = error
        if not is_alone:
            db.execute("ROLLBACK TO one")
            db.execute("RELEASE one")
    else:
        if not db.in_transaction:
            raise StoreUnavailable(_BROKEN_OFF)
        if not is_alone:
            db.execute("RELEASE one")


def _run_apart(db: sqlite3.Connection, write: Write) -> None:
    try:
        run_batch(db, [write])
    except (sqlite3.Error, StoreUnavailable) as error:  # the verdict on this one; those before it are stored
        write.error = error


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        with contextlib.suppress(sqlite3.Error):  # the error that led here is told; the next batch tries again
            db.execute("ROLLBACK")
