"""Open the database: a file, or PostgreSQL if an address is configured.

PostgreSQL's driver is imported only if needed, because it is optional and takes a quarter of a second to import.
"""

import importlib.util
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

from hermes_state.engines.sqlite import offline as sqlite_offline
from hermes_state.engines.sqlite.connections import Synchronous
from hermes_state.engines.sqlite.file_loss import has_content
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import ConfigError, DatabaseRejected
from hermes_state.setting_types import StoreUrl
from hermes_state.settings import Setting
from hermes_state.store.lock import FileLock, refuse_held
from hermes_state.store.seats import NodeInfo, OnHint, OnlySeat, Seat
from hermes_state.store.sql import Connection, load_note, scalar
from hermes_state.store.writer import Store
from hermes_state.values import Millis

COPY_NOTE = "copied_from"
"""Key of the note that marks a database as an unfinished copy (see `hermes_state.admin.copy`)."""


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """Settings of the database connection."""

    url: Annotated[
        StoreUrl | None, Setting(default_text="the file `state.db` in the state directory", restart=True)
    ] = None
    """PostgreSQL database to use instead of SQLite, such as `postgresql://hermes@db.example.org/hermes`."""
    writers: Annotated[int, Setting(ge=1, le=16, unit="connections", restart=True)] = 2
    """Number of connections that write to PostgreSQL. Raise the number if writes queue up. SQLite always uses one."""
    busy_seconds: Annotated[float, Setting(ge=1, le=600, unit="seconds", restart=True)] = 30
    """Maximum time that a write waits for a database that another process has locked."""
    synchronous: Synchronous = "FULL"
    readers: int = 2
    """Number of connections for reading. Two are enough: most SQLite reads use the event loop's own connection."""

    @property
    def connections(self) -> int:
        """Number of PostgreSQL connections that a node opens, including the one for its seat."""
        return self.writers + self.readers + 1


def missing_driver(url: str | None) -> str | None:
    """Return a hint on how to install the driver for `url`, or None if it is installed. Does not import the driver."""
    if url is None or all(importlib.util.find_spec(name) is not None for name in ("psycopg", "greenlet")):
        return None
    return (
        "store.url needs PostgreSQL's driver, which is not installed: run `make cluster` in a clone, or "
        "`pip install 'hermes-gateway[cluster]'` for an installed package"
    )


async def open_seat(store: Store, seconds: float, node: Callable[[], NodeInfo], on_hint: OnHint, now: Millis) -> Seat:
    """Open the gateway's seat in the open database `store`. The seat holds the gateway's locks.

    A PostgreSQL seat ends after `seconds` without contact. If the seat is lost, the store's connections are aborted
    too, because they use the same server. Raises the errors of `PostgresSeat.open`.
    """
    if isinstance(store, SqliteStore):
        return OnlySeat()
    from hermes_state.engines.postgres.seat import PostgresSeat
    from hermes_state.engines.postgres.store import PostgresStore

    assert isinstance(store, PostgresStore), "there are two engines"
    return await PostgresSeat.open(store.url, seconds, node(), on_hint, now, store.break_off)


@asynccontextmanager
async def open_store(
    path: Path, url: str | None = None, settings: StoreSettings | None = None, *, is_fresh: bool = False
) -> AsyncIterator[Store]:
    """Open the database at `url` (None: the file `path`), creating or migrating it if needed. Close it at the end.

    Only one process may use the state directory of `path`. `is_fresh` allows an empty database where an earlier one was
    lost. Raises `ConfigError` for an unusable address, and the errors of the engine's `open`.
    """
    settings = settings or StoreSettings()
    with ExitStack() as held:
        if url is None:
            store: Store = await SqliteStore.open(
                path,
                synchronous=settings.synchronous,
                readers=settings.readers,
                busy_seconds=settings.busy_seconds,
                is_fresh=is_fresh,
            )
        else:
            _check_address(url)
            from hermes_state.engines.postgres.store import PostgresStore

            lock, what = path.with_name(path.name + ".lock"), f"the state directory {path.parent}"
            refuse_held(lock, what=what)
            store = await PostgresStore.open(
                url, writers=settings.writers, readers=settings.readers, busy_seconds=settings.busy_seconds
            )
        try:
            if url is not None:  # after opening the database, because an unusable one must not leave a new folder
                with suppress(OSError):  # if this fails, the lock below reports the reason
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                held.enter_context(FileLock.acquire(lock, what=what))
            if await store.read(load_note, COPY_NOTE) is not None:
                raise DatabaseRejected(
                    f"{store.name} is an unfinished copy: finish it with `hermes-gateway store copy`"
                )
            is_used = "SELECT EXISTS (SELECT 1 FROM chats)"
            if url is not None and not is_fresh and has_content(path) and not await store.read(scalar, bool, is_used):
                raise _forgotten_copy(store.name, path)
            yield store
        finally:
            await store.close()


def check_place(path: Path, url: str, node: NodeInfo, now: Millis, *, is_fresh: bool) -> None:
    """Check the database at `url`. Raise the errors that `open_store` and `open_seat` would raise for it."""
    _check_address(url)
    from hermes_state.engines.postgres import offline as postgres_offline

    is_made = postgres_offline.check_place(url, node, now)
    if not (is_made or is_fresh) and has_content(path):
        raise _forgotten_copy(name_of(url), path)


def _forgotten_copy(name: str, path: Path) -> DatabaseRejected:
    return DatabaseRejected(
        f"{name} is empty, but {path} has data: copy it with `hermes-gateway store copy` before you set store.url, or "
        "start with an empty database with `hermes-gateway run --fresh`"
    )


@contextmanager
def open_offline(path: Path, url: str | None = None) -> Iterator[Connection | None]:
    """Connect to a database for reading while its daemon is not running. Yield None if it does not exist yet.

    Raises `ConfigError`, and the errors of `open_offline_file` and `open_offline_database`.
    """
    if url is None:
        with sqlite_offline.open_offline_file(path) as file:
            yield file
        return
    _check_address(url)
    from hermes_state.engines.postgres.offline import open_offline_database

    with open_offline_database(url) as database:
        yield database


@contextmanager
def open_ends(source: Path | str, target: Path | str) -> Iterator[tuple[Connection, Connection]]:
    """Open exclusive connections to the source and the target of a copy, which can be files or addresses.

    Raises `LockUnavailable`, `StoreUnavailable`, and `DatabaseRejected`, for example if the source does not exist.
    """
    with _end(source, "source") as read, _end(target, "target") as written:
        yield read, written


def _end(place: Path | str, kind: Literal["source", "target"]) -> AbstractContextManager[Connection]:
    if isinstance(place, Path):
        return sqlite_offline.open_source(place) if kind == "source" else sqlite_offline.open_target(place)
    _check_address(place)
    from hermes_state.engines.postgres import offline as postgres_offline

    return postgres_offline.open_source(place) if kind == "source" else postgres_offline.open_target(place)


def name_of(place: Path | str) -> str:
    """Return a database's name or address for use in messages, without its password."""
    if isinstance(place, Path):
        return str(place.resolve())
    from hermes_state.engines.postgres.store import name_of as name_of_address

    return name_of_address(place)


def _check_address(url: str) -> None:
    if (missing := missing_driver(url)) is not None:
        raise ConfigError(missing)
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except ProgrammingError:  # the message may contain the password
        raise ConfigError(
            "store.url is not a valid PostgreSQL address: it has an unknown parameter, or a % that does not start a "
            "code such as %40 for @"
        ) from None


class OfflineEngine(Protocol):
    """Contents of the `offline` module of each engine that work on an open connection."""

    SCHEMA: str
    BYTES: str
    ROW_ERRORS: tuple[type[Exception], ...]

    def find_fault(self, db: Connection, /) -> str | None:
        """Return a sentence that describes a fault, or None. For SQLite, this takes seconds per gigabyte."""

    def describe(self, db: Connection, /) -> str:
        """Return a short phrase that describes the database and can start a sentence."""

    def load_sequences(self, db: Connection, /) -> dict[str, int]: ...
    def set_sequences(self, db: Connection, highest: dict[str, int], /) -> None: ...
    def make_search_index(self, db: Connection, /) -> None: ...


def engine_of(db: Connection) -> OfflineEngine:
    if isinstance(db, sqlite3.Connection):
        return sqlite_offline
    from hermes_state.engines.postgres import offline as postgres_offline

    return postgres_offline
