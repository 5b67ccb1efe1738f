"""Timers: when their jobs run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from structlog.testing import capture_logs

from gateway.timers import Timer, run_timers
from hermes_state.aio import cancel_all
from hermes_state.errors import StoreUnavailable

HOUR = 3_600.0


class Work:
    """Work that says when it has begun, and returns what it is told."""

    def __init__(self, *results: float | Exception | None) -> None:
        self._results = list(results)
        self.begun: asyncio.Queue[float] = asyncio.Queue()

    async def __call__(self) -> float | None:
        self.begun.put_nowait(asyncio.get_running_loop().time())
        result = self._results.pop(0) if self._results else None
        if isinstance(result, Exception):
            raise result
        return result

    async def next(self) -> float:
        async with asyncio.timeout(5):
            return await self.begun.get()


@asynccontextmanager
async def started(timer: Timer, work: Callable[[], Awaitable[float | None]]) -> AsyncIterator[None]:
    running = asyncio.create_task(run_timers({timer: work}))
    try:
        yield
    finally:
        await cancel_all([running])


async def test_a_job_runs_at_the_start_when_it_is_due_and_when_it_is_woken() -> None:
    timer, work = Timer("test", HOUR), Work(0.3, None)
    async with started(timer, work):
        first, second = await work.next(), await work.next()
        assert 0.25 < second - first < 3
        timer.wake()
        await work.next()
        assert work.begun.empty()


async def test_a_job_for_later_does_not_run_at_the_start() -> None:
    timer, work = Timer("test", 0.3, runs_at_once=False), Work()
    began = asyncio.get_running_loop().time()
    async with started(timer, work):
        assert await work.next() - began > 0.25


async def test_a_job_that_is_woken_while_it_runs_runs_once_more() -> None:
    timer, begun, go_on = Timer("test", HOUR), 0, asyncio.Event()
    reached = asyncio.Semaphore(0)

    async def work() -> None:
        nonlocal begun
        begun += 1
        reached.release()
        await go_on.wait()

    async with started(timer, work), asyncio.timeout(5):
        await reached.acquire()
        for _ in range(5):
            timer.wake()
        assert begun == 1
        go_on.set()
        await reached.acquire()
    assert begun == 2


async def test_a_job_is_tried_again_while_the_database_is_unavailable() -> None:
    timer, work = Timer("test", HOUR), Work(StoreUnavailable("locked"), None)
    with capture_logs() as logs:
        async with started(timer, work):
            await work.next()
            await work.next()
    assert [(line["event"], line["retry_seconds"]) for line in logs] == [("test.delayed", 1.0)]


async def test_a_job_runs_at_once_where_the_clock_was_set_back() -> None:
    timer, work = Timer("test", HOUR), Work()
    async with started(timer, work):
        await work.next()
        timer.look_at_clock()
        await asyncio.wait_for(_rounds(), 5)
        assert work.begun.empty()
        assert timer._job is not None
        timer._job.modify(next_run_time=timer._job.next_run_time + timedelta(hours=2))
        timer.look_at_clock()
        await work.next()


async def test_a_job_runs_once_after_the_clock_was_set_forward_by_years() -> None:
    timer, work = Timer("test", HOUR), Work()
    async with started(timer, work):
        await work.next()
        await _rounds()
        assert timer._job is not None
        now = datetime.now(UTC)
        timer._job.modify(next_run_time=now - timedelta(days=10_000))
        assert len(timer._job._get_run_times(now)) < 100, "APScheduler walks through them on the event loop"
        await work.next()
        assert work.begun.empty()


async def test_a_job_that_crashed_while_it_was_woken_can_be_woken_again() -> None:
    timer, reached, crashed = Timer("test", HOUR), asyncio.Semaphore(0), asyncio.Event()

    async def work() -> None:
        reached.release()
        if not crashed.is_set():
            timer.wake()
            crashed.set()
            raise RuntimeError("a bug")

    async with started(timer, work), asyncio.timeout(5):
        await reached.acquire()
        await _rounds()
        timer.wake()
        await reached.acquire()


async def test_the_end_waits_for_the_job_that_runs() -> None:
    begun, ended = asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await _rounds()
            ended = True

    async with started(Timer("test", HOUR), work), asyncio.timeout(5):
        await begun.wait()
    assert ended


async def _rounds() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
