"""Engines of others, written for message lists, as engines of stored rows.

Each conversation has an engine object of its own, which is called by one caller at a time. Whatever an engine does (it
raises, hangs, returns nonsense, changes what it was given), the conversation goes on: the attempt is aborted, and
where there is no room to leave things as they are, the built-in engine takes over.
"""

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from agent.context.bounded import Strangers, TookTooLong
from agent.context.compressor import CompressionJob, Draft, Preview, RecordFailure, SummaryRoute
from agent.context.cuts import has_open_calls
from agent.context.engine import ContextEngine
from agent.context.estimate import Estimator
from agent.context.lists import IllegalList, ListMessage
from agent.context.mapping import Handed, Mapped, hand_over, take_back
from agent.context.news import Continued, Ended, News, Replied, Wish
from agent.context.outcomes import Aborted, NotNeeded, Why
from agent.context.port import Engine
from agent.context.state import ContextState, CooldownKey
from agent.handoff import framed
from agent.model.base import ToolSchema
from agent.model.wire import WireStyle
from agent.tools.registry import Tool, ToolContext, ToolFunction
from hermes_state import sessions
from hermes_state.errors import ToolError
from hermes_state.lineage import Layer
from hermes_state.sessions import Session
from hermes_state.transcripts import View
from hermes_state.values import (
    CanonicalUsage,
    Clock,
    Effect,
    EstimatedTokens,
    LineageId,
    Millis,
    Origin,
    SessionId,
    Tokens,
)

log = structlog.get_logger()

COMPRESS_SECONDS = 120.0
"""For `compress`, which may call a model."""
QUICK_SECONDS = 5.0
"""For everything else."""
KEPT_ENGINES = 256
"""Conversations whose engine is remembered; those that rested longest are let go."""
KEPT_NEWS = 32
"""Of a conversation whose engine is busy."""
MOST_RUNAWAYS = 4
"""Calls that were given up and never came back: from here on the engine is not called at all."""
FOCUS_CHARACTERS = 500
REASON_CHARACTERS = 200
FAILED: Final = "engine"
"""How attempts and cooldowns call a failure of an engine."""


class EngineTrouble(Exception):
    """An engine did not do what it was asked. The text completes the sentence `The context engine …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What `update_model` tells about the model that answers."""

    name: str
    context_length: Tokens
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    provider: str = ""


@dataclass(slots=True)
class _Seat:
    """One conversation's engine."""

    engine: ContextEngine
    session: Session
    window: int
    drafted_from: SessionId | None = None


class ForeignEngine:
    """See the module. Satisfies `Engine`."""

    def __init__(
        self,
        name: str,
        make: Callable[[], ContextEngine],
        *,
        model: ModelFacts,
        fallback: Engine,
        redact: Callable[[str], str],
        clock: Clock,
        schemas: Sequence[ToolSchema] = (),
        compress_seconds: float = COMPRESS_SECONDS,
        quick_seconds: float = QUICK_SECONDS,
    ) -> None:
        """`make` gives a new engine object; `fallback` compresses where the engine failed and there is no room."""
        self._name = name
        self._make = make
        self._model = model
        self._fallback = fallback
        self._redact = redact
        self._clock = clock
        self._schemas = tuple(schemas)
        self._compress_seconds = compress_seconds
        self._quick_seconds = quick_seconds
        self._strangers = Strangers()
        self._window = int(model.context_length)
        self._seats: OrderedDict[LineageId, _Seat] = OrderedDict()
        self._locks: dict[LineageId, asyncio.Lock] = {}
        self._news: dict[LineageId, deque[News]] = {}
        self._cut_off: dict[LineageId, tuple[int, int, int]] = {}
        """The state of a conversation in which a draft was given up from outside."""

    @property
    def name(self) -> str:
        return self._name

    # ---- what the keeper asks

    async def wish(self, job: CompressionJob) -> Wish | None:
        """The engine's own decision, and what it asked for; beyond the urgent line nobody decides otherwise."""
        lineage_id = job.view.session.lineage_id
        wish = None
        try:
            if self._lock(lineage_id).locked():
                raise EngineTrouble("is busy with this conversation")
            async with self._lock(lineage_id):
                wish = await self._decision(await self._seat(job.view.session, job.limits.context_length), job)
        except EngineTrouble:
            if job.limits.is_over_threshold(job.tokens_before):
                return Wish(reason="threshold")
        if wish is None and job.limits.is_urgent(job.tokens_before):
            return Wish(reason="window")
        return wish

    async def draft(
        self,
        job: CompressionJob,
        state: ContextState,
        estimator: Estimator,
        routes: Sequence[SummaryRoute],
        record_failure: RecordFailure,
    ) -> tuple[Draft | NotNeeded | Aborted, ContextState]:
        """See `Engine.draft`. A cut at a certain message is no part of the contract: the built-in engine makes it."""
        if job.keep_turns is not None:
            return await self._fallback.draft(job, state, estimator, routes, record_failure)
        if has_open_calls(job.view.transcript):
            return job.not_needed(Why.TOOL_RUNS), state
        session, now, key = job.view.session, self._clock.now(), self._cooldown_key(job.layer)
        was_cut_off = job.is_out_of_time or self._cut_off.get(session.lineage_id) == _moment(job)
        if job.must_shrink and (was_cut_off or state.is_cooling(key, now)):
            return await self._without_it(job, state, estimator, routes, record_failure)
        try:
            mapped = await self._compressed(job)
        except (EngineTrouble, IllegalList) as error:
            log.warning("engine.failed", engine=self._name, layer=job.layer, reason=str(error))
            state = state.failed(key, FAILED, self._clock.now())
            if job.must_shrink:
                return await self._without_it(job, state, estimator, routes, record_failure)
            why = f"returned a list that cannot be used: {error}" if isinstance(error, IllegalList) else str(error)
            until = state.cooldowns[key].until
            reason = f"The context engine {self._name} {why}."
            return Aborted(kind=FAILED, reason=reason, retry_at=Millis(until)), state
        return self._judged(job, state, estimator, mapped)

    def preview(self, job: CompressionJob, estimator: Estimator) -> Preview | NotNeeded:
        """An engine of others cannot tell what it would do without doing it."""
        if job.keep_turns is not None:
            return self._fallback.preview(job, estimator)
        return job.not_needed(Why.NO_PREVIEW)

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        return state.is_cooling(self._cooldown_key(layer), self._clock.now())

    async def told(self, news: News) -> None:
        """Passed on at once, or as soon as the engine is done with what it is doing."""
        session = _session_of(news)
        waiting = self._news.setdefault(session.lineage_id, deque(maxlen=KEPT_NEWS))
        waiting.append(news)
        lock = self._lock(session.lineage_id)
        if not lock.locked():
            async with lock:
                await self._deliver(session.lineage_id)

    async def close(self) -> None:
        self._seats.clear()
        await self._strangers.close()

    # ---- tools

    def tools(self) -> list[Tool]:
        """The engine's tools. A call goes to the engine of the conversation that it is made in."""
        return [
            Tool(
                name=schema.name,
                description=schema.description,
                parameters=schema.parameters,
                effect=Effect.WRITES,  # unknown, so a restart runs none of them twice
                run=self._tool(schema.name),
            )
            for schema in self._schemas
        ]

    def _tool(self, name: str) -> ToolFunction:
        async def run(arguments: dict[str, Any], context: ToolContext) -> str:
            session = await context.store.read(sessions.load_tip, context.lineage_id)
            try:
                async with self._lock(context.lineage_id):
                    seat = await self._seat(session, self._window)
                    call = seat.engine.handle_tool_call
                    result = await self._call(
                        seat, call, name, arguments, seconds=self._compress_seconds, session_id=session.key
                    )
            except EngineTrouble as error:
                raise ToolError(f"the context engine {self._name} {error}") from error
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

        return run

    # ---- one compression

    async def _compressed(self, job: CompressionJob) -> Mapped | None:
        lineage_id = job.view.session.lineage_id
        lock = self._lock(lineage_id)
        if lock.locked():
            raise EngineTrouble("is busy with this conversation")
        async with lock:
            try:
                seat = await self._seat(job.view.session, job.limits.context_length)
                handed = await asyncio.to_thread(hand_over, job.request.system, job.view.transcript, _style(job))
                returned = await self._call(
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
                raise
            self._cut_off.pop(lineage_id, None)
            if mapped is not None:
                seat.drafted_from = job.view.session.id
            await self._deliver(lineage_id)
            return mapped

    def _judged(
        self, job: CompressionJob, state: ContextState, estimator: Estimator, mapped: Mapped | None
    ) -> tuple[Draft | NotNeeded, ContextState]:
        if mapped is None:
            return job.not_needed(Why.NOTHING_BETWEEN), state.struck(job.tokens_before)
        gone = int(estimator.rows(mapped.removed, job.request.style))
        added = sum(
            int(estimator.text(framed(row.text or "") if row.origin is Origin.SUMMARY else row.text or ""))
            for row in mapped.added
        )
        after = EstimatedTokens(max(0, job.tokens_before - gone) + added)
        if after >= job.tokens_before:
            log.info("compression.grew", layer=job.layer, tokens_before=job.tokens_before, tokens_after=after)
            return job.not_needed(Why.NOT_SMALLER), state.struck(job.tokens_before)
        draft = Draft(
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
    ) -> tuple[Draft | NotNeeded | Aborted, ContextState]:
        """There is no room to wait until the engine is well again."""
        log.warning("engine.replaced", engine=self._name, layer=job.layer, by=self._fallback.name)
        seat = self._seats.get(job.view.session.lineage_id)
        if seat is not None:
            seat.drafted_from = job.view.session.id
        return await self._fallback.draft(job, state, estimator, routes, record_failure)

    # ---- when to compress

    async def _decision(self, seat: _Seat, job: CompressionJob) -> Wish | None:
        engine = seat.engine
        wish = await self._request(seat, job.layer)
        if wish is None and await self._call(seat, engine.should_compress, int(job.tokens_before)):
            wish = Wish(reason="threshold")
        if wish is None and job.layer == "preflight" and await self._asked(seat, "should_compress_preflight", job):
            wish = Wish(reason="preflight")
        if wish is None or await self._asked(seat, "has_content_to_compress", job) is False:
            return None
        return wish

    async def _request(self, seat: _Seat, layer: Layer) -> Wish | None:
        """What the engine asked for by itself, as far as that can be a request at all."""
        asked = await self._call(seat, seat.engine.take_request)
        if not isinstance(asked, Wish):
            return None
        reason, focus = " ".join(str(asked.reason).split())[:REASON_CHARACTERS], asked.focus
        log.info("engine.requested", engine=self._name, layer=layer, reason=reason)
        return Wish(reason=reason, focus=" ".join(str(focus).split())[:FOCUS_CHARACTERS] if focus else None)

    async def _asked(self, seat: _Seat, method: str, job: CompressionJob) -> bool | None:
        """What the engine says about a list; None where it leaves that to the contract, which is worth no list."""
        if getattr(type(seat.engine), method, None) is getattr(ContextEngine, method):
            return None
        # A list of its own for every question: an engine may do with it what it likes.
        handed = await asyncio.to_thread(hand_over, job.request.system, job.view.transcript, _style(job))
        return bool(await self._call(seat, getattr(seat.engine, method), list(handed.messages)))

    # ---- the engine of a conversation

    def _lock(self, lineage_id: LineageId) -> asyncio.Lock:
        return self._locks.setdefault(lineage_id, asyncio.Lock())

    async def _seat(self, session: Session, window: int) -> _Seat:
        """The engine of the session's conversation, told where the conversation is now."""
        self._window = window
        seat = self._seats.get(session.lineage_id)
        if seat is None:
            seat = await self._seated(session, window)
        self._seats.move_to_end(session.lineage_id)
        if seat.window != window:
            seat.window = window
            await self._tell_model(seat)
        if seat.session.id != session.id:
            await self._continue(seat, session)
        return seat

    async def _seated(self, session: Session, window: int) -> _Seat:
        engine = await self._bounded(self._make, seconds=self._quick_seconds)
        if not isinstance(engine, ContextEngine):
            raise EngineTrouble("could not be made")
        seat = self._seats[session.lineage_id] = _Seat(engine, session, window)
        self._let_go()
        await self._tell_model(seat)
        is_new = session.depth == 0 and session.reported_prompt_tokens is None
        await self._start(seat, reason="started" if is_new else "resumed", parent=None)
        return seat

    async def _tell_model(self, seat: _Seat) -> None:
        model = self._model
        await self._call(
            seat, seat.engine.update_model, model.name, seat.window, model.base_url, model.api_key, model.provider
        )

    async def _continue(self, seat: _Seat, session: Session) -> None:
        """The conversation is in another session now: a compression, or one that was taken back."""
        parent, was_drafted = seat.session, seat.drafted_from == session.parent_session_id
        seat.session, seat.drafted_from = session, None
        await self._start(seat, reason="compression" if was_drafted else "undo", parent=parent.key)

    async def _start(self, seat: _Seat, *, reason: str, parent: str | None) -> None:
        await self._call(seat, seat.engine.on_session_start, seat.session.key, reason=reason, parent=parent)

    def _let_go(self) -> None:
        """Forget who rested longest; nobody who is in the middle of something."""
        for lineage_id in list(self._seats):
            if len(self._seats) <= KEPT_ENGINES:
                break
            if not self._lock(lineage_id).locked():
                del self._seats[lineage_id]
        for lineage_id, lock in list(self._locks.items()):
            if len(self._locks) <= 2 * KEPT_ENGINES:
                break
            if lineage_id not in self._seats and not lock.locked():
                del self._locks[lineage_id]
                self._cut_off.pop(lineage_id, None)

    # ---- news

    async def _deliver(self, lineage_id: LineageId) -> None:
        waiting = self._news.pop(lineage_id, deque())
        for news in waiting:
            try:
                await self._pass_on(news)
            except EngineTrouble as error:
                log.warning("engine.not_told", engine=self._name, news=type(news).__name__, reason=str(error))

    async def _pass_on(self, news: News) -> None:
        seat = await self._seat(_session_of(news), self._window)
        match news:
            case Replied(usage=usage):
                await self._call(seat, seat.engine.update_from_response, _usage(usage))
            case Ended(view=view, was_reset=was_reset):
                messages = await asyncio.to_thread(_messages_of, view)
                await self._call(seat, seat.engine.on_session_end, view.session.key, messages)
                if was_reset:
                    await self._call(seat, seat.engine.on_session_reset)
                self._seats.pop(view.session.lineage_id, None)
            case Continued():
                pass  # the seat has been told

    # ---- calling it

    async def _call(
        self, seat: _Seat, function: Callable[..., Any], *args: Any, seconds: float | None = None, **kwargs: Any
    ) -> Any:
        """A call of the engine. One that was given up leaves an engine nobody knows the state of: it is dropped."""
        is_done = False
        try:
            result = await self._bounded(function, *args, seconds=seconds or self._quick_seconds, **kwargs)
            is_done = True
            return result
        except EngineTrouble as error:
            is_done = not isinstance(error.__cause__, TookTooLong)
            raise
        finally:
            if not is_done:
                self._seats.pop(seat.session.lineage_id, None)

    async def _bounded(self, function: Callable[..., Any], *args: Any, seconds: float, **kwargs: Any) -> Any:
        if self._strangers.runaways >= MOST_RUNAWAYS:
            raise EngineTrouble("does not come back from earlier calls")
        try:
            return await self._strangers.call(seconds, function, *args, **kwargs)
        except TookTooLong as error:
            raise EngineTrouble(f"did not answer within {seconds:g} seconds") from error
        except Exception as error:  # code that is not ours may raise anything, and no chat ends by it
            log.exception("engine.crashed", engine=self._name)
            raise EngineTrouble(f"broke ({type(error).__name__})") from error

    def _cooldown_key(self, layer: Layer) -> CooldownKey:
        return f"{'hygiene' if layer == 'hygiene' else 'loop'}:engine:{self._name}"


def _session_of(news: News) -> Session:
    match news:
        case Replied(session=session) | Continued(child=session):
            return session
        case Ended(view=view):
            return view.session


def _moment(job: CompressionJob) -> tuple[int, int, int]:
    session = job.view.session
    return session.id, session.version, session.next_seq


def _style(job: CompressionJob) -> WireStyle:
    """Images are mentioned, not shown: their bytes would be compared and copied for nothing."""
    return replace(job.request.style, image_urls={})


def _messages_of(view: View) -> list[ListMessage]:
    return list(hand_over(view.session.system_prompt or "", view.transcript, WireStyle()).messages)


def _taken_back(handed: Handed, returned: object, redact: Callable[[str], str]) -> Mapped | None:
    try:
        return take_back(handed, returned, redact)
    except IllegalList:
        raise
    except Exception as error:  # values that are no JSON, and objects that only look like lists
        log.exception("engine.list_unreadable")
        raise IllegalList(f"it could not be read ({type(error).__name__})") from error


def _usage(usage: CanonicalUsage) -> dict[str, Any]:
    """As chat completions report it."""
    return {
        "prompt_tokens": int(usage.prompt),
        "completion_tokens": usage.output,
        "total_tokens": int(usage.prompt) + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
