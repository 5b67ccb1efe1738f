"""Making compressions and committing them: a draft first, which may take a model call, then one transaction.

A draft that nobody waits for any more stays here until the conversation's next step takes it in.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from sqlite3 import Connection
from typing import assert_never

import structlog

from agent.context.commit import Drafted, rebased, settle
from agent.context.compressor import CompressionJob, PreparedCompression, SummaryRoute
from agent.context.engine import Engine
from agent.context.engine_events import ContinuedEvent
from agent.context.events import BeforeSplit, Listener
from agent.context.measure import PromptMeasure
from agent.context.outcomes import Aborted, Compressed, CompressionOutcome, NotNeeded
from agent.context.state import ContextState, state_of, stored_form
from agent.handoff import SYSTEM_NOTE
from agent.prompt import PromptBuilder
from hermes_state import ledger
from hermes_state.compressions import SplitPlan
from hermes_state.errors import StateError
from hermes_state.store.writer import Store
from hermes_state.values import Clock, ConversationRef, LineageId, Millis

log = structlog.get_logger()


class PendingCompressions:
    """See the module."""

    def __init__(
        self,
        *,
        store: Store,
        measure: PromptMeasure,
        prompts: PromptBuilder,
        engine: Engine,
        routes: Sequence[SummaryRoute],
        listeners: Sequence[Listener],
        before_split: Sequence[BeforeSplit],
        note_in_system: bool,
        clock: Clock,
    ) -> None:
        self.engine = engine
        self.routes = tuple(routes)
        self._store = store
        self._measure = measure
        self._prompts = prompts
        self._listeners = tuple(listeners)
        self._before_split = tuple(before_split)
        self._note_in_system = note_in_system
        self._clock = clock
        self._pending: dict[LineageId, asyncio.Task[Drafted]] = {}

    async def make(
        self, conversation: ConversationRef, job: CompressionJob, *, state: ContextState | None = None
    ) -> Drafted:
        """A draft of the job, and what is to be kept of the attempt. Writes nothing but failed calls."""
        started = time.perf_counter()

        before = state_of(job.view.session.context_state)
        asked = [self._as_known(route, job) for route in self.routes]
        result, after = await self.engine.draft(job, state or before, self._measure.estimator, asked)
        if isinstance(result, PreparedCompression) and not job.must_shrink:
            for look in self._before_split:
                await look(conversation, job.view)
        took_ms = round((time.perf_counter() - started) * 1_000)
        return Drafted(job=job, result=result, before=before, state=after, took_ms=took_ms)

    def _as_known(self, route: SummaryRoute, job: CompressionJob) -> SummaryRoute:
        """The conversation's own model reads no more for a summary than for a turn, whatever is configured."""
        window = job.limits.context_length
        if route.context_length is None:
            return replace(route, context_length=window)
        if not self._measure.profiles.is_about(route.line.model):
            return route
        return replace(route, context_length=min(route.context_length, window))

    async def commit(self, conversation: ConversationRef, drafted: Drafted) -> CompressionOutcome:
        """Settle a draft in a transaction of its own."""
        outcome = await self._store.write(self.settle, conversation, drafted, self._clock.now())
        _log_outcome(conversation, drafted, outcome)
        if isinstance(outcome, Compressed):
            await self.engine.told(ContinuedEvent(child=outcome.child))
        return outcome

    def settle(
        self, db: Connection, conversation: ConversationRef, drafted: Drafted, now: Millis
    ) -> CompressionOutcome:
        """Commit what was drafted, inside the caller's transaction."""
        drafted = rebased(db, drafted)
        plan = (
            self._plan(conversation, drafted, drafted.result)
            if isinstance(drafted.result, PreparedCompression)
            else None
        )
        return settle(db, conversation, drafted, plan, self._listeners, now)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return self._listeners

    # ---- drafts that are not waited for to the end

    def follow(self, before: "PendingCompressions") -> None:
        """Keep what `before` keeps, too. Whichever of the two sees a conversation next takes its draft in."""
        self._pending = before._pending

    def is_pending(self, lineage_id: LineageId) -> bool:
        return lineage_id in self._pending

    async def begin(self, conversation: ConversationRef, job: CompressionJob, seconds: float) -> bool:
        """Start a draft and wait for it so long; whether it is done. It is kept either way."""
        task = asyncio.create_task(self.make(conversation, job), name=f"draft-{conversation.lineage_id}")
        self._pending[conversation.lineage_id] = task
        await asyncio.wait({task}, timeout=seconds)
        return task.done()

    async def take_finished(self, conversation: ConversationRef) -> CompressionOutcome | None:
        """Commit the kept draft if it is done by now."""
        task = self._pending.get(conversation.lineage_id)
        if task is None or not task.done():
            return None
        del self._pending[conversation.lineage_id]
        return await self.commit(conversation, await task)

    async def drop(self, lineage_id: LineageId) -> None:
        """Give up the kept draft."""
        task = self._pending.pop(lineage_id, None)
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        await self._keep_costs(lineage_id, task)

    async def close(self) -> None:
        """Give up all that are kept."""
        pending = dict(self._pending)
        self._pending.clear()
        for task in pending.values():
            task.cancel()
        if pending:
            await asyncio.wait(pending.values())
        for lineage_id, task in pending.items():
            with suppress(StateError):  # while a database is locked a daemon has to end, too
                await self._keep_costs(lineage_id, task)

    async def _keep_costs(self, lineage_id: LineageId, task: asyncio.Task[Drafted]) -> None:
        """A draft that was ready and is not taken in was paid for all the same."""
        if task.cancelled() or task.exception() is not None:
            return
        result = task.result().result
        for call in result.calls if isinstance(result, PreparedCompression) else ():
            await self._store.write(ledger.record, None, lineage_id, call, self._clock.now())

    # ---- the split

    def _plan(self, conversation: ConversationRef, drafted: Drafted, draft: PreparedCompression) -> SplitPlan:
        job = drafted.job
        return SplitPlan(
            parent_id=job.view.session.id,
            version=job.view.session.version,
            watermark_seq=job.view.session.next_seq - 1,
            context=draft.context,
            layer=job.layer,
            focus=job.focus,
            summary_kind=draft.summary_kind,
            model=draft.model,
            system_prompt=self._system_prompt(conversation),
            context_state=stored_form(draft.state),
            tokens_before=job.tokens_before,
            tokens_after=draft.tokens_after,
            took_ms=drafted.took_ms,
        )

    def _system_prompt(self, conversation: ConversationRef) -> str:
        """Assembled anew, so that what was learned since is in it; the note says why the view begins with a record."""
        text = self._prompts.system_for(conversation)
        return f"{text}\n\n{SYSTEM_NOTE}" if self._note_in_system else text


def _log_outcome(conversation: ConversationRef, drafted: Drafted, outcome: CompressionOutcome) -> None:
    """One line for whatever came of a compression."""
    layer = drafted.job.layer
    match outcome:
        case Compressed():
            log.info(
                "session.compressed",
                layer=layer,
                parent_id=outcome.parent.id,
                child_id=outcome.child.id,
                messages_before=outcome.messages_before,
                messages_after=outcome.messages_after,
                tokens_before=outcome.tokens_before,
                tokens_after=outcome.tokens_after,
                summary_kind=outcome.summary_kind,
                took_ms=outcome.took_ms,
            )
        case NotNeeded():
            log.info(
                "compression.not_needed",
                layer=layer,
                lineage_id=conversation.lineage_id,
                why=outcome.why,
                messages=outcome.messages,
            )
        case Aborted():
            log.warning("compression.aborted", layer=layer, lineage_id=conversation.lineage_id, kind=outcome.kind)
        case _:
            assert_never(outcome)
