"""Which engine of others sits with which conversation, and what it has been told.

Each conversation has an engine object of its own, which is called by one caller at a time, never for longer than
allowed. One that was given up in the middle of a call is in a state that nobody knows: another one takes its place.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import structlog

from agent.context.engine_events import ContinuedEvent, EndedEvent, EngineEvent, ReplyEvent
from agent.context.state import state_of
from agent.engines.contract import ContextEngine, ListMessage
from agent.engines.mapping import hand_over
from agent.engines.timeouts import CallTimeout, Strangers
from agent.model.wire import WireSettings
from hermes_state.sessions import Session
from hermes_state.transcripts import View
from hermes_state.values import CanonicalUsage, LineageId, Tokens

log = structlog.get_logger()

QUICK_SECONDS = 5.0
"""For every call that makes no model call."""
KEPT_ENGINES = 256
"""Conversations whose engine is remembered; those that rested longest are let go."""
KEPT_NEWS = 32
"""Of a conversation whose engine is busy."""
MOST_RUNAWAYS = 4
"""Calls that were given up and never came back: from here on the engine is not called at all."""


class EngineError(Exception):
    """An engine did not do what it was asked. The text completes the sentence `The context engine …`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What `update_model` tells about the model that answers."""

    name: str
    context_length: Tokens
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    provider: str = ""


@dataclass(slots=True)
class EngineInstance:
    """One conversation's engine, and where it believes the conversation to be."""

    engine: ContextEngine
    model: ModelInfo
    session: Session | None = None
    window: int = 0
    is_lost: bool = False
    """A call of it was given up."""


@dataclass(slots=True)
class _Place:
    """What outlives a conversation's engine."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    seat: EngineInstance | None = None
    waiting: deque[EngineEvent] = field(default_factory=lambda: deque(maxlen=KEPT_NEWS))
    threshold: int | None = None
    """As the engine's status has said last."""


class EngineInstances:
    """See the module."""

    def __init__(
        self, name: str, make: Callable[[], ContextEngine], *, model: ModelInfo, quick_seconds: float = QUICK_SECONDS
    ) -> None:
        """`make` gives a new engine object."""
        self._name = name
        self._make = make
        self._model = model
        self._quick_seconds = quick_seconds
        self._strangers = Strangers()
        self._places: OrderedDict[LineageId, _Place] = OrderedDict()

    @asynccontextmanager
    async def taken(
        self,
        session: Session,
        model: ModelInfo | None = None,
        window: int | None = None,
        *,
        is_patient: bool = False,
    ) -> AsyncIterator[EngineInstance]:
        """The engine of the session's conversation for one caller, told where the conversation is now.

        `model` and `window`: None for those that it was told last. When the caller is done, the engine hears what has
        happened meanwhile. Raises `EngineError`, also when somebody else is with the engine, unless the caller is
        patient.
        """
        place = self._place(session.lineage_id)
        if place.lock.locked() and not is_patient:
            raise EngineError("is busy with this conversation")
        async with place.lock:
            yield await self._seated(place, session, model, window)
            await self._deliver(place)

    async def call(
        self,
        seat: EngineInstance,
        function: Callable[..., Any],
        *args: Any,
        seconds: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the engine of a taken seat. Raises `EngineError`."""
        is_done = False
        try:
            result = await self._bounded(function, *args, seconds=seconds or self._quick_seconds, **kwargs)
            is_done = True
            return result
        except EngineError as error:
            is_done = not isinstance(error.__cause__, CallTimeout)
            raise
        finally:
            seat.is_lost = seat.is_lost or not is_done

    def threshold(self, lineage_id: LineageId) -> int | None:
        """From how many tokens on a conversation's engine compresses, as far as it has said so."""
        place = self._places.get(lineage_id)
        return None if place is None else place.threshold

    async def told(self, news: EngineEvent) -> None:
        """Passed on at once, or as soon as the engine is done with what it is doing. Never raises."""
        place = self._place(_session_of(news).lineage_id)
        place.waiting.append(news)
        if not place.lock.locked():
            async with place.lock:
                await self._deliver(place)

    async def close(self) -> None:
        """Let go of all engines, and of what can be stopped of their calls."""
        self._places.clear()
        await self._strangers.close()

    # ---- places and who sits there

    def _place(self, lineage_id: LineageId) -> _Place:
        """A conversation's place. Who rested longest is forgotten; nobody who is in the middle of something."""
        place = self._places.setdefault(lineage_id, _Place())
        self._places.move_to_end(lineage_id)
        for other in list(self._places)[: max(0, len(self._places) - KEPT_ENGINES)]:
            if not self._places[other].lock.locked():
                del self._places[other]
        return place

    async def _seated(
        self, place: _Place, session: Session, model: ModelInfo | None = None, window: int | None = None
    ) -> EngineInstance:
        """The engine in a place that is held, told of the model and of the session."""
        seat = place.seat
        if seat is None or seat.is_lost:
            engine = await self._bounded(self._make, seconds=self._quick_seconds)
            if not isinstance(engine, ContextEngine):
                raise EngineError("could not be made")
            seat = place.seat = EngineInstance(engine, model or self._model)
        model = model or seat.model
        window = window or seat.window or int(model.context_length)
        if (seat.model, seat.window) != (model, window):
            await self._tell_model(seat, model, window)
            place.threshold = await self._said_threshold(seat)
        if seat.session is None or seat.session.depth < session.depth:
            await self._start(seat, session)
        return seat

    async def _tell_model(self, seat: EngineInstance, model: ModelInfo, window: int) -> None:
        tell = seat.engine.update_model
        await self.call(seat, tell, model.name, window, model.base_url, model.api_key, model.provider)
        seat.model, seat.window = model, window

    async def _start(self, seat: EngineInstance, session: Session) -> None:
        """The conversation was taken up, or is in another session: after a compression, or one that was taken back."""
        before, seat.session = seat.session, session
        if before is None:
            is_new = session.depth == 0 and session.reported_prompt_tokens is None
            reason, parent = "started" if is_new else "resumed", None
        else:
            was_undone = state_of(session.context_state).held_at > 0
            reason, parent = "undo" if was_undone else "compression", before.key
        await self.call(seat, seat.engine.on_session_start, session.key, reason=reason, parent=parent)

    async def _said_threshold(self, seat: EngineInstance) -> int | None:
        """From the engine's status, for people: one that has none to show is no worse at compressing."""
        try:
            status = await self.call(seat, seat.engine.get_status)
        except EngineError:
            if seat.is_lost:
                raise
            return None
        said = status.get("threshold_tokens") if isinstance(status, dict) else None
        return int(said) if isinstance(said, (int, float)) and isfinite(said) and said > 0 else None

    # ---- news

    async def _deliver(self, place: _Place) -> None:
        """One by one, so that what a cancellation leaves waits for the next time."""
        while place.waiting:
            news = place.waiting.popleft()
            try:
                await self._pass_on(place, news)
            except EngineError as error:
                log.warning("engine.not_told", engine=self._name, news=type(news).__name__, reason=str(error))

    async def _pass_on(self, place: _Place, news: EngineEvent) -> None:
        seat = await self._seated(place, _session_of(news))
        match news:
            case ReplyEvent(usage=usage):
                await self.call(seat, seat.engine.update_from_response, _usage(usage))
                place.threshold = await self._said_threshold(seat)
            case EndedEvent(view=view, was_reset=was_reset):
                place.seat = None
                messages = await asyncio.to_thread(_messages_of, view)
                await self.call(seat, seat.engine.on_session_end, view.session.key, messages)
                if was_reset:
                    await self.call(seat, seat.engine.on_session_reset)
            case ContinuedEvent():
                pass  # the seat has been told

    # ---- calling it

    async def _bounded(self, function: Callable[..., Any], *args: Any, seconds: float, **kwargs: Any) -> Any:
        if self._strangers.runaways >= MOST_RUNAWAYS:
            raise EngineError("does not come back from earlier calls")
        try:
            return await self._strangers.call(seconds, function, *args, **kwargs)
        except CallTimeout as error:
            raise EngineError(f"did not answer within {seconds:g} seconds") from error
        except Exception as error:  # code that is not ours may raise anything, and no chat ends by it
            log.exception("engine.crashed", engine=self._name)
            raise EngineError(f"broke ({type(error).__name__})") from error


def _session_of(news: EngineEvent) -> Session:
    match news:
        case ReplyEvent(session=session) | ContinuedEvent(child=session):
            return session
        case EndedEvent(view=view):
            return view.session


def _messages_of(view: View) -> list[ListMessage]:
    return list(hand_over(view.session.system_prompt or "", view.transcript, WireSettings()).messages)


def _usage(usage: CanonicalUsage) -> dict[str, Any]:
    """As chat completions report it."""
    return {
        "prompt_tokens": int(usage.prompt),
        "completion_tokens": usage.output,
        "total_tokens": int(usage.prompt) + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
