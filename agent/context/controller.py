"""Controller of context windows: when a conversation is compressed.

Every layer asks here: hygiene before a turn, preflight and the loop before each model call, the recovery from a refused
prompt, and people. Of several who compress at one time one wins, and the others learn that nothing is left to do.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import msgspec
import structlog

from agent.context.base import Engine
from agent.context.commit import (
    CompressionRegistry,
    UndoPreview,
    commit_compression,
    keep_debt,
    log_outcome,
    settle_notes,
)
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
from agent.context.state import ContextState, state_of, stored_form
from agent.prompt import PromptBuilder
from agent.view_cache import ViewCache
from hermes_state import sessions
from hermes_state.aio import cancel_all
from hermes_state.compressions import Layer, count_compressions, note_verdict, plan_undo
from hermes_state.errors import ContextOverflow, StoreUnavailable
from hermes_state.models.ledger import largest_answered_prompt
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.transcripts import View, load_session_view
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
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
"""Share of the threshold, in percent, from which on people are told that a compression is near."""

MAX_PASSES = 3
"""Most compressions of one preflight: a conversation that came over from a far larger window may need several."""
MAX_REMAINING_PERCENT = 95
"""Share of the prompt, in percent, above which a pass that leaves so much is the last one."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class ContextController:
    """Keeps conversations inside the windows of whatever models answer them. One for a configuration."""

    store: Store
    views: ViewCache
    prompts: PromptBuilder
    engine: Engine
    pending: CompressionRegistry
    """Shared by the controllers of a store: what one has begun another one takes in."""
    listeners: Sequence[Listener]
    before_split: Sequence[BeforeSplit] = ()
    on_wait: OnWait | None = None
    clock: Clock
    _measure: MeasuredPromptBuilder = field(init=False)

    def __post_init__(self) -> None:
        self._measure = MeasuredPromptBuilder(views=self.views, prompts=self.prompts)

    async def status(self, conversation: ConversationRef, model: ModelHandle) -> ContextStatus:
        """Status of a conversation, for people who ask how full it is."""
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
        """Give up what is being prepared."""
        await self.pending.close()
        await self.engine.close()

    # ---- before a turn, before a call, after a refusal

    async def measure(self, conversation: ConversationRef, model: ModelHandle) -> MeasuredPrompt:
        """The conversation as it is stored now, with what was compressed for it meanwhile; before a turn begins."""
        await model.profile.ask()
        await self._take_finished(conversation, model)
        return await self._take_owed_notes(await self._measure.load(conversation, model))

    async def compress_before_turn(self, prompt: MeasuredPrompt, *, message_limit: int | None) -> None:
        """Compress for hygiene, unless something holds the automatic layers back.

        A turn with room to begin waits for `hold_seconds` at most.

        `message_limit`: set where it is the number of messages, not their size, that makes hygiene act.
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
        """Before a model call: compress from the threshold on, more than once while it helps.

        In the background the call goes on beside it, as it does beside one that hygiene has begun, while there is room.
        `known`: the view's prompt, where it was measured already.
        """
        if known is None:  # else whoever has measured it has asked
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
            seconds = 0 if model.context.is_background or was_pending else None
            outcome = await self._compress(prompt, self._job(prompt, layer, focus=wanted.focus), seconds=seconds)
            if outcome is None:
                break
            # Loaded anew also when nothing was compressed: what is remembered of the attempt belongs to what follows.
            before, prompt = prompt.estimated, await self._measure.load(conversation, model)
            has_helped = _is_another_view(outcome) and prompt.estimated * 100 <= before * MAX_REMAINING_PERCENT
            if not (has_helped or was_pending):
                break
        return prompt

    async def compress_as_asked(
        self, conversation: ConversationRef, model: ModelHandle, view: View, focus: str | None
    ) -> None:
        """Compress between two steps because the agent wants it, unless something holds the automatic layers back."""
        ready = await self._ready(await self._measure.measure(conversation, model, view), "in_loop")
        if ready is not None:
            await self._compress(ready, self._job(ready, "in_loop", focus=focus))

    async def after_overflow(
        self, conversation: ConversationRef, model: ModelHandle, error: ContextOverflow | None
    ) -> bool:
        """A prompt is too long: compress whatever the state; False when that did not help.

        What is under way is waited for first. `error`: how the provider refused the prompt; None where that it cannot
        fit was clear beforehand.
        """
        prompt = await self._measure.load(conversation, model)
        if error is not None:
            prompt = await prompt.learn_refusal(error)
        if not model.context.is_enabled:
            return False
        was_pending = self.pending.is_pending(conversation.lineage_id)
        has_helped = _is_another_view(
            await self._compress(prompt, replace(self._job(prompt, "overflow"), must_shrink=True))
        )
        return has_helped or (was_pending and await self.after_overflow(conversation, model, None))

    async def largest_answered(self, prompt: MeasuredPrompt) -> int | None:
        """Tokens of the largest prompt that the model has answered in this conversation; None before any."""
        client = prompt.model.client
        lineage_id = prompt.conversation.lineage_id
        return await self.store.read(largest_answered_prompt, lineage_id, client.route, client.name)

    async def is_disproved(self, prompt: MeasuredPrompt, error: ContextOverflow) -> bool:
        """True if the model has answered a prompt that is larger than this one, and than the window that is stated."""
        client = prompt.model.client
        answered = await self.store.read(largest_answered_prompt, None, client.route, client.name) or 0
        is_vague = error.prompt_tokens is None and not error.is_of_account
        return is_vague and (error.window or answered) < answered >= prompt.estimated

    async def after_unexplained(self, prompt: MeasuredPrompt, answered: int | None, *, is_again: bool) -> bool:
        """A prompt was refused without a reason: compress it if it may be its length; False when that is not tried.

        `answered`: see `largest_answered`. `is_again`: the refusal has come back after a compression. Then it was
        another reason, and there is no further one for it until the model has answered.
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

    # ---- by hand

    async def prepare_by_hand(
        self,
        conversation: ConversationRef,
        model: ModelHandle,
        *,
        focus: str | None = None,
        keep_turns: int | None = None,
        on_begin: Callable[[], Awaitable[None]] | None = None,
    ) -> CompressionResult:
        """`/compress`: always, and what holds the automatic layers back is forgotten. `settle` commits it.

        `on_begin` is called once it is clear that there is something to compress.
        """
        await model.profile.ask()
        await self.pending.drop(conversation.lineage_id)
        prompt = await self._measure.load(conversation, model)
        job = replace(self._job(prompt, "manual", focus=focus, keep_turns=keep_turns), on_begin=on_begin)
        state = state_of(prompt.view.session.context_state).asked_by_hand()
        return await self._prepare(job, state=state)

    @locks(chat="result.job.conversation.chat_id")
    def settle(self, db: Connection, result: CompressionResult, now: Millis) -> CompressionOutcome:
        """Commit what was prepared, inside the caller's transaction."""
        outcome, events = commit_compression(db, result, now)
        if isinstance(outcome, Compressed) and outcome.parent.id in self.pending.notes:
            keep_debt(db, outcome.parent.id, owes_notes=True)
        self._tell(db, result.job.conversation, events, now)
        return outcome

    async def preview(
        self, conversation: ConversationRef, model: ModelHandle, *, keep_turns: int | None = None
    ) -> CompressionPreview | NotNeeded:
        """Preview of what `/compress` would take out: no model call, no write."""
        job = self._job(await self._measure.load(conversation, model), "manual", keep_turns=keep_turns)
        return await asyncio.to_thread(self.engine.preview, job)

    async def plan_undo(self, conversation: ConversationRef, model: ModelHandle) -> UndoPreview | None:
        """Preview of taking back the newest compression; None when there is none. `commit.settle_undo` does it."""
        await self.pending.drop(conversation.lineage_id)
        plan = await self.store.read(plan_undo, conversation.lineage_id)
        if plan is None:
            return None
        # From the last count of the session that comes back: `/compress undo` was offered by that figure.
        later = [row for row in plan.transcript if row.session_id > plan.compressed.id]
        earlier = tuple(row for row in plan.transcript if row.session_id <= plan.compressed.id)
        prompt = await self._measure.measure(conversation, model, View(session=plan.compressed, transcript=earlier))
        since = model.profile.estimator.rows(later, prompt.request.style)
        return UndoPreview(plan=plan, tokens=EstimatedTokens(prompt.estimated + since), limits=prompt.limits)

    async def ended(self, session_id: SessionId, *, was_reset: bool) -> None:
        """To be called behind the transaction that ends a conversation, by `/new` (`was_reset`) or by time.

        Nothing happens where the session has not ended after all.
        """
        view = await self.store.read(_load_ended, session_id)
        if view is not None:
            await self.pending.drop(view.session.lineage_id)
            await self.engine.on_event(EndedEvent(view=view, was_reset=was_reset))

    # ---- after a reply

    async def after_reply(
        self, prompt: MeasuredPrompt, usage: CanonicalUsage | None, *, is_last: bool
    ) -> PressureEvent | None:
        """Learn from a provider's count, see whether the last compression has helped, and what people should know.

        `usage` is None where the provider counts nothing; then our estimate has to do for the verdict, or a
        compression that does not help would be repeated for ever. `is_last`: an answer follows, with which people can
        be told.
        """
        stored = state_of(prompt.view.session.context_state)
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
                await self._keep_verdict(prompt, stored, state, tokens)
            if is_last and usage is not None:
                return await self._pressure(prompt, state, usage.prompt)
        except StoreUnavailable as error:
            # The reply is here and was paid for. What could not be noted shows again in the next report.
            log.warning("context.not_noted", lineage_id=prompt.conversation.lineage_id, error=str(error))
        return None

    async def _keep_verdict(
        self, prompt: MeasuredPrompt, before: ContextState, judged: ContextState, tokens: int
    ) -> None:
        lineage_id, strikes = prompt.conversation.lineage_id, judged.strikes
        log.info("compression.judged", lineage_id=lineage_id, has_helped=strikes == 0, strikes=strikes)
        is_news = judged.is_blocked and not before.is_blocked
        events = [BlockedEvent(tokens=tokens, threshold=self._threshold(prompt))] if is_news else []
        await self.store.write(self.record_verdict, prompt, judged, events, self.clock.now())

    @locks(session="prompt.view.session.id")
    def record_verdict(
        self, db: Connection, prompt: MeasuredPrompt, judged: ContextState, events: Sequence[ContextEvent], now: Millis
    ) -> None:
        """Record whether the compression that made the prompt's session has helped it."""
        session_id = prompt.view.session.id
        sessions.set_context_state(db, session_id, stored_form(judged))
        note_verdict(db, session_id, "effective" if judged.strikes == 0 else "ineffective")
        self._tell(db, prompt.conversation, events, now)

    async def _pressure(
        self, prompt: MeasuredPrompt, state: ContextState, reported: ReportedTokens
    ) -> PressureEvent | None:
        """Told once each time the pressure line is crossed.

        Whoever stores the answer notes with it that people were told; only a fall is noted here.
        """
        will_compress = prompt.model.context.is_enabled and not (state.is_blocked or state.held_at)
        threshold = self._threshold(prompt)
        line = threshold * PRESSURE_PERCENT // 100
        level = line if will_compress and reported >= line else 0
        if level == state.pressure_level:
            return None
        session_id = prompt.view.session.id
        if level < state.pressure_level:
            await self.store.write(sessions.set_context_state, session_id, stored_form(state.told_of(level)))
            return None
        log.info("context.pressed", lineage_id=prompt.conversation.lineage_id, tokens=reported, of_tokens=threshold)
        return PressureEvent(
            tokens=reported,
            threshold=threshold,
            percent=reported * 100 // threshold,
            session_id=session_id,
            level=level,
        )

    # ---- what they share

    def _threshold(self, prompt: MeasuredPrompt) -> Tokens:
        """Prompt size at which the engine acts: a plugin's is believed, or what it does would be taken for in vain."""
        return self.engine.threshold(prompt.conversation.lineage_id, prompt.limits)

    def _tell(self, db: Connection, conversation: ConversationRef, events: Sequence[ContextEvent], now: Millis) -> None:
        for event in events:
            for listener in self.listeners:
                listener(db, conversation, event, now)

    async def _compress(
        self, prompt: MeasuredPrompt, job: CompressionJob, *, seconds: float | None = None
    ) -> CompressionOutcome | None:
        """Begin a compression, unless one is under way, and take it in; None while it goes on beside the turn.

        It is waited for until it is there, or with room for so many `seconds` at most.
        """
        lineage_id = job.conversation.lineage_id
        if not self.pending.is_pending(lineage_id):
            await self.pending.begin(lineage_id, self._prepare(job))
        if job.must_shrink or seconds != 0:
            async with self._waited_for(prompt):
                await self.pending.wait(lineage_id, None if job.must_shrink else seconds)
        return await self._take_finished(job.conversation, prompt.model)

    async def _prepare(self, job: CompressionJob, *, state: ContextState | None = None) -> CompressionResult:
        """A compression that could be committed, and what is to be kept of the attempt. Writes only failed calls."""
        started, is_ready = time.perf_counter(), asyncio.Event()
        result: Preparation | None = None

        async def begin() -> None:
            self._begin_notes(job, is_ready)
            await job.begin()

        try:
            known = state or state_of(job.view.session.context_state)
            result, after = await self.engine.prepare(replace(job, on_begin=begin), known)
            is_ready.set()
        finally:
            if not isinstance(result, PreparedCompression) and (notes := self.pending.notes.get(job.view.session.id)):
                await cancel_all([notes])
        system_prompt = await self.prompts.system_for(job.conversation, job.limits.threshold)
        took_ms = round((time.perf_counter() - started) * 1_000)
        return CompressionResult(job=job, result=result, state=after, system_prompt=system_prompt, took_ms=took_ms)

    # ---- notes of what leaves a view

    def _begin_notes(self, job: CompressionJob, is_ready: asyncio.Event | None = None) -> None:
        """Take notes beside the summary or, while a turn waits for that, once it `is_ready`. A commit never waits."""
        session_id = job.view.session.id
        if self.before_split and session_id not in self.pending.notes:
            self.pending.notes[session_id] = asyncio.create_task(self._take_notes(job, is_ready), name="notes")

    async def _take_notes(self, job: CompressionJob, is_ready: asyncio.Event | None) -> None:
        try:
            if is_ready is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_ready.wait(), None if job.must_shrink else job.held_seconds)
            seen = await asyncio.gather(*(look(job) for look in self.before_split), return_exceptions=True)
        finally:
            self.pending.notes.pop(job.view.session.id, None)
        for error in (one for one in seen if isinstance(one, Exception)):
            log.error("compression.look_failed", lineage_id=job.conversation.lineage_id, exc_info=error)
        system = await self.prompts.system_for(job.conversation, job.limits.threshold)
        with suppress(StoreUnavailable):  # they are then taken once more, after the next start
            await self.store.write(settle_notes, job, system)

    async def _take_owed_notes(self, prompt: MeasuredPrompt) -> MeasuredPrompt:
        """Take the notes that an earlier process still owed the chat."""
        chat_id = prompt.conversation.chat_id
        if self.before_split and chat_id not in self.pending.settled_chats:
            for view in await self.store.read(_load_indebted, chat_id):
                self._begin_notes(replace(self._job(prompt, "preflight"), view=view))
            self.pending.settled_chats.add(chat_id)
        return prompt

    async def _take_finished(self, conversation: ConversationRef, model: ModelHandle) -> CompressionOutcome | None:
        """Commit what was prepared beside the conversation, if it is done by now, for the turn that takes it in."""
        result = await self.pending.take_finished(conversation.lineage_id)
        if result is None:
            return None
        grown = max(0, (await self._measure.load(conversation, model)).estimated - result.job.tokens_before)
        # Not the one that was prepared: what was noted since would be missing in it.
        system_prompt = await self.prompts.system_for(conversation, result.job.limits.threshold)
        job = replace(result.job, conversation=conversation, grown=grown)
        result = replace(result, job=job, system_prompt=system_prompt)
        outcome = await self.store.write(self.settle, result, self.clock.now())
        log_outcome(result, outcome)
        if isinstance(outcome, Compressed):
            await self.engine.on_event(ContinuedEvent(child=outcome.child))
        return outcome

    @asynccontextmanager
    async def _waited_for(self, prompt: MeasuredPrompt) -> AsyncIterator[None]:
        """Around what a turn waits for: its people are told if it takes long."""
        if self.on_wait is None:
            yield
            return
        telling = asyncio.create_task(_tell_of_wait(prompt, self.on_wait), name="wait")
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait({telling})
            if not telling.cancelled() and (error := telling.exception()) is not None:
                log.error("compression.wait_untold", lineage_id=prompt.conversation.lineage_id, exc_info=error)

    async def _ready(self, prompt: MeasuredPrompt, layer: Layer) -> MeasuredPrompt | None:
        """The prompt, unless something holds the automatic layers back: the switch, strikes, an undo, a cooldown.

        What the prompt's size has lifted is stored, and is in the prompt that comes back.
        """
        if not prompt.model.context.is_enabled:
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
            log.info("compression.held_back", layer=layer, why=why, tokens=prompt.estimated)
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
            settings=model.context.compressor,
        )


def held_back(prompt: MeasuredPrompt) -> str | None:
    """Reason why a conversation is not compressed by itself now; None where nothing holds it back."""
    state = state_of(prompt.view.session.context_state)
    if not prompt.model.context.is_enabled:
        return "it is switched off (`compression.enabled`)"
    if state.is_blocked:
        return "the last ones did not help; it waits until a prompt does not fit the input window"
    return "a person took the last one back; it waits until a prompt does not fit" if state.held_at else None


async def _tell_of_wait(prompt: MeasuredPrompt, on_wait: OnWait) -> None:
    await asyncio.sleep(prompt.model.context.quiet_seconds)
    await on_wait(prompt.conversation, prompt.view)


def _is_another_view(outcome: CompressionOutcome | None) -> bool:
    """True when the conversation goes on from another view now: ours, or that of whoever was faster."""
    return isinstance(outcome, Compressed) or (isinstance(outcome, NotNeeded) and outcome.why is SkipReason.MOVED)


def _load_indebted(db: Connection, chat_id: ChatId) -> list[View]:
    return [view for one in sessions.load_indebted(db, chat_id) if (view := _load_ended(db, one)) is not None]


def _load_ended(db: Connection, session_id: SessionId) -> View | None:
    session = sessions.load_session(db, session_id)
    is_ended = session.ended_at is not None
    return View(session=session, transcript=load_session_view(db, session_id)) if is_ended else None
