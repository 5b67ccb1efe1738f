"""Tasks of commands that take long, such as a compression by hand: `/stop` can end one."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hermes_state.values import InboxId

T = TypeVar("T")


class TaskRegistry:
    """Running tasks by the rows of their commands."""

    def __init__(self) -> None:
        self._running: dict[InboxId, asyncio.Task[Any]] = {}  # Any: whoever started it knows its result

    async def run(self, command_id: InboxId, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None when it was stopped. Cancelling this cancels the work."""
        task = self._running[command_id] = asyncio.create_task(work, name=f"work-{command_id}")
        try:
            await asyncio.wait({task})
        finally:
            del self._running[command_id]
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()

    def stop(self, command_id: InboxId) -> None:
        """Cancel the task of a command, if it has one here."""
        if command_id in self._running:
            self._running[command_id].cancel()
