"""The split: how a compression continues a session in a child, in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Literal, TypeAlias

from hermes_state.errors import LineageMoved
from hermes_state.sessions import end_session, free_session_key, load_session
from hermes_state.transcripts import NewMessage, append_view_row
from hermes_state.values import EndReason, LineageId, MessageId, Millis, SessionId

Layer: TypeAlias = Literal["hygiene", "preflight", "in_loop", "overflow", "manual", "background"]
ContextItem: TypeAlias = MessageId | NewMessage
"""A row that exists, by id, or one made for the child's view (the handoff, a stub)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """What a compression wants to commit, and the state of the parent that it was made for."""

    parent_id: SessionId
    version: int
    """The parent's `version` when its view was loaded."""
    watermark_seq: int
    """The last own row of the parent that the plan has looked at; rows behind it follow unchanged."""
    context: Sequence[ContextItem]
    """The child's view up to the watermark, in order, the parent's view edits baked in."""
    layer: Layer
    focus: str | None = None
    summary_kind: Literal["model", "deterministic"] | None = None
    model: str | None = None
    system_prompt: str | None = None
    """None: keep the parent's."""
    context_state: str | None = None
    """JSON of the context engine; None: keep the parent's."""
    tokens_before: int | None = None
    tokens_after: int | None = None
    took_ms: int | None = None


# Purpose: the child of a session; UNIQUE (lineage_id, depth) makes a second one impossible.
_INSERT_CHILD = """
INSERT INTO sessions (key, chat_id, parent_session_id, lineage_id, depth, kind, model, title, system_prompt,
  context_state, started_at, last_human_at)
SELECT :key, chat_id, id, lineage_id, depth + 1, 'continuation', model, title, coalesce(:system_prompt, system_prompt),
  coalesce(:context_state, context_state), max(:now, ended_at), last_human_at
FROM sessions WHERE id = :parent_id
"""
# Purpose: rows that were said while the plan was made; view edits of the parent still hold for them.
_ROWS_BEHIND = """
SELECT coalesce(e.replacement_id, m.id) FROM messages m
LEFT JOIN view_edits e ON e.session_id = m.session_id AND e.message_id = m.id
WHERE m.session_id = ? AND m.seq > ? AND (e.message_id IS NULL OR e.replacement_id IS NOT NULL)
ORDER BY m.seq
"""
_RECORD = """
INSERT INTO compressions (parent_id, child_id, layer, focus, outcome, summary_kind, model, tokens_before, tokens_after,
  messages_before, messages_after, took_ms, created_at)
VALUES (?, ?, ?, ?, 'compressed', ?, ?, ?, ?, ?, ?, ?, ?)
"""


def split(db: Connection, plan: SplitPlan, now: Millis) -> SessionId:
    """End the parent and continue it in a child that starts from `plan.context`: all of it, or none.

    Raises `LineageMoved` when the parent is not the open tip any more or its view has changed since the plan was made;
    nothing is written then.
    """
    parent = load_session(db, plan.parent_id)
    if parent.version != plan.version or parent.ended_at is not None:
        raise LineageMoved(f"session {parent.short_key} has changed since the compression was planned")
    before = _view_size(db, plan.parent_id)
    end_session(db, parent.id, EndReason.COMPRESSION, now)
    cursor = db.execute(
        _INSERT_CHILD,
        {
            "key": free_session_key(db, parent.chat_id, now),
            "parent_id": parent.id,
            "system_prompt": plan.system_prompt,
            "context_state": plan.context_state,
            "now": now,
        },
    )
    assert cursor.lastrowid is not None
    child_id = SessionId(cursor.lastrowid)
    kept = _write_context(db, child_id, plan, now)
    moved = db.execute(
        "UPDATE chats SET active_session_id = ?, updated_at = ? WHERE id = ? AND active_session_id = ?",
        (child_id, now, parent.chat_id, parent.id),
    )
    if moved.rowcount != 1:
        raise LineageMoved(f"session {parent.short_key} is not the chat's active one any more")
    db.execute(
        _RECORD,
        (
            *(parent.id, child_id, plan.layer, plan.focus, plan.summary_kind, plan.model),
            *(plan.tokens_before, plan.tokens_after, before, kept, plan.took_ms, now),
        ),
    )
    return child_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A compression that was asked for and changed nothing."""

    session_id: SessionId
    layer: Layer
    focus: str | None
    outcome: Literal["not_needed", "aborted"]
    reason: str | None
    tokens_before: int
    messages_before: int
    took_ms: int


def record_attempt(db: Connection, attempt: Attempt, now: Millis) -> None:
    """Keep the trace of a compression that changed nothing."""
    db.execute(
        """INSERT INTO compressions (parent_id, layer, focus, outcome, reason, tokens_before, messages_before, took_ms,
        created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *(attempt.session_id, attempt.layer, attempt.focus, attempt.outcome, attempt.reason),
            *(attempt.tokens_before, attempt.messages_before, attempt.took_ms, now),
        ),
    )


def note_verdict(db: Connection, child_id: SessionId, verdict: Literal["effective", "ineffective"]) -> None:
    """Keep whether the compression that made this session has helped, as its next reported prompt showed."""
    db.execute("UPDATE compressions SET verdict = ? WHERE child_id = ?", (verdict, child_id))


# Purpose: the splits of a conversation that still hold; undone ones do not count.
_COUNT = """
SELECT count(*) FROM compressions c JOIN sessions s ON s.id = c.child_id
WHERE s.lineage_id = ? AND c.outcome = 'compressed' AND c.undone_by IS NULL
"""


def count_compressions(db: Connection, lineage_id: LineageId) -> int:
    """How often a conversation was compressed, those that were undone left out."""
    return int(db.execute(_COUNT, (lineage_id,)).fetchone()[0])


def _write_context(db: Connection, child_id: SessionId, plan: SplitPlan, now: Millis) -> int:
    ids: list[int] = []
    for item in plan.context:
        ids.append(append_view_row(db, child_id, item, None, now) if isinstance(item, NewMessage) else item)
    ids += [row[0] for row in db.execute(_ROWS_BEHIND, (plan.parent_id, plan.watermark_seq)).fetchall()]
    places = [(child_id, pos, row_id) for pos, row_id in enumerate(ids)]
    db.executemany("INSERT INTO session_context VALUES (?, ?, ?)", places)
    return len(ids)


def _view_size(db: Connection, session_id: SessionId) -> int:
    context, own, hidden = (
        db.execute(query, (session_id,)).fetchone()[0]
        for query in (
            "SELECT count(*) FROM session_context WHERE session_id = ?",
            "SELECT count(*) FROM messages WHERE session_id = ? AND seq > 0",
            "SELECT count(*) FROM view_edits WHERE session_id = ? AND replacement_id IS NULL",
        )
    )
    return int(context + own - hidden)
