"""How many histories are read at a time, and whose turn it is."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator


class PrioritySemaphore:
    """A number of places, given away in order; whoever is in a hurry comes next."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, asyncio.Future[None]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def one(self, name: str) -> AsyncIterator[None]:
        """A place for `name`, which waits for one at a time."""
        if self._free:
            self._free -= 1
        else:
            place = self._waiting[name] = asyncio.get_running_loop().create_future()
            try:
                await place
            except asyncio.CancelledError:
                self._waiting.pop(name, None)
                if not place.cancelled():  # it was given in the same moment
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def hurry(self, name: str) -> None:
        """Somebody waits for `name`."""
        if name in self._waiting:
            self._waiting.move_to_end(name, last=False)

    def _pass_on(self) -> None:
        while self._waiting:
            _, place = self._waiting.popitem(last=False)
            if not place.done():  # else its owner was told to stop and has not run yet
                place.set_result(None)
                return
        self._free += 1
