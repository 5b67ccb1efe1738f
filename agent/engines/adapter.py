"""Engines of others, written for message lists, as engines of stored rows.

Whatever an engine does (it raises, hangs, returns nonsense, changes what it was given), the conversation goes on: the
attempt is aborted, and where there is no room to leave things as they are, the built-in engine takes over.
"""

import asyncio
import copy
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from agent.context.compressor import (
    CompressionJob,
    CompressionPreview,
    PreparedCompression,
    RecordFailure,
    SummaryRoute,
)
from agent.context.cuts import has_open_calls
from agent.context.engine import Engine
from agent.context.engine_events import CompressionRequest, EngineEvent
from agent.context.estimate import Estimator
from agent.context.limits import Limits
from agent.context.outcomes import Aborted, NotNeeded, SkipReason
from agent.context.state import ContextState, CooldownKey, cooldown_key
from agent.engines.contract import ContextEngine
from agent.engines.instances import KEPT_ENGINES, QUICK_SECONDS, EngineError, EngineInstance, EngineInstances, ModelInfo
from agent.engines.mapping import MappedMessages, MessageListError, SentMessages, hand_over, take_back
from agent.handoff import framed
from agent.model.base import ToolSchema
from agent.model.wire import WireSettings
from agent.tools.registry import Tool, ToolContext, ToolFunction
from hermes_state import sessions
from hermes_state.compressions import Layer
from hermes_state.errors import ToolError
from hermes_state.values import Clock, EstimatedTokens, LineageId, Millis, Origin, Tokens, ToolEffect

log = structlog.get_logger()

COMPRESS_SECONDS = 120.0
"""For `compress` and for tools, which may call a model."""
FOCUS_CHARACTERS = 500
REASON_CHARACTERS = 200
FAILED: Final = "engine"
"""How attempts and cooldowns call a failure of an engine."""


class PluginEngine:
    """See the module. Satisfies `Engine`."""

    def __init__(
        self,
        name: str,
        make: Callable[[], ContextEngine],
        *,
        model: ModelInfo,
        fallback: Engine,
        redact: Callable[[str], str],
        clock: Clock,
        mark: str = "",
        schemas: Sequence[ToolSchema] = (),
        compress_seconds: float = COMPRESS_SECONDS,
        quick_seconds: float = QUICK_SECONDS,
    ) -> None:
        """`make` gives a new engine object; `fallback` compresses where the engine failed and there is no room.

        `mark`: of the settings behind it, the engine's and the model's.
        """
        self._name = name
        self._fallback = fallback
        self._model = model
        self._redact = redact
        self._clock = clock
        self._mark = mark
        self._schemas = tuple(schemas)
        self._compress_seconds = compress_seconds
        self._seats = EngineInstances(name, make, model=model, quick_seconds=quick_seconds)
        self._cut_off: OrderedDict[LineageId, tuple[int, int, int]] = OrderedDict()
        """The state of a conversation in which a draft was given up from outside."""

    def beside(self, fallback: Engine, model: ModelInfo) -> "PluginEngine":
        """The same engines of conversations for another model: one that changes over is told so."""
        other = copy.copy(self)
        other._fallback, other._model = fallback, model
        return other

    @property
    def name(self) -> str:
        return self._name

    # ---- what the keeper asks

    async def wish(self, job: CompressionJob) -> CompressionRequest | None:
        """The engine's own decision, and what it asked for; beyond the urgent line nobody decides otherwise."""
        wish = None
        try:
            async with self._seats.taken(job.view.session, self._model, job.limits.context_length) as seat:
                wish = await self._decision(seat, job)
        except EngineError:
            if job.limits.is_over_threshold(job.tokens_before):
                return CompressionRequest(reason="threshold")
        if wish is None and job.limits.is_urgent(job.tokens_before):
            return CompressionRequest(reason="window")
        return wish

    async def draft(
        self,
        job: CompressionJob,
        state: ContextState,
        estimator: Estimator,
        routes: Sequence[SummaryRoute],
        record_failure: RecordFailure,
    ) -> tuple[PreparedCompression | NotNeeded | Aborted, ContextState]:
        """See `Engine.draft`. A cut at a certain message is no part of the contract: the built-in engine makes it."""
        if job.keep_turns is not None:
            return await self._fallback.draft(job, state, estimator, routes, record_failure)
        if has_open_calls(job.view.transcript):
            return job.not_needed(SkipReason.TOOL_RUNS), state
        key, now = self._cooldown_key(job.layer), self._clock.now()
        if job.is_out_of_time:
            return await self._without_it(job, state.failed(key, "timeout", now), estimator, (), record_failure)
        was_cut_off = self._cut_off.get(job.view.session.lineage_id) == _moment(job)
        if job.must_shrink and (was_cut_off or state.is_cooling(key, now)):
            return await self._without_it(job, state, estimator, routes, record_failure)
        try:
            mapped = await self._compressed(job)
        except (EngineError, MessageListError) as error:
            log.warning("engine.failed", engine=self._name, layer=job.layer, reason=str(error))
            state = state.failed(key, FAILED, self._clock.now())
            if job.must_shrink:
                return await self._without_it(job, state, estimator, routes, record_failure)
            why = f"returned a list that cannot be used: {error}" if isinstance(error, MessageListError) else str(error)
            until = state.cooldowns[key].until
            reason = f"The context engine {self._name} {why}."
            return Aborted(kind=FAILED, reason=reason, retry_at=Millis(until)), state
        state = state.answered(key)
        result, judged = self._judged(job, state, estimator, mapped)
        if isinstance(result, NotNeeded) and job.must_shrink:
            return await self._without_it(job, state, estimator, routes, record_failure)
        return result, judged

    def preview(self, job: CompressionJob, estimator: Estimator) -> CompressionPreview | NotNeeded:
        """An engine of others cannot tell what it would do without doing it."""
        if job.keep_turns is not None:
            return self._fallback.preview(job, estimator)
        return job.not_needed(SkipReason.NO_PREVIEW)

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        return state.is_cooling(self._cooldown_key(layer), self._clock.now())

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        """What its status says, and hygiene's line at the latest, where the engine is not asked."""
        return Tokens(min(self._seats.threshold(lineage_id) or limits.hygiene, limits.hygiene))

    async def told(self, news: EngineEvent) -> None:
        """Passed on at once, or as soon as the engine is done with what it is doing."""
        await self._seats.told(news)

    async def close(self) -> None:
        await self._seats.close()

    # ---- tools

    def tools(self) -> list[Tool]:
        """The engine's tools. A call goes to the engine of the conversation that it is made in."""
        return [
            Tool(
                name=schema.name,
                description=schema.description,
                parameters=schema.parameters,
                effect=ToolEffect.WRITES,  # unknown, so a restart runs none of them twice
                run=self._tool(schema.name),
            )
            for schema in self._schemas
        ]

    def _tool(self, name: str) -> ToolFunction:
        async def run(arguments: dict[str, Any], context: ToolContext) -> str:
            session = await context.store.read(sessions.load_tip, context.lineage_id)
            try:
                async with self._seats.taken(session, is_patient=True) as seat:
                    call, seconds = seat.engine.handle_tool_call, self._compress_seconds
                    result = await self._seats.call(
                        seat, call, name, arguments, seconds=seconds, session_id=session.key
                    )
            except EngineError as error:
                raise ToolError(f"the context engine {self._name} {error}") from error
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

        return run

    # ---- one compression

    async def _compressed(self, job: CompressionJob) -> MappedMessages | None:
        lineage_id = job.view.session.lineage_id
        try:
            async with self._seats.taken(job.view.session, self._model, job.limits.context_length) as seat:
                handed = await asyncio.to_thread(hand_over, job.request.system, job.view.transcript, _style(job))
                returned = await self._seats.call(
                    seat,
                    seat.engine.compress,
                    list(handed.messages),
                    seconds=self._compress_seconds,
                    current_tokens=int(job.tokens_before),
                    focus_topic=job.focus,
                )
                mapped = await asyncio.to_thread(_taken_back, handed, returned, self._redact)
        except asyncio.CancelledError:
            self._cut_off[lineage_id] = _moment(job)
            if len(self._cut_off) > KEPT_ENGINES:
                self._cut_off.popitem(last=False)
            raise
        self._cut_off.pop(lineage_id, None)
        return mapped

    def _judged(
        self, job: CompressionJob, state: ContextState, estimator: Estimator, mapped: MappedMessages | None
    ) -> tuple[PreparedCompression | NotNeeded, ContextState]:
        if mapped is None:
            return job.not_needed(SkipReason.NOTHING_BETWEEN), state.struck(job.tokens_before)
        gone = int(estimator.rows(mapped.removed, job.request.style))
        added = sum(
            int(estimator.text(framed(row.text or "") if row.origin is Origin.SUMMARY else row.text or ""))
            for row in mapped.added
        )
        after = EstimatedTokens(max(0, job.tokens_before - gone) + added)
        if after >= job.tokens_before:
            log.info("compression.grew", layer=job.layer, tokens_before=job.tokens_before, tokens_after=after)
            return job.not_needed(SkipReason.NOT_SMALLER), state.struck(job.tokens_before)
        draft = PreparedCompression(
            context=mapped.context,
            summary_kind="model",
            model=self._name,
            failure=None,
            calls=(),
            state=state.compressed(job.tokens_before),
            summarised=mapped.summarised,
            tokens_after=after,
        )
        return draft, state

    async def _without_it(
        self,
        job: CompressionJob,
        state: ContextState,
        estimator: Estimator,
        routes: Sequence[SummaryRoute],
        record_failure: RecordFailure,
    ) -> tuple[PreparedCompression | NotNeeded | Aborted, ContextState]:
        """There is no room to leave the conversation as it is until the engine can do better."""
        log.warning("engine.replaced", engine=self._name, layer=job.layer, by=self._fallback.name)
        return await self._fallback.draft(job, state, estimator, routes, record_failure)

    # ---- when to compress

    async def _decision(self, seat: EngineInstance, job: CompressionJob) -> CompressionRequest | None:
        engine = seat.engine
        wish = await self._request(seat, job.layer)
        if wish is None and await self._says(seat, engine.should_compress, int(job.tokens_before)):
            wish = CompressionRequest(reason="threshold")
        if wish is None and job.layer == "preflight" and await self._asked(seat, "should_compress_preflight", job):
            wish = CompressionRequest(reason="preflight")
        if wish is None or await self._asked(seat, "has_content_to_compress", job) is False:
            return None
        return wish

    async def _request(self, seat: EngineInstance, layer: Layer) -> CompressionRequest | None:
        """What the engine asked for by itself, as far as that can be a request at all."""
        asked = await self._seats.call(seat, seat.engine.take_request)
        if not isinstance(asked, CompressionRequest):
            return None
        reason, focus = " ".join(str(asked.reason).split())[:REASON_CHARACTERS], asked.focus
        log.info("engine.requested", engine=self._name, layer=layer, reason=reason)
        return CompressionRequest(
            reason=reason, focus=" ".join(str(focus).split())[:FOCUS_CHARACTERS] if focus else None
        )

    async def _asked(self, seat: EngineInstance, method: str, job: CompressionJob) -> bool | None:
        """What the engine says about a list; None where it leaves that to the contract, which is worth no list."""
        if getattr(type(seat.engine), method, None) is getattr(ContextEngine, method):
            return None
        # A list of its own for every question: an engine may do with it what it likes.
        handed = await asyncio.to_thread(hand_over, job.request.system, job.view.transcript, _style(job))
        return await self._says(seat, getattr(seat.engine, method), list(handed.messages))

    async def _says(self, seat: EngineInstance, question: Callable[..., Any], about: object) -> bool:
        answer = await self._seats.call(seat, question, about)
        try:
            return bool(answer)
        except Exception as error:  # such as an array of answers
            raise EngineError(f"says neither yes nor no ({type(error).__name__})") from error

    def _cooldown_key(self, layer: Layer) -> CooldownKey:
        return cooldown_key(layer, f"engine:{self._name}", self._mark)


def _moment(job: CompressionJob) -> tuple[int, int, int]:
    session = job.view.session
    return session.id, session.version, session.next_seq


def _style(job: CompressionJob) -> WireSettings:
    """Images are mentioned, not shown: their bytes would be compared and copied for nothing."""
    return replace(job.request.style, image_urls={})


def _taken_back(handed: SentMessages, returned: object, redact: Callable[[str], str]) -> MappedMessages | None:
    try:
        return take_back(handed, returned, redact)
    except MessageListError:
        raise
    except Exception as error:  # values that are no JSON, and objects that only look like lists
        log.exception("engine.list_unreadable")
        raise MessageListError(f"it could not be read ({type(error).__name__})") from error
