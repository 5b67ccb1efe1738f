"""Telling an order to stop from a cancellation that nobody ordered."""

import asyncio


def is_ordered() -> bool:
    """Whether a `CancelledError` just caught is meant for the task that caught it.

    It is not when a library let one of its own futures be cancelled under us, as connection pools do when they are
    closed. Passed on, that would end the task without a trace; whoever keeps it going takes it for a failure.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
