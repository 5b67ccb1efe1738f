"""The ledger: one row for every model call, failed ones too, and the totals of the session it served."""

from sqlite3 import Connection

from hermes_state.sessions import load_tip
from hermes_state.values import ChatId, LineageId, Millis, ModelCallRecord, SessionId, TurnId

_RECORD_CALL = """
INSERT INTO model_calls (chat_id, lineage_id, session_id, turn_id, purpose, route, model, outcome, estimated,
  input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_microusd, took_ms,
  created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADD_USAGE = """
UPDATE sessions SET input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,
  cache_read_tokens = cache_read_tokens + ?, cache_write_tokens = cache_write_tokens + ?,
  reasoning_tokens = reasoning_tokens + ?, cost_microusd = cost_microusd + ?, unpriced_calls = unpriced_calls + ?
WHERE id = ?
"""


def record(
    db: Connection,
    turn_id: TurnId | None,
    lineage_id: LineageId | None,
    call: ModelCallRecord,
    now: Millis,
    chat_id: ChatId | None = None,
) -> None:
    """Add a call to the ledger, and what it used and cost to the totals of the conversation's newest session.

    `chat_id`: whose call it is where it belongs to no conversation; else it is the conversation's chat.
    """
    session = None if lineage_id is None else load_tip(db, lineage_id)
    usage, cost = call.usage, call.cost
    tokens = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning) if usage else (None,) * 5
    db.execute(
        _RECORD_CALL,
        (
            *(session.chat_id if session else chat_id, lineage_id, session.id if session else None, turn_id),
            *(call.purpose, call.route, call.model, call.outcome, int(call.is_estimated)),
            *(*tokens, cost, call.took_ms, now),
        ),
    )
    if session is not None and (usage is not None or cost is not None):
        used = (count or 0 for count in tokens)
        db.execute(_ADD_USAGE, (*used, cost or 0, int(cost is None), session.id))


def count_calls(db: Connection, lineage_id: LineageId, purpose: str) -> int:
    """How often a model was asked for `purpose` in a conversation, failed calls included."""
    query = "SELECT count(*) FROM model_calls WHERE lineage_id = ? AND purpose = ?"
    return int(db.execute(query, (lineage_id, purpose)).fetchone()[0])


def note_report(
    db: Connection, session_id: SessionId, reported_prompt_tokens: int | None, covered_seq: int, model: str
) -> None:
    """Keep the provider's count as the anchor of the next estimate; `covered_seq` is the last row it counted.

    Another model counts otherwise, so the session remembers whose count it is.
    """
    if reported_prompt_tokens is not None:
        db.execute(
            "UPDATE sessions SET reported_prompt_tokens = ?, reported_at_seq = ?, model = ? WHERE id = ?",
            (reported_prompt_tokens, covered_seq, model, session_id),
        )
