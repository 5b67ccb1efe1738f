"""Expiry of questions: a turn that waits too long, or for an answer that cannot come any more, goes on with a no."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from gateway.turns.lanes import LaneRegistry
from hermes_state import outbox
from hermes_state.admin.pairings import UserRole
from hermes_state.aio import Backoff, wait_until
from hermes_state.errors import StoreUnavailable
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
    """Timer of the question that expires next."""

    store: Store
    lanes: LaneRegistry
    role_of: Callable[[UserRef], UserRole | None]
    load_admin_chats: Callable[[Connection], Sequence[ChatId]]
    clock: Clock
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a question was stored or closed, and when access or the reach of a chat has changed."""

    async def run(self) -> None:
        """Expire questions when they are due; until cancelled."""
        delays = iter(Backoff())
        while True:
            self.asked.clear()
            try:
                await self._expire()
                due = await self.store.read(approvals.next_expiry)
                delays = iter(Backoff())
            except StoreUnavailable as error:
                pause = next(delays)
                log.warning("approvals.delayed", error=str(error), retry_seconds=pause)
                await wait_until(self.asked, pause)
                continue
            if due is None:
                await self.asked.wait()
            else:
                seconds = max(0.0, (due - self.clock.now()) / 1_000)
                await wait_until(self.asked, min(seconds, MAX_SLEEP_SECONDS))

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
