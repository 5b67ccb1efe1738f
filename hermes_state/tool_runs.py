"""Tool runs: how far each call that a model asked for has come.

The row of a call is committed before the call begins, so that a restart can tell what never ran from what may have.
The journal writes these rows, as steps of a turn; see there for what they mean after a crash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from sqlite3 import Connection

from hermes_state.store.sql import scalar
from hermes_state.values import MessageId, Millis, ToolCall, TurnId


class ToolRunState(StrEnum):
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What the model is told about one of its calls."""

    call_message_id: MessageId
    call: ToolCall
    text: str
    state: ToolRunState


_BEGIN = """
INSERT INTO tool_runs (turn_id, call_message_id, tool_call_id, tool_name, state, started_at)
VALUES (?, ?, ?, ?, 'started', ?) ON CONFLICT (call_message_id, tool_call_id) DO NOTHING
"""
# Purpose: the end of a run. A call that was answered without being run (unknown tool, stopped before it began) gets
# its row here.
_END = """
INSERT INTO tool_runs (turn_id, call_message_id, tool_call_id, tool_name, state, started_at, ended_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (call_message_id, tool_call_id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at
"""


def begin(db: Connection, turn_id: TurnId, call_message_id: MessageId, calls: Sequence[ToolCall], now: Millis) -> None:
    """Note that calls begin; one that was begun before keeps its row."""
    db.executemany(_BEGIN, [(turn_id, call_message_id, call.id, call.name, now) for call in calls])


def end(db: Connection, turn_id: TurnId, result: ToolResult, now: Millis) -> None:
    """Note how a call ended."""
    call = result.call
    db.execute(_END, (turn_id, result.call_message_id, call.id, call.name, result.state, now, now))


def load_tool_runs(db: Connection, call_message_id: MessageId) -> Mapping[str, ToolRunState]:
    """The state of each call of an assistant row that was begun, by tool call id."""
    query = "SELECT tool_call_id, state FROM tool_runs WHERE call_message_id = ?"
    return {call_id: ToolRunState(state) for call_id, state in db.execute(query, (call_message_id,)).fetchall()}


# Purpose: the answers of a turn that called tools, whatever the view holds of them by now.
_ROUNDS = "SELECT count(DISTINCT call_message_id) FROM tool_runs WHERE turn_id = ?"


def count_tool_rounds(db: Connection, turn_id: TurnId) -> int:
    """How many rounds of tool calls a turn has made."""
    return scalar(db, int, _ROUNDS, (turn_id,))
