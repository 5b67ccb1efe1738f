"""Runner of schedules: messages that come back into chats at their time."""

from functools import cache
from zoneinfo import ZoneInfoNotFoundError

import structlog

from agent.tools.schedules.times import is_local, last_occurrence, next_occurrence
from gateway.config.settings import Config
from gateway.turns.lanes import LaneRegistry
from hermes_state.errors import ToolError
from hermes_state.tools import schedules
from hermes_state.tools.schedules import FiringPlan, ScheduleRow
from hermes_state.values import Millis

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


async def fire_schedules(lanes: LaneRegistry) -> float | None:
    """Fire the schedules that are due. Returns the seconds until the next one is due, None if there is none."""
    now = lanes.clock.now()
    due = await lanes.store.read(schedules.next_due, now)
    if due is None or due > now:
        return None if due is None else (due - now) / 1_000

    def plan(row: ScheduleRow) -> FiringPlan:
        if lanes.access.role_of(row.creator_ref) is None:
            return FiringPlan(refusal=NO_ACCESS.format(row=row))
        try:
            return firing_plan(row, now, skips_missed=lanes.runtime.config.schedules.missed == "skip")
        except ToolError as error:
            return FiringPlan(refusal=MEANS_NOTHING.format(row=row, error=error))

    chats = await lanes.store.write(schedules.fire_due, plan, now)
    log.info("schedules.fired", chats=len(chats))
    for chat_id in chats:
        lanes.wake(chat_id)
        lanes.turns.delivery.wake(chat_id)
    return 0


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
