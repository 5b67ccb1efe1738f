"""Engine objects of plugins: one for each conversation, what it has been told, and how it is called.

An engine is called by one caller at a time, never for longer than allowed. One whose call was given up is in a state
that nobody knows: it is lost, and the conversation's next caller gets another.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import structlog

from agent.context.job import ContinuedEvent, EndedEvent, EngineEvent, ReplyEvent
from agent.context.model_handle import ModelInfo
from agent.context.state import state_of
from agent.engines.contract import ContextEngine
from agent.engines.mapping import sent_messages
from agent.engines.timeouts import CallTimeout, EngineError, call_with_timeout
from agent.model.wire import WireSettings
from hermes_state.sessions import Session
from hermes_state.values import CanonicalUsage, LineageId, SessionId

log = structlog.get_logger()

QUICK_SECONDS = 5.0
"""Longest wait for a call that makes no model call, in seconds."""
MAX_INSTANCES = 256
"""Conversations whose engine is kept; those idle longest are let go."""
MAX_EVENTS = 32
"""Events kept for a conversation whose engine is busy; the oldest are dropped."""
MAX_HUNG_CALLS = 4
"""Calls that were given up and still run: with so many, a plugin is not called at all."""


@dataclass(slots=True)
class EngineHandle:
    """One conversation's engine, and where it believes the conversation to be."""

    engine: ContextEngine | None = None
    """None before the first call, when a call of it was given up, and when the conversation has ended."""
    session: Session | None = None
    model: ModelInfo | None = None
    window: int = 0
    """Context length that the engine was told, in tokens; 0: not told yet."""
    threshold: int | None = None
    """Tokens from which on it compresses, as its status said last."""
    lost_in: SessionId | None = None
    """The session in which a call was given up last."""
    events: deque[EngineEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    """Events that the engine has not been told yet."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def overrides(self, method: str) -> bool:
        """Tells if the engine has a method of its own in place of the contract's."""
        return getattr(type(self.engine), method, None) is not getattr(ContextEngine, method)


class EngineRegistry:
    """The instances of a plugin's engine, by conversation."""

    def __init__(
        self, name: str, make: Callable[[], ContextEngine], *, model: ModelInfo, quick_seconds: float = QUICK_SECONDS
    ) -> None:
        """`make` gives a new engine object; `model` is told where a caller names none."""
        self._name = name
        self._make = make
        self._model = model
        self._quick_seconds = quick_seconds
        self._instances: OrderedDict[LineageId, EngineHandle] = OrderedDict()
        self._hung: set[asyncio.Future[Any]] = set()

    @asynccontextmanager
    async def acquire(
        self, session: Session, model: ModelInfo | None = None, window: int | None = None, *, waits: bool = False
    ) -> AsyncIterator[EngineHandle]:
        """The engine of the session's conversation for one caller, told where the conversation is now.

        `model` and `window`: None for those that it was told last. When the caller is done, the engine is told what
        has happened meanwhile. Raises `EngineError`, also when somebody else is with the engine, unless the caller
        `waits`.
        """
        instance = self._instance(session.lineage_id)
        if instance.lock.locked() and not waits:
            raise EngineError("is busy with this conversation")
        async with instance.lock:
            await self._prepare(instance, session, model, window)
            yield instance
            await self._deliver(instance)

    async def call(
        self, instance: EngineHandle, method: str, *args: Any, seconds: float | None = None, **kwargs: Any
    ) -> Any:
        """Calls a method of an acquired instance's engine. Raises `EngineError`."""
        try:
            return await self._call(seconds, getattr(instance.engine, method), *args, **kwargs)
        except (CallTimeout, asyncio.CancelledError):  # it may go on in a thread
            instance.engine = None
            instance.lost_in = instance.session.id if instance.session is not None else instance.lost_in
            raise

    def threshold(self, lineage_id: LineageId) -> int | None:
        """Tokens from which on a conversation's engine compresses, as far as it has said so."""
        instance = self._instances.get(lineage_id)
        return None if instance is None else instance.threshold

    def was_lost_in(self, session: Session) -> bool:
        """Tells if a call of the conversation's engine was given up in this session."""
        instance = self._instances.get(session.lineage_id)
        return instance is not None and instance.lost_in == session.id

    async def on_event(self, event: EngineEvent) -> None:
        """Tells the engine at once, or as soon as it is done with what it is doing. Never raises."""
        instance = self._instance(_session_of(event).lineage_id)
        instance.events.append(event)
        if not instance.lock.locked():
            async with instance.lock:
                await self._deliver(instance)

    async def close(self) -> None:
        """Lets go of all engines, and of what can be stopped of their calls."""
        self._instances.clear()
        hung = set(self._hung)
        for running in hung:
            running.cancel()
        if hung:
            await asyncio.wait(hung, timeout=0.1)

    def _instance(self, lineage_id: LineageId) -> EngineHandle:
        """A conversation's instance. The one idle longest is forgotten; none that is in the middle of something."""
        instance = self._instances.setdefault(lineage_id, EngineHandle())
        self._instances.move_to_end(lineage_id)
        for other in list(self._instances)[: max(0, len(self._instances) - MAX_INSTANCES)]:
            if not self._instances[other].lock.locked():
                del self._instances[other]
        return instance

    # ---- making an engine, and telling it where it is

    async def _prepare(
        self, instance: EngineHandle, session: Session, model: ModelInfo | None = None, window: int | None = None
    ) -> None:
        """The engine of an instance that is held, made where there is none, told of the model and of the session."""
        if instance.engine is None:
            engine = await self._call(None, self._make)
            if not isinstance(engine, ContextEngine):
                raise EngineError("could not be made")
            instance.engine, instance.session, instance.window = engine, None, 0
        model = model or instance.model or self._model
        window = window or instance.window or int(model.context_length)
        if (instance.model, instance.window) != (model, window):
            arguments = (model.name, window, model.base_url, model.api_key, model.provider)
            await self.call(instance, "update_model", *arguments)
            instance.model, instance.window = model, window
            await self._ask_threshold(instance)
        if instance.session is None or instance.session.depth < session.depth:
            await self._start(instance, session)

    async def _start(self, instance: EngineHandle, session: Session) -> None:
        """The conversation was taken up, or is in another session: after a compression, or one that was taken back."""
        before, instance.session = instance.session, session
        if before is None:
            is_new = session.depth == 0 and session.reported_prompt_tokens is None
            reason, parent = "started" if is_new else "resumed", None
        else:
            was_undone = state_of(session.context_state).held_at > 0
            reason, parent = "undo" if was_undone else "compression", before.key
        await self.call(instance, "on_session_start", session.key, reason=reason, parent=parent)

    async def _ask_threshold(self, instance: EngineHandle) -> None:
        """From the engine's status, for people: one that has none to show is no worse at compressing."""
        try:
            status = await self.call(instance, "get_status")
        except EngineError:
            if instance.engine is None:
                raise
            status = None
        value = status.get("threshold_tokens") if isinstance(status, dict) else None
        number = value if isinstance(value, (int, float)) and isfinite(value) else 0
        instance.threshold = int(number) if number > 0 else None

    # ---- events

    async def _deliver(self, instance: EngineHandle) -> None:
        """One by one, so that what a cancellation leaves waits for the next time."""
        while instance.events:
            event = instance.events.popleft()
            try:
                await self._tell(instance, event)
            except EngineError as error:
                log.warning("engine.not_told", engine=self._name, about=type(event).__name__, reason=str(error))

    async def _tell(self, instance: EngineHandle, event: EngineEvent) -> None:
        await self._prepare(instance, _session_of(event))
        match event:
            case ReplyEvent(usage=usage):
                await self.call(instance, "update_from_response", _usage(usage))
                await self._ask_threshold(instance)
            case EndedEvent(view=view, was_reset=was_reset):
                try:
                    sent = await asyncio.to_thread(
                        sent_messages, view.session.system_prompt or "", view.transcript, WireSettings()
                    )
                    await self.call(instance, "on_session_end", view.session.key, list(sent.messages))
                    if was_reset:
                        await self.call(instance, "on_session_reset")
                finally:
                    instance.engine = None
            case ContinuedEvent():
                pass  # the session is all there is to tell

    async def _call(self, seconds: float | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if len(self._hung) >= MAX_HUNG_CALLS:
            raise EngineError("does not come back from earlier calls")
        try:
            return await call_with_timeout(seconds or self._quick_seconds, self._hung, function, *args, **kwargs)
        except EngineError:
            raise
        except Exception as error:  # code that is not ours may raise anything, and no chat ends by it
            log.exception("engine.crashed", engine=self._name)
            raise EngineError(f"broke ({type(error).__name__})") from error


def _session_of(event: EngineEvent) -> Session:
    match event:
        case ReplyEvent(session=session) | ContinuedEvent(child=session):
            return session
        case EndedEvent(view=view):
            return view.session


def _usage(usage: CanonicalUsage) -> dict[str, Any]:
    """Usage in the form of chat completions."""
    return {
        "prompt_tokens": int(usage.prompt),
        "completion_tokens": usage.output,
        "total_tokens": int(usage.prompt) + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
