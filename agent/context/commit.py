"""The transactions of compression: a split with everything that becomes true with it, or the trace of an attempt.

Taking a compression back: the model sees again what it saw before, and everything that was said since.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from sqlite3 import Connection

from agent.context.compressor import CompressionJob, PreparedCompression
from agent.context.events import BlockedEvent, ContextEvent, Listener, MessageLimitEvent, PressureEvent
from agent.context.limits import Limits
from agent.context.outcomes import Aborted, Compressed, CompressionOutcome, NotNeeded, SkipReason
from agent.context.state import ContextState, state_of, stored_form
from hermes_state import ledger, sessions
from hermes_state.compressions import (
    CompressionAttempt,
    SplitPlan,
    UndoPlan,
    count_compressions,
    note_verdict,
    record_attempt,
    split,
    undo_compression,
)
from hermes_state.errors import LineageMoved
from hermes_state.sessions import Session, load_session
from hermes_state.store.sql import nested
from hermes_state.values import ConversationRef, EstimatedTokens, Millis, SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What came of making a draft."""

    job: CompressionJob
    result: PreparedCompression | NotNeeded | Aborted
    before: ContextState
    state: ContextState
    """What is to be remembered when the draft is not committed; a draft that is carries its own."""
    took_ms: int

    @property
    def events(self) -> list[ContextEvent]:
        """What people should know of an attempt that changed nothing."""
        events: list[ContextEvent] = []
        if isinstance(self.result, Aborted) and self.job.layer != "manual":  # a command answers for itself
            events.append(self.result)
        if self.state.is_blocked and not self.before.is_blocked:
            events.append(BlockedEvent(tokens=self.job.tokens_before, threshold=self.job.threshold))
        return events


def rebased(db: Connection, drafted: Drafted) -> Drafted:
    """What was drafted, on top of what is remembered of the conversation now.

    A turn may have gone on for a while beside a summary: what was noted meanwhile must not be forgotten.
    """
    job, before, result = drafted.job, drafted.before, drafted.result
    current = state_of(sessions.load_session(db, job.view.session.id).context_state)
    if current == before:
        return drafted
    if isinstance(result, PreparedCompression):
        state = current.rebased(before, result.state).compressed(job.tokens_before)
        result = replace(result, state=state)
    return replace(drafted, before=current, state=current.rebased(before, drafted.state), result=result)


def settle(
    db: Connection,
    conversation: ConversationRef,
    drafted: Drafted,
    plan: SplitPlan | None,
    listeners: Sequence[Listener],
    now: Millis,
) -> CompressionOutcome:
    """Commit a draft (`plan` is its split), or keep the trace of an attempt that changes no view.

    When somebody else was faster nothing of the draft is written but what it has cost.
    """
    result = drafted.result
    if plan is None or not isinstance(result, PreparedCompression):
        assert not isinstance(result, PreparedCompression), "a draft comes with its plan"
        if sessions.load_session(db, drafted.job.view.session.id).ended_at is not None:
            return drafted.job.not_needed(SkipReason.MOVED)
        _keep_attempt(db, conversation, drafted, result, listeners, now)
        return result
    outcome = None
    with suppress(LineageMoved), nested(db):
        outcome = _compressed(db, conversation, drafted, result, split(db, plan, now))
    for call in result.calls:
        ledger.record(db, conversation.turn_id, conversation.lineage_id, call, now)
    if outcome is None:
        return drafted.job.not_needed(SkipReason.MOVED)
    _tell(db, conversation, [*_reasons(drafted.job), outcome], listeners, now)
    return outcome


def _reasons(job: CompressionJob) -> list[ContextEvent]:
    """What people should know of why their conversation was compressed."""
    limit = job.message_limit
    return [] if limit is None else [MessageLimitEvent(messages=len(job.view.transcript), limit=limit)]


def _compressed(
    db: Connection, conversation: ConversationRef, drafted: Drafted, draft: PreparedCompression, child_id: SessionId
) -> Compressed:
    job = drafted.job
    return Compressed(
        parent=job.view.session,
        child=sessions.load_session(db, child_id),
        layer=job.layer,
        summary_kind=draft.summary_kind,
        model=draft.model,
        failure=draft.failure,
        focus=job.focus,
        messages_before=len(job.view.transcript),
        messages_after=len(draft.context),
        summarised=draft.summarised,
        tokens_before=job.tokens_before,
        tokens_after=draft.tokens_after,
        compressions=count_compressions(db, conversation.lineage_id),
        took_ms=drafted.took_ms,
    )


def _keep_attempt(
    db: Connection,
    conversation: ConversationRef,
    drafted: Drafted,
    result: NotNeeded | Aborted,
    listeners: Sequence[Listener],
    now: Millis,
) -> None:
    """Remember an attempt, unless there is nothing to remember."""
    job, events = drafted.job, drafted.events
    if drafted.state == drafted.before and not events:
        return
    session_id = job.view.session.id
    sessions.set_context_state(db, session_id, stored_form(drafted.state))
    attempt = CompressionAttempt(
        session_id=session_id,
        layer=job.layer,
        focus=job.focus,
        outcome="aborted" if isinstance(result, Aborted) else "not_needed",
        reason=result.kind if isinstance(result, Aborted) else result.why,
        tokens_before=job.tokens_before,
        messages_before=len(job.view.transcript),
        took_ms=drafted.took_ms,
    )
    record_attempt(db, attempt, now)
    _tell(db, conversation, events, listeners, now)


def keep_verdict(
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


def keep_pressure(db: Connection, pressure: PressureEvent) -> None:
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
    """What the whole view takes."""
    limits: Limits

    @property
    def fits(self) -> bool:
        """Whether there is room for the whole view; otherwise the next message would compress it again."""
        return not self.limits.is_urgent(self.tokens)


def settle_undo(db: Connection, undoing: UndoPreview, now: Millis) -> Session:
    """Do it, inside the caller's transaction; compressing by itself waits until the conversation has grown.

    Raises `LineageMoved` when the conversation has changed since this was planned.
    """
    state = state_of(undoing.plan.tip.context_state).undone(undoing.tokens)
    return load_session(db, undo_compression(db, undoing.plan, now, context_state=stored_form(state)))
