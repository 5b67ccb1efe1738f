"""Scheduled jobs: idle conversations end, and the database and the stored files are kept small."""

import asyncio
from collections.abc import Mapping

import structlog

from gateway.models.selection import Runtime
from gateway.timers import Timer, TimerWork
from hermes_state import attachments, sessions
from hermes_state.admin import retention
from hermes_state.engines.postgres.nodes import forget_gone
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StateError
from hermes_state.files.folder import LEFTOVER_MILLIS, AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Millis

log = structlog.get_logger()

IDLE_CHECK_MINUTES = 5
HOUSEKEEPING_MINUTES = 60
SETTLED_MILLIS = 30 * 86_400_000
"""Time for which the keys of settled messages are kept. No platform repeats an event after a month."""
SLICE_ROWS = 500


class JobRunner:
    """Work that the gateway does from time to time; nothing of it is stored."""

    def __init__(self, *, store: Store, runtime: Runtime, clock: Clock, files: AttachmentFolder) -> None:
        self._store = store
        self._runtime = runtime
        self._clock = clock
        self._files = files
        self.works: Mapping[Timer, TimerWork] = {
            Timer("expire_idle", IDLE_CHECK_MINUTES * 60, runs_at_once=False): self.expire_idle,
            Timer("housekeeping", HOUSEKEEPING_MINUTES * 60, runs_at_once=False): self.run_housekeeping,
        }

    async def expire_idle(self) -> None:
        """End conversations that nobody has written in for `sessions.idle_reset_hours`; off by default."""
        hours = self._runtime.config.sessions.idle_reset_hours
        if hours is None:
            return
        now = self._clock.now()
        before = Millis(now - int(hours * 3_600_000))
        try:
            while ended := await self._store.write(sessions.expire_idle, before, SLICE_ROWS, now):
                log.info("sessions.expired", count=len(ended), idle_hours=hours)
                for session_id in ended:
                    await self._runtime.agent.context.ended(session_id, was_reset=False)
        except StateError as error:
            log.warning("sessions.expiry_delayed", error=str(error))

    async def run_housekeeping(self) -> None:
        """Forget what is settled and old, make room for files, tidy the database."""
        total_bytes = self._runtime.config.attachments.total_bytes
        try:
            # Files first: on a full disk they make the room that everything below needs.
            await asyncio.to_thread(self._files.remove_leftovers, self._clock.now() - LEFTOVER_MILLIS)
            surplus = await self._store.read(attachments.load_surplus, total_bytes)
            if surplus:
                await asyncio.to_thread(self._files.remove, surplus)
                await self._store.write(attachments.forget, surplus)
            removed = await retention.remove_expired(self._store, self._clock.now(), SETTLED_MILLIS)
            if isinstance(self._store, SqliteStore):
                await retention.maintain(self._store)
            else:
                await self._store.write(forget_gone, self._clock.now())
        except (StateError, OSError) as error:
            log.warning("housekeeping.delayed", error=str(error))
            return
        log.info("housekeeping.done", inbox=removed["inbox"], outbox=removed["outbox"], files=len(surplus))
