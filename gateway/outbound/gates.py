"""Gates and flood control: how what is sent to a chat is throttled.

A gate lets one thing through at a time. What must arrive (the outbox) waits its turn and waits penalties out. What is
only nice to have (previews, typing) passes when nobody waits and no penalty is on, and is shed otherwise.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from hermes_state.errors import RateLimited
from hermes_state.values import ChatId, ChatKey


class Gate:
    """Serialises what one chat is sent."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def is_free(self) -> bool:
        """Nobody holds the gate or waits for it: what may be shed can pass."""
        return not self._lock.locked() and self._waiting == 0

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold the gate while sending."""
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
    """Penalty of a platform on one of its chats: it holds for all topics and people of that chat."""

    def __init__(self) -> None:
        self._ends = 0.0

    @property
    def penalty_seconds(self) -> float:
        """Seconds in which nothing may be sent; 0 when there is no penalty."""
        return max(0.0, self._ends - time.monotonic())

    def close_for(self, seconds: float) -> None:
        """Note that the platform asked for silence; a shorter request never shortens a longer one."""
        self._ends = max(self._ends, time.monotonic() + seconds)
        # The timer holds on to this object: a penalty must outlive those who are sending right now.
        asyncio.get_running_loop().call_later(seconds, self._keep)

    def _keep(self) -> None:
        """Nothing: `penalty_seconds` looks at the time itself."""

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Send within this block: raises `RateLimited` at once while a penalty is on, and notes a new one."""
        if (seconds := self.penalty_seconds) > 0:
            raise RateLimited(seconds)  # every request would make the penalty longer
        try:
            yield
        except RateLimited as error:
            self.close_for(error.retry_after)
            raise


class GateRegistry:
    """Gates and flood control of all chats that are being sent to; each goes when nobody needs it any more."""

    def __init__(self) -> None:
        self._gates: WeakValueDictionary[ChatId, Gate] = WeakValueDictionary()
        self._floods: WeakValueDictionary[tuple[str, str, str], FloodControl] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> Gate:
        """The one gate of a chat."""
        return self._gates.setdefault(chat_id, Gate())

    def flood_of(self, chat: ChatKey) -> FloodControl:
        """The flood control of a chat as its platform counts: one for all topics and people in it."""
        return self._floods.setdefault((chat.platform, chat.account, chat.chat_ref), FloodControl())
