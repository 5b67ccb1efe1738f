"""Gates and flood control, which throttle the messages to a chat.

A gate allows one request at a time. The outbox waits for the gate and for the end of penalties. Previews and typing
signals are sent only if the gate is free and no penalty is active. Otherwise, they are dropped.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from hermes_state.errors import RateLimited
from hermes_state.values import ChatId, ChatKey


class Gate:
    """Lock for all requests to a chat."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def is_free(self) -> bool:
        """True while no sender holds the gate or waits for it."""
        return not self._lock.locked() and self._waiting == 0

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


class FloodControl:
    """A platform's penalty for a chat. All topics and people of the chat share it."""

    def __init__(self) -> None:
        self._ends = 0.0

    @property
    def penalty_seconds(self) -> float:
        """Seconds until the next request is allowed, or 0 without a penalty."""
        return max(0.0, self._ends - time.monotonic())

    def close_for(self, seconds: float) -> None:
        """Record a penalty imposed by the platform. A shorter penalty never replaces a longer penalty."""
        self._ends = max(self._ends, time.monotonic() + seconds)
        # The timer keeps this object alive, so that the penalty outlives the current senders.
        asyncio.get_running_loop().call_later(seconds, lambda: self)

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Guard a request: raise `RateLimited` at once during a penalty. Record a penalty that the request causes."""
        if (seconds := self.penalty_seconds) > 0:
            raise RateLimited(seconds)  # a request now would extend the penalty
        try:
            yield
        except RateLimited as error:
            self.close_for(error.retry_after)
            raise


class GateRegistry:
    """Gates and flood control of all chats. Each object is freed when no task uses it any more."""

    def __init__(self) -> None:
        self._gates: WeakValueDictionary[ChatId, Gate] = WeakValueDictionary()
        self._floods: WeakValueDictionary[tuple[str, str, str], FloodControl] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> Gate:
        return self._gates.setdefault(chat_id, Gate())

    def flood_of(self, chat: ChatKey) -> FloodControl:
        """Return the flood control that all topics and people of a chat share."""
        return self._floods.setdefault((chat.platform, chat.account, chat.chat_ref), FloodControl())
