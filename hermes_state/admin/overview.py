"""Overview of a database for `status` and `doctor`, in the daemon and on a file at rest."""

import sqlite3
from typing import Protocol

import msgspec

from hermes_state.engines.sqlite import resting as sqlite_resting
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.sql import Connection, select


class DatabaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    database_bytes: int
    """Size of the main file, without the write-ahead log; of the whole database on PostgreSQL."""
    chats: int
    conversations: int
    messages: int
    waiting: int
    """Accepted messages that no finished turn has answered."""
    open_turns: int
    undelivered: int


# Purpose: one count of each table. A chat has one open turn, whatever sub-agents work for it; a file at rest of an
# older version cannot tell them apart.
_COUNTS = f"""
  (SELECT count(*) FROM chats) AS chats,
  (SELECT count(DISTINCT s.lineage_id) FROM sessions s WHERE NOT {IS_SUBAGENT}) AS conversations,
  (SELECT count(*) FROM messages) AS messages,
  (SELECT count(*) FROM inbox WHERE state IN ('new','claimed')) AS waiting,
  (SELECT count(DISTINCT chat_id) FROM turns WHERE state IN ('running','waiting')) AS open_turns,
  (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous')) AS undelivered
"""


class EngineOverview(Protocol):
    """Module of an engine with its own queries."""

    SCHEMA: str
    BYTES: str

    def find_fault(self, db: Connection, /) -> str | None:
        """Return a sentence about a fault of the database, None without one. Takes seconds per gigabyte of a file."""

    def describe(self, db: Connection, /) -> str:
        """Return the database in a few words, for the beginning of a sentence."""


def load_overview(db: Connection) -> DatabaseStatus:
    """Count the rows of every table. Takes some tens of milliseconds with a million messages."""
    engine = engine_of(db)
    query = f"SELECT {engine.SCHEMA} AS schema, {engine.BYTES} AS database_bytes, {_COUNTS}"
    return select(db, DatabaseStatus, query)[0]


def engine_of(db: Connection) -> EngineOverview:
    if isinstance(db, sqlite3.Connection):
        return sqlite_resting
    from hermes_state.engines.postgres import resting as postgres_resting  # its driver is an extra

    return postgres_resting
