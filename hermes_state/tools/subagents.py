"""Sub-agents: turns that answer a tool call of another turn, each in its own lineage.

A call has one sub-agent. If the call runs again after a restart, it continues the sub-agent's turn or returns the
finished report.
"""

import msgspec

from hermes_state.sessions import start_subagent_session
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, insert_row, scalar, select_one
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.turns import RunningTurn, TurnClaim, load_running, require_running, take_up
from hermes_state.values import MessageId, MessageRole, Millis, Origin, TurnId, TurnState

MAX_SUBAGENTS = 20  # per calling turn


class SubagentReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a sub-agent, or a sentence that explains why there is none."""

    id: TurnId
    state: TurnState
    text: str


@locks(turn="claim.id")
def open_subagent(
    db: Connection, claim: TurnClaim, call_message_id: MessageId, tool_call_id: str, task: str, now: Millis
) -> RunningTurn | SubagentReport:
    """Start or resume the sub-agent of a call, or return its report if it has ended.

    `claim` is the calling turn. Raises `TurnMoved` if it is not running or `claim` is outdated.
    """
    parent = require_running(db, claim)
    query = """SELECT t.id, t.state, coalesce(t.error, (SELECT m.text FROM messages m
      WHERE m.lineage_id = t.lineage_id AND m.role = 'assistant' AND m.seq > 0 ORDER BY m.id DESC LIMIT 1), '') AS text
    FROM turns t WHERE t.call_message_id = ? AND t.tool_call_id = ? AND t.parent_turn_id IS NOT NULL"""
    known = select_one(db, SubagentReport, query, (call_message_id, tool_call_id))
    if known is not None:
        return take_up(db, load_running(db, known.id)) if known.state is TurnState.RUNNING else known
    too_many = f"this answer has started {MAX_SUBAGENTS} sub-agents, and no more are allowed: do the rest yourself"
    if scalar(db, int, "SELECT count(*) FROM turns WHERE parent_turn_id = ?", (parent.id,)) >= MAX_SUBAGENTS:
        return SubagentReport(id=parent.id, state=TurnState.FAILED, text=too_many)
    lineage_id = start_subagent_session(db, parent.chat_id, call_message_id, now)
    query = """INSERT INTO turns
      (chat_id, lineage_id, state, started_by, started_at, parent_turn_id, call_message_id, tool_call_id)
    VALUES (?, ?, 'running', ?, ?, ?, ?, ?)"""
    call = (parent.id, call_message_id, tool_call_id)
    turn_id = insert_row(db, TurnId, query, (parent.chat_id, lineage_id, parent.started_by, now, *call))
    # The task gets the origin of people's messages, so that compressions keep it.
    said = NewMessage(role=MessageRole.USER, origin=Origin.HUMAN, text=task, turn_id=turn_id)
    append_to_tip(db, lineage_id, said, now)
    return load_running(db, turn_id)
