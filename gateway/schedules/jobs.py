"""Jobs of the gateway: expire questions and idle conversations, keep the database and the stored files small."""

import asyncio

import structlog

from gateway.turns.lanes import LaneRegistry
from hermes_state import attachments, outbox, sessions
from hermes_state.admin import retention
from hermes_state.admin.pairings import UserRole
from hermes_state.engines.postgres.nodes import forget_gone
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StateError
from hermes_state.files.folder import LEFTOVER_MILLIS, AttachmentFolder
from hermes_state.store.sql import Connection
from hermes_state.tools import approvals
from hermes_state.tools.approvals import Answerer, PendingApproval
from hermes_state.values import Millis

log = structlog.get_logger()

SETTLED_MILLIS = 30 * 86_400_000
"""Time for which the keys of settled messages are kept. No platform repeats an event after a month."""
SLICE_ROWS = 500


async def expire_questions(lanes: LaneRegistry) -> float | None:
    """Close the questions whose time is over or that no one can answer any more: their turns go on with a no.

    Returns the seconds until the next one is due, None if none is open.
    """

    def why_closed(db: Connection, one: PendingApproval) -> str | None:
        role = lanes.access.role_of(one.started_by)
        if role is None:
            return "Withdrawn, because the person has no access any more,"
        is_for_admins = one.answerer is Answerer.ADMIN and role is not UserRole.ADMIN
        if is_for_admins and not lanes.access.load_admin_chats(db):
            return "Refused, because no admin can be reached any more,"
        return None

    for chat_id in await lanes.store.write(approvals.expire_pending, why_closed, lanes.clock.now()):
        log.info("approval.expired", chat_id=chat_id)
        lanes.wake(chat_id)
    for chat_id in await lanes.store.read(outbox.load_chats_owed_questions):
        lanes.turns.delivery.wake(chat_id)
    due = await lanes.store.read(approvals.next_expiry)
    return None if due is None else (due - lanes.clock.now()) / 1_000


async def expire_idle(lanes: LaneRegistry) -> None:
    """End conversations that were silent for `sessions.idle_reset_hours`; off by default."""
    hours, now = lanes.runtime.config.sessions.idle_reset_hours, lanes.clock.now()
    if hours is None:
        return
    before = Millis(now - int(hours * 3_600_000))
    try:
        while ended := await lanes.store.write(sessions.expire_idle, before, SLICE_ROWS, now):
            log.info("sessions.expired", count=len(ended), idle_hours=hours)
            for session_id in ended:
                await lanes.runtime.agent.context.ended(session_id, was_reset=False)
    except StateError as error:
        log.warning("sessions.expiry_delayed", error=str(error))


async def run_housekeeping(lanes: LaneRegistry, files: AttachmentFolder) -> None:
    """Forget settled old rows, make room for files, tidy the database."""
    store, now = lanes.store, lanes.clock.now()
    try:
        # Files first: on a full disk they make the room that everything below needs.
        await asyncio.to_thread(files.remove_leftovers, now - LEFTOVER_MILLIS)
        surplus = await store.read(attachments.load_surplus, lanes.runtime.config.attachments.total_bytes)
        if surplus:
            await asyncio.to_thread(files.remove, surplus)
            await store.write(attachments.forget, surplus)
        removed = await retention.remove_expired(store, now, SETTLED_MILLIS)
        if isinstance(store, SqliteStore):
            await retention.maintain(store)
        else:
            await store.write(forget_gone, now)
    except (StateError, OSError) as error:
        log.warning("housekeeping.delayed", error=str(error))
        return
    log.info("housekeeping.done", inbox=removed["inbox"], outbox=removed["outbox"], files=len(surplus))
