"""Asyncio helpers: waits with a timeout, exponential backoff, cancellation and crashes."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

MAX_AT_ONCE = 16
"""Maximum number of tasks that start in one iteration of the event loop. Starting a task can take 0.5 ms."""
_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]] = WeakKeyDictionary()
"""For each event loop, the tasks that started in this iteration, followed by those waiting for a later one."""


class CancelledElsewhereError(Exception):
    """The future that a task awaits was cancelled, for example because a pool closed, but the task itself was not.

    This error replaces the `CancelledError`, which would end the task silently.
    """


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: the wait doubles after each failure, up to a maximum.

    >>> Backoff(0.5, 4.0).after(2)
    1.0
    >>> from itertools import islice
    >>> list(islice(Backoff(0.5, 4.0), 5))
    [0.5, 1.0, 2.0, 4.0, 4.0]
    """

    first_seconds: float = 1.0
    max_seconds: float = 30.0

    def after(self, failures: int) -> float:
        """Return the seconds to wait after this number of consecutive `failures` (at least 1)."""
        doublings = min(failures - 1, 32)  # exceeds any maximum, and avoids huge powers
        return min(self.max_seconds, self.first_seconds * 2.0**doublings)

    def __iter__(self) -> Iterator[float]:
        """Yield the seconds to wait after each failure, without end."""
        return map(self.after, count(1))


async def retried(
    work: Callable[[], Awaitable[T]],
    failure: type[Exception],
    event: str,
    *,
    unless: tuple[type[Exception], ...] = (),
    backoff: Iterable[float] = Backoff(),
    **facts: object,
) -> T:
    """Call `work` until it succeeds. Return its result. Retry on errors of type `failure`, except those in `unless`.

    Each failure is logged as a warning named `event`, with the error, the seconds to wait, and `facts`. If the error
    has a `retry_after`, like `RateLimited`, that time replaces the backoff.
    """
    pauses = iter(backoff)
    while True:
        try:
            return await work()
        except unless:
            raise
        except failure as error:
            import structlog  # slow to import, and the command line imports this module at every start

            pause = getattr(error, "retry_after", None) or next(pauses)
            structlog.get_logger().warning(event, retry_seconds=pause, error=str(error), **facts)
        await asyncio.sleep(pause)  # a timed wait, because no event signals that a retry would succeed


async def wait_until(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait up to `seconds` for an event (None: no limit). Return True if the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def run_until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it ends or `event` is set. Return True if `work` ended."""
    task, told = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all([task, told])
    if task.cancelled():
        return False
    task.result()
    return True


class FairSemaphore:
    """Semaphore that shares its slots fairly between holders.

    A holder must wait while it has at least as many slots as are free, so no holder gets much more than half.
    """

    def __init__(self, count: int) -> None:
        self._free, self._held = count, Counter[Hashable]()
        self._changed = asyncio.Event()  # set when a slot is released, then replaced

    @asynccontextmanager
    async def taken_by(self, who: Hashable) -> AsyncIterator[None]:
        """Wait for a slot for the holder `who`. Release it when the `with` block ends."""
        while self._held[who] >= self._free:
            await self._changed.wait()
        self._free, self._held[who] = self._free - 1, self._held[who] + 1
        try:
            yield
        finally:
            self._free, self._held[who] = self._free + 1, self._held[who] - 1
            self._held += Counter()  # drop holders without slots
            self._changed.set()
            self._changed = asyncio.Event()


def track(tasks: set[asyncio.Task[T]], task: asyncio.Task[T]) -> asyncio.Task[T]:
    """Keep a reference to `task` until it is done, because the event loop only holds weak references."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> int:
    """Cancel the running tasks and wait for them to end. Return how many were cancelled."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    return len(running)


@contextmanager
def own_cancellation() -> Iterator[None]:
    """Raise `CancelledElsewhereError` instead of a `CancelledError` if the current task was not cancelled."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling() > 0:
            raise
        raise CancelledElsewhereError("a future that this task awaited was cancelled") from error


@contextmanager
def crash_logged(event: str, **facts: object) -> Iterator[None]:
    """Log an unexpected error of the block as `event`, with `facts`, instead of raising it.

    Used where a bug, for example in an SDK or a plugin, must not end the caller.
    """
    try:
        yield
    except Exception:  # noqa: BLE001  # ruff does not see that the line below logs the error
        import structlog  # see `retried`

        structlog.get_logger().exception(event, **facts)


async def make_way() -> None:
    """Yield to other work if many tasks started in this iteration of the event loop.

    Without this, hundreds of chats that receive answers at the same time would block the loop for a tenth of a
    second.
    """
    loop = asyncio.get_running_loop()
    if (queue := _queues.get(loop)) is None:
        queue = _queues[loop] = deque()
        loop.call_soon(_begin_iteration, loop, queue)
    turn = loop.create_future()
    queue.append(turn)
    if len(queue) > MAX_AT_ONCE:
        await turn


def _begin_iteration(loop: asyncio.AbstractEventLoop, queue: deque[asyncio.Future[None]]) -> None:
    for _ in range(min(MAX_AT_ONCE, len(queue))):
        queue.popleft()
    if not queue:
        del _queues[loop]
        return
    for turn in islice(queue, MAX_AT_ONCE):
        if not turn.done():
            turn.set_result(None)
    loop.call_soon(_begin_iteration, loop, queue)
