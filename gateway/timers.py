"""Timers of the daemon: each is a job of APScheduler that runs when something is due."""

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
"""Seconds between two looks at the clock. If it was set back, a job is due later than it should be."""

TimerWork: TypeAlias = Callable[[], Awaitable[float | None]]
"""Does what is due, and returns the seconds until it must run again; None: after the longest time of its timer."""


class Timer:
    """Time at which a job runs: when it is woken, when it is due, and after `longest_seconds` at the latest.

    It may be made before its work, and woken before it is started. A job that finds the database unavailable runs again
    after a pause.
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
            days=365,  # after each run the next time is set; a short interval is walked through if the clock jumps
            name=self.name,
            max_instances=2,  # the second one sees that the first one runs, and leaves the work to it
            next_run_time=_after(self._first_seconds),
        )

    def stop(self) -> asyncio.Task[object] | None:
        """Forget the job, which its scheduler ends; returns the task that runs it, if one does."""
        self._job = None
        return self._task

    def wake(self) -> None:
        """Run the job now, or once more if it is running."""
        if self._job is not None and self._task is None:
            self._job.modify(next_run_time=_after(0))
        self._is_woken = True

    def look_at_clock(self) -> None:
        """Run the job if it is due later than it can be: the clock was set back."""
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
                raise  # else `stop` came first, and APScheduler would log an error
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
    """Run the jobs of timers until cancelled; returns after the jobs that are running have ended.

    APScheduler is imported after `pause` seconds.
    """
    await asyncio.sleep(pause)
    scheduling = await asyncio.to_thread(importlib.import_module, "apscheduler.schedulers.asyncio")
    await asyncio.to_thread(importlib.import_module, "apscheduler.executors.asyncio")  # else its start imports it
    # A late job runs once instead of being dropped: the default drops it after a second.
    defaults = {"misfire_grace_time": None, "coalesce": True}
    scheduler: AsyncIOScheduler = scheduling.AsyncIOScheduler(timezone=UTC, job_defaults=defaults)
    for timer, work in works.items():
        timer.start(scheduler, work)
    scheduler.start()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)  # nothing tells that the clock was set
            for timer in works:
                timer.look_at_clock()
    finally:
        running = [timer.stop() for timer in works]
        scheduler.shutdown(wait=False)
        await cancel_all([task for task in running if task is not None])


def _after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)
