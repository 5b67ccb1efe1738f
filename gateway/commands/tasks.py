"""Tasks of commands that take long, such as a compression by hand: one in a chat, and `/stop` can end it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hermes_state.values import ChatId, UserRef

T = TypeVar("T")


class TaskRegistry:
    """Running tasks of commands by chat; one at a time in each, for they change it under its lock."""

    def __init__(self) -> None:
        self._running: dict[ChatId, tuple[asyncio.Task[Any], UserRef]] = {}  # Any: whoever started it knows its result

    async def run(self, chat_id: ChatId, started_by: UserRef, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None when it was stopped. Cancelling this cancels the work."""
        task = asyncio.create_task(work, name=f"work-{chat_id}")
        self._running[chat_id] = task, started_by
        try:
            await asyncio.wait({task})
        finally:
            del self._running[chat_id]
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def started_by(self, chat_id: ChatId) -> UserRef | None:
        """Sender of the command that is at work in a chat; None while none is."""
        return self._running[chat_id][1] if chat_id in self._running else None

    def stop(self, chat_id: ChatId) -> bool:
        """Cancel the task of a chat; False when there is none."""
        return chat_id in self._running and self._running[chat_id][0].cancel()
