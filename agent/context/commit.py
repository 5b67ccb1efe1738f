"""Compressions between preparation and commit: those that are pending, and the transactions that commit or undo them.

Pending compressions are prepared beside the turns of their conversations. They outlive a change of the model and of the
configuration: a conversation's next step takes in what is ready. A commit is a split with everything that becomes true
with it, or the trace of an attempt. Taking a compression back lets the model see again what it saw before, and
everything that was said since.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Any, assert_never

import structlog

from agent.context.cuts import SkipReason
from agent.context.job import (
    Aborted,
    BlockedEvent,
    Compressed,
    CompressionOutcome,
    CompressionResult,
    ContextEvent,
    Listener,
    MessageLimitEvent,
    NotNeeded,
    PreparedCompression,
    PressureEvent,
)
from agent.context.limits import Limits
from agent.context.state import ContextState, state_of, stored_form
from agent.handoff import SYSTEM_NOTE
from hermes_state import sessions
from hermes_state.compressions import (
    SkippedCompression,
    SplitPlan,
    UndoPlan,
    count_compressions,
    note_verdict,
    record_skipped,
    split,
    undo_compression,
)
from hermes_state.errors import LineageMoved, StateError
from hermes_state.models import ledger
from hermes_state.sessions import Session, load_session
from hermes_state.store.sql import nested
from hermes_state.store.writer import Store
from hermes_state.values import Clock, ConversationRef, EstimatedTokens, LineageId, Millis, SessionId

log = structlog.get_logger()


def _rebased(db: Connection, attempt: CompressionResult) -> CompressionResult:
    """The result on top of what is remembered of the conversation now.

    A turn may have gone on for a while beside a summary: what was noted meanwhile must not be forgotten.
    """
    job, before, result = attempt.job, attempt.before, attempt.result
    current = state_of(sessions.load_session(db, job.view.session.id).context_state)
    if current == before:
        return attempt
    if isinstance(result, PreparedCompression):
        state = current.rebased(before, result.state).compressed(job.tokens_before)
        result = replace(result, state=state)
    return replace(attempt, before=current, state=current.rebased(before, attempt.state), result=result)


def settle(
    db: Connection,
    conversation: ConversationRef,
    attempt: CompressionResult,
    system_prompt: str,
    listeners: Sequence[Listener],
    now: Millis,
) -> CompressionOutcome:
    """Commit a prepared, or keep the trace of an attempt that changes no view. `system_prompt`: of the child.

    When somebody else was faster nothing of it is written but what it has cost.
    """
    attempt = _rebased(db, attempt)
    result = attempt.result
    if not isinstance(result, PreparedCompression):
        return _keep_attempt(db, conversation, attempt, result, listeners, now)
    outcome = None
    with suppress(LineageMoved), nested(db):
        outcome = _compressed(db, conversation, attempt, result, split(db, _plan(attempt, result, system_prompt), now))
    for call in result.calls:
        ledger.record(db, conversation.turn_id, conversation.lineage_id, call, now)
    if outcome is None:
        return attempt.job.not_needed(SkipReason.MOVED)
    limit, messages = attempt.job.message_limit, attempt.job.messages_before
    reasons = [] if limit is None else [MessageLimitEvent(messages=messages, limit=limit)]
    _tell(db, conversation, [*reasons, outcome], listeners, now)
    return outcome


def _plan(attempt: CompressionResult, prepared: PreparedCompression, system_prompt: str) -> SplitPlan:
    job = attempt.job
    return SplitPlan(
        parent_id=job.view.session.id,
        version=job.view.session.version,
        watermark_seq=job.view.session.next_seq - 1,
        context=prepared.context,
        layer=job.layer,
        focus=job.focus,
        summary_kind=prepared.summary_kind,
        model=prepared.model,
        system_prompt=f"{system_prompt}\n\n{SYSTEM_NOTE}" if job.settings.note_in_system else system_prompt,
        context_state=stored_form(prepared.state),
        tokens_before=job.tokens_before,
        tokens_after=prepared.tokens_after,
        took_ms=attempt.took_ms,
    )


def _compressed(
    db: Connection,
    conversation: ConversationRef,
    attempt: CompressionResult,
    prepared: PreparedCompression,
    child_id: SessionId,
) -> Compressed:
    return Compressed(
        job=attempt.job,
        prepared=prepared,
        child=sessions.load_session(db, child_id),
        compressions=count_compressions(db, conversation.lineage_id),
        took_ms=attempt.took_ms,
    )


def _events_of(attempt: CompressionResult, result: NotNeeded | Aborted) -> list[ContextEvent]:
    """News for people of an attempt that changed nothing."""
    events: list[ContextEvent] = []
    if isinstance(result, Aborted) and attempt.job.layer != "manual":  # a command answers for itself
        events.append(result)
    if attempt.state.is_blocked and not attempt.before.is_blocked:
        events.append(BlockedEvent(tokens=attempt.job.tokens_before, threshold=attempt.job.threshold))
    return events


def _keep_attempt(
    db: Connection,
    conversation: ConversationRef,
    attempt: CompressionResult,
    result: NotNeeded | Aborted,
    listeners: Sequence[Listener],
    now: Millis,
) -> NotNeeded | Aborted:
    """Remember an attempt, unless there is nothing to remember or the session has ended meanwhile."""
    job, events = attempt.job, _events_of(attempt, result)
    session_id = job.view.session.id
    if sessions.load_session(db, session_id).ended_at is not None:
        return job.not_needed(SkipReason.MOVED)
    if attempt.state == attempt.before and not events:
        return result
    sessions.set_context_state(db, session_id, stored_form(attempt.state))
    row = SkippedCompression(
        parent_id=session_id,
        layer=job.layer,
        focus=job.focus,
        outcome="aborted" if isinstance(result, Aborted) else "not_needed",
        reason=result.kind if isinstance(result, Aborted) else result.why,
        tokens_before=job.tokens_before,
        messages_before=job.messages_before,
        took_ms=attempt.took_ms,
    )
    record_skipped(db, row, now)
    _tell(db, conversation, events, listeners, now)
    return result


def record_verdict(
    db: Connection,
    conversation: ConversationRef,
    session_id: SessionId,
    state: ContextState,
    has_helped: bool,
    events: Sequence[ContextEvent],
    listeners: Sequence[Listener],
    now: Millis,
) -> None:
    """Keep whether the compression that made this session has helped it."""
    sessions.set_context_state(db, session_id, stored_form(state))
    note_verdict(db, session_id, "effective" if has_helped else "ineffective")
    _tell(db, conversation, events, listeners, now)


def note_pressure(db: Connection, pressure: PressureEvent) -> None:
    """Note that people are told. Belongs into the transaction that stores the answer below which they read it."""
    state = state_of(sessions.load_session(db, pressure.session_id).context_state)
    sessions.set_context_state(db, pressure.session_id, stored_form(state.told_of(pressure.level)))


def _tell(
    db: Connection,
    conversation: ConversationRef,
    events: Sequence[ContextEvent],
    listeners: Sequence[Listener],
    now: Millis,
) -> None:
    for event in events:
        for listener in listeners:
            listener(db, conversation, event, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPreview:
    """A compression that could be taken back."""

    plan: UndoPlan
    tokens: EstimatedTokens
    """Tokens of the whole view."""
    limits: Limits

    @property
    def fits(self) -> bool:
        """True when there is room for the whole view; otherwise the next message would compress it again."""
        return not self.limits.is_urgent(self.tokens)


def settle_undo(db: Connection, undoing: UndoPreview, now: Millis) -> Session:
    """Do it, inside the caller's transaction; compressing by itself waits until the conversation has grown.

    Raises `LineageMoved` when the conversation has changed since this was planned.
    """
    state = state_of(undoing.plan.tip.context_state).undone(undoing.tokens)
    return load_session(db, undo_compression(db, undoing.plan, now, context_state=stored_form(state)))


def log_outcome(conversation: ConversationRef, attempt: CompressionResult, outcome: CompressionOutcome) -> None:
    """One line for whatever came of a compression."""
    job = attempt.job
    match outcome:
        case Compressed():
            log.info(
                "session.compressed",
                layer=job.layer,
                parent_id=outcome.parent.id,
                child_id=outcome.child.id,
                messages_before=job.messages_before,
                messages_after=outcome.prepared.messages_after,
                tokens_before=job.tokens_before,
                tokens_after=outcome.prepared.tokens_after,
                summary_kind=outcome.prepared.summary_kind,
                took_ms=outcome.took_ms,
            )
        case NotNeeded():
            log.info(
                "compression.not_needed",
                layer=job.layer,
                lineage_id=conversation.lineage_id,
                why=outcome.why,
                messages=outcome.messages,
            )
        case Aborted():
            log.warning("compression.aborted", layer=job.layer, lineage_id=conversation.lineage_id, kind=outcome.kind)
        case _:
            assert_never(outcome)


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
        """The prepared compression of a conversation, if it is done by now; it is kept no longer."""
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
