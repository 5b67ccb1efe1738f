"""Writing what must not be given up: an answer that cost a model call, the end of a turn."""

import asyncio
from collections.abc import Callable, Iterator
from sqlite3 import Connection
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from hermes_state.errors import StoreUnavailable
from hermes_state.store.writer import Store

P = ParamSpec("P")
T = TypeVar("T")

log = structlog.get_logger()

LONGEST_PAUSE_SECONDS = 30.0


def pauses(first: float = 1.0, longest: float = LONGEST_PAUSE_SECONDS) -> Iterator[float]:
    """Seconds to wait between attempts: doubling, then steady."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 2, longest)


async def write_patiently(
    store: Store, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """`store.write`, tried again for as long as the database cannot be written.

    For functions whose effect must not be lost and whose second run is harmless. Cancellation ends it.
    """
    for pause in pauses():
        try:
            return await store.write(fn, *args, **kwargs)
        except StoreUnavailable as error:
            log.warning("store.write_delayed", function=fn.__name__, retry_seconds=pause, error=str(error))
        await asyncio.sleep(pause)  # the database gives no sign when it has room again
    raise AssertionError("pauses() never ends")
