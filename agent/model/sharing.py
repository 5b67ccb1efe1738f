"""The event loop is shared: a stream that comes as fast as it can be read gives way to others now and then.

What has been received already is read without ever waiting, tens of kilobytes at a time; twenty such streams would
hold up everything else for a tenth of a second, again and again.
"""

import asyncio
import time
from typing import Final

SLICE_SECONDS: Final = 0.0002
"""How long one stream keeps the event loop: some ten events. With twenty streams everything else waits for some ten
milliseconds; giving way after every event would take a fifth more processor time."""


class LoopShare:
    """What one stream takes of the event loop's time."""

    def __init__(self, slice_seconds: float = SLICE_SECONDS) -> None:
        self._slice = slice_seconds
        self._over_at = time.perf_counter() + slice_seconds

    async def give_way(self) -> None:
        """Let others go first if this stream has had its slice; asked after each event."""
        if time.perf_counter() >= self._over_at:
            await asyncio.sleep(0)
            self._over_at = time.perf_counter() + self._slice
