"""Function starts as they are recorded, and the figures of a sequence of them."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bench.steps import Passed, Recorder, Step, walk_of


@contextmanager
def recorded(recorder: Recorder) -> Iterator[list[Step]]:
    """Record this thread and those that begin in the block."""
    found: list[Step] = []
    threading.setprofile(recorder.hook)
    recorder.start()
    sys.setprofile(recorder.hook)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        found += recorder.stop()


def leaf() -> int:
    return 1


def pieces() -> Iterator[int]:
    yield leaf()
    yield leaf()


async def waits() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def names(steps: list[Step]) -> list[str]:
    return [step.function for step in steps]


def test_a_generator_starts_once_and_lambdas_and_comprehensions_never() -> None:
    with recorded(Recorder({__file__: "here"})) as steps:
        assert [one + (lambda: 1)() for one in pieces()] == [2, 2]
    assert (names(steps), {step.caller for step in steps}) == (["pieces", "leaf", "leaf"], {"here"})


def test_a_coroutine_starts_once_and_its_task_was_called_by_nobody() -> None:
    async def main() -> None:
        await asyncio.gather(waits(), waits())

    with recorded(Recorder({__file__: "here"})) as steps:
        asyncio.run(main())
    assert [name.rpartition(".")[2] for name in names(steps)] == ["main", "waits", "waits"]
    assert {step.caller for step in steps} == {""}


def test_other_threads_are_recorded_and_other_files_are_not() -> None:
    with recorded(Recorder({__file__: "here"})) as steps:
        thread = threading.Thread(target=leaf)
        thread.start()
        thread.join()
    [step] = steps
    assert (step.function, step.caller) == ("leaf", "")
    assert step.thread != threading.get_ident()


async def test_what_a_task_does_while_idle_is_not_counted_later() -> None:
    recorder, beats = Recorder({__file__: "here"}), asyncio.Semaphore(0)

    async def beat() -> None:
        while True:
            await beats.acquire()
            leaf()
            beaten.set()

    beaten = asyncio.Event()
    task = asyncio.create_task(beat(), name="heartbeat")
    with recorded(recorder):
        beats.release()
        await beaten.wait()
        recorder.ignore()
    assert recorder.ignored == ["heartbeat"]
    beaten.clear()
    with recorded(recorder) as steps:
        beats.release()
        await beaten.wait()
        await waits()
    task.cancel()
    assert names(steps) == ["waits"]


def test_visits_are_runs_of_starts_in_one_module_and_thread() -> None:
    def step(module: str, caller: str, thread: int = 1, function: str = "f") -> Step:
        return Step(module, function, caller, thread)

    walk = walk_of(
        [
            step("a", ""),
            step("b", "a"),
            step("x", "", thread=2),
            step("b", "b", function="g"),
            step("a", "a"),
            step("b", "a"),
        ]
    )
    assert (walk.starts, walk.functions, walk.calls, walk.edges) == (6, 4, 4, 3)
    assert walk.modules == [
        Passed(module="a", visits=2, calls_in=1, starts=2),
        Passed(module="b", visits=2, calls_in=2, starts=3),
        Passed(module="x", visits=1, calls_in=1, starts=1),
    ]
