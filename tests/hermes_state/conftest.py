import sqlite3
from collections.abc import Iterator

import pytest

from tests.hermes_state.rows import migrated


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """An open database with the newest schema, for the engine under test."""
    with migrated() as connection:
        yield connection
