"""Tasks of commands that take long, such as a compression by hand: one in a chat, and `/stop` can end it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hermes_state.inbox import InboxRow
from hermes_state.values import ChatId, InboxId

T = TypeVar("T")


class TaskRegistry:
    """Running tasks of commands by chat; one at a time in each, for they change it under its lock."""

    def __init__(self) -> None:
        self._running: dict[ChatId, tuple[asyncio.Task[Any], InboxRow]] = {}  # Any: whoever started it knows its result

    async def run(self, command: InboxRow, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None when it was stopped. Cancelling this cancels the work."""
        task = asyncio.create_task(work, name=f"work-{command.chat_id}")
        self._running[command.chat_id] = task, command
        try:
            await asyncio.wait({task})
        finally:
            del self._running[command.chat_id]
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def find(self, chat_id: ChatId) -> InboxRow | None:
        """The command that is at work in a chat; None while none is."""
        return self._running[chat_id][1] if chat_id in self._running else None

    def stop(self, inbox_id: InboxId) -> bool:
        """Cancel the task of a command; False when it has none here."""
        return any(task.cancel() for task, command in self._running.values() if command.id == inbox_id)
