"""Duties of a node: the accounts that it serves, and what one node does for all; and what it does at others' hints."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.cluster.node import Duty, OnHintOf
from gateway.cluster.previews import RemotePreviews
from gateway.commands.runner import CommandRunner
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from gateway.schedules.jobs import JobRunner
from gateway.schedules.runner import ScheduleRunner
from gateway.timers import run_timers
from gateway.turns.approvals import ApprovalRunner
from hermes_state.store.seats import KEEPER, HintKind, account_lock
from hermes_state.values import ChatId, InboxId, TurnId
from platforms.base import Intake

TIMER_SECONDS = 1.0
"""Seconds after the start before the timers run: importing APScheduler would delay the first answers by 22 ms."""


@dataclass(frozen=True, repr=False, slots=True, kw_only=True)
class DutyRoster:
    """Parts of which the duties of this gateway are made."""

    adapters: AdapterRegistry
    intake: Intake
    commands: CommandRunner
    delivery: Delivery
    previews: RemotePreviews
    approvals: ApprovalRunner
    schedules: ScheduleRunner
    jobs: JobRunner
    access_changed: asyncio.Event
    expire_learned: Callable[[], None]
    """Lets what is known of models be read again."""

    def of(self, role: str) -> Sequence[Duty]:
        """The duties of a node with this role; a `worker` serves no account."""
        accounts = [] if role == "worker" else self.adapters.supervised
        return [*map(self._serving, accounts), Duty(name="housekeeping", lock=KEEPER, run=self._keep)]

    def on_hint(self) -> Mapping[HintKind, OnHintOf]:
        """Work to do at hints that are not for lanes."""
        return {
            HintKind.OWED: lambda chat_id: self.delivery.wake(ChatId(chat_id)),
            HintKind.PREVIEW: lambda turn_id: self.previews.note(TurnId(turn_id)),
            HintKind.DROPPED: lambda inbox_id: self.commands.note_dropped(InboxId(inbox_id)),
            HintKind.ACCESS: lambda _: self.access_changed.set(),
            HintKind.ASKED: lambda _: self.approvals.timer.wake(),
            HintKind.SCHEDULED: lambda _: self.schedules.timer.wake(),
            HintKind.LEARNED: lambda _: self.expire_learned(),
        }

    async def abandon(self) -> None:
        """End what was begun for accounts, which may be another node's by now."""
        await self.delivery.abandon()
        await self.previews.abandon()

    def _serving(self, account: str) -> Duty:
        async def take_up() -> None:
            await self.commands.start(account)
            await self.delivery.start(account)

        one = self.adapters.supervised[account]
        return Duty(name=account, lock=account_lock(account), take_up=take_up, run=lambda: one.run(self.intake))

    async def _keep(self) -> None:
        await run_timers(
            {
                self.approvals.timer: self.approvals.expire,
                self.schedules.timer: self.schedules.fire,
                **self.jobs.works,
            },
            TIMER_SECONDS,
        )
