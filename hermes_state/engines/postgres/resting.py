"""A PostgreSQL database as the command line reads it, and a start looks at it, whoever else has it open."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.migrate import load_version, shipped_migrations
from hermes_state.engines.postgres.nodes import POOLED, find_differences, is_one_session
from hermes_state.engines.postgres.store import refusal
from hermes_state.errors import ConfigError, DatabaseRejected
from hermes_state.store.seats import NodeInfo
from hermes_state.values import Millis


@contextmanager
def open_resting_database(url: str) -> Iterator[PostgresConnection | None]:
    """A connection that can only read, in one snapshot; None where no start has made the tables yet.

    Raises `DatabaseRejected` for a database that is not ours or lets nobody in, `StoreUnavailable` for one that cannot
    be reached.
    """
    with _open(url) as db:
        is_made = load_version(db) > 0
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield db if is_made else None


def check_place(url: str, node: NodeInfo, now: Millis) -> bool:
    """Check that a node may have its place at a database, and change nothing; returns whether it has tables.

    The others' settings are compared where the schema is this version's; the seat compares them in any case.

    Raises what `open_resting_database` raises, `DatabaseRejected` behind a pooler, and `ConfigError`.
    """
    with _open(url) as db:
        version = load_version(db)
        if not is_one_session(db):
            raise DatabaseRejected(POOLED)
        if version >= shipped_migrations()[-1].number and (found := find_differences(db, node, now)):
            raise ConfigError("\n".join(found))
        return version > 0


@contextmanager
def _open(url: str) -> Iterator[PostgresConnection]:
    try:
        with contextlib.closing(PostgresConnection.open(url)) as db:
            yield db
    except psycopg.Error as error:
        raise refusal(url, error) from error
