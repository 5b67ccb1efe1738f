"""Compress conversations and undo compressions. Both end a session and continue it in a child, in one transaction."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from hermes_state.errors import LineageMoved
from hermes_state.sessions import (
    IS_SUBAGENT,
    EndReason,
    Session,
    end_session,
    free_session_key,
    is_subagent,
    load_session,
    load_tip,
)
from hermes_state.store.sql import Connection, insert_row, insertion, scalar, scalars, select
from hermes_state.transcripts import NewMessage, append_view_row, edited, load_own_rows, load_session_view
from hermes_state.values import ChatId, LineageId, MessageId, Millis, SessionId, Transcript

Layer: TypeAlias = Literal["hygiene", "preflight", "in_loop", "overflow", "manual", "background"]
ContextItem: TypeAlias = MessageId | NewMessage
"""Id of a stored row, or a new row for the child's view (the handoff or a stub)."""


class CompressionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a compression attempt. Token counts are estimates."""

    layer: Layer
    focus: str | None = None
    outcome: Literal["compressed", "not_needed", "aborted"] = "compressed"
    reason: str | None = None  # why nothing was compressed; None if something was
    summary_kind: Literal["model", "deterministic"] | None = None
    model: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    messages_before: int | None = None
    messages_after: int | None = None
    took_ms: int | None = None


class SplitPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A compression that is ready to commit."""

    parent: Session
    """The session as it was when its view was loaded. Rows added later are appended to the child's view unchanged."""
    context: Sequence[ContextItem]
    """Items of the child's view, in order, with the parent's view edits applied."""
    row: CompressionRow  # `split` fills in the message counts
    system_prompt: str | None = None
    context_state: str | None = None
    """JSON state of the context engine. If this or `system_prompt` is None, the child keeps the parent's value."""


# Purpose: insert the child of a session. UNIQUE (lineage_id, depth) prevents a second child.
_INSERT_CHILD = """
INSERT INTO sessions (key, chat_id, parent_session_id, lineage_id, depth, kind, model, title, system_prompt,
  context_state, agent, chosen_model, reasoning_effort, started_at, last_human_at)
SELECT :key, chat_id, id, lineage_id, depth + 1, 'continuation', model, title, coalesce(:system_prompt, system_prompt),
  coalesce(:context_state, context_state), agent, chosen_model, reasoning_effort,
  CASE WHEN ended_at > :now THEN ended_at ELSE :now END, last_human_at
FROM sessions WHERE id = :parent_id
"""


def split(db: Connection, plan: SplitPlan, now: Millis) -> SessionId:
    """End the parent session and continue it in a child session that starts with `plan.context`.

    Raises `LineageMoved`, and writes nothing, if the parent has ended or its view has changed.
    """
    parent = _require_open(db, plan.parent)
    query = """SELECT (SELECT count(*) FROM session_context WHERE session_id = :session_id)
      + (SELECT count(*) FROM messages WHERE session_id = :session_id AND seq > 0)
      - (SELECT count(*) FROM view_edits WHERE session_id = :session_id AND replacement_id IS NULL)"""
    before = scalar(db, int, query, {"session_id": parent.id})
    child_id = _continue(db, parent, EndReason.COMPRESSION, plan.system_prompt, plan.context_state, now)
    ids: list[int] = [
        append_view_row(db, child_id, item, None, now) if isinstance(item, NewMessage) else item
        for item in plan.context
    ]
    kept = _write_context(db, child_id, ids, plan.parent)
    row = msgspec.structs.replace(plan.row, messages_before=before, messages_after=kept)
    record_compression(db, parent.id, row, now, child_id)
    return child_id


def record_compression(
    db: Connection, parent_id: SessionId, row: CompressionRow, now: Millis, child_id: SessionId | None = None
) -> None:
    values = msgspec.structs.asdict(row) | {"parent_id": parent_id, "child_id": child_id, "created_at": now}
    db.execute(insertion("compressions", values), values)


def note_verdict(db: Connection, child_id: SessionId, verdict: Literal["effective", "ineffective"]) -> None:
    """Store whether the compression helped, judged by the next prompt size that the provider reports."""
    db.execute("UPDATE compressions SET verdict = ? WHERE child_id = ?", (verdict, child_id))


def count_compressions(db: Connection, lineage_id: LineageId) -> int:
    """Count the conversation's compressions that were not undone."""
    query = """SELECT count(*) FROM compressions c JOIN sessions s ON s.id = c.child_id
    WHERE s.lineage_id = ? AND c.outcome = 'compressed' AND c.undone_by IS NULL"""
    return scalar(db, int, query, (lineage_id,))


class CompressionPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Point in a chat at which a compression replaced older messages for the model. Token counts are estimates."""

    session: str
    """Key of the session that the compression created."""
    at: Millis
    tokens_before: int | None
    tokens_after: int | None
    is_undone: bool
    is_undoable: bool
    """True for the compression that `plan_undo` would undo."""


def load_points(db: Connection, chat_id: ChatId, since: int, until: int = 2**62) -> list[CompressionPoint]:
    """Load the compressions of a chat's conversations from `since` up to, but not including, `until`, oldest first."""
    query = f"""SELECT s.key AS session, s.started_at AS at, k.tokens_before, k.tokens_after,
      k.undone_by IS NOT NULL AS is_undone,
      k.undone_by IS NULL AND s.lineage_id = coalesce(a.lineage_id, 0) AND NOT EXISTS (
        SELECT 1 FROM sessions n JOIN compressions x ON x.child_id = n.id
        WHERE n.lineage_id = s.lineage_id AND n.depth > s.depth AND x.undone_by IS NULL) AS is_undoable
    FROM sessions s JOIN compressions k ON k.child_id = s.id JOIN chats c ON c.id = s.chat_id
    LEFT JOIN sessions a ON a.id = c.active_session_id AND a.ended_at IS NULL
    WHERE s.chat_id = ? AND s.started_at >= ? AND s.started_at < ? AND NOT {IS_SUBAGENT} ORDER BY s.id"""
    return select(db, CompressionPoint, query, (chat_id, since, until))


class UndoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan for undoing the newest compression. It is valid until the conversation's newest session (`tip`) changes."""

    tip: Session
    compression_id: int
    compressed: Session  # the session that the compression ended
    transcript: Transcript  # complete view after the undo


def plan_undo(db: Connection, lineage_id: LineageId) -> UndoPlan | None:
    """Plan how to undo the newest compression of a conversation. Return None if there is no compression to undo.

    The planned view has the rows from before the compression and all later rows. Later view edits still apply, so
    undone messages stay hidden. Later handoffs are dropped. Raises `SessionNotFound` if the conversation does not
    exist.
    """
    statement = """SELECT c.id, c.parent_id, s.depth FROM sessions s JOIN compressions c ON c.child_id = s.id
    WHERE s.lineage_id = ? AND c.outcome = 'compressed' AND c.undone_by IS NULL ORDER BY s.depth DESC LIMIT 1"""
    last = db.execute(statement, (lineage_id,)).fetchone()
    if last is None:
        return None
    compression_id, parent_id, depth = last
    query = "SELECT id FROM sessions WHERE lineage_id = ? AND depth >= ? ORDER BY depth"
    rows = load_session_view(db, parent_id)
    for session_id in scalars(db, SessionId, query, (lineage_id, depth)):
        rows = edited(db, session_id, rows + load_own_rows(db, session_id, since_seq=1))
    return UndoPlan(
        tip=load_tip(db, lineage_id),
        compression_id=compression_id,
        compressed=load_session(db, parent_id),
        transcript=rows,
    )


def undo_compression(db: Connection, plan: UndoPlan, now: Millis, *, context_state: str | None = None) -> SessionId:
    """End the newest session, `plan.tip`. Continue it in a new session with the planned view and the rows added since.

    Messages do not change. If `context_state` is None, the tip's state is kept. Raises `LineageMoved` if the tip has
    ended or its view has changed.
    """
    tip = _require_open(db, plan.tip)
    child_id = _continue(db, tip, EndReason.UNDO, None, context_state, now)
    _write_context(db, child_id, [row.id for row in plan.transcript], plan.tip)
    undone = db.execute(
        "UPDATE compressions SET undone_by = ? WHERE id = ? AND undone_by IS NULL", (child_id, plan.compression_id)
    )
    if undone.rowcount != 1:
        raise LineageMoved(f"the compression of session {plan.compressed.short_key} was already undone")
    return child_id


def _require_open(db: Connection, planned: Session) -> Session:
    session = load_session(db, planned.id)
    if session.version != planned.version or session.ended_at is not None:
        raise LineageMoved(f"session {session.short_key} has changed since the plan was made")
    return session


def _continue(
    db: Connection,
    parent: Session,
    reason: EndReason,
    system_prompt: str | None,
    context_state: str | None,
    now: Millis,
) -> SessionId:
    """End `parent` and create a child without a context. Make it the chat's active session if `parent` was active."""
    end_session(db, parent.id, reason, now)
    key = free_session_key(db, parent.chat_id, now)
    given = {"key": key, "parent_id": parent.id, "system_prompt": system_prompt, "context_state": context_state}
    child_id = insert_row(db, SessionId, _INSERT_CHILD, {**given, "now": now})
    moved = db.execute(
        "UPDATE chats SET active_session_id = ?, updated_at = ? WHERE id = ? AND active_session_id = ?",
        (child_id, now, parent.chat_id, parent.id),
    )
    if moved.rowcount != 1 and not is_subagent(db, parent.lineage_id):
        raise LineageMoved(f"session {parent.short_key} is no longer the chat's active session")
    return child_id


def _write_context(db: Connection, child_id: SessionId, ids: Sequence[int], planned: Session) -> int:
    """Fill the child's context with `ids`, then with the parent's rows since `planned`. Return the number of rows."""
    values = {"child_id": child_id, "ids": str([*ids]), "count": len(ids)}
    query = """INSERT INTO session_context (session_id, pos, message_id)
    SELECT :child_id, key, CAST(value AS bigint) FROM json_each(CAST(:ids AS text))
    UNION ALL
    SELECT :child_id, :count - 1 + row_number() OVER (ORDER BY m.seq), coalesce(e.replacement_id, m.id) FROM messages m
    LEFT JOIN view_edits e ON e.session_id = m.session_id AND e.message_id = m.id
    WHERE m.session_id = :parent_id AND m.seq > :seq AND (e.message_id IS NULL OR e.replacement_id IS NOT NULL)"""
    return db.execute(query, values | {"parent_id": planned.id, "seq": planned.next_seq - 1}).rowcount
