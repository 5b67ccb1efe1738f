"""Keeping conversations inside their window: when to compress, and committing it.

Every layer asks here. A draft is made first, with a model call if need be; then one transaction splits the session,
keeps what it cost, and tells whoever listens. A draft whose conversation has moved on meanwhile is thrown away, so that
of several who compress at one time one wins and the others learn that nothing is left to do.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from sqlite3 import Connection
from typing import Protocol, assert_never

import structlog

from agent.context.commit import Drafted, keep_verdict, settle, tell
from agent.context.compressor import CompressionJob, Compressor, CompressorSettings, Draft, Preview, SummaryRoute
from agent.context.estimate import Estimator
from agent.context.events import Blocked, ContextEvent, HardLimit, Listener, Pressure, Scene
from agent.context.limits import Limits, LimitSettings, limits_of
from agent.context.outcomes import Aborted, Compressed, CompressionOutcome, NotNeeded, Why
from agent.context.profiles import ProfileBook
from agent.context.state import ContextState, state_of, stored_form
from agent.handoff import SYSTEM_NOTE
from agent.model.base import ModelRequest
from hermes_state import ledger, sessions
from hermes_state.errors import ContextOverflow
from hermes_state.lineage import Layer, SplitPlan, count_compressions
from hermes_state.store import Store
from hermes_state.transcripts import View
from hermes_state.values import (
    Clock,
    EstimatedTokens,
    LineageId,
    Millis,
    ModelCallRecord,
    ReportedTokens,
    Tokens,
)
from hermes_state.views import ViewCache

log = structlog.get_logger()

MOST_PASSES = 3
"""Of one preflight: a conversation that came over from a far larger window may need more than one."""
LEAST_HYGIENE_MESSAGES = 4
PRESSURE_PERCENT = 85
"""Of the threshold: from here on people are told that a compression is near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """What the configuration says about keeping conversations inside their window."""

    is_enabled: bool = True
    limits: LimitSettings = field(default_factory=LimitSettings)
    compressor: CompressorSettings = field(default_factory=CompressorSettings)
    hard_message_limit: int = 5_000
    hold_seconds: float = 10.0
    """How long hygiene may keep a turn waiting that could also begin."""
    note_in_system: bool = True
    pressure_levels: tuple[float, ...] = ()
    """Shares of the window at which people are told, beside the notice before the threshold."""


class Prompts(Protocol):
    """Who makes the prompts that have to fit."""

    async def request_for(self, scene: Scene, view: View) -> ModelRequest:
        """The next model call for this view."""

    def system_for(self, scene: Scene) -> str:
        """The system prompt as it would be assembled today."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How full a conversation is."""

    prompt: EstimatedTokens
    fixed: EstimatedTokens
    """Of the prompt, what no compression shortens: the system prompt and the tools' schemas."""
    limits: Limits
    is_automatic: bool
    compressions: int

    @property
    def is_crowded(self) -> bool:
        """What cannot shrink takes half of the room before a compression, or more."""
        return self.fixed * 2 >= self.limits.threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A view that is ready for its model call."""

    view: View
    request: ModelRequest
    estimated: EstimatedTokens


class ContextKeeper:
    """See the module. One for each model in use."""

    def __init__(
        self,
        *,
        store: Store,
        views: ViewCache,
        prompts: Prompts,
        engine: Compressor,
        routes: Sequence[SummaryRoute],
        profiles: ProfileBook,
        reserved_output: Tokens,
        settings: ContextSettings,
        listeners: Sequence[Listener],
        clock: Clock,
    ) -> None:
        self._store = store
        self._views = views
        self._prompts = prompts
        self._engine = engine
        self._routes = tuple(routes)
        self._profiles = profiles
        self._reserved_output = reserved_output
        self._settings = settings
        self._listeners = tuple(listeners)
        self._clock = clock
        self._drafts: dict[LineageId, asyncio.Task[Drafted]] = {}

    # ---- sizes

    @property
    def estimator(self) -> Estimator:
        return self._profiles.estimator

    @property
    def limits(self) -> Limits:
        """As they are now: a learned window moves all of them."""
        window = self._profiles.window
        return limits_of(window, min(self._reserved_output, window // 4), self._settings.limits)

    # ---- layers

    async def tidy(self, scene: Scene) -> None:
        """Hygiene: before a turn starts, at the far end of the window. Keeps the turn waiting only so long."""
        await self._profiles.load()
        view = await self._views.load(scene.lineage_id)
        view = await self._with_finished_draft(scene, view)
        room = await self._room(scene, view)
        limits, rows = self.limits, len(view.transcript)
        is_many = rows >= self._settings.hard_message_limit
        is_due = rows >= LEAST_HYGIENE_MESSAGES and room.estimated >= limits.hygiene
        if not (is_many or is_due) or scene.lineage_id in self._drafts or not await self._may_act(room, "hygiene"):
            return
        if is_many and not is_due:
            limit = self._settings.hard_message_limit
            log.info("hygiene.message_limit", messages=rows, limit=limit)
            await self._tell(scene, HardLimit(messages=rows, limit=limit))
        must_shrink = limits.is_urgent(room.estimated)
        job = self._job(room, "hygiene", must_shrink=must_shrink)
        draft = self._drafts[scene.lineage_id] = asyncio.create_task(
            self._draft(scene, job), name=f"draft-{scene.lineage_id}"
        )
        await asyncio.wait({draft}, timeout=self._settings.hold_seconds)
        if draft.done() or not must_shrink:
            await self._with_finished_draft(scene, view)
            return
        await self._drop_draft(scene.lineage_id)
        log.warning("hygiene.hold_ended", lineage_id=scene.lineage_id, seconds=self._settings.hold_seconds)
        await self._commit(scene, await self._draft(scene, job, routes=()))

    async def make_room(self, scene: Scene, view: View, layer: Layer) -> Room:
        """Before a model call: compress from the threshold on, more than once while it helps."""
        await self._profiles.load()
        view = await self._with_finished_draft(scene, view)
        room = await self._room(scene, view)
        for _ in range(MOST_PASSES):
            if not await self._is_wanted(room, layer):
                break
            if scene.lineage_id in self._drafts:
                if not self.limits.is_urgent(room.estimated):
                    break  # hygiene's summary is on its way, and there is room until it is here
                await self._drop_draft(scene.lineage_id)
            outcome = await self._compress(scene, self._job(room, layer))
            if not isinstance(outcome, Compressed):
                break
            before = room.estimated
            room = await self._room(scene, await self._views.load(scene.lineage_id))
            if room.estimated * 100 > before * 95:
                break
        return room

    async def after_overflow(self, scene: Scene, error: ContextOverflow) -> bool:
        """The provider refused a prompt as too long: compress whatever the state; False when that did not help."""
        await self._drop_draft(scene.lineage_id)
        room = await self._room(scene, await self._views.load(scene.lineage_id))
        if error.prompt_tokens is not None:
            await self._profiles.learn(room.request, ReportedTokens(error.prompt_tokens), room.view)
        await self._profiles.learn_window(error, room.estimated, self.limits.input_window)
        if not self._settings.is_enabled:
            return False
        outcome = await self._compress(scene, self._job(room, "overflow", must_shrink=True))
        return isinstance(outcome, Compressed)

    async def draft_by_hand(self, scene: Scene, *, focus: str | None = None, keep_turns: int | None = None) -> Drafted:
        """`/compress`: always, and what holds the automatic layers back is forgotten. `settle` commits it."""
        await self._profiles.load()
        await self._drop_draft(scene.lineage_id)
        room = await self._room(scene, await self._views.load(scene.lineage_id))
        job = self._job(room, "manual", focus=focus, keep_turns=keep_turns)
        return await self._draft(scene, job, state=state_of(room.view.session.context_state).asked_by_hand())

    def settle(self, db: Connection, scene: Scene, drafted: Drafted, now: Millis) -> CompressionOutcome:
        """Commit what was drafted, inside the caller's transaction."""
        plan = self._plan(scene, drafted, drafted.result) if isinstance(drafted.result, Draft) else None
        return settle(db, scene, drafted, plan, self._listeners, now)

    async def preview(self, scene: Scene, *, keep_turns: int | None = None) -> Preview | NotNeeded:
        """What `compress` would take out: no model call, no write."""
        await self._profiles.load()
        room = await self._room(scene, await self._views.load(scene.lineage_id))
        job = self._job(room, "manual", keep_turns=keep_turns)
        return await asyncio.to_thread(self._engine.preview, job, self.estimator)

    async def standing(self, scene: Scene) -> Standing:
        """How full a conversation is."""
        await self._profiles.load()
        room = await self._room(scene, await self._views.load(scene.lineage_id))
        empty = replace(room.request, transcript=())
        return Standing(
            prompt=room.estimated,
            fixed=self.estimator.whole(empty),
            limits=self.limits,
            is_automatic=self._settings.is_enabled,
            compressions=await self._store.read(count_compressions, scene.lineage_id),
        )

    async def close(self) -> None:
        """Give up what is being drafted."""
        for lineage_id in list(self._drafts):
            await self._drop_draft(lineage_id)

    # ---- after a reply

    async def note_report(self, scene: Scene, view: View, request: ModelRequest, reported: ReportedTokens) -> None:
        """Learn from a provider's count, and see whether the last compression has helped."""
        await self._profiles.learn(request, reported, view)
        state = state_of(view.session.context_state)
        threshold = self.limits.threshold
        judged = state.judged(reported, threshold)
        if judged is state:
            return
        has_helped = judged.strikes == 0
        log.info("compression.judged", lineage_id=scene.lineage_id, has_helped=has_helped, strikes=judged.strikes)
        events = [Blocked(tokens=reported, threshold=threshold)] if judged.is_blocked and not state.is_blocked else []
        session_id, now = view.session.id, self._clock.now()
        await self._store.write(keep_verdict, scene, session_id, judged, has_helped, events, self._listeners, now)

    async def pressure(self, scene: Scene, reported: ReportedTokens) -> Pressure | None:
        """What people should be told about the room that is left, once for each level that is crossed."""
        limits, levels = self.limits, self._settings.pressure_levels
        session = await self._store.read(sessions.load_tip, scene.lineage_id)
        state = state_of(session.context_state)
        near = limits.threshold * PRESSURE_PERCENT // 100
        lines = [(near, limits.threshold, True)]
        lines += [(int(limits.context_length * level), limits.context_length, False) for level in levels]
        crossed = [line for line in lines if reported >= line[0]]
        highest = max(crossed, default=None)
        level = highest[0] if highest is not None else 0
        if level == state.pressure_level:
            return None
        changed = state.told_of(level)
        await self._store.write(sessions.set_context_state, session.id, stored_form(changed))
        if highest is None or level < state.pressure_level:
            return None
        _, of_tokens, is_threshold = highest
        log.info("context.pressed", lineage_id=scene.lineage_id, tokens=reported, of_tokens=of_tokens)
        percent = reported * 100 // of_tokens
        return Pressure(tokens=reported, of_tokens=of_tokens, percent=percent, is_threshold=is_threshold)

    # ---- one pass

    async def _room(self, scene: Scene, view: View) -> Room:
        if view.session.model not in (None, self._profiles.model):  # another model's count says nothing here
            view = replace(view, session=replace(view.session, reported_prompt_tokens=None))
        request = await self._prompts.request_for(scene, view)
        return Room(view=view, request=request, estimated=self.estimator.prompt(view, request))

    async def _is_wanted(self, room: Room, layer: Layer) -> bool:
        return self.limits.is_over_threshold(room.estimated) and await self._may_act(room, layer)

    async def _may_act(self, room: Room, layer: Layer) -> bool:
        """Whether nothing holds the automatic layers back: the switch, strikes, an undo, a cooldown."""
        if not self._settings.is_enabled:
            return False
        session = room.view.session
        stored = state_of(session.context_state)
        is_urgent = self.limits.is_urgent(room.estimated)
        state = stored.rearmed(room.estimated, is_urgent=is_urgent)
        if state is not stored:
            await self._store.write(sessions.set_context_state, session.id, stored_form(state))
        if state.is_blocked or state.held_at:
            why = Why.INEFFECTIVE if state.is_blocked else Why.HELD_AFTER_UNDO
            log.info("compression.held_back", layer=layer, why=why, tokens=room.estimated)
            return False
        is_cooling = self._engine.is_cooling(layer, self._routes, state)
        return is_urgent or not is_cooling

    def _job(
        self,
        room: Room,
        layer: Layer,
        *,
        focus: str | None = None,
        keep_turns: int | None = None,
        must_shrink: bool | None = None,
    ) -> CompressionJob:
        limits = self.limits
        return CompressionJob(
            view=room.view,
            request=room.request,
            limits=limits,
            layer=layer,
            focus=focus,
            keep_turns=keep_turns,
            tokens_before=room.estimated,
            must_shrink=limits.is_urgent(room.estimated) if must_shrink is None else must_shrink,
        )

    async def _compress(self, scene: Scene, job: CompressionJob) -> CompressionOutcome:
        return await self._commit(scene, await self._draft(scene, job))

    async def _draft(
        self,
        scene: Scene,
        job: CompressionJob,
        *,
        routes: Sequence[SummaryRoute] | None = None,
        state: ContextState | None = None,
    ) -> Drafted:
        """A draft of the job, and what is to be kept of the attempt. Writes nothing but failed calls."""
        started = time.perf_counter()

        async def record_failure(call: ModelCallRecord) -> None:
            await self._store.write(ledger.record, scene.turn_id, scene.lineage_id, call, self._clock.now())

        before = state_of(job.view.session.context_state)
        asked = self._routes if routes is None else routes
        result, after = await self._engine.draft(job, state or before, self.estimator, asked, record_failure)
        took_ms = round((time.perf_counter() - started) * 1_000)
        return Drafted(job=job, result=result, before=before, state=after, took_ms=took_ms)

    async def _commit(self, scene: Scene, drafted: Drafted) -> CompressionOutcome:
        outcome = await self._store.write(self.settle, scene, drafted, self._clock.now())
        log_outcome(scene, drafted.job.layer, outcome)
        return outcome

    def _plan(self, scene: Scene, drafted: Drafted, draft: Draft) -> SplitPlan:
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
            system_prompt=self._system_prompt(scene),
            context_state=stored_form(draft.state),
            tokens_before=job.tokens_before,
            tokens_after=draft.tokens_after,
            took_ms=drafted.took_ms,
        )

    def _system_prompt(self, scene: Scene) -> str:
        """Assembled anew, so that what was learned since is in it; the note says why the view begins with a record."""
        text = self._prompts.system_for(scene)
        return f"{text}\n\n{SYSTEM_NOTE}" if self._settings.note_in_system else text

    # ---- drafts that were not waited for

    async def _with_finished_draft(self, scene: Scene, view: View) -> View:
        """The view, after a draft that is ready by now has been committed."""
        draft = self._drafts.get(scene.lineage_id)
        if draft is None or not draft.done():
            return view
        del self._drafts[scene.lineage_id]
        await self._commit(scene, await draft)
        return await self._views.load(scene.lineage_id)

    async def _drop_draft(self, lineage_id: LineageId) -> None:
        draft = self._drafts.pop(lineage_id, None)
        if draft is not None:
            draft.cancel()
            await asyncio.wait({draft})

    async def _tell(self, scene: Scene, event: ContextEvent) -> None:
        await self._store.write(tell, scene, event, self._listeners, self._clock.now())


def log_outcome(scene: Scene, layer: Layer, outcome: CompressionOutcome) -> None:
    """One line for whatever came of a compression."""
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
                lineage_id=scene.lineage_id,
                why=outcome.why,
                messages=outcome.messages,
            )
        case Aborted():
            log.warning("compression.aborted", layer=layer, lineage_id=scene.lineage_id, kind=outcome.kind)
        case _:
            assert_never(outcome)
