"""Opening the database, whichever engine has it: a file, or a PostgreSQL database where there is an address.

PostgreSQL's driver is an extra. It is imported only here, and only where an address is configured: that takes a
quarter of a second.
"""

import importlib.util
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from hermes_state.engines.sqlite import resting as sqlite_resting
from hermes_state.engines.sqlite.connections import Synchronous
from hermes_state.engines.sqlite.presence import has_content
from hermes_state.engines.sqlite.resting import open_resting_file
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import ConfigError, DatabaseRejected
from hermes_state.settings import Setting
from hermes_state.store.lock import FileLock, refuse_held
from hermes_state.store.seats import NodeInfo, OnHint, OnlySeat, Seat
from hermes_state.store.sql import Connection, load_note, scalar
from hermes_state.store.writer import Store
from hermes_state.values import Millis

COPY_NOTE = "copied_from"
"""Note in a database that `hermes_state.admin.copy` has not finished."""


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """The database."""

    writers: Annotated[int, Setting(ge=1, le=16, unit="connections", restart=True)] = 2
    """Connections for writing to PostgreSQL; a file has one."""
    busy_seconds: Annotated[float, Setting(ge=1, le=600, unit="seconds", restart=True)] = 30
    """Longest wait of a write while another process locks the database. Raise it if a backup locks it for longer."""
    synchronous: Synchronous = "FULL"
    readers: int = 2
    """Connections for reading. Two suffice: most reads run on the event loop, on a connection of their own."""

    @property
    def connections(self) -> int:
        """Connections to PostgreSQL, the seat of a node included."""
        return self.writers + self.readers + 1


def missing_driver(url: str | None) -> str | None:
    """Advice how to install what an address needs; None if nothing is missing. Imports nothing."""
    if url is None or all(importlib.util.find_spec(name) is not None for name in ("psycopg", "greenlet")):
        return None
    return (
        "store.url needs PostgreSQL's driver, which is not installed: run `make cluster` in a clone, or "
        "`pip install 'hermes-gateway[cluster]'` where the gateway is installed as a package"
    )


async def open_seat(store: Store, seconds: float, node: Callable[[], NodeInfo], on_hint: OnHint, now: Millis) -> Seat:
    """Take the seat of a gateway at an open database; where others may have one, it ends after `seconds` of silence.

    `node`: asked for what others see of this one, where there may be others. With a seat that is lost the store's
    connections are broken off, which have met the same trouble and may never say so.

    Raises what `open` of the engine's seat raises.
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
    """The open database at `url`, else in the file `path`; it is made or migrated first, and closed at the end.

    `path` names the state directory, too: only one process has it. `is_fresh`: an empty database may be made where
    there was one before.

    Raises `ConfigError` for an address that cannot be used, and what `open` of the engine's store raises.
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
            if url is not None:  # a database that cannot be used leaves nothing behind here
                with suppress(OSError):  # the lock says what is wrong
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                held.enter_context(FileLock.acquire(lock, what=what))
            if await store.read(load_note, COPY_NOTE) is not None:
                raise DatabaseRejected(
                    f"{store.name} is an unfinished copy: finish it with `hermes-gateway store copy`"
                )
            if url is not None and not is_fresh and has_content(path) and not await store.read(_has_chats):
                raise _forgotten_copy(store.name, path)
            yield store
        finally:
            await store.close()


def check_place(path: Path, url: str, node: NodeInfo, now: Millis, *, is_fresh: bool) -> None:
    """Check that a gateway may open the database at `url` and have its seat there, before it makes anything anywhere.

    Raises `ConfigError`, `DatabaseRejected` and `StoreUnavailable` as `open_store` and `open_seat` would later.
    """
    _check_address(url)
    from hermes_state.engines.postgres import resting as postgres_resting

    is_made = postgres_resting.check_place(url, node, now)
    if not (is_made or is_fresh) and has_content(path):
        raise _forgotten_copy(name_of(url), path)


def _forgotten_copy(name: str, path: Path) -> DatabaseRejected:
    return DatabaseRejected(
        f"{name} is empty, and there is {path}: `hermes-gateway store copy` moves it there before store.url is set, or "
        "begin anew with `hermes-gateway run --fresh`"
    )


def _has_chats(db: Connection) -> bool:
    return scalar(db, bool, "SELECT EXISTS (SELECT 1 FROM chats)")


@contextmanager
def open_resting(path: Path, url: str | None = None) -> Iterator[Connection | None]:
    """A connection that only reads, to a database that no daemon of ours answers for; None where there is none yet.

    Raises what `open_resting_file` and `open_resting_database` raise, and `ConfigError` as `open_store` does.
    """
    if url is None:
        with open_resting_file(path) as file:
            yield file
        return
    _check_address(url)
    from hermes_state.engines.postgres.resting import open_resting_database

    with open_resting_database(url) as database:
        yield database


@contextmanager
def open_ends(source: Path | str, target: Path | str) -> Iterator[tuple[Connection, Connection]]:
    """Connections to the two ends of a copy, each a file or an address, which this process alone has open meanwhile.

    Raises `LockUnavailable` where a gateway has one of them open, `DatabaseRejected` for one that cannot be an end of
    a copy, and `StoreUnavailable`.
    """
    with _end(source, "source") as read, _end(target, "target") as written:
        yield read, written


def _end(place: Path | str, kind: Literal["source", "target"]) -> AbstractContextManager[Connection]:
    if isinstance(place, Path):
        return sqlite_resting.open_source(place) if kind == "source" else sqlite_resting.open_target(place)
    _check_address(place)
    from hermes_state.engines.postgres import resting as postgres_resting

    return postgres_resting.open_source(place) if kind == "source" else postgres_resting.open_target(place)


def name_of(place: Path | str) -> str:
    """A database in sentences: its file, or its address without a password."""
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
    except ProgrammingError:  # its words may have the password in them
        raise ConfigError(
            "store.url is no address that PostgreSQL's library can read: one of its parameters is unknown, or a % in "
            "it begins no code such as %40 for @"
        ) from None
