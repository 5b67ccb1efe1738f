"""Background jobs: fire schedules, expire approval requests and idle conversations, and clean up database and files."""

import asyncio
from functools import cache
from zoneinfo import ZoneInfoNotFoundError

import structlog

from agent.tools.schedules.times import last_occurrence, next_occurrence
from gateway.config.settings import Config
from gateway.turns.lanes import LaneRegistry
from hermes_state import attachments, outbox, sessions
from hermes_state.admin import retention
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import agent_of
from hermes_state.engines.postgres.nodes import forget_gone
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StateError, ToolError
from hermes_state.files.folder import LEFTOVER_MILLIS, AttachmentFolder
from hermes_state.store.sql import Connection
from hermes_state.tools import approvals, schedules
from hermes_state.tools.approvals import AnswererRole, PendingApproval
from hermes_state.tools.schedules import FiringPlan, ScheduleRow
from hermes_state.values import Millis

log = structlog.get_logger()

MISSED_NOTE = "earlier times were skipped because the gateway or its machine was not running"


async def expire_questions(lanes: LaneRegistry) -> float | None:
    """Deny approval requests that have expired or cannot be answered, so that their turns continue.

    Returns the seconds until the next request expires, or None if no request is open.
    """

    def why_closed(db: Connection, one: PendingApproval) -> str | None:
        role = lanes.access.role_of(one.started_by)
        if role is None:
            return "Withdrawn because the person no longer has access,"
        is_for_admins = one.answerer is AnswererRole.ADMIN and role is not UserRole.ADMIN
        if is_for_admins and not lanes.access.load_admin_chats(db):
            return "Refused because no admin can be reached,"
        return None

    for chat_id in await lanes.store.write(approvals.expire_pending, why_closed, lanes.clock.now()):
        log.info("approval.expired", chat_id=chat_id)
        lanes.wake(chat_id)
    for chat_id in await lanes.store.read(outbox.load_chats_owed_questions):
        lanes.turns.delivery.wake(chat_id)
    due = await lanes.store.read(approvals.next_expiry)
    return None if due is None else (due - lanes.clock.now()) / 1_000


async def expire_idle(lanes: LaneRegistry) -> None:
    """End conversations that were idle for `sessions.idle_reset_hours` (off by default)."""
    hours, now = lanes.runtime.config.sessions.idle_reset_hours, lanes.clock.now()
    if hours is None:
        return
    before = Millis(now - int(hours * 3_600_000))
    try:
        while await lanes.store.read(sessions.load_idle, before, 1):  # writes wait only if there is something to do
            ended = await lanes.store.write(sessions.expire_idle, before, 500, now)
            log.info("sessions.expired", count=len(ended), idle_hours=hours)
            for session_id in ended:
                runtime = lanes.runtime.of(await lanes.store.read(agent_of, session_id))
                await runtime.agent.context.ended(session_id, was_reset=False)
    except StateError as error:
        log.warning("sessions.expiry_delayed", error=str(error))


async def run_housekeeping(lanes: LaneRegistry, files: AttachmentFolder) -> None:
    """Delete old settled rows and surplus files, and maintain the database."""
    store, now = lanes.store, lanes.clock.now()
    try:
        # Delete files first: if the disk is full, the database work below needs their space.
        await asyncio.to_thread(files.remove_leftovers, now - LEFTOVER_MILLIS)
        surplus = await store.read(attachments.load_surplus, lanes.runtime.config.attachments.total_bytes)
        if surplus:
            await asyncio.to_thread(files.remove, surplus)
            await store.write(attachments.forget, surplus)
        month = 30 * 86_400_000  # platforms do not send an event again after 30 days
        removed = await retention.remove_expired(store, now, month)
        if isinstance(store, SqliteStore):
            await retention.maintain(store)
        else:
            await store.write(forget_gone, now)
    except (StateError, OSError) as error:
        log.warning("housekeeping.delayed", error=str(error))
        return
    log.info("housekeeping.done", inbox=removed["inbox"], outbox=removed["outbox"], files=len(surplus))


# ---- schedules


async def fire_schedules(lanes: LaneRegistry) -> float | None:
    """Fire the due schedules. Return the seconds until the next schedule is due, or None if no schedule is active."""
    now = lanes.clock.now()
    due = await lanes.store.read(schedules.next_due, now)
    if due is None or due > now:
        return None if due is None else (due - now) / 1_000

    def plan(row: ScheduleRow) -> FiringPlan:
        if lanes.access.role_of(row.creator_ref) is None:
            why = f"because {row.creator_name}, who added it, no longer has access"
            hint = f"To remove it, send `/schedule remove {row.id}`."
            return FiringPlan(refusal=f"Schedule {row.id} is paused {why}. {hint}")
        try:
            return firing_plan(row, now)
        except ToolError as error:
            return FiringPlan(refusal=f"Schedule {row.id} is paused: {error}. Please add it again.")

    chats = await lanes.store.write(schedules.fire_due, plan, now)
    log.info("schedules.fired", chats=len(chats))
    for chat_id in chats:
        lanes.wake(chat_id)
        lanes.turns.delivery.wake(chat_id)
    return 0


def firing_plan(row: ScheduleRow, now: Millis) -> FiringPlan:
    """Return the plan for a due schedule. Raises `ToolError` if its time or zone is invalid."""
    assert row.next_at is not None, "only active schedules are due"
    following = next_occurrence(row.spec, row.zone, now)
    next_at = None if following is None else following.at
    meant = last_occurrence(row.spec, row.zone, now)
    if row.next_at > now or meant is None:  # the clock was set back, but dedupe keys prevent a second firing
        return FiringPlan(next_at=next_at)
    is_late = now - meant.at >= 120_000  # a restart takes less time than this
    due = f"it was due at {meant.key.replace('T', ' ')} ({row.zone})"
    notes = [f"{due} and is late because the gateway or its machine was not running then"] if is_late else []
    notes += [MISSED_NOTE] if meant.at > row.next_at else []
    return FiringPlan(key=meant.key, notes=tuple(notes), next_at=next_at)


def schedule_zone(config: Config) -> str:
    """Return the name of the time zone for new schedules: the configured zone, or by default the server's."""
    return config.agent.time_zone or server_zone()


@cache
def server_zone() -> str:
    """Return the name of the machine's time zone, or an empty string if it has none, as with `TZ=CET-1CEST`."""
    import tzlocal  # imported late, because only schedules need it

    try:
        return tzlocal.get_localzone_name() if tzlocal.get_localzone() is not None else ""
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ""
