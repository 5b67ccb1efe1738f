"""Row counts for `status` and `doctor`, with or without a running daemon."""

import msgspec

from hermes_state.engines.opening import engine_of
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.sql import Connection, scalar, select


class DatabaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    database_bytes: int
    """Size of the SQLite file (without its write-ahead log) or of the PostgreSQL database."""
    chats: int
    conversations: int
    messages: int
    waiting: int
    """Number of accepted messages that have not been answered yet."""
    open_turns: int
    undelivered: int


# Purpose: count the rows of each table. A chat's open turns count as one, because older databases do not mark the turns
# of sub-agents.
_COUNTS = f"""
  (SELECT count(*) FROM chats) AS chats,
  (SELECT count(DISTINCT s.lineage_id) FROM sessions s WHERE NOT {IS_SUBAGENT}) AS conversations,
  (SELECT count(*) FROM messages) AS messages,
  (SELECT count(*) FROM inbox WHERE state IN ('new','claimed')) AS waiting,
  (SELECT count(DISTINCT chat_id) FROM turns WHERE state IN ('running','waiting')) AS open_turns,
  (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous')) AS undelivered
"""


def load_overview(db: Connection) -> DatabaseStatus:
    """Count the rows of every table. Takes tens of milliseconds with a million messages."""
    engine = engine_of(db)
    query = f"SELECT {engine.SCHEMA} AS schema, {engine.BYTES} AS database_bytes, {_COUNTS}"
    return select(db, DatabaseStatus, query)[0]


def lacks_ratings(db: Connection) -> bool:
    """Return True if an older version wrote the database. The next start updates it."""
    return scalar(db, int, f"SELECT {engine_of(db).SCHEMA}") < 26
