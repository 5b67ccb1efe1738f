"""Group commit on a writer's thread: many functions, one transaction."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import Connection, nested

_BROKEN_OFF = "the transaction ended inside a function; nothing was stored"


@dataclass(slots=True, eq=False, repr=False)
class WriteRequest:
    """A queued function and its outcome."""

    future: asyncio.Future[Any]  # `Store.write` knows the type of the result
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queued_at: float = field(default_factory=time.monotonic)
    result: Any = None
    error: BaseException | None = None

    def run(self, db: Connection, ends_batch: Callable[[BaseException], bool], *, is_nested: bool = False) -> None:
        """Run the function in the open transaction, inside a savepoint if `is_nested`. Store its result or error.

        Raises only errors that end the whole batch: a database or lock error, or a transaction that ended by itself.
        """
        try:
            with nested(db) if is_nested else contextlib.nullcontext():
                self.result = self.fn(db, *self.args, **self.kwargs)
            self.error = None
        except BaseException as error:  # passed on to the waiting caller
            if ends_batch(error):
                raise
            if not db.in_transaction:
                raise StoreUnavailable(_BROKEN_OFF) from error
            self.error = error
        if not db.in_transaction:
            raise StoreUnavailable(_BROKEN_OFF)

    def fail(self, error: BaseException) -> None:
        """Raise the error in the caller, unless the caller has stopped waiting."""
        if not self.future.done():
            if isinstance(error, StopIteration):  # a future cannot carry it
                error = RuntimeError("a stored function raised StopIteration")
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True)
class TransactionRules:
    """Parts of group commit that differ between the engines."""

    begin: Callable[[Any, Sequence[WriteRequest]], Sequence[Sequence[WriteRequest]]]
    """Begin a batch's transaction. Return queues of writes. Writes in the same queue must run in order."""
    run_all: Callable[[Any, Sequence[Callable[[], None]]], None]
    """Run functions that do not depend on each other, one for each queue."""
    ends_batch: Callable[[BaseException], bool]
    """Return True for a database or lock error that makes the whole batch fail."""
    failure: type[Exception]  # base class of the engine's errors
    rejection: type[Exception]  # error for a violated constraint


def commit_batch(db: Connection) -> None:
    """Commit the batch. Every acknowledged write passes through this function."""
    db.execute("COMMIT")


def run_batch(db: Connection, batch: Sequence[WriteRequest], rules: TransactionRules) -> None:
    """Run the functions of `batch` in one transaction and commit it.

    Afterwards each write has a `result`, or an `error` if its changes were undone. If this raises (`StoreUnavailable`,
    or the engine's error about the disk, a lock or the commit), nothing is stored and the batch may run again.
    """
    _roll_back(db, rules)  # an earlier rollback may have failed because of the disk
    try:
        # The first run has no savepoints, because a savepoint costs more than most functions, and functions rarely
        # fail.
        if not _run_open(db, batch, rules) and len(batch) > 1:
            _run_isolated(db, batch, rules)
    except rules.rejection:
        # A constraint that is checked at the commit failed. Run the functions one by one to find the one that violated
        # it.
        _roll_back(db, rules)
        if len(batch) == 1:
            raise
        for write in batch:
            try:
                run_batch(db, [write], rules)
            except (rules.failure, StoreUnavailable) as error:
                write.error = error
    finally:
        _roll_back(db, rules)


def _run_open(db: Connection, batch: Sequence[WriteRequest], rules: TransactionRules) -> bool:
    """Run the batch without savepoints. If a function raises, roll back everything and return False."""
    queues = rules.begin(db, batch)
    rules.run_all(db, [partial(_run_queue, db, queue, rules) for queue in queues])
    if any(write.error is not None for write in batch):
        _roll_back(db, rules)
        return False
    try:
        commit_batch(db)
    except rules.failure as error:
        if rules.ends_batch(error):
            raise
        _roll_back(db, rules)
        batch[0].error = error  # if there are several writes, the isolated run finds the one that failed
        return False
    return True


def _run_queue(db: Connection, queue: Sequence[WriteRequest], rules: TransactionRules) -> None:
    for write in queue:
        write.run(db, rules.ends_batch)
        if write.error is not None:
            return


def _run_isolated(db: Connection, batch: Sequence[WriteRequest], rules: TransactionRules) -> None:
    rules.begin(db, batch)
    for write in batch:
        write.run(db, rules.ends_batch, is_nested=True)
    if any(write.error is None for write in batch):
        commit_batch(db)


def _roll_back(db: Connection, rules: TransactionRules) -> None:
    if db.in_transaction:
        with contextlib.suppress(rules.failure):  # an earlier error stays visible, and the next batch rolls back again
            db.execute("ROLLBACK")
