"""Handle on the engine object of one conversation: makes it, calls it, and tells it what happens.

An engine is called by one caller at a time, never for longer than allowed. One whose call was given up is in a state
that nobody knows: it is lost, and the conversation's next caller gets another.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Self

import structlog

from agent.context.job import ContinuedEvent, EndedEvent, EngineEvent, ReplyEvent
from agent.context.model_handle import ModelInfo
from agent.context.state import state_of
from agent.engines.contract import ContextEngine
from agent.engines.mapping import SentMessages, sent_messages
from agent.engines.timeouts import CallTimeout, EngineError, call_with_timeout
from agent.model.wire import WireSettings
from hermes_state.errors import StateError
from hermes_state.sessions import Session
from hermes_state.transcripts import View
from hermes_state.values import CanonicalUsage, SessionId

log = structlog.get_logger()

MAX_EVENTS = 32
"""Events kept for a conversation whose engine is busy; the oldest are dropped."""
NAMED_KEYWORDS = frozenset({"call_model", "conversation", "message_ids", "storage"})
"""Keywords for methods that name them: one that takes any keyword, of an older plugin, is called as it always was."""
MAX_HUNG_CALLS = 4
"""Calls that were given up and still run: with so many, a plugin is not called at all."""


@dataclass(slots=True, kw_only=True)
class EngineHandle:
    """One conversation's engine, and where it believes the conversation to be."""

    name: str
    """The plugin's, for logs."""
    make: Callable[[], ContextEngine]
    model: ModelInfo
    """The model that it was told last, or is told where a caller names none."""
    home: str = ""
    """The state directory."""
    platform: str = ""
    """Platform of the conversation's chat; empty before a compression was thought of here."""
    facts: Callable[[Session], Awaitable[dict[str, Any]]]
    """Further keywords of `on_session_start`, about a session's conversation."""
    quick_seconds: float
    """Longest wait for a call that makes no model call."""
    hung: set[asyncio.Future[Any]]
    """Calls of the plugin that were given up and still run, of all conversations."""
    engine: ContextEngine | None = None
    """None before the first call, when a call of it was given up, and when the conversation has ended."""
    session: Session | None = None
    window: int = 0
    """Context length that the engine was told, in tokens; 0: not told yet."""
    threshold: int | None = None
    """Tokens from which on it compresses, as its status said last."""
    lost_in: SessionId | None = None
    """The session in which a call was given up last."""
    events: deque[EngineEvent] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    """Events that the engine has not been told yet."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def acquire(
        self, session: Session, model: ModelInfo | None = None, window: int | None = None, *, waits: bool = False
    ) -> AsyncIterator[Self]:
        """The handle for one caller, its engine told where the conversation is now.

        `model` and `window`: None for those that it was told last. When the caller is done, the engine is told what
        has happened meanwhile. Raises `EngineError`, also when somebody else is with the engine, unless the caller
        `waits`.
        """
        if self.lock.locked() and not waits:
            raise EngineError("is busy with this conversation")
        async with self.lock:
            await self._prepare(session, model, window)
            yield self
            await self._deliver()

    async def call(self, method: str, *args: Any, seconds: float | None = None, **kwargs: Any) -> Any:
        """Calls a method of the engine while the handle is acquired, with the keywords that it takes.

        Raises `EngineError`.
        """
        function = getattr(self.engine, method)
        try:
            return await self._call(seconds, function, *args, **_accepted(function, kwargs))
        except (CallTimeout, asyncio.CancelledError):  # it may go on in a thread
            self.engine = None
            self.lost_in = self.session.id if self.session is not None else self.lost_in
            raise

    def overrides(self, method: str) -> bool:
        """Tells if the engine has a method of its own in place of the contract's."""
        return getattr(type(self.engine), method, None) is not getattr(ContextEngine, method)

    def takes(self, method: str, *keywords: str) -> bool:
        """Tells if a method of the engine takes one of these keywords."""
        return bool(_accepted(getattr(self.engine, method), dict.fromkeys(keywords)))

    async def on_event(self, event: EngineEvent) -> None:
        """Tells the engine at once, or as soon as it is done with what it is doing. Never raises."""
        self.events.append(event)
        if not self.lock.locked():
            async with self.lock:
                await self._deliver()

    # ---- making an engine, and telling it where it is

    async def _prepare(self, session: Session, model: ModelInfo | None = None, window: int | None = None) -> None:
        """Makes an engine where there is none, and tells it of the model and of the session."""
        if self.engine is None:
            engine = await self._call(None, self.make)
            if not isinstance(engine, ContextEngine):
                raise EngineError("could not be made")
            self.engine, self.session, self.window = engine, None, 0
        model = model or self.model
        window = window or self.window or int(model.context_length)
        if (self.model, self.window) != (model, window):
            api: dict[str, Any] = {"base_url": model.base_url, "api_key": model.api_key, "provider": model.provider}
            await self.call("update_model", model.name, window, **api)
            self.model, self.window = model, window
            await self._ask_threshold()
        if self.session is None or self.session.depth < session.depth:
            await self._start(session)

    async def _start(self, session: Session) -> None:
        """The conversation was taken up, or is in another session: after a compression, or one that was taken back."""
        before, self.session = self.session, session
        if before is None:
            is_new = session.depth == 0 and session.reported_prompt_tokens is None
            reason, parent = "started" if is_new else "resumed", None
        else:
            was_undone = state_of(session.context_state).held_at > 0
            reason, parent = "undo" if was_undone else "compression", before.key
        facts: dict[str, Any] = {"hermes_home": self.home, "platform": self.platform, "model": self.model.name}
        if self.takes("on_session_start", "conversation", "storage"):
            try:
                facts |= await self.facts(session)
            except (StateError, OSError) as error:
                self.session = before
                raise EngineError(f"has no place to keep anything ({type(error).__name__})") from error
        await self.call("on_session_start", session.key, reason=reason, parent=parent, **facts)

    async def _ask_threshold(self) -> None:
        """From the engine's status, for people: one that has none to show is no worse at compressing."""
        try:
            status = await self.call("get_status")
        except EngineError:
            if self.engine is None:
                raise
            status = None
        value = status.get("threshold_tokens") if isinstance(status, dict) else None
        number = value if isinstance(value, (int, float)) and isfinite(value) else 0
        self.threshold = int(number) if number > 0 else None

    # ---- events

    async def _deliver(self) -> None:
        """One by one, so that what a cancellation leaves waits for the next time."""
        while self.events:
            event = self.events.popleft()
            try:
                await self._tell(event)
            except EngineError as error:
                log.warning("engine.not_told", engine=self.name, about=type(event).__name__, reason=str(error))

    async def _tell(self, event: EngineEvent) -> None:
        await self._prepare(session_of(event))
        match event:
            case ReplyEvent(usage=usage):
                await self.call("update_from_response", _usage(usage))
                await self._ask_threshold()
            case EndedEvent(view=view, was_reset=was_reset):
                try:
                    sent = await sent_view(view)
                    await self.call("on_session_end", view.session.key, list(sent.messages), message_ids=sent.ids)
                    if was_reset:
                        await self.call("on_session_reset")
                finally:
                    self.engine = None
            case ContinuedEvent():
                pass  # the session is all there is to tell

    async def _call(self, seconds: float | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if len(self.hung) >= MAX_HUNG_CALLS:
            raise EngineError("does not come back from earlier calls")
        try:
            return await call_with_timeout(seconds or self.quick_seconds, self.hung, function, *args, **kwargs)
        except EngineError:
            raise
        except Exception as error:  # code that is not ours may raise anything, and no chat ends by it
            log.exception("engine.crashed", engine=self.name)
            raise EngineError(f"broke ({type(error).__name__})") from error


def session_of(event: EngineEvent) -> Session:
    """The session that an event is about, after a compression the child."""
    match event:
        case ReplyEvent(session=session) | ContinuedEvent(child=session):
            return session
        case EndedEvent(view=view):
            return view.session


async def sent_view(view: View) -> SentMessages:
    """A view as engines are shown it."""
    return await asyncio.to_thread(sent_messages, view.session.system_prompt or "", view.transcript, WireSettings())


def _accepted(function: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords that a plugin's function takes: it may have been written when there were fewer."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of something that is callable and tells no more
        return {name: value for name, value in keywords.items() if name not in NAMED_KEYWORDS}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    names = {one.name for one in parameters if one.kind not in (one.POSITIONAL_ONLY, one.VAR_KEYWORD)}
    return {
        name: value for name, value in keywords.items() if name in names or (takes_any and name not in NAMED_KEYWORDS)
    }


def _usage(usage: CanonicalUsage) -> dict[str, Any]:
    """Usage in the form of chat completions."""
    return {
        "prompt_tokens": int(usage.prompt),
        "completion_tokens": usage.output,
        "total_tokens": int(usage.prompt) + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
