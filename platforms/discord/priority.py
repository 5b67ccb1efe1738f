"""Priority semaphore: how many histories are read at a time, the urgent ones first."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator


class PrioritySemaphore:
    """Semaphore that admits in order; whoever is urgent comes next."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, asyncio.Future[None]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the semaphore for `name`, which waits for one at a time."""
        if self._free:
            self._free -= 1
        else:
            slot = self._waiting[name] = asyncio.get_running_loop().create_future()
            try:
                await slot
            except asyncio.CancelledError:
                self._waiting.pop(name, None)
                if not slot.cancelled():  # it was given in the same moment
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def prioritize(self, name: str) -> None:
        """Let `name` come next: somebody waits for it."""
        if name in self._waiting:
            self._waiting.move_to_end(name, last=False)

    def _pass_on(self) -> None:
        while self._waiting:
            _, slot = self._waiting.popitem(last=False)
            if not slot.done():  # else its owner was told to stop and has not run yet
                slot.set_result(None)
                return
        self._free += 1
