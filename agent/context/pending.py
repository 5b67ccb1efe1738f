"""Compressions and notes that are prepared while the turns of their conversations continue.

They survive a change of the model or the configuration. A prepared compression is committed by the next step of its
conversation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
from msgspec.structs import replace

from agent.context.commit import settle_notes
from agent.context.job import BeforeSplit, CompressionJob, CompressionResult
from agent.prompt import PromptBuilder
from hermes_state import sessions
from hermes_state.aio import cancel_all
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import View, load_session_view
from hermes_state.values import ChatId, LineageId, SessionId

log = structlog.get_logger()

MAX_KEPT = 512
"""Maximum number of running and prepared compressions. Each one keeps a whole view in memory."""


class CompressionRegistry:
    """Tasks that prepare compressions, at most one per conversation. There is one registry per store."""

    def __init__(self) -> None:
        self._tasks: dict[LineageId, asyncio.Task[CompressionResult]] = {}
        self.notes: dict[SessionId, asyncio.Task[None]] = {}

    def is_pending(self, lineage_id: LineageId) -> bool:
        return lineage_id in self._tasks

    async def begin(self, lineage_id: LineageId, prepare: Coroutine[Any, Any, CompressionResult]) -> None:
        """Start preparing a compression. It stays in the registry until the next step of the conversation takes it."""
        if len(self._tasks) >= MAX_KEPT:
            await self.drop(next(iter(self._tasks)))
        self._tasks[lineage_id] = asyncio.create_task(prepare, name=f"compression-{lineage_id}")

    async def wait(
        self,
        lineage_id: LineageId,
        seconds: float | None = None,
        *,
        tell: Callable[[], Awaitable[None]] | None = None,
        quiet_seconds: float = 0.0,
    ) -> None:
        """Wait at most `seconds` until the compression is prepared. After `quiet_seconds`, call `tell` once."""

        async def tell_later() -> None:
            if tell is not None:
                await asyncio.sleep(quiet_seconds)
                await tell()

        telling = asyncio.create_task(tell_later(), name="wait")
        try:
            await asyncio.wait({self._tasks[lineage_id]}, timeout=seconds)
        finally:
            await cancel_all([telling])
            if not telling.cancelled() and (error := telling.exception()) is not None:
                log.error("compression.notice_failed", lineage_id=lineage_id, exc_info=error)

    async def take_finished(self, lineage_id: LineageId) -> CompressionResult | None:
        """Remove and return the conversation's compression if it is prepared."""
        task = self._tasks.get(lineage_id)
        if task is None or not task.done():
            return None
        del self._tasks[lineage_id]
        return await task

    async def drop(self, lineage_id: LineageId) -> None:
        """Cancel the conversation's compression. Its cost is already in the ledger."""
        if (task := self._tasks.pop(lineage_id, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        await asyncio.gather(*map(self.drop, list(self._tasks)))
        await cancel_all(list(self.notes.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteWriter:
    """Takes notes from views that a compression shortens. No commit waits for the notes."""

    store: Store
    prompts: PromptBuilder
    before_split: Sequence[BeforeSplit]
    pending: CompressionRegistry
    _settled_chats: set[ChatId] = field(default_factory=set, init=False)
    """Chats in which this agent has resumed the notes that an earlier process left unfinished."""

    def begin(self, job: CompressionJob, is_ready: asyncio.Event | None = None) -> None:
        """Start a task that takes notes. If `is_ready` is given, the task first waits for the summary."""
        session_id = job.view.session.id
        if self.before_split and session_id not in self.pending.notes:
            self.pending.notes[session_id] = asyncio.create_task(self._take(job, is_ready), name="notes")

    async def cancel(self, session_id: SessionId) -> None:
        await cancel_all([self.pending.notes[session_id]] if session_id in self.pending.notes else [])

    async def take_owed(self, job: CompressionJob) -> None:
        """Start taking the notes that an earlier process left unfinished in this job's chat."""
        chat_id = job.conversation.chat_id
        if self.before_split and chat_id not in self._settled_chats:
            for view in await self.store.read(_load_indebted, chat_id):
                self.begin(replace(job, view=view))
            self._settled_chats.add(chat_id)

    async def _take(self, job: CompressionJob, is_ready: asyncio.Event | None) -> None:
        try:
            if is_ready is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_ready.wait(), None if job.must_shrink else job.held_seconds)
            seen = await asyncio.gather(*(look(job) for look in self.before_split), return_exceptions=True)
        finally:
            self.pending.notes.pop(job.view.session.id, None)
        for error in (one for one in seen if isinstance(one, Exception)):
            log.error("compression.notes_failed", lineage_id=job.conversation.lineage_id, exc_info=error)
        system = await self.prompts.system_for(job.conversation, job.limits.threshold)
        with suppress(StoreUnavailable):  # after the next restart, the notes are taken again
            await self.store.write(settle_notes, job, system)


def load_ended(db: Connection, session_id: SessionId) -> View | None:
    session = sessions.load_session(db, session_id)
    is_ended = session.ended_at is not None
    return View(session=session, transcript=load_session_view(db, session_id)) if is_ended else None


def _load_indebted(db: Connection, chat_id: ChatId) -> list[View]:
    return [view for one in sessions.load_indebted(db, chat_id) if (view := load_ended(db, one)) is not None]
