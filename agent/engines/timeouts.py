"""Calling code that is not ours: sync in a thread of its own, async on the loop, never longer than allowed.

A thread cannot be stopped. One that is given up goes on by itself, keeps nothing waiting, not even the end of the
process, and is counted until it is done.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any


class CallTimeout(Exception):
    """A call was given up; it may still be running."""


class Strangers:
    """Runs calls, and knows which of those that were given up still run."""

    def __init__(self) -> None:
        self._runaways: set[asyncio.Future[Any]] = set()

    @property
    def runaways(self) -> int:
        """Calls that were given up and still run."""
        return len(self._runaways)

    async def call(self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of `function`, which may be async. Raises what it raises, and `CallTimeout`."""
        deadline = asyncio.get_running_loop().time() + seconds
        if inspect.iscoroutinefunction(function):
            running = asyncio.ensure_future(function(*args, **kwargs))
        else:
            running = _in_thread(function, args, kwargs)
        result = await self._awaited(running, deadline)
        if inspect.isawaitable(result):
            result = await self._awaited(asyncio.ensure_future(result), deadline)
        return result

    async def close(self) -> None:
        """Stop what can be stopped."""
        for running in list(self._runaways):
            running.cancel()
        if self._runaways:
            await asyncio.wait(self._runaways, timeout=0.1)

    async def _awaited(self, running: "asyncio.Future[Any]", deadline: float) -> Any:
        seconds = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            # Not `timeout()`: a coroutine that swallows its cancellation would keep us here.
            await asyncio.wait({running}, timeout=seconds)
        finally:
            if not running.done():
                self._give_up(running)
        if running in self._runaways:
            raise CallTimeout(f"no answer within {seconds:g} seconds")
        return running.result()

    def _give_up(self, running: "asyncio.Future[Any]") -> None:
        self._runaways.add(running)
        running.add_done_callback(self._come_back)
        if isinstance(running, asyncio.Task):
            running.cancel()

    def _come_back(self, running: "asyncio.Future[Any]") -> None:
        self._runaways.discard(running)
        if not running.cancelled():
            running.exception()  # nobody waits for it any more, and that is no news


def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except (Exception, SystemExit) as raised:  # noqa: BLE001  whoever awaits the future gets it
            # A future does not carry SystemExit to its awaiter, nor StopIteration.
            is_carried = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            error = raised if is_carried else RuntimeError(f"{type(raised).__name__} in a call")
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    # Not a pool: its threads are waited for at the end of the process, also those that hang.
    threading.Thread(target=work, name=f"stranger-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return future
