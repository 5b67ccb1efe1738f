"""Scheduled jobs: idle conversations end, and the database and the stored files are kept small."""

import asyncio
import importlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from gateway.models.selection import Runtime
from hermes_state import attachments, sessions
from hermes_state.admin import retention
from hermes_state.engines.postgres.nodes import forget_gone
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import StateError
from hermes_state.files.folder import LEFTOVER_MILLIS, AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Millis

if TYPE_CHECKING:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

log = structlog.get_logger()

IDLE_CHECK_MINUTES = 5
HOUSEKEEPING_MINUTES = 60
SETTLED_MILLIS = 30 * 86_400_000
"""Time for which the keys of settled messages are kept. No platform repeats an event after a month."""
SLICE_ROWS = 500


class JobRunner:
    """Runner of the gateway's own jobs, with APScheduler as a timer; nothing of them is stored."""

    def __init__(self, *, store: Store, runtime: Runtime, clock: Clock, files: AttachmentFolder) -> None:
        self._store = store
        self._runtime = runtime
        self._clock = clock
        self._files = files
        self._scheduler: AsyncIOScheduler | None = None

    async def start(self) -> None:
        """Import the scheduler, away from the event loop, and begin to wait for the first time."""
        scheduling = await asyncio.to_thread(importlib.import_module, "apscheduler.schedulers.asyncio")
        # A late job runs once instead of being dropped: the default lets it go after a second.
        self._scheduler = scheduling.AsyncIOScheduler(job_defaults={"misfire_grace_time": None, "coalesce": True})
        jobs = ((IDLE_CHECK_MINUTES, self.expire_idle), (HOUSEKEEPING_MINUTES, self.run_housekeeping))
        for minutes, job in jobs:
            self._scheduler.add_job(job, "interval", minutes=minutes, name=job.__name__)
        self._scheduler.start()
        self._look_at_clock()

    async def run(self, pause: float) -> None:
        """Run the jobs until cancelled; the scheduler is loaded after so many seconds."""
        await asyncio.sleep(pause)
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            self.close()

    def close(self) -> None:
        """Start nothing more; what runs is a matter of milliseconds."""
        if self._scheduler is not None:
            self._look.cancel()
            self._scheduler.shutdown(wait=False)

    def _look_at_clock(self) -> None:
        """Make jobs due whose next run is further away than it can be: the clock was set back."""
        self._look = asyncio.get_running_loop().call_later(IDLE_CHECK_MINUTES * 60, self._look_at_clock)
        now = datetime.now(UTC)
        assert self._scheduler is not None, "called by `start`"
        for job in self._scheduler.get_jobs():
            if job.next_run_time - now > job.trigger.interval:
                job.modify(next_run_time=now)

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
