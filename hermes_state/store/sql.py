"""SQL helpers for functions inside a transaction, and the group commit that runs many functions in one transaction.

The helpers convert rows to objects by column name. A column fills the field with its name. `"chat.platform"` fills the
field `platform` of the field `chat`, which is None if all its columns are NULL. The field's type decides the
conversion: enums by value, booleans from 0 and 1, msgspec structs from JSON.

>>> import sqlite3
>>> from hermes_state.values import ChatKey
>>> db = sqlite3.connect(":memory:")
>>> select(db, ChatKey, "SELECT 'local' AS platform, 'local' AS account, 'main' AS chat_ref")[0].name
'local:main'
"""

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from hermes_state.errors import StoreUnavailable
from hermes_state.store.locks import locks

T = TypeVar("T")

Parameters: TypeAlias = Sequence[object] | Mapping[str, object]
_Row: TypeAlias = tuple[Any, ...]  # field values


class Cursor(Protocol):
    """Result of a statement, like `sqlite3.Cursor`."""

    @property
    def description(self) -> Any:
        """A tuple for each column, which starts with the column's name."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """Connection for a function inside a transaction, like `sqlite3.Connection`. Placeholders are `?` or `:name`."""

    @property
    def in_transaction(self) -> bool:
        """False if the transaction has ended by itself, for example after a disk error."""

    def execute(self, sql: str, parameters: Any = ..., /) -> Cursor: ...
    def executemany(self, sql: str, parameters: Iterable[Any], /) -> object: ...


def select(db: Connection, cls: type[T], query: str, parameters: Parameters = ()) -> list[T]:
    """Return each row of a query as a `cls`."""
    cursor = db.execute(query, parameters)
    return list(map(_mapper_of(cls, cursor), cursor.fetchall()))


def select_one(db: Connection, cls: type[T], query: str, parameters: Parameters = ()) -> T | None:
    """Return the first row of a query as a `cls`, or None if there are no rows."""
    cursor = db.execute(query, parameters)
    row = cursor.fetchone()
    return None if row is None else _mapper_of(cls, cursor)(row)


def scalars(db: Connection, cls: Callable[[Any], T], query: str, parameters: Parameters = ()) -> list[T]:
    """Return the values of a query's only column, each converted by `cls`."""
    return [cls(value) for (value,) in db.execute(query, parameters).fetchall()]


def scalar(db: Connection, cls: Callable[[Any], T], query: str, parameters: Parameters = ()) -> T:
    """Return the value of a query that always returns exactly one, converted by `cls`."""
    (value,) = db.execute(query, parameters).fetchone()
    return cls(value)


def scalar_or_none(db: Connection, cls: Callable[[Any], T], query: str, parameters: Parameters = ()) -> T | None:
    """Return the single value of a query, converted by `cls`, or None if it is NULL or there is no row."""
    (value,) = db.execute(query, parameters).fetchone() or (None,)
    return None if value is None else cls(value)


def insert_row(db: Connection, cls: Callable[[Any], T], query: str, parameters: Parameters) -> T:
    """Insert one row and return its id, converted by `cls`."""
    return scalar(db, cls, f"{query} RETURNING id", parameters)


def insertion(table: str, names: Iterable[str]) -> str:
    """Return a statement that inserts a row into `table`. `names` are the names of both columns and parameters."""
    names = list(names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


def columns(cls: type, table: str, field: str = "") -> str:
    """Return the columns of `table` that a SELECT needs to fill a `cls`, or a `field` that holds a `cls`.

    >>> from hermes_state.values import Cursor
    >>> columns(Cursor, "c", "cursor")[:68]
    'c.platform AS "cursor.platform", c.account AS "cursor.account", c.ch'
    """
    names = get_type_hints(cls)
    return ", ".join(f'{table}.{name} AS "{field}.{name}"' if field else f"{table}.{name}" for name in names)


def containing(words: str) -> str:
    """Return a pattern for `LIKE … ESCAPE '!'` that matches lower-case text that contains `words` as a phrase."""
    return f"%{words.lower().replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"


@contextmanager
def nested(db: Connection) -> Iterator[None]:
    """Open a savepoint. If the block raises, only its changes are rolled back."""
    db.execute("SAVEPOINT nested")
    try:
        yield
        if db.in_transaction:
            db.execute("RELEASE nested")  # may raise the error of an earlier statement whose result was not read
    except BaseException:
        if db.in_transaction:  # a full disk ends the transaction and its savepoints
            db.execute("ROLLBACK TO nested")
            db.execute("RELEASE nested")
        raise


def _mapper_of(cls: Callable[..., T], cursor: Cursor) -> Callable[..., T]:
    return _mapper(cls, tuple([column[0] for column in cursor.description]))


@cache  # resolving type hints takes longer than most queries
def _mapper(cls: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    types = {}
    for name, hint in get_type_hints(cls).items():
        kinds = [one for one in get_args(hint) if one is not NoneType] if get_origin(hint) in (Union, UnionType) else []
        types[name] = kinds[0] if len(kinds) == 1 else hint
    converters = [(name, convert) for name in names if (convert := _converter(types.get(name))) is not None]
    parts = []
    for name, kind in types.items():
        if part := [column for column in names if column.startswith(f"{name}.")]:
            parts.append((name, part, _mapper(kind, tuple(column.removeprefix(f"{name}.") for column in part))))

    def make(row: _Row) -> Any:
        values = dict(zip(names, row, strict=True))
        for name, convert in converters:
            if (value := values[name]) is not None:
                values[name] = convert(value)
        for name, part, make_part in parts:
            inner = [values.pop(column) for column in part]
            values[name] = make_part(inner) if inner.count(None) < len(inner) else None
        return cls(**values)

    return make


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    if not isinstance(kind, type):
        return None
    if issubclass(kind, Enum):
        return {member.value: member for member in kind}.__getitem__  # several times faster than calling the enum
    if issubclass(kind, msgspec.Struct):
        return msgspec.json.Decoder(kind).decode
    return bool if kind is bool else None


def load_note(db: Connection, key: str) -> str | None:
    """Load the note stored under `key`, or return None if there is none."""
    return scalar_or_none(db, str, "SELECT value FROM meta WHERE key = ?", (key,))


@locks("notes")
def save_note(db: Connection, key: str, value: str) -> None:
    upsert = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    db.execute(upsert, (key, value))


# ---- group commit on a writer's thread

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
                self.result = self._call(db)
            self.error = None
        except BaseException as error:  # passed on to the waiting caller
            if ends_batch(error):
                raise
            if not db.in_transaction:
                raise StoreUnavailable(_BROKEN_OFF) from error
            self.error = error
        if not db.in_transaction:
            raise StoreUnavailable(_BROKEN_OFF)

    def _call(self, db: Connection) -> Any:
        try:
            return self.fn(db, *self.args, **self.kwargs)
        except BaseException as error:
            # A cursor in a frame whose rows are not all read keeps its statement open. SQLite then refuses to commit.
            traceback.clear_frames(error.__traceback__)
            raise

    def fail(self, error: BaseException) -> None:
        """Raise the error in the caller, unless the caller has stopped waiting."""
        if not self.future.done():
            if isinstance(error, StopIteration):  # a future cannot carry it
                error = RuntimeError("a stored function raised StopIteration")
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True)
class TransactionRules:
    """Parts of the group commit that differ between the engines."""

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
