"""Timers of the daemon. Each timer is an APScheduler job that runs when work is due."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import structlog

from hermes_state.aio import Backoff, cancel_all
from hermes_state.errors import StoreUnavailable

if TYPE_CHECKING:
    from apscheduler.job import Job
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

log = structlog.get_logger()

LOOK_SECONDS = 10.0
"""Seconds between two clock checks. Without these checks, a job would run too late after the clock was set back."""

TimerWork: TypeAlias = Callable[[], Awaitable[float | None]]
"""Does the due work. Returns the seconds until the next run, or None to wait for the timer's longest interval."""


class Timer:
    """Runs a job when woken, when due, and after `longest_seconds` at the latest.

    A timer can be created before its work exists, and can be woken before it is started. If the database is
    unavailable, the job runs again after a pause.
    """

    def __init__(self, name: str, longest_seconds: float, *, runs_at_once: bool = True) -> None:
        self.name = name
        self._longest_seconds = longest_seconds
        self._first_seconds = 0 if runs_at_once else longest_seconds
        self._is_woken = False
        self._job: Job | None = None
        self._task: asyncio.Task[object] | None = None
        self._delays: Iterator[float] = iter(Backoff())

    def start(self, scheduler: "AsyncIOScheduler", work: TimerWork) -> None:
        """Add the job to a scheduler."""
        self._job = scheduler.add_job(
            self._run,
            "interval",
            (work,),
            # Each run sets the next time, so the interval is not used. A short interval would be slow after a clock
            # jump, because APScheduler steps through all missed intervals.
            days=365,
            name=self.name,
            max_instances=2,  # a second instance returns immediately if the first is still running
            next_run_time=_after(self._first_seconds),
        )

    def stop(self) -> asyncio.Task[object] | None:
        """Plan no more runs. Return the running task, if any; the caller cancels it and shuts down the scheduler."""
        self._job = None
        return self._task

    def wake(self) -> None:
        """Run the job now, or once more if it is running."""
        if self._job is not None and self._task is None:
            self._job.modify(next_run_time=_after(0))
        self._is_woken = True

    def look_at_clock(self) -> None:
        """Run the job now if its due time is later than possible, which means that the clock was set back."""
        is_running = self._task is not None
        if self._job is not None and not is_running and self._job.next_run_time > _after(self._longest_seconds):
            self._job.modify(next_run_time=_after(0))

    async def _run(self, work: TimerWork) -> None:
        if self._task is not None:
            return
        self._task = asyncio.current_task()
        pause = 60.0  # after an unexpected error
        try:
            seconds: float | None = 0.0
            while self._is_woken or seconds == 0:
                self._is_woken = False
                seconds = await self._try(work)
            pause = self._longest_seconds if seconds is None else seconds
        except asyncio.CancelledError:
            if self._job is not None:
                raise  # after `stop`, APScheduler would log an error
        finally:
            self._task = None
            if self._job is not None:
                self._job.modify(next_run_time=_after(pause))

    async def _try(self, work: TimerWork) -> float | None:
        try:
            seconds = await work()
        except StoreUnavailable as error:
            pause = next(self._delays)
            log.warning(f"{self.name}.delayed", error=str(error), retry_seconds=pause)
            return pause
        self._delays = iter(Backoff())
        return None if seconds is None else min(max(0.0, seconds), self._longest_seconds)


async def run_timers(works: Mapping[Timer, TimerWork], pause: float = 0.0) -> None:
    """Run the timers' jobs until cancelled, then wait for running jobs. Imports APScheduler after `pause` seconds."""
    await asyncio.sleep(pause)
    scheduling = await asyncio.to_thread(importlib.import_module, "apscheduler.schedulers.asyncio")
    await asyncio.to_thread(importlib.import_module, "apscheduler.executors.asyncio")  # `start` would block for this
    # A late job runs once. By default, APScheduler drops a job that is a second late.
    defaults = {"misfire_grace_time": None, "coalesce": True}
    scheduler: AsyncIOScheduler = scheduling.AsyncIOScheduler(timezone=UTC, job_defaults=defaults)
    for timer, work in works.items():
        timer.start(scheduler, work)
    scheduler.start()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)  # no event reports a clock change
            for timer in works:
                timer.look_at_clock()
    finally:
        running = [timer.stop() for timer in works]
        scheduler.shutdown(wait=False)
        await cancel_all([task for task in running if task is not None])


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)
