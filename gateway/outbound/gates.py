"""One gate per chat: everything that is sent to a chat goes through it, one thing at a time.

What must arrive (the outbox) waits its turn and waits penalties out. What is only nice to have (previews,
typing) passes when nobody waits and no penalty is on, and is shed otherwise.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from hermes_state.values import ChatId


class Gate:
    """Serialises what one chat is sent."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._closed_until = 0.0

    @property
    def penalty_seconds(self) -> float:
        """How long nothing may be sent; 0 when the gate is open."""
        return max(0.0, self._closed_until - time.monotonic())

    @property
    def is_free(self) -> bool:
        """Whether something that may be shed can pass now."""
        return not self._lock.locked() and self._waiting == 0 and self.penalty_seconds == 0

    def close_for(self, seconds: float) -> None:
        """The platform asked for silence; a shorter request never shortens a longer one."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)
        # The timer holds on to the gate: a penalty must outlive those who are sending right now.
        asyncio.get_running_loop().call_later(seconds, self._keep)

    def _keep(self) -> None:
        """Nothing: `penalty_seconds` looks at the time itself."""

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Hold the gate while sending. Does not wait for a penalty to end: its owner looks at it first."""
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


class GateRegistry:
    """The gates of all chats that are being sent to; a gate goes when nobody holds it and no penalty is on."""

    def __init__(self) -> None:
        self._gates: WeakValueDictionary[ChatId, Gate] = WeakValueDictionary()

    def of(self, chat_id: ChatId) -> Gate:
        """The one gate of a chat."""
        gate = self._gates.get(chat_id)
        if gate is None:
            gate = self._gates[chat_id] = Gate()
        return gate
