"""Expiry of questions: a turn that waits too long, or whose person has lost access, goes on with a no."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gateway.turns.lanes import LaneRegistry
from hermes_state import outbox
from hermes_state.aio import Backoff, wait_until
from hermes_state.errors import StoreUnavailable
from hermes_state.store.writer import Store
from hermes_state.tools import approvals
from hermes_state.values import Clock, UserRef

log = structlog.get_logger()

MAX_SLEEP_SECONDS = 300.0
"""Longest time between two looks at the clock, which may be set while nothing happens."""


@dataclass(slots=True, kw_only=True)
class ApprovalRunner:
    """Timer of the question that expires next."""

    store: Store
    lanes: LaneRegistry
    has_access: Callable[[UserRef], bool]
    clock: Clock
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a question was stored or closed, and when people's access has changed."""

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
        for chat_id in await self.store.write(approvals.expire_pending, self.has_access, self.clock.now()):
            log.info("approval.expired", chat_id=chat_id)
            self.lanes.wake(chat_id)
        for chat_id in await self.store.read(outbox.load_chats_owed_questions):
            self.lanes.turns.delivery.wake(chat_id)
