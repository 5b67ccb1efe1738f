"""Row counts for `status`, `doctor` and metrics, with or without a running daemon."""

import msgspec

from hermes_state.engines.opening import engine_of
from hermes_state.inbox import WAITS
from hermes_state.sessions import IS_SUBAGENT
from hermes_state.store.sql import Connection, scalar, select
from hermes_state.tools.schedules import IS_LATE
from hermes_state.values import Millis


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
  (SELECT count(*) FROM inbox WHERE {WAITS}) + (SELECT count(*) FROM turns t JOIN inbox i ON i.turn_id = t.id
    WHERE t.parent_turn_id IS NULL AND t.state IN ('running','waiting') AND i.state = 'claimed') AS waiting,
  (SELECT count(DISTINCT chat_id) FROM turns WHERE state IN ('running','waiting')) AS open_turns,
  (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous')) AS undelivered
"""


def load_overview(db: Connection) -> DatabaseStatus:
    """Count the rows of every table. Takes tens of milliseconds with a million messages."""
    engine = engine_of(db)
    query = f"SELECT {engine.SCHEMA} AS schema, {engine.BYTES} AS database_bytes, {_COUNTS}"
    return select(db, DatabaseStatus, query)[0]


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting work and the size of the database. Times are None if nothing waits."""

    database_bytes: int
    waiting: int
    """Accepted messages and commands that no turn has claimed."""
    waiting_since: Millis | None
    undelivered: int
    undelivered_since: Millis | None
    late_schedules: int
    """Schedules that should have fired more than a minute ago, in chats that the bot can write to."""
    late_since: Millis | None


# Purpose: each subquery uses an index that contains only open rows, so the cost does not depend on the history.
_QUEUES = f"""
  (SELECT count(*) FROM inbox WHERE {WAITS}) AS waiting,
  (SELECT min(received_at) FROM inbox WHERE {WAITS}) AS waiting_since,
  (SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous')) AS undelivered,
  (SELECT min(created_at) FROM outbox WHERE state IN ('pending','sending','ambiguous')) AS undelivered_since,
  (SELECT count(*) FROM schedules WHERE {IS_LATE}) AS late_schedules,
  (SELECT min(next_at) FROM schedules WHERE {IS_LATE}) AS late_since
"""


def load_queues(db: Connection, now: Millis) -> QueueStatus:
    """Return the waiting work. Takes less than a millisecond on SQLite while the queues are short."""
    query = f"SELECT {engine_of(db).BYTES} AS database_bytes, {_QUEUES}"
    return select(db, QueueStatus, query, {"due": now - 60_000})[0]


def lacks_ratings(db: Connection) -> bool:
    """Return True if an older version wrote the database. The next start updates it."""
    return scalar(db, int, f"SELECT {engine_of(db).SCHEMA}") < 26
