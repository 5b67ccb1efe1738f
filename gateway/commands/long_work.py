"""Long work of a command, such as a summary that is waited for: so that `/stop` can end it."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hermes_state.aio import cancel_all
from hermes_state.values import ChatId, UserRef

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Work:
    task: asyncio.Task[Any]  # Any: whoever started it knows what comes of it
    started_by: UserRef


class LongWork:
    """What the commands of chats are busy with; one at a time in a chat, for they change it under its lock."""

    def __init__(self) -> None:
        self._works: dict[ChatId, _Work] = {}

    async def run(self, chat_id: ChatId, started_by: UserRef, work: Coroutine[Any, Any, T]) -> T | None:
        """What comes of `work`; None when it was stopped. Cancelling this cancels the work."""
        task = asyncio.create_task(work, name=f"work-{chat_id}")
        self._works[chat_id] = _Work(task, started_by)
        try:
            await asyncio.wait({task})
        finally:
            del self._works[chat_id]
            await cancel_all([task])
        return None if task.cancelled() else task.result()

    def started_by(self, chat_id: ChatId) -> UserRef | None:
        """Who gave the command that is at work in a chat; None: nothing is."""
        work = self._works.get(chat_id)
        return work.started_by if work is not None else None

    def stop(self, chat_id: ChatId) -> bool:
        """End what is at work in a chat; whether there was anything."""
        work = self._works.get(chat_id)
        return work is not None and work.task.cancel()
