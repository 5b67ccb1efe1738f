import asyncio
from itertools import islice

import pytest
from structlog.testing import capture_logs

from hermes_state import aio
from hermes_state.aio import (
    Backoff,
    CancelledElsewhereError,
    FairSemaphore,
    cancel_all,
    make_way,
    own_cancellation,
    retried,
    run_until,
    track,
    wait_until,
)
from hermes_state.errors import RateLimited


def test_a_backoff_doubles_and_then_stays_at_its_maximum() -> None:
    backoff = Backoff(0.5, 3.0)
    assert list(islice(backoff, 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [backoff.after(failures) for failures in (1, 3, 10_000)] == [0.5, 2.0, 3.0]


async def test_waiting_ends_with_the_event_or_the_timeout() -> None:
    event = asyncio.Event()
    assert not await wait_until(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_until(event, None)
    assert await wait_until(event, 0)


async def test_work_runs_until_it_ends_or_the_event_is_set() -> None:
    stop, done, cut = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def short() -> None:
        done.set()

    async def endless() -> None:
        try:
            stop.set()
            await asyncio.Event().wait()
        finally:
            cut.set()

    async def broken() -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await run_until(stop, broken())
    assert await run_until(stop, short())
    assert done.is_set()
    assert not await run_until(stop, endless())
    assert cut.is_set()


async def test_tracked_tasks_are_referenced_until_done() -> None:
    tasks: set[asyncio.Task[bool]] = set()
    never = track(tasks, asyncio.create_task(asyncio.Event().wait()))
    soon = track(tasks, asyncio.create_task(asyncio.sleep(0, True)))
    assert await soon
    await asyncio.sleep(0)
    assert tasks == {never}
    assert await cancel_all([soon, never]) == 1
    assert never.cancelled()


async def test_only_a_foreign_cancellation_becomes_an_error() -> None:
    future = asyncio.get_running_loop().create_future()

    async def work() -> None:
        with own_cancellation():
            await future

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    with pytest.raises(CancelledElsewhereError):
        await work()


@pytest.mark.parametrize(("at_once", "rounds"), [(5, 1), (2, 3), (1, 5)])
async def test_only_a_limited_number_of_tasks_start_per_loop_round(
    at_once: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "MAX_AT_ONCE", at_once)
    began: list[int] = []
    number = 0

    async def work() -> None:
        await make_way()
        began.append(number)

    working = [asyncio.create_task(work()) for _ in range(5)]
    while not all(task.done() for task in working):
        number += 1
        await asyncio.sleep(0)
    assert len(began) == 5
    assert len(set(began)) == rounds


async def test_a_holder_gets_at_most_as_many_slots_as_stay_free() -> None:
    slots, end, taken = FairSemaphore(8), asyncio.Event(), list[str]()

    async def hold(who: str) -> None:
        async with slots.taken_by(who):
            taken.append(who)
            await end.wait()

    async with asyncio.TaskGroup() as group:
        for who in ("first", "second", "third", "fourth"):
            tasks = [group.create_task(hold(who)) for _ in range(20)]
            await asyncio.sleep(0)
            if who == "fourth":
                for task in tasks:
                    task.cancel()  # cancelled while waiting, so it takes no slot
        assert taken == ["first"] * 4 + ["second"] * 2 + ["third"] + ["fourth"]
        end.set()
    assert taken.count("first") == taken.count("second") == taken.count("third") == 20
    one = FairSemaphore(1)
    for _ in range(3):  # a slot is free again after an error
        with pytest.raises(ValueError, match="broken"):
            async with one.taken_by("one"):
                raise ValueError("broken")


async def test_work_is_retried_only_after_the_given_failure() -> None:
    outcomes: list[Exception | int]
    outcomes = [KeyError("one"), KeyError("two"), 7, ValueError("three"), FileNotFoundError(), RateLimited(0.003), 8]

    async def work() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with capture_logs() as logs:
        assert await retried(work, KeyError, "work.delayed", backoff=Backoff(0.001, 0.002), task=1) == 7
    told = {"event": "work.delayed", "log_level": "warning", "task": 1}
    assert logs == [
        {**told, "error": "'one'", "retry_seconds": 0.001},
        {**told, "error": "'two'", "retry_seconds": 0.002},
    ]
    with pytest.raises(ValueError, match="three"):
        await retried(work, KeyError, "work.delayed")
    with pytest.raises(FileNotFoundError):
        await retried(work, OSError, "work.delayed", unless=(FileNotFoundError,))
    with capture_logs() as logs:
        assert await retried(work, RateLimited, "work.delayed") == 8
    assert logs[0]["retry_seconds"] == 0.003
