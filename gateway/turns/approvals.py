"""Expiry of questions: a turn that waits too long, or for an answer that cannot come any more, goes on with a no."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from gateway.timers import Timer
from gateway.turns.lanes import LaneRegistry
from hermes_state import outbox
from hermes_state.admin.pairings import UserRole
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.tools import approvals
from hermes_state.tools.approvals import Answerer, PendingApproval
from hermes_state.values import ChatId, Clock, UserRef

log = structlog.get_logger()

MAX_SLEEP_SECONDS = 300.0
"""Longest time between two looks at the clock, which may be set while nothing happens."""

NO_ACCESS = "Withdrawn, because the person has no access any more,"
NO_ADMIN = "Refused, because no admin can be reached any more,"


@dataclass(slots=True, kw_only=True)
class ApprovalRunner:
    """Expires questions when their time is over."""

    store: Store
    lanes: LaneRegistry
    role_of: Callable[[UserRef], UserRole | None]
    load_admin_chats: Callable[[Connection], Sequence[ChatId]]
    clock: Clock
    timer: Timer
    """Timer of `expire`. It is woken when a question was stored or closed, and when access or the reach of a chat has
    changed."""

    async def expire(self) -> float | None:
        """Expire the questions that are due; returns the seconds until the next one is, None if none is open."""
        await self._expire()
        due = await self.store.read(approvals.next_expiry)
        return None if due is None else (due - self.clock.now()) / 1_000

    async def _expire(self) -> None:
        for chat_id in await self.store.write(approvals.expire_pending, self._why_closed, self.clock.now()):
            log.info("approval.expired", chat_id=chat_id)
            self.lanes.wake(chat_id)
        for chat_id in await self.store.read(outbox.load_chats_owed_questions):
            self.lanes.turns.delivery.wake(chat_id)

    def _why_closed(self, db: Connection, one: PendingApproval) -> str | None:
        """Reason why nobody can answer a question any more; None while somebody can."""
        role = self.role_of(one.started_by)
        if role is None:
            return NO_ACCESS
        is_for_admins = one.answerer is Answerer.ADMIN and role is not UserRole.ADMIN
        return NO_ADMIN if is_for_admins and not self.load_admin_chats(db) else None
