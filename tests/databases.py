"""Empty databases of the newest schema: the migrations run once, and every test gets a copy of what they made.

With `HERMES_TEST_ENGINE=postgres` they are databases of a PostgreSQL server of the tests' own instead of files.
"""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psycopg
import pytest

from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from tests.postgres import Postgres, running_server
from tests.reused_databases import reused_databases

IS_POSTGRES = os.environ.get("HERMES_TEST_ENGINE") == "postgres"

REJECTED = (sqlite3.IntegrityError, psycopg.IntegrityError)
"""What the engines say of a row that a constraint does not allow."""
sqlite_only = pytest.mark.skipif(IS_POSTGRES, reason="it looks into SQLite itself")
about_files = pytest.mark.skipif(IS_POSTGRES, reason="it is about the database's files, which a server keeps by itself")

_addresses: dict[Path, str] = {}
"""Databases that stand for the files of the test that runs."""
_databases = ExitStack()
_server = ExitStack()


async def open_store(path: Path) -> Store:
    """Open the database at `path`, an empty one of the newest schema where there is none.

    No commit waits for the disk: nothing that a test kills takes the system's memory of its files with it.
    """
    if IS_POSTGRES:
        from hermes_state.engines.postgres.store import PostgresStore  # late: most runs need none

        if path not in _addresses:
            _addresses[path] = await asyncio.to_thread(_databases.enter_context, fresh_address())
        return await PostgresStore.open(_addresses[path])
    await asyncio.to_thread(_ensure_database, path)
    return await SqliteStore.open(path, synchronous="NORMAL")


def place_of(store: Store) -> Path | str:
    """The file of a store, or its address: what another process opens."""
    return store.path if isinstance(store, SqliteStore) else store.url


def store_environ(path: Path) -> dict[str, str]:
    """What tells a gateway to open what a test has opened as the file at `path`, beside its home."""
    return {"HERMES_STORE__URL": _addresses[path]} if path in _addresses else {}


def drop_databases() -> None:
    """Drop what a test has opened as files."""
    _addresses.clear()
    _databases.close()


@contextlib.contextmanager
def fresh_connection() -> Iterator[Connection]:
    """A connection to an empty database on the run's PostgreSQL server."""
    from hermes_state.engines.postgres.connection import PostgresConnection

    with fresh_address() as address, contextlib.closing(PostgresConnection.open(address)) as db:
        yield db


@contextlib.contextmanager
def fresh_address() -> Iterator[str]:
    """Address of an empty database on the run's PostgreSQL server."""
    with reused_databases(_running()).database() as address:
        yield address


@cache
def _running() -> Postgres:
    folder = Path(tempfile.gettempdir(), f"hermes-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}")
    return _server.enter_context(running_server(folder))  # until this process ends


def _ensure_database(path: Path) -> None:
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(_empty_database())


@cache
def _empty_database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.db"
        asyncio.run(_migrate(path))
        return path.read_bytes()


async def _migrate(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
