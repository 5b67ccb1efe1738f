"""A PostgreSQL database as the command line reads it, whoever else has it open."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.migrate import load_version
from hermes_state.engines.postgres.store import refusal


@contextmanager
def open_resting_database(url: str) -> Iterator[PostgresConnection | None]:
    """A connection that can only read, in one snapshot; None where no start has made the tables yet.

    Raises `DatabaseRejected` for a database that is not ours or lets nobody in, `StoreUnavailable` for one that cannot
    be reached.
    """
    try:
        with contextlib.closing(PostgresConnection.open(url)) as db:
            is_made = load_version(db) > 0
            db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield db if is_made else None
    except psycopg.Error as error:
        raise refusal(url, error) from error
