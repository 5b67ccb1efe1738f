"""Calls of code that is not ours: sync in a thread of its own, async on the loop, never longer than allowed.

A thread cannot be stopped. One that is given up goes on by itself and keeps nothing waiting, not even the end of the
process.
"""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import Any


class EngineError(Exception):
    """An engine did not do what it was asked for. The text completes the sentence `The context engine …`."""


class CallTimeout(EngineError):
    """A call was given up; it may still be running."""


async def call_with_timeout(
    seconds: float, hung: "set[asyncio.Future[Any]]", function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """The result of `function`, which may be async. Raises what it raises, and `CallTimeout`.

    A call that is given up, also because the caller was cancelled, is in `hung` for as long as it goes on.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    is_async = inspect.iscoroutinefunction(function)
    running = asyncio.ensure_future(function(*args, **kwargs)) if is_async else _in_thread(function, args, kwargs)
    while await _is_done_by(deadline, running, hung):
        if running.cancelled():  # by itself: whoever waits for it was not
            raise EngineError("cancelled its own call")
        result = running.result()
        if not inspect.isawaitable(result):
            return result
        running = asyncio.ensure_future(result)
    raise CallTimeout(f"did not answer within {seconds:g} seconds")


async def _is_done_by(deadline: float, running: "asyncio.Future[Any]", hung: "set[asyncio.Future[Any]]") -> bool:
    try:
        # Not `timeout()`: a coroutine that swallows its cancellation would keep us here.
        await asyncio.wait({running}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        return running.done()
    finally:
        if not running.done():
            hung.add(running)
            running.add_done_callback(hung.discard)
            running.add_done_callback(lambda _: running.cancelled() or running.exception())  # nobody waits for it
            if isinstance(running, asyncio.Task):
                running.cancel()


def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]":
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001  whoever awaits the future gets it
            # A future carries neither StopIteration to its awaiter, nor what would end the loop.
            is_carried = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            future.set_exception(raised if is_carried else RuntimeError(f"{type(raised).__name__} in a call"))
        else:
            future.set_result(result)

    # Not a pool: its threads are waited for at the end of the process, also those that hang.
    Thread(target=work, name=f"plugin-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return asyncio.wrap_future(future)
