"""History of one message: its arrival, its turn, model calls, tools, compressions and deliveries."""

import msgspec

from hermes_state.errors import LookupReason, LookupRejected
from hermes_state.models.ledger import OF_TURN
from hermes_state.sessions import chat_label
from hermes_state.store.sql import Connection, columns, select, select_one
from hermes_state.values import ChatKey, MessageId, MessageRole, MicroUsd, Millis, TurnId, parse_recall_id, recall_id


class WhyTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Turn that a message belongs to, with the conversation and the chat."""

    message_id: MessageId
    role: MessageRole
    created_at: Millis
    chat: ChatKey
    label: str = ""
    """Display name of the chat, or an empty string if it is unknown."""
    session_key: str
    turn_id: TurnId | None
    started_by: str | None
    state: str | None
    error: str | None
    restarts: int | None
    started_at: Millis | None
    ended_at: Millis | None


class WhyMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Message that the turn answered."""

    sender_ref: str
    sender_name: str
    sent_at: Millis
    received_at: Millis
    state: str


class WhyStep(msgspec.Struct, frozen=True, kw_only=True):
    """Model call, tool run, compression or delivery of the turn."""

    at: Millis
    kind: str
    """`model`, `tool`, `compression` or `delivery`."""
    name: str
    outcome: str
    took_ms: int | None
    cost: MicroUsd | None
    tokens: str


class WhyReport(msgspec.Struct, frozen=True, kw_only=True):
    turn: WhyTurn
    arrivals: tuple[WhyMessage, ...]
    steps: tuple[WhyStep, ...]


_TURN = f"""
SELECT m.id AS message_id, m.role, m.created_at, {columns(ChatKey, "c", "chat")},
  {chat_label("s.lineage_id")} AS label, s.key AS session_key, t.id AS turn_id,
  t.started_by, t.state, t.error, t.restarts, t.started_at, t.ended_at
FROM messages m JOIN sessions s ON s.id = m.session_id JOIN chats c ON c.id = m.chat_id
LEFT JOIN turns t ON t.id = m.turn_id WHERE m.id = ?
"""
_ARRIVALS = """
SELECT sender_ref, sender_name, sent_at, received_at, state FROM inbox
WHERE turn_id = ? AND kind <> 'notice' ORDER BY id
"""
# Purpose: load everything that happened in a turn, in order. A compression belongs to the turn during which it ran.
_STEPS = f"""
SELECT created_at - coalesce(took_ms, 0) AS at, 'model' AS kind, purpose || ' to ' || model AS name, outcome, took_ms,
  cost_microusd AS cost,
  coalesce(coalesce(input_tokens, 0) + coalesce(cache_read_tokens, 0) + coalesce(cache_write_tokens, 0), 0)
    || ' tokens in, ' || coalesce(output_tokens, 0) || ' out' AS tokens
FROM turns t JOIN model_calls m ON {OF_TURN} WHERE t.id = :turn
UNION ALL SELECT started_at, 'tool', tool_name, state, ended_at - started_at, NULL, '' FROM tool_runs
  WHERE turn_id = :turn
UNION ALL SELECT k.created_at - coalesce(k.took_ms, 0), 'compression', k.layer,
  k.outcome || coalesce(': ' || k.reason, ''), k.took_ms, NULL,
  coalesce(k.tokens_before || ' to ' || k.tokens_after || ' tokens', '')
  FROM compressions k JOIN sessions s ON s.id = k.parent_id JOIN turns t ON t.lineage_id = s.lineage_id
  WHERE t.id = :turn AND k.created_at BETWEEN t.started_at AND coalesce(t.ended_at, :forever)
UNION ALL SELECT coalesce(first_tried_at, created_at), 'delivery',
  CASE kind WHEN 'final' THEN 'the answer' WHEN 'voice' THEN 'the voice message'
    WHEN 'error' THEN 'the error message' ELSE 'a notice' END
    || ', part ' || (part + 1),
  state || CASE WHEN attempts > 1 THEN ' after ' || attempts || ' attempts' ELSE '' END || coalesce(': ' || error, ''),
  settled_at - coalesce(first_tried_at, created_at), NULL, '' FROM outbox
  WHERE dedupe_key IN ('turn:' || :turn, 'turn:' || :turn || ':voice')
ORDER BY 1
"""


def load_why(db: Connection, name: str) -> WhyReport:
    """Load the history of the message with a recall id such as `m123`. Raises `LookupRejected` if it is unknown."""
    message_id = parse_recall_id(name.strip())
    turn = None if message_id is None else select_one(db, WhyTurn, _TURN, (message_id,))
    if message_id is None:
        raise LookupRejected(LookupReason.NOT_FOUND, name[:100])
    if turn is None:
        raise LookupRejected(LookupReason.MESSAGE_NOT_FOUND, recall_id(message_id))
    if turn.turn_id is None:
        return WhyReport(turn=turn, arrivals=(), steps=())
    return WhyReport(
        turn=turn,
        arrivals=tuple(select(db, WhyMessage, _ARRIVALS, (turn.turn_id,))),
        steps=tuple(select(db, WhyStep, _STEPS, {"turn": turn.turn_id, "forever": 2**62})),
    )
