"""Pending compressions: those that are prepared beside the turns of their conversations.

They outlive a change of the model and of the configuration: a conversation's next step takes in what is ready.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from agent.context.job import CompressionResult, PreparedCompression
from hermes_state import ledger
from hermes_state.errors import StateError
from hermes_state.store.writer import Store
from hermes_state.values import Clock, LineageId


class PendingCompressions:
    """Compressions on their way, at most one for each conversation. One of it for a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tasks: dict[LineageId, asyncio.Task[CompressionResult]] = {}

    def is_pending(self, lineage_id: LineageId) -> bool:
        return lineage_id in self._tasks

    async def begin(
        self, lineage_id: LineageId, prepare: Coroutine[Any, Any, CompressionResult], seconds: float
    ) -> bool:
        """Start to prepare one and wait for it so long; whether it is done. It is kept either way."""
        task = self._tasks[lineage_id] = asyncio.create_task(prepare, name=f"draft-{lineage_id}")
        await asyncio.wait({task}, timeout=seconds)
        return task.done()

    async def take_finished(self, lineage_id: LineageId) -> CompressionResult | None:
        """What was prepared for the conversation, if it is done by now; it is kept no longer."""
        task = self._tasks.get(lineage_id)
        if task is None or not task.done():
            return None
        del self._tasks[lineage_id]
        return await task

    async def drop(self, lineage_id: LineageId) -> None:
        """Give up what is prepared for the conversation."""
        task = self._tasks.pop(lineage_id, None)
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        await self._record_costs(lineage_id, task)

    async def close(self) -> None:
        """Give up all that are kept."""
        tasks = dict(self._tasks)
        self._tasks.clear()
        for task in tasks.values():
            task.cancel()
        if tasks:
            await asyncio.wait(tasks.values())
        for lineage_id, task in tasks.items():
            with suppress(StateError):  # while a database is locked a daemon has to end, too
                await self._record_costs(lineage_id, task)

    async def _record_costs(self, lineage_id: LineageId, task: asyncio.Task[CompressionResult]) -> None:
        """A compression that was ready and is not taken in was paid for all the same."""
        if task.cancelled() or task.exception() is not None:
            return
        result = task.result().result
        for call in result.calls if isinstance(result, PreparedCompression) else ():
            await self._store.write(ledger.record, None, lineage_id, call, self._clock.now())
