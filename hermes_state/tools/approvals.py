"""Approvals: calls of tools that wait for a person's yes, and what was allowed for longer.

Asking stores the question, owes it to the chat and lets the turn wait, in one transaction. The last answer lets the
turn run again: it goes on from its rows, as after a restart. A grant allows calls of one shape without a question, in a
conversation or in all of a chat.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from hermes_state import outbox
from hermes_state.journal import pause_turn, unpause_turn
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, insert_row, scalar_or_none, scalars, select
from hermes_state.turns import TurnClaim
from hermes_state.values import Button, ChatId, LineageId, MessageId, Millis, TurnId, UserRef


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class GrantKind(StrEnum):
    """Reach of a yes: this call, calls of its shape in the conversation, or in every conversation of the chat."""

    ONCE = "once"
    SESSION = "session"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that needs a yes."""

    tool_call_id: str
    tool_name: str
    shape: str
    markdown: Callable[[int], str]
    """The question as people read it, by the approval's number."""
    buttons: Callable[[int], Sequence[Button]]


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A stored question and its answer."""

    id: int
    turn_id: TurnId
    tool_call_id: str
    tool_name: str
    shape: str
    state: ApprovalState
    asked_at: Millis
    expires_at: Millis
    decided_by: str | None
    reason: str | None
    """Words of whoever said no."""


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits for its answer, and whose turn it is."""

    id: int
    turn_id: TurnId
    chat_id: ChatId
    lineage_id: LineageId
    tool_name: str
    shape: str
    started_by: UserRef


# Purpose: a question about a call that was not asked about before.
_ASK = """
INSERT INTO approvals (turn_id, call_message_id, tool_call_id, tool_name, shape, asked_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
# Purpose: what waits for an answer. A question of a turn that has ended meanwhile waits no more.
_PENDING = """
SELECT a.id, a.turn_id, t.chat_id, t.lineage_id, a.tool_name, a.shape, t.started_by
FROM approvals a JOIN turns t ON t.id = a.turn_id WHERE a.state = 'pending' AND t.state = 'waiting'
"""


@locks(turn="claim.id")
def ask(
    db: Connection,
    claim: TurnClaim,
    call_message_id: MessageId,
    questions: Sequence[ApprovalRequest],
    minutes: float,
    now: Millis,
) -> None:
    """Ask about calls of a turn, which waits from now on. Raises `TurnMoved`."""
    turn = pause_turn(db, claim)
    expires_at = now + round(minutes * 60_000)
    for number, question in enumerate(questions):
        key = (question.tool_call_id, question.tool_name, question.shape)
        approval_id = insert_row(db, int, _ASK, (turn.id, call_message_id, *key, now, expires_at))
        reply = Reply(
            chat_id=turn.chat_id,
            kind=OutboxKind.STATUS,
            markdown=question.markdown(approval_id),
            dedupe_key=f"approval:{approval_id}",  # no reply of the turn: a preview of that must not take its place
            reply_to=turn.question_ref if turn.chat_kind.is_shared else None,
            replaces=turn.preview_ref if number == 0 else None,
            buttons=tuple(question.buttons(approval_id)),
        )
        outbox.enqueue(db, reply, now)


def load_approvals(db: Connection, call_message_id: MessageId) -> Mapping[str, Approval]:
    """Questions about the calls of an answer, by tool call id."""
    query = f"SELECT {columns(Approval, 'approvals')} FROM approvals WHERE call_message_id = ?"
    return {found.tool_call_id: found for found in select(db, Approval, query, (call_message_id,))}


def load_pending(db: Connection, chat_id: ChatId, shown_by: Millis | None = None) -> list[PendingApproval]:
    """Questions that wait for an answer in a chat, oldest first.

    `shown_by`: only questions that were on their way to the chat by then; who answers cannot mean another.
    """
    shown = """EXISTS (SELECT 1 FROM outbox o
      WHERE o.dedupe_key = 'approval:' || a.id AND o.part = 0 AND o.first_tried_at <= ?)"""
    values = (chat_id,) if shown_by is None else (chat_id, shown_by)
    condition = "t.chat_id = ?" if shown_by is None else f"t.chat_id = ? AND {shown}"
    return select(db, PendingApproval, f"{_PENDING} AND {condition} ORDER BY a.id", values)


def decide(
    db: Connection, approval: PendingApproval, state: ApprovalState, by: str, reason: str | None, now: Millis
) -> None:
    """Store an answer; the last one that its turn waits for lets that run again."""
    decided = "UPDATE approvals SET state = ?, decided_by = ?, decided_at = ?, reason = ? WHERE id = ?"
    db.execute(decided, (state, by, now, reason, approval.id))
    if not db.execute(f"{_PENDING} AND t.id = ? LIMIT 1", (approval.turn_id,)).fetchall():
        unpause_turn(db, approval.turn_id)


@locks(EVERYTHING)
def expire_pending(db: Connection, now: Millis) -> list[ChatId]:
    """Answer no to what was asked too long ago; returns the chats whose turns go on."""
    late = select(db, PendingApproval, f"{_PENDING} AND a.expires_at <= ? ORDER BY a.id", (now,))
    for approval in late:
        decide(db, approval, ApprovalState.EXPIRED, "", None, now)
    return [approval.chat_id for approval in late]


def next_expiry(db: Connection) -> Millis | None:
    """Moment at which the next question expires; None where none waits."""
    query = """SELECT min(a.expires_at) FROM approvals a JOIN turns t ON t.id = a.turn_id
    WHERE a.state = 'pending' AND t.state = 'waiting'"""
    return scalar_or_none(db, Millis, query)


def grant(db: Connection, approval: PendingApproval, scope: GrantKind, by: str, now: Millis) -> None:
    """Allow calls of an approval's shape for longer."""
    lineage_id = approval.lineage_id if scope is GrantKind.SESSION else 0
    query = """INSERT INTO tool_grants (chat_id, lineage_id, tool_name, shape, granted_by, created_at)
    VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
    db.execute(query, (approval.chat_id, lineage_id, approval.tool_name, approval.shape, by, now))


def load_grants(db: Connection, chat_id: ChatId, lineage_id: LineageId) -> set[tuple[str, str]]:
    """Tools and shapes that need no question in a conversation."""
    query = "SELECT tool_name, shape FROM tool_grants WHERE chat_id = ? AND lineage_id IN (0, ?)"
    return set(db.execute(query, (chat_id, lineage_id)).fetchall())


def revoke_grants(db: Connection, chat_id: ChatId) -> int:
    """Forget everything that was allowed for longer in a chat; returns how much that was."""
    return db.execute("DELETE FROM tool_grants WHERE chat_id = ?", (chat_id,)).rowcount


def list_grants(db: Connection, chat_id: ChatId) -> list[str]:
    """Permissions that last longer in a chat, each as `tool: shape`."""
    query = "SELECT tool_name || ': ' || shape FROM tool_grants WHERE chat_id = ? ORDER BY id"
    return scalars(db, str, query, (chat_id,))
