"""Empty databases with the newest schema. The migrations run once, and every test gets a copy of the result.

With `HERMES_TEST_ENGINE=postgres`, they are databases on a PostgreSQL server for tests instead of files.
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
"""Errors that the engines raise if a constraint rejects a row."""
sqlite_only = pytest.mark.skipif(IS_POSTGRES, reason="it looks into SQLite itself")
about_files = pytest.mark.skipif(IS_POSTGRES, reason="it is about the database's files, which a server keeps by itself")

_addresses: dict[Path, str] = {}
"""Addresses of the PostgreSQL databases that replace the current test's files."""
_databases = ExitStack()
_server = ExitStack()


async def open_store(path: Path) -> Store:
    """Open the database at `path`. If it does not exist, create an empty one with the newest schema.

    Commits do not wait for the disk, because killing a process does not lose data that the system has cached.
    """
    if IS_POSTGRES:
        from hermes_state.engines.postgres.store import PostgresStore  # imported late, because most runs do not need it

        if path not in _addresses:
            _addresses[path] = await asyncio.to_thread(_databases.enter_context, fresh_address())
        return await PostgresStore.open(_addresses[path])
    await asyncio.to_thread(ensure_database, path)
    return await SqliteStore.open(path, synchronous="NORMAL")


def place_of(store: Store) -> Path | str:
    """Return the path or address with which another process can open the store."""
    return store.path if isinstance(store, SqliteStore) else store.url


def store_environ(path: Path) -> dict[str, str]:
    """Return the environment with which a gateway opens the database that a test has opened as `path`."""
    return {"HERMES_STORE__URL": _addresses[path]} if path in _addresses else {}


def drop_databases() -> None:
    """Drop the PostgreSQL databases that replace a test's files."""
    _addresses.clear()
    _databases.close()


@contextlib.contextmanager
def fresh_connection() -> Iterator[Connection]:
    """Yield a connection to an empty database on the run's PostgreSQL server."""
    from hermes_state.engines.postgres.connection import PostgresConnection

    with fresh_address() as address, contextlib.closing(PostgresConnection.open(address)) as db:
        yield db


@contextlib.contextmanager
def fresh_address() -> Iterator[str]:
    """Yield the address of an empty database on the run's PostgreSQL server."""
    with reused_databases(_running()).database() as address:
        yield address


@cache
def _running() -> Postgres:
    folder = Path(tempfile.gettempdir(), f"hermes-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}")
    return _server.enter_context(running_server(folder))  # runs until this process ends


def ensure_database(path: Path) -> None:
    """Create an empty SQLite database with the newest schema at `path`, if there is none."""
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
