"""`/approve` and `/deny`: answers to the question whether a call of a tool may be run."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from sqlite3 import Connection
from typing import TypeAlias

from gateway.commands.registry import CommandReply, CommandRequest, CommandResult
from hermes_state import approvals
from hermes_state.admin.pairings import UserRole
from hermes_state.approvals import ApprovalState, GrantKind, PendingApproval
from hermes_state.errors import CommandError
from hermes_state.text import counted
from hermes_state.values import Millis

Decide: TypeAlias = Callable[[Connection, CommandRequest, Sequence[PendingApproval], Millis], str]
"""Stores the answer to questions and says so."""

NOTHING_WAITS = "Nothing waits for a yes here: it was answered, or has expired, or its turn has ended."
_NUMBER = re.compile(r"a?(\d{1,18})", re.IGNORECASE)


async def approve(request: CommandRequest) -> CommandResult:
    """Say yes to one question, or to `all` that wait."""
    words = request.argument.lower().split()
    scope = GrantKind.ONCE
    if words and words[-1] in tuple(GrantKind):
        scope = GrantKind(words.pop())
    if len(words) > 1:
        raise CommandError("Write `/approve`, with the number of the question, and `session` or `always` if you like.")
    return _answer(request, partial(_approve, scope), words[0] if words else None)


async def deny(request: CommandRequest) -> CommandResult:
    """Say no; the reason is told to the agent."""
    word, _, rest = request.argument.partition(" ")
    which = word.lower() if word.lower() == "all" or _NUMBER.fullmatch(word) else None
    reason = (rest if which is not None else request.argument).strip()
    return _answer(request, partial(_deny, reason or None), which)


def _answer(request: CommandRequest, decide: Decide, which: str | None) -> CommandResult:
    async def wake() -> None:
        request.context.lanes.wake(request.chat.id)

    def apply(db: Connection, now: Millis) -> CommandReply:
        return CommandReply(markdown=decide(db, request, _meant(db, request, which), now), is_urgent=True)

    return CommandResult(apply=apply, after=wake)


def _meant(db: Connection, request: CommandRequest, which: str | None) -> Sequence[PendingApproval]:
    """The questions that an answer is about. Raises `CommandError` where the sender may not answer them."""
    pending = approvals.load_pending(db, request.chat.id)
    if which is not None and which != "all":
        number = _NUMBER.fullmatch(which)
        pending = [one for one in pending if number is not None and one.id == int(number[1])]
    if not pending:
        raise CommandError(NOTHING_WAITS)
    if which is None and len(pending) > 1:
        names = ", ".join(f"a{one.id}" for one in pending)
        raise CommandError(f"{counted(len(pending), 'question')} wait: name one ({names}), or write `all`.")
    may_answer = request.role is UserRole.ADMIN or all(one.started_by == request.row.sender_ref for one in pending)
    if not may_answer:
        raise CommandError("Only whoever started this turn, or an admin, can answer that.")
    return pending


def _approve(
    scope: GrantKind, db: Connection, request: CommandRequest, meant: Sequence[PendingApproval], now: Millis
) -> str:
    lines = []
    for one in meant:
        approvals.decide(db, one, ApprovalState.APPROVED, request.row.sender_ref, None, now)
        lasts = scope is not GrantKind.ONCE and bool(one.shape)
        if lasts:
            approvals.grant(db, one, scope, request.row.sender_ref, now)
        reach = "this conversation" if scope is GrantKind.SESSION else "this chat"
        longer = f"; calls such as `{one.shape}` need no question in {reach} any more" if lasts else ""
        lines.append(f"Yes to a{one.id} (`{one.tool_name}`){longer}.")
    return "\n".join(lines)


def _deny(
    reason: str | None, db: Connection, request: CommandRequest, meant: Sequence[PendingApproval], now: Millis
) -> str:
    for one in meant:
        approvals.decide(db, one, ApprovalState.DENIED, request.row.sender_ref, reason, now)
    return "\n".join(f"No to a{one.id} (`{one.tool_name}`)." for one in meant)
