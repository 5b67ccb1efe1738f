"""Gates and flood control, which throttle what a chat receives.

A gate lets one thing through at a time. The outbox waits for the gate and for penalties to end. Previews and typing
pass while the gate is free and no penalty is on, and are dropped otherwise.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from hermes_state.errors import RateLimited
from hermes_state.values import ChatId, ChatKey


class Gate:
    """Lock around everything that is sent to one chat."""

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
    """Penalty of a platform on one of its chats, with all its topics and people."""

    def __init__(self) -> None:
        self._ends = 0.0

    @property
    def penalty_seconds(self) -> float:
        """Seconds until a request is allowed; 0 without a penalty."""
        return max(0.0, self._ends - time.monotonic())

    def close_for(self, seconds: float) -> None:
        """Note that the platform asked for silence; a shorter penalty never shortens a longer one."""
        self._ends = max(self._ends, time.monotonic() + seconds)
        # The timer refers to this object, so that a penalty outlives the senders of the moment.
        asyncio.get_running_loop().call_later(seconds, lambda: self)

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Guard a request: raises `RateLimited` at once while a penalty is on, and notes a new one."""
        if (seconds := self.penalty_seconds) > 0:
            raise RateLimited(seconds)  # every request would make the penalty longer
        try:
            yield
        except RateLimited as error:
            self.close_for(error.retry_after)
            raise


class GateRegistry:
    """Gates and flood control of all chats; each is freed with its last user."""

    def __init__(self) -> None:
        self._gates: WeakValueDictionary[ChatId, Gate] = WeakValueDictionary()
        self._floods: WeakValueDictionary[tuple[str, str, str], FloodControl] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> Gate:
        return self._gates.setdefault(chat_id, Gate())

    def flood_of(self, chat: ChatKey) -> FloodControl:
        """Return the one flood control of a platform's chat, with all its topics and people."""
        return self._floods.setdefault((chat.platform, chat.account, chat.chat_ref), FloodControl())
