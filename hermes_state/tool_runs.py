"""Tool runs: tool calls that have begun. After a crash they show which calls may have had effects."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar, scalar_or_none, scalars, select
from hermes_state.transcripts import EMPTY_BODY, NewMessage, append_to_tip, load_message, show_instead
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    ChatId,
    Image,
    LineageId,
    Message,
    MessageBody,
    MessageId,
    MessageRole,
    Millis,
    Origin,
    SessionId,
    ToolCall,
    TurnId,
)


class ToolRunState(StrEnum):
    """State of a run. A restart marks a run without a result as `unknown`."""

    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    STOPPED = "stopped"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    call_message_id: MessageId
    call: ToolCall
    text: str
    state: ToolRunState
    images: tuple[Image, ...] = ()
    preview: Callable[[MessageId], str] | None = None
    """Function that returns the text to show the model instead of `text`. Its argument is the id of the result's row.

    If it is None, the model sees the whole `text`.
    """


def begin(db: Connection, turn_id: TurnId, call_message_id: MessageId, calls: Sequence[ToolCall], now: Millis) -> None:
    """Record that these calls are about to run. Calls that have already begun keep their row."""
    query = """INSERT INTO tool_runs (turn_id, call_message_id, tool_call_id, tool_name, state, started_at)
    VALUES (?, ?, ?, ?, 'started', ?) ON CONFLICT DO NOTHING"""
    db.executemany(query, [(turn_id, call_message_id, call.id, call.name, now) for call in calls])


def end(db: Connection, turn_id: TurnId, result: ToolResult, now: Millis) -> None:
    """Record that a call has ended. A call that never began, for example to an unknown tool, gets a row first."""
    begin(db, turn_id, result.call_message_id, [result.call], now)
    query = "UPDATE tool_runs SET state = ?, ended_at = ? WHERE call_message_id = ? AND tool_call_id = ?"
    db.execute(query, (result.state, now, result.call_message_id, result.call.id))


def store_result(db: Connection, turn: RunningTurn, result: ToolResult, now: Millis) -> Message:
    """Store the result of a call in the transcript, and the state of its run."""
    call = result.call
    end(db, turn.id, result, now)
    row = NewMessage(
        role=MessageRole.TOOL,
        origin=Origin.TOOL,
        text=result.text,
        body=MessageBody(images=result.images) if result.images else EMPTY_BODY,
        turn_id=turn.id,
        tool_call_id=call.id,
        tool_name=call.name,
    )
    stored = append_to_tip(db, turn.lineage_id, row, now)
    if result.preview is not None:
        show_instead(db, stored, result.preview(stored.id), now)
    return stored


def load_tool_runs(db: Connection, call_message_id: MessageId) -> Mapping[str, ToolRunState]:
    """Load the states of an answer's tool calls, keyed by tool call id. Calls that have not begun are left out."""
    query = "SELECT tool_call_id, state FROM tool_runs WHERE call_message_id = ?"
    return {call_id: ToolRunState(state) for call_id, state in db.execute(query, (call_message_id,)).fetchall()}


def answer_open_calls(db: Connection, turn: RunningTurn, text: str, state: ToolRunState, now: Millis) -> None:
    """Store `text` as the result of every call of a turn that has none."""
    query = """SELECT m.id FROM messages m
    WHERE m.turn_id = ? AND m.role = 'assistant' AND m.body IS NOT NULL AND m.seq > 0 ORDER BY m.id"""
    for message_id in scalars(db, MessageId, query, (turn.id,)):
        runs = load_tool_runs(db, message_id)
        for call in load_message(db, message_id).body.calls:
            if runs.get(call.id, ToolRunState.STARTED) is ToolRunState.STARTED:
                result = ToolResult(call_message_id=message_id, call=call, text=text, state=state)
                store_result(db, turn, result, now)


class ToolRunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a turn, or of a sub-agent of the turn."""

    call_message_id: MessageId
    tool_call_id: str
    tool_name: str
    state: ToolRunState
    started_at: Millis
    ended_at: Millis | None
    is_subagent: bool


def load_newest_runs(db: Connection, lineage_id: LineageId, skip: int, limit: int) -> list[ToolRunRow]:
    """Load the calls of a lineage's newest turn and of its sub-agents, in the order in which they began."""
    query = """WITH newest AS (SELECT turn_id AS id FROM messages
      WHERE lineage_id = ? AND turn_id IS NOT NULL AND seq > 0 ORDER BY messages.id DESC LIMIT 1)
    SELECT r.call_message_id, r.tool_call_id, r.tool_name, r.state, r.started_at, r.ended_at,
      r.turn_id <> (SELECT id FROM newest) AS is_subagent
    FROM tool_runs r WHERE r.turn_id = (SELECT id FROM newest)
      OR r.turn_id IN (SELECT t.id FROM turns t WHERE t.parent_turn_id = (SELECT id FROM newest))
    ORDER BY r.id LIMIT ? OFFSET ?"""
    return select(db, ToolRunRow, query, (lineage_id, limit, skip))


@locks(session="session_id")
def keep_offer(db: Connection, session_id: SessionId, names: Sequence[str]) -> list[str]:
    """Store the names of the tools offered in a session, unless names are already stored. Return the stored names."""
    encoded = msgspec.json.encode(list(names)).decode()
    db.execute("INSERT INTO tool_offers VALUES (?, ?) ON CONFLICT DO NOTHING", (session_id, encoded))
    kept = load_offer(db, session_id)
    assert kept is not None
    return kept


def load_offer(db: Connection, session_id: SessionId) -> list[str] | None:
    """Load the names of the tools offered in a session. Return None if they have not been chosen yet."""
    stored = scalar_or_none(db, str, "SELECT names FROM tool_offers WHERE session_id = ?", (session_id,))
    return None if stored is None else msgspec.json.decode(stored, type=list[str])


def count_tool_uses(db: Connection, chat_id: ChatId) -> Mapping[str, int]:
    query = """SELECT r.tool_name, count(*) FROM turns t JOIN tool_runs r ON r.turn_id = t.id
    WHERE t.chat_id = ? GROUP BY r.tool_name"""
    return dict(db.execute(query, (chat_id,)).fetchall())


def count_tool_rounds(db: Connection, turn_id: TurnId) -> int:
    """Count the answers in a turn that call tools, including answers that are no longer in the view."""
    return scalar(db, int, "SELECT count(DISTINCT call_message_id) FROM tool_runs WHERE turn_id = ?", (turn_id,))
