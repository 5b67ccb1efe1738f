"""Approvals: questions about tool calls, and grants that allow calls without a question.

One transaction stores the question, enqueues it for the chat and pauses the turn. After the last answer, the turn
continues from its stored rows, as it would after a restart. A grant allows similar calls (calls with the same tool and
`shape`) in a conversation or in the whole chat.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from hermes_state import outbox
from hermes_state.outbox import OutboxKind, Reply
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, columns, insert_row, scalar_or_none, scalars, select
from hermes_state.turns import TurnClaim, pause_turn, unpause_turn
from hermes_state.values import Button, ChatId, LineageId, MessageId, Millis, TurnId, UserRef


class ApprovalState(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class GrantKind(StrEnum):
    """Scope of an approval: only this call, or all calls of the same shape in the conversation or in the chat."""

    ONCE = "once"
    SESSION = "session"
    ALWAYS = "always"


class AnswererRole(StrEnum):
    """Person who may answer a question, in addition to the admins."""

    STARTER = "starter"
    MODERATOR = "moderator"
    ADMIN = "admin"


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    tool_call_id: str
    tool_name: str
    shape: str
    answerer: AnswererRole
    markdown: str  # the question, with the whole call
    footer: Callable[[int], str]  # how to answer, given the approval's number
    buttons: Callable[[int], Sequence[Button]]


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    turn_id: TurnId
    tool_call_id: str
    tool_name: str
    shape: str
    state: ApprovalState
    asked_at: Millis
    expires_at: Millis
    decided_by: str | None
    reason: str | None  # reason that a person gave for a denial
    answerer: AnswererRole


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    turn_id: TurnId
    chat_id: ChatId
    lineage_id: LineageId
    tool_name: str
    shape: str
    answerer: AnswererRole
    started_by: UserRef


# Purpose: insert a question about a call.
_ASK = """
INSERT INTO approvals (turn_id, call_message_id, tool_call_id, tool_name, shape, answerer, question, asked_at,
  expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# Purpose: load unanswered questions of paused turns.
_PENDING = """
SELECT a.id, a.turn_id, t.chat_id, t.lineage_id, a.tool_name, a.shape, a.answerer, t.started_by
FROM approvals a JOIN turns t ON t.id = a.turn_id WHERE a.state = 'pending' AND t.state = 'waiting'
"""


@locks(turn="claim.id", chat="admin_chats")
def ask(
    db: Connection,
    claim: TurnClaim,
    call_message_id: MessageId,
    questions: Sequence[ApprovalRequest],
    minutes: float,
    now: Millis,
    admin_chats: Sequence[ChatId] = (),
) -> None:
    """Pause the turn and ask about its calls, in `admin_chats` too if an admin must answer.

    Raises `TurnMoved` if the turn is not running or `claim` is outdated.
    """
    turn = pause_turn(db, claim)
    expires_at = now + round(minutes * 60_000)
    for number, question in enumerate(questions):
        key = (question.tool_call_id, question.tool_name, question.shape, question.answerer, question.markdown)
        approval_id = insert_row(db, int, _ASK, (turn.id, call_message_id, *key, now, expires_at))
        elsewhere = admin_chats if question.answerer is AnswererRole.ADMIN else ()
        asked = Reply(
            chat_id=turn.chat_id,
            kind=OutboxKind.STATUS,
            markdown=question.markdown,
            footer=question.footer(approval_id),
            dedupe_key=f"approval:{approval_id}",  # not the turn's own key, so a preview does not replace the question
            buttons=tuple(question.buttons(approval_id)),
        )
        for chat_id in elsewhere:
            outbox.enqueue(db, replace(asked, chat_id=chat_id, dedupe_key=f"{asked.dedupe_key}:{chat_id}"), now)
        footer = f"I have asked the admins whether I may do this (a{approval_id}). `/stop` ends the turn."
        here = replace(asked, footer=footer, buttons=()) if elsewhere else asked
        question_ref = turn.question_ref if turn.chat_kind.is_shared else None
        place = turn.preview_ref if number == 0 else None
        outbox.enqueue(db, replace(here, reply_to=question_ref, replaces=place), now)


def load_approvals(db: Connection, call_message_id: MessageId) -> Mapping[str, Approval]:
    """Load the questions about the tool calls of an answer, keyed by tool call id."""
    query = f"SELECT {columns(Approval, 'approvals')} FROM approvals WHERE call_message_id = ?"
    return {found.tool_call_id: found for found in select(db, Approval, query, (call_message_id,))}


_HERE = "(t.chat_id = :chat_id OR (:is_admins = 1 AND a.answerer = 'admin'))"
_SHOWN = """EXISTS (SELECT 1 FROM outbox o WHERE o.chat_id = :chat_id AND o.part = 0 AND o.first_tried_at <= :shown_by
  AND o.dedupe_key IN ('approval:' || a.id, 'approval:' || a.id || ':' || o.chat_id))"""


def load_pending(
    db: Connection, chat_id: ChatId, shown_by: Millis | None = None, *, is_admins: bool = False
) -> list[PendingApproval]:
    """Load the open questions of a chat, oldest first. `is_admins` adds all questions that admins must answer.

    `shown_by` limits the result to questions that were sent to the chat before that time, because an answer given then
    cannot refer to later questions.
    """
    values = {"chat_id": chat_id, "is_admins": int(is_admins), "shown_by": shown_by}
    condition = _HERE if shown_by is None else f"{_HERE} AND {_SHOWN}"
    return select(db, PendingApproval, f"{_PENDING} AND {condition} ORDER BY a.id", values)


def decide(
    db: Connection, one: PendingApproval, state: ApprovalState, by: str, reason: str | None, now: Millis, name: str = ""
) -> None:
    """Store a person's answer. After the last answer, the turn continues."""
    # Remove characters that could format or hide parts of the line.
    shown = " ".join(re.sub(r"[^\w .'-]|_", " ", name).split())[:40] or by
    _close(db, one, state, by, reason, f"{state.capitalize()} by {shown}", now)


def _close(
    db: Connection, one: PendingApproval, state: ApprovalState, by: str, reason: str | None, outcome: str, now: Millis
) -> None:
    outbox.close_question(db, one.id, state, by, reason, outcome, now)
    if not db.execute(f"{_PENDING} AND t.id = ? LIMIT 1", (one.turn_id,)).fetchall():
        unpause_turn(db, one.turn_id)


@locks(EVERYTHING)
def expire_pending(
    db: Connection, why_closed: Callable[[Connection, PendingApproval], str | None], now: Millis
) -> list[ChatId]:
    """Close expired questions, and questions for which `why_closed` returns a reason. Return the questions' chats."""
    overdue = {one.id for one in select(db, PendingApproval, f"{_PENDING} AND a.expires_at <= ?", (now,))}
    pending = select(db, PendingApproval, f"{_PENDING} ORDER BY a.id")
    reasons = {one: "Expired without an answer" if one.id in overdue else why_closed(db, one) for one in pending}
    for approval, reason in reasons.items():
        if reason is not None:
            _close(db, approval, ApprovalState.EXPIRED, "", None, reason, now)
    return [approval.chat_id for approval, reason in reasons.items() if reason is not None]


def next_expiry(db: Connection) -> Millis | None:
    """Return the time at which the next question expires, or None if no question is open."""
    query = """SELECT min(a.expires_at) FROM approvals a JOIN turns t ON t.id = a.turn_id
    WHERE a.state = 'pending' AND t.state = 'waiting'"""
    return scalar_or_none(db, Millis, query)


_WHOLE_CHAT = """(SELECT CASE c.agent WHEN '' THEN 0 ELSE -(SELECT min(s.id) FROM sessions s
  WHERE s.chat_id = c.id AND s.agent = c.agent) END FROM chats c WHERE c.id = :chat_id)"""
"""SQL for the `lineage_id` of grants that apply to all conversations of a chat and its agent.

It is 0 for the unnamed agent. For other agents, it is the negative id of the agent's first session in the chat.
"""
_GRANTED_HERE = f"""chat_id = :chat_id AND (lineage_id = {_WHOLE_CHAT} OR EXISTS (SELECT 1 FROM sessions s
  JOIN chats c ON c.id = s.chat_id WHERE s.id = tool_grants.lineage_id AND s.agent = c.agent))"""


def grant(db: Connection, approval: PendingApproval, scope: GrantKind, by: str, now: Millis) -> None:
    """Allow all calls of the approved call's shape, in its conversation or in its whole chat."""
    lineage_id = approval.lineage_id if scope is GrantKind.SESSION else None
    query = f"""INSERT INTO tool_grants (chat_id, lineage_id, tool_name, shape, granted_by, created_at)
    SELECT :chat_id, coalesce(CAST(:lineage_id AS BIGINT), {_WHOLE_CHAT}), :tool, :shape, :by, CAST(:now AS BIGINT)
    ON CONFLICT (chat_id, lineage_id, tool_name, shape) DO UPDATE SET granted_by = excluded.granted_by"""
    call = {"tool": approval.tool_name, "shape": approval.shape, "by": by, "now": now}
    db.execute(query, {"chat_id": approval.chat_id, "lineage_id": lineage_id, **call})


def load_grants(db: Connection, chat_id: ChatId, lineage_id: LineageId) -> set[tuple[str, str, str]]:
    """Load the grants that apply to a conversation, as (tool, shape, person who allowed it)."""
    query = f"""SELECT tool_name, shape, granted_by FROM tool_grants
    WHERE chat_id = :chat_id AND lineage_id IN ({_WHOLE_CHAT}, :lineage_id)"""
    return set(db.execute(query, {"chat_id": chat_id, "lineage_id": lineage_id}).fetchall())


def revoke_grants(db: Connection, chat_id: ChatId) -> int:
    """Delete the grants of a chat and its agent. Return how many were deleted."""
    return db.execute(f"DELETE FROM tool_grants WHERE {_GRANTED_HERE}", {"chat_id": chat_id}).rowcount


def list_grants(db: Connection, chat_id: ChatId) -> list[str]:
    """Load the grants of a chat and its agent, each as a string `tool: shape`."""
    query = f"SELECT tool_name || ': ' || shape FROM tool_grants WHERE {_GRANTED_HERE} ORDER BY id"
    return scalars(db, str, query, {"chat_id": chat_id})
