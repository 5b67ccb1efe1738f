"""Runner of schedules: messages that come back into chats at their time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from zoneinfo import ZoneInfoNotFoundError

import structlog

from agent.tools.schedules.times import is_local, last_occurrence, next_occurrence
from gateway.access.permissions import AccessControl
from gateway.config.settings import Config
from gateway.models.selection import Runtime
from gateway.timers import Timer
from gateway.turns.lanes import LaneRegistry
from hermes_state.errors import ToolError
from hermes_state.store.writer import Store
from hermes_state.tools import schedules
from hermes_state.tools.schedules import FiringPlan, ScheduleRow
from hermes_state.values import ChatId, Clock, Millis

log = structlog.get_logger()

LATE_MILLIS = 120_000
"""Milliseconds from which on a message comes late: a restart takes less."""

NO_ACCESS = (
    "Schedule {row.id} is paused: {row.creator_name}, who made it, has no access any more. `/schedule remove {row.id}` "
    "removes it."
)
MEANS_NOTHING = "Schedule {row.id} is paused: {error}. Set it anew."
LATE_NOTE = "it was due at {key} ({zone}) and comes late, for the gateway or its machine was not running then"
MISSED_NOTE = "the times before that one passed while the gateway or its machine was not running, and are left out"


@dataclass(slots=True, kw_only=True)
class ScheduleRunner:
    """Fires the schedules that are due, however many there are."""

    store: Store
    runtime: Runtime
    access: AccessControl
    lanes: LaneRegistry
    deliver: Callable[[ChatId], None]
    clock: Clock
    timer: Timer
    """Timer of `fire`. It is woken when a schedule was stored or changed."""

    async def fire(self) -> float | None:
        """Fire the schedules that are due; returns the seconds until the next one is, None if there is none."""
        due = await self.store.read(schedules.next_due, self.clock.now())
        if due is not None and due <= self.clock.now():
            await self._fire()
            return 0
        return None if due is None else (due - self.clock.now()) / 1_000

    async def _fire(self) -> None:
        now = self.clock.now()
        chats = await self.store.write(schedules.fire_due, lambda row: self._plan(row, now), now)
        log.info("schedules.fired", chats=len(chats))
        for chat_id in chats:
            self.lanes.wake(chat_id)
            self.deliver(chat_id)

    def _plan(self, row: ScheduleRow, now: Millis) -> FiringPlan:
        if self.access.role_of(row.creator_ref) is None:
            return FiringPlan(refusal=NO_ACCESS.format(row=row))
        try:
            return firing_plan(row, now, skips_missed=self.runtime.config.schedules.missed == "skip")
        except ToolError as error:
            return FiringPlan(refusal=MEANS_NOTHING.format(row=row, error=error))


def firing_plan(row: ScheduleRow, now: Millis, *, skips_missed: bool) -> FiringPlan:
    """Fate of a schedule that is due by the clock, or that came at a time which is ahead of it.

    Raises `ToolError` for one whose time or zone means nothing (any more).
    """
    assert row.next_at is not None, "only what is active is due"
    following = next_occurrence(row.spec, row.zone, now)
    next_at = None if following is None else following.at
    meant = last_occurrence(row.spec, row.zone, now)
    if row.next_at > now or meant is None:  # the clock was set back: what comes again by it has its key
        return FiringPlan(next_at=next_at)
    is_late = now - meant.at >= LATE_MILLIS
    if is_late and skips_missed and not is_local(row.spec):
        log.info("schedule.skipped", schedule=row.id)
        return FiringPlan(next_at=next_at)
    notes = [LATE_NOTE.format(key=meant.key.replace("T", " "), zone=row.zone)] if is_late else []
    notes += [MISSED_NOTE] if meant.at > row.next_at else []
    return FiringPlan(key=meant.key, notes=tuple(notes), next_at=next_at)


def schedule_zone(config: Config) -> str:
    """Return the name of the time zone of new schedules: the configured one, else the server's, which may be empty."""
    return config.agent.time_zone or server_zone()


@cache
def server_zone() -> str:
    """Name of the machine's time zone; empty where it has none, such as with `TZ=CET-1CEST`."""
    import tzlocal  # read when somebody makes the first schedule

    try:
        return tzlocal.get_localzone_name() if tzlocal.get_localzone() is not None else ""
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ""
