"""Controller of context windows: decides when a conversation is compressed.

Every layer uses it: hygiene before a turn, preflight and the loop before each model call, the recovery from a refused
prompt, and `/compress`. If several layers compress at the same time, only the first result is committed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog
from msgspec.structs import replace

from agent.context.commit import UndoPreview, commit_compression, keep_debt, log_outcome
from agent.context.compressor import Engine
from agent.context.cuts import SkipReason
from agent.context.job import (
    BeforeSplit,
    BlockedEvent,
    Compressed,
    CompressionJob,
    CompressionOutcome,
    CompressionPreview,
    CompressionResult,
    ContextEvent,
    ContinuedEvent,
    EndedEvent,
    Listener,
    NotNeeded,
    OnWait,
    Preparation,
    PreparedCompression,
    PressureEvent,
    ReplyEvent,
)
from agent.context.measure import ContextStatus, MeasuredPrompt, MeasuredPromptBuilder
from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry, NoteWriter, load_ended
from agent.context.state import ContextState, state_of, stored_form
from agent.prompt import PromptBuilder
from hermes_state import sessions
from hermes_state.compressions import Layer, count_compressions, note_verdict, plan_undo
from hermes_state.errors import ContextOverflow, StoreUnavailable
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import View, ViewCache
from hermes_state.values import (
    CanonicalUsage,
    Clock,
    ConversationRef,
    EstimatedTokens,
    Millis,
    ReportedTokens,
    SessionId,
    Tokens,
)

log = structlog.get_logger()

PRESSURE_PERCENT = 85
"""Prompt size at which people are warned that a compression is near, as a percentage of the threshold."""
MAX_PASSES = 3
"""Maximum number of compressions before one model call. A switch to a much smaller window can need several."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class ContextController:
    """Keeps conversations inside the windows of their models. There is one controller per configuration."""

    store: Store
    views: ViewCache
    prompts: PromptBuilder
    engine: Engine
    pending: CompressionRegistry
    """Registry that all controllers of a store share. A new controller can commit an earlier one's compressions."""
    listeners: Sequence[Listener]
    before_split: Sequence[BeforeSplit] = ()
    on_wait: OnWait | None = None
    clock: Clock
    _measure: MeasuredPromptBuilder = field(init=False)
    _notes: NoteWriter = field(init=False)

    def __post_init__(self) -> None:
        self._measure = MeasuredPromptBuilder(views=self.views, prompts=self.prompts)
        self._notes = NoteWriter(
            store=self.store, prompts=self.prompts, before_split=self.before_split, pending=self.pending
        )

    async def status(self, conversation: ConversationRef, model: ModelHandle) -> ContextStatus:
        prompt = await self._measure.load(conversation, model)
        return ContextStatus(
            prompt=prompt.estimated,
            fixed=model.profile.estimator.whole(replace(prompt.request, transcript=())),
            limits=prompt.limits,
            window_from=model.profile.source_for(conversation.lineage_id),
            threshold=self._threshold(prompt),
            compressions=await self.store.read(count_compressions, conversation.lineage_id),
        )

    async def close(self) -> None:
        await self.pending.close()
        await self.engine.close()

    async def measure(self, conversation: ConversationRef, model: ModelHandle) -> MeasuredPrompt:
        """Commit a compression that is ready, then measure the stored conversation before a turn."""
        await model.profile.ask()
        await self._take_finished(conversation, model)
        prompt = await self._measure.load(conversation, model)
        await self._notes.take_owed(self._job(prompt, "preflight"))
        return prompt

    async def compress_before_turn(self, prompt: MeasuredPrompt, *, message_limit: int | None) -> None:
        """Run a hygiene compression, unless automatic compression is held back.

        A turn whose prompt still fits waits at most `hold_seconds`. `message_limit`: the maximum number of messages, if
        the conversation has more; otherwise None.
        """
        ready = await self._ready(prompt, "hygiene")
        if ready is None:
            return
        if message_limit is not None:
            log.info("hygiene.message_limit", messages=len(ready.view.transcript), limit=message_limit)
        seconds = prompt.model.context.hold_seconds
        job = replace(self._job(ready, "hygiene"), message_limit=message_limit, held_seconds=seconds)
        await self._compress(ready, job, seconds=seconds)

    async def make_room(
        self,
        conversation: ConversationRef,
        model: ModelHandle,
        view: View,
        layer: Layer,
        known: MeasuredPrompt | None = None,
    ) -> MeasuredPrompt:
        """Compress before a model call if the prompt reaches the threshold, and repeat this while it helps.

        While the prompt still fits, the call does not wait for a background compression or a pending one. `known`: the
        prompt of the view, if it was measured before.
        """
        if known is None:  # otherwise `measure` has already asked for the model's limits
            await model.profile.ask()
        if await self._take_finished(conversation, model) is not None:
            prompt = await self._measure.load(conversation, model)
        else:
            prompt = known or await self._measure.measure(conversation, model, view)
        for _ in range(MAX_PASSES):
            wanted = await self.engine.request(self._job(prompt, layer))
            ready = await self._ready(prompt, layer) if wanted is not None else None
            if wanted is None or ready is None:
                break
            prompt, was_pending = ready, self.pending.is_pending(conversation.lineage_id)
            seconds = 0 if model.context.mode == "background" or was_pending else None
            outcome = await self._compress(prompt, self._job(prompt, layer, focus=wanted.focus), seconds=seconds)
            if outcome is None:
                break
            # Load again even if nothing was compressed, because the next step needs the state after this attempt.
            before, prompt = prompt.estimated, await self._measure.load(conversation, model)
            has_helped = _is_another_view(outcome) and prompt.estimated * 100 <= before * 95
            if not (has_helped or was_pending):
                break
        return prompt

    async def compress_as_asked(
        self, conversation: ConversationRef, model: ModelHandle, view: View, focus: str | None
    ) -> None:
        """Compress between two steps because a tool requested it, unless automatic compression is held back."""
        ready = await self._ready(await self._measure.measure(conversation, model, view), "in_loop")
        if ready is not None:
            await self._compress(ready, self._job(ready, "in_loop", focus=focus))

    async def after_overflow(
        self, conversation: ConversationRef, model: ModelHandle, error: ContextOverflow | None
    ) -> bool:
        """Compress a prompt that is too long. Return False if that does not help.

        A pending compression is committed first. If that does not help, another compression follows.

        `error`: the provider's refusal, or None if the prompt was not sent.
        """
        prompt = await self._measure.load(conversation, model)
        if error is not None:
            prompt = await prompt.learn_refusal(error)
        if not model.context.enabled:
            return False
        was_pending = self.pending.is_pending(conversation.lineage_id)
        has_helped = _is_another_view(
            await self._compress(prompt, replace(self._job(prompt, "overflow"), must_shrink=True))
        )
        return has_helped or (was_pending and await self.after_overflow(conversation, model, None))

    async def after_unexplained(self, prompt: MeasuredPrompt, answered: int | None, *, is_again: bool) -> bool:
        """Compress a large prompt that a provider rejected without a reason. Return False if that does not help.

        `answered`: size in tokens of the largest prompt that the model answered in this conversation. `is_again`: True
        if the compressed prompt was rejected too, so its length was not the reason. After that, this method compresses
        nothing until the model answers again.
        """
        state, maker = state_of(prompt.view.session.context_state), prompt.model.maker
        if is_again:
            form = stored_form(state.refused_again(maker))
            await self.store.write(sessions.set_context_state, prompt.view.session.id, form)
        is_large = prompt.estimated * 2 > (answered or prompt.model_limits.context_length)
        if is_again or not is_large or maker in state.unexplained:
            return False
        log.info("context.refusal_unexplained", lineage_id=prompt.conversation.lineage_id, tokens=prompt.estimated)
        return await self.after_overflow(prompt.conversation, prompt.model, None)

    async def prepare_by_hand(
        self,
        conversation: ConversationRef,
        model: ModelHandle,
        *,
        focus: str | None = None,
        keep_turns: int | None = None,
        on_begin: Callable[[], Awaitable[None]] | None = None,
    ) -> CompressionResult:
        """Prepare a compression for `/compress`, even if automatic compression is held back. `settle` commits it.

        `on_begin` is called as soon as there is something to compress.
        """
        await model.profile.ask()
        await self.pending.drop(conversation.lineage_id)
        prompt = await self._measure.load(conversation, model)
        job = replace(self._job(prompt, "manual", focus=focus, keep_turns=keep_turns), on_begin=on_begin)
        state = state_of(prompt.view.session.context_state).asked_by_hand()
        return await self._prepare(job, state=state)

    @locks(chat="result.job.conversation.chat_id")
    def settle(self, db: Connection, result: CompressionResult, now: Millis) -> CompressionOutcome:
        """Commit a prepared compression inside the caller's transaction."""
        outcome, events = commit_compression(db, result, now)
        if isinstance(outcome, Compressed) and outcome.parent.id in self.pending.notes:
            keep_debt(db, outcome.parent.id, owes_notes=True)
        self._tell(db, result.job.conversation, events, now)
        return outcome

    async def preview(
        self, conversation: ConversationRef, model: ModelHandle, *, keep_turns: int | None = None
    ) -> CompressionPreview | NotNeeded:
        job = self._job(await self._measure.load(conversation, model), "manual", keep_turns=keep_turns)
        return await asyncio.to_thread(self.engine.preview, job)

    async def plan_undo(self, conversation: ConversationRef, model: ModelHandle) -> UndoPreview | None:
        """Return a preview of undoing the newest compression (`commit.settle_undo`), or None if it cannot be undone."""
        await self.pending.drop(conversation.lineage_id)
        plan = await self.store.read(plan_undo, conversation.lineage_id)
        if plan is None:
            return None
        # Base the estimate on the restored session's last token count, and add the rows since then.
        later = [row for row in plan.transcript if row.session_id > plan.compressed.id]
        earlier = tuple(row for row in plan.transcript if row.session_id <= plan.compressed.id)
        prompt = await self._measure.measure(conversation, model, View(session=plan.compressed, transcript=earlier))
        since = model.profile.estimator.rows(later, prompt.request.style)
        return UndoPreview(plan=plan, tokens=EstimatedTokens(prompt.estimated + since), limits=prompt.limits)

    async def ended(self, session_id: SessionId, *, was_reset: bool) -> None:
        """Tell the engine that `/new` (`was_reset`) or the idle reset ended a conversation. Call after the commit."""
        view = await self.store.read(load_ended, session_id)
        if view is not None:
            await self.pending.drop(view.session.lineage_id)
            await self.engine.on_event(EndedEvent(view=view, was_reset=was_reset))

    async def after_reply(
        self, prompt: MeasuredPrompt, usage: CanonicalUsage | None, *, is_last: bool
    ) -> PressureEvent | None:
        """Learn from a provider's token count, judge the last compression, and return a warning if people need one.

        `usage`: None if the provider reports no counts. In that case, the compression is judged by the estimated size,
        so that a useless compression is not repeated forever. `is_last`: True if the reply is the turn's answer, to
        which the warning can be added.
        """
        stored, lineage_id = state_of(prompt.view.session.context_state), prompt.conversation.lineage_id
        tokens = prompt.estimated if usage is None else usage.prompt
        try:
            answered = stored.answered_by(prompt.model.maker)
            if answered is not stored:
                stored = answered
                await self.store.write(sessions.set_context_state, prompt.view.session.id, stored_form(stored))
            if usage is not None:
                await prompt.model.profile.learn(prompt.request, usage.prompt, prompt.view, prompt.size)
                await self.engine.on_event(ReplyEvent(session=prompt.view.session, usage=usage))
            state = stored.judged(tokens, self._threshold(prompt))
            if state is not stored:
                log.info(
                    "compression.evaluated", lineage_id=lineage_id, has_helped=not state.strikes, strikes=state.strikes
                )
                is_news = state.is_blocked and not stored.is_blocked
                events = [BlockedEvent(tokens=tokens, threshold=self._threshold(prompt))] if is_news else []
                await self.store.write(self.record_verdict, prompt, state, events, self.clock.now())
            if is_last and usage is not None:
                return await self._pressure(prompt, state, usage.prompt)
        except StoreUnavailable as error:
            # Continue the turn, because its reply has been paid for. The next call reports a token count again.
            log.warning("context.save_failed", lineage_id=lineage_id, error=str(error))
        return None

    @locks(session="prompt.view.session.id")
    def record_verdict(
        self, db: Connection, prompt: MeasuredPrompt, judged: ContextState, events: Sequence[ContextEvent], now: Millis
    ) -> None:
        """Record whether the compression that created the prompt's session helped."""
        session_id = prompt.view.session.id
        sessions.set_context_state(db, session_id, stored_form(judged))
        note_verdict(db, session_id, "effective" if judged.strikes == 0 else "ineffective")
        self._tell(db, prompt.conversation, events, now)

    async def _pressure(
        self, prompt: MeasuredPrompt, state: ContextState, reported: ReportedTokens
    ) -> PressureEvent | None:
        """Return a warning if the prompt has grown past the pressure line since the last reply.

        The transaction that stores the answer records the warning. Only a fall below the line is recorded here.
        """
        will_compress = prompt.model.context.enabled and not (state.is_blocked or state.held_at)
        threshold = self._threshold(prompt)
        line = threshold * PRESSURE_PERCENT // 100
        level = line if will_compress and reported >= line else 0
        if level == state.pressure_level:
            return None
        session_id = prompt.view.session.id
        if level < state.pressure_level:
            await self.store.write(sessions.set_context_state, session_id, stored_form(state.told_of(level)))
            return None
        log.info(
            "context.pressure_rose", lineage_id=prompt.conversation.lineage_id, tokens=reported, of_tokens=threshold
        )
        percent = reported * 100 // threshold
        return PressureEvent(tokens=reported, threshold=threshold, percent=percent, session_id=session_id, level=level)

    def _threshold(self, prompt: MeasuredPrompt) -> Tokens:
        """Return the prompt size at which the engine compresses. A plugin can choose its own."""
        return self.engine.threshold(prompt.conversation.lineage_id, prompt.limits)

    def _tell(self, db: Connection, conversation: ConversationRef, events: Sequence[ContextEvent], now: Millis) -> None:
        for event in events:
            for listener in self.listeners:
                listener(db, conversation, event, now)

    async def _compress(
        self, prompt: MeasuredPrompt, job: CompressionJob, *, seconds: float | None = None
    ) -> CompressionOutcome | None:
        """Start a compression unless one is pending, wait for it, and commit it.

        If the prompt still fits, wait at most `seconds`, and return None if the compression is not ready by then.
        """
        lineage_id = job.conversation.lineage_id
        if not self.pending.is_pending(lineage_id):
            await self.pending.begin(lineage_id, self._prepare(job))
        if job.must_shrink or seconds != 0:
            on_wait, quiet_seconds = self.on_wait, prompt.model.context.quiet_seconds
            tell = None if on_wait is None else partial(on_wait, prompt.conversation, prompt.view)
            limit = None if job.must_shrink else seconds
            await self.pending.wait(lineage_id, limit, tell=tell, quiet_seconds=quiet_seconds)
        return await self._take_finished(job.conversation, prompt.model)

    async def _prepare(self, job: CompressionJob, *, state: ContextState | None = None) -> CompressionResult:
        """Prepare a compression without committing it. Only the cost of its model calls is stored."""
        started, is_ready = time.perf_counter(), asyncio.Event()
        result: Preparation | None = None

        async def begin() -> None:
            self._notes.begin(job, is_ready)
            await job.begin()

        try:
            known = state or state_of(job.view.session.context_state)
            result, after = await self.engine.prepare(replace(job, on_begin=begin), known)
            is_ready.set()
        finally:
            if not isinstance(result, PreparedCompression):
                await self._notes.cancel(job.view.session.id)
        system_prompt = await self.prompts.system_for(job.conversation, job.limits.threshold)
        took_ms = round((time.perf_counter() - started) * 1_000)
        return CompressionResult(job=job, result=result, state=after, system_prompt=system_prompt, took_ms=took_ms)

    async def _take_finished(self, conversation: ConversationRef, model: ModelHandle) -> CompressionOutcome | None:
        result = await self.pending.take_finished(conversation.lineage_id)
        if result is None:
            return None
        grown = max(0, (await self._measure.load(conversation, model)).estimated - result.job.tokens_before)
        # Assemble the system prompt again, because notes may have been added since the compression was prepared.
        system_prompt = await self.prompts.system_for(conversation, result.job.limits.threshold)
        job = replace(result.job, conversation=conversation, grown=grown)
        result = replace(result, job=job, system_prompt=system_prompt)
        outcome = await self.store.write(self.settle, result, self.clock.now())
        log_outcome(result, outcome)
        if isinstance(outcome, Compressed):
            await self.engine.on_event(ContinuedEvent(child=outcome.child))
        return outcome

    async def _ready(self, prompt: MeasuredPrompt, layer: Layer) -> MeasuredPrompt | None:
        """Return the prompt, or None if automatic compression is disabled, blocked, on hold or cooling down.

        If a block ends because of the prompt's size, the new state is stored, and the returned prompt contains it.
        """
        if not prompt.model.context.enabled:
            return None
        session = prompt.view.session
        stored = state_of(session.context_state)
        is_urgent = prompt.limits.is_urgent(prompt.estimated)
        state = stored.rearmed(prompt.estimated, prompt.limits)
        if state is not stored:
            form = stored_form(state)
            await self.store.write(sessions.set_context_state, session.id, form)
            session = msgspec.structs.replace(session, context_state=form)
            prompt = replace(prompt, view=replace(prompt.view, session=session))
        if (state.is_blocked or state.held_at) and prompt.limits.fits(prompt.estimated):
            why = "ineffective" if state.is_blocked else "held_after_undo"
            log.info("compression.suppressed", layer=layer, why=why, tokens=prompt.estimated)
            return None
        is_cooling = self.engine.is_cooling(layer, prompt.model.summary_routes, state)
        return prompt if is_urgent or not is_cooling else None

    def _job(
        self, prompt: MeasuredPrompt, layer: Layer, *, focus: str | None = None, keep_turns: int | None = None
    ) -> CompressionJob:
        limits, model, lineage_id = prompt.limits, prompt.model, prompt.conversation.lineage_id
        return CompressionJob(
            conversation=prompt.conversation,
            view=prompt.view,
            request=prompt.request,
            limits=limits,
            threshold=self._threshold(prompt),
            layer=layer,
            focus=focus,
            keep_turns=keep_turns,
            tokens_before=prompt.estimated,
            must_shrink=limits.is_urgent(prompt.estimated, is_pending=self.pending.is_pending(lineage_id)),
            model=model.info,
            estimator=model.profile.estimator,
            routes=model.routes_within(limits.context_length),
            flush_route=model.flush_route,
            settings=model.context,
        )


def _is_another_view(outcome: CompressionOutcome | None) -> bool:
    """Return True if the conversation has a new view, from this or an earlier compression."""
    return isinstance(outcome, Compressed) or (isinstance(outcome, NotNeeded) and outcome.why is SkipReason.MOVED)
