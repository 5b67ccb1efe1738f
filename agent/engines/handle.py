"""Handle for one conversation's engine object: makes the engine, calls it, and sends it events.

Only one caller uses an engine at a time, and each call has a time limit. If a call takes too long, the call is
abandoned and the engine is dropped. The conversation gets a new engine after the abandoned call has ended.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import copy_context
from math import isfinite
from threading import Thread
from typing import Any, Self

import msgspec
import structlog

from agent.context.job import ContinuedEvent, EndedEvent, EngineEvent, ReplyEvent
from agent.context.model_handle import ModelInfo
from agent.context.state import state_of
from agent.engines.contract import ContextEngine, EngineError
from agent.engines.mapping import SentMessages, sent_messages
from agent.model.wire import WireStyle
from hermes_state.aio import track
from hermes_state.errors import StateError
from hermes_state.sessions import Session
from hermes_state.transcripts import View

log = structlog.get_logger()

NAMED_KEYWORDS = frozenset({"call_model", "conversation", "message_ids", "storage"})
"""Keywords passed only to methods that declare them. Older plugins may forward `**kwargs` to code that rejects them."""


class EngineHandle(msgspec.Struct, kw_only=True):
    """One conversation's engine, with the session and model that it received last."""

    name: str
    make: Callable[[], ContextEngine]
    model: ModelInfo
    """Model that the engine received last. It is used again if the next caller passes no model."""
    home: str = ""
    platform: str = ""
    """Platform of the conversation's chat. Empty until the engine is first asked about a compression."""
    facts: Callable[[Session], Awaitable[dict[str, Any]]]
    """Returns additional keywords about a session's conversation, for `on_session_start`."""
    quick_seconds: float
    """Time limit in seconds for an engine method that does not call a model."""
    engine: ContextEngine | None = None
    """The engine; None before the first call, after an abandoned call, and after the end of the conversation."""
    session: Session | None = None
    window: int = 0
    """Context length that the engine received, in tokens. 0: not received yet."""
    threshold: int | None = None
    """Prompt size at which the engine compresses, in tokens, from its last status."""
    given_up: "asyncio.Future[Any] | None" = None
    """The newest abandoned call. It may still be running, because a thread cannot be stopped."""
    events: deque[EngineEvent] = msgspec.field(default_factory=lambda: deque(maxlen=32))
    """Events that wait for a busy engine. If there are too many, the oldest are dropped."""
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    telling: set[asyncio.Task[None]] = msgspec.field(default_factory=set)
    """Tasks that deliver the waiting events after an abandoned call has ended."""

    @property
    def hangs(self) -> bool:
        """True while an abandoned call is still running. During this time, the conversation has no engine."""
        return self.given_up is not None and not self.given_up.done()

    @asynccontextmanager
    async def acquire(
        self, session: Session, model: ModelInfo | None = None, window: int | None = None, *, waits: bool = False
    ) -> AsyncIterator[Self]:
        """Give the handle to a caller, after the engine has received the current session and model.

        `model` and `window`: None to keep the previous ones. Events that arrive while the caller has the handle are
        delivered at the end. Raises `EngineError` if the engine fails, or if it is busy and `waits` is False.
        """
        if self.lock.locked() and not waits:
            raise EngineError("is busy with this conversation")
        async with self.lock:
            await self._prepare(session, model, window)
            yield self
            await self._deliver()

    async def call(self, method: str, *args: Any, seconds: float | None = None, **kwargs: Any) -> Any:
        """Call the acquired engine with the keywords that the method accepts.

        Raises `EngineError` if the engine fails or takes too long.
        """
        function = getattr(self.engine, method)
        return await self.guard(function, *args, seconds=seconds, **_accepted(function, kwargs))

    async def guard(self, function: Callable[..., Any], *args: Any, seconds: float | None = None, **kwargs: Any) -> Any:
        """Call a function that runs plugin code, and turn all its errors into `EngineError`."""
        if self.hangs:
            raise EngineError("has not returned from an earlier call")
        try:
            return await self._call(seconds or self.quick_seconds, function, *args, **kwargs)
        except EngineError:
            raise
        except Exception as error:  # a plugin may raise any error, but the conversation must continue
            log.exception("engine.crashed", engine=self.name)
            raise EngineError(f"crashed ({type(error).__name__})") from error

    async def on_event(self, event: EngineEvent) -> None:
        """Send an event to the engine now, or as soon as the engine is free. Never raises."""
        self.events.append(event)
        await self._tell_waiting()

    async def _tell_waiting(self) -> None:
        if not self.lock.locked():  # otherwise the caller with the lock delivers the events
            async with self.lock:
                await self._deliver()

    def _come_back(self, call: "asyncio.Future[Any]") -> None:
        """Handle the end of an abandoned call. Its outcome is ignored."""
        if not call.cancelled():
            call.exception()
        if self.events:
            track(self.telling, asyncio.create_task(self._tell_waiting(), name=f"engine-{self.name}"))

    async def _prepare(self, session: Session, model: ModelInfo | None = None, window: int | None = None) -> None:
        if self.engine is None:
            engine = await self.guard(self.make)
            if not isinstance(engine, ContextEngine):
                raise EngineError("is not a ContextEngine")
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
        before, self.session = self.session, session
        if before is None:
            is_new = session.depth == 0 and session.reported_prompt_tokens is None
            reason, parent = "started" if is_new else "resumed", None
        else:
            was_undone = state_of(session.context_state).held_at > 0
            reason, parent = "undo" if was_undone else "compression", before.key
        facts: dict[str, Any] = {"hermes_home": self.home, "platform": self.platform, "model": self.model.name}
        start: Any = getattr(self.engine, "on_session_start", None)
        if _accepted(start, {"conversation": "", "storage": ""}):
            try:
                facts |= await self.facts(session)
            except (StateError, OSError) as error:
                self.session = before
                raise EngineError(f"has no folder for its data ({type(error).__name__})") from error
        await self.call("on_session_start", session.key, reason=reason, parent=parent, **facts)

    async def _ask_threshold(self) -> None:
        """Read the threshold from the engine's status. An engine without a usable status can still compress."""
        try:
            status = await self.call("get_status")
        except EngineError:
            if self.engine is None:
                raise
            status = None
        value = status.get("threshold_tokens") if isinstance(status, dict) else None
        number = value if isinstance(value, (int, float)) and isfinite(value) else 0
        self.threshold = int(number) if number > 0 else None

    async def _deliver(self) -> None:
        """Deliver the events one by one, so a cancellation leaves the remaining events for the next delivery."""
        while self.events and not self.hangs:
            event = self.events.popleft()
            try:
                await self._tell(event)
            except EngineError as error:
                log.warning("engine.event_failed", engine=self.name, about=type(event).__name__, reason=str(error))

    async def _tell(self, event: EngineEvent) -> None:
        await self._prepare(session_of(event))
        match event:
            case ReplyEvent(usage=usage):
                total = int(usage.prompt) + usage.output
                counts = {"prompt_tokens": int(usage.prompt), "completion_tokens": usage.output, "total_tokens": total}
                prompt = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
                output = {"reasoning_tokens": usage.reasoning}
                details = {"prompt_tokens_details": prompt, "completion_tokens_details": output}
                await self.call("update_from_response", {**counts, **details})
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
                pass  # nothing to do, because `_prepare` has sent the session

    async def _call(self, seconds: float, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a sync function in a new thread, or an async function on the event loop. Errors are not caught."""
        deadline = asyncio.get_running_loop().time() + seconds
        is_async = inspect.iscoroutinefunction(function)
        running = asyncio.ensure_future(function(*args, **kwargs)) if is_async else _in_thread(function, args, kwargs)
        while await self._is_done_by(deadline, running):
            if running.cancelled():  # the plugin did this, because the caller was not cancelled
                raise EngineError("cancelled its own call")
            result = running.result()
            if not inspect.isawaitable(result):
                return result
            running = asyncio.ensure_future(result)
        raise EngineError(f"did not answer within {seconds:g} seconds")

    async def _is_done_by(self, deadline: float, running: "asyncio.Future[Any]") -> bool:
        """Return True if a call ends in time. At the deadline, or if the caller is cancelled, abandon the call."""
        try:
            # Do not use `timeout()`: a coroutine that ignores its cancellation would block here.
            await asyncio.wait({running}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
            return running.done()
        finally:
            if not running.done():
                self.engine, self.given_up = None, running
                running.add_done_callback(self._come_back)
                if isinstance(running, asyncio.Task):
                    running.cancel()


def session_of(event: EngineEvent) -> Session:
    match event:
        case ReplyEvent(session=session) | ContinuedEvent(child=session):
            return session
        case EndedEvent(view=view):
            return view.session


async def sent_view(view: View) -> SentMessages:
    return await asyncio.to_thread(sent_messages, view.session.system_prompt or "", view.transcript, WireStyle())


def _accepted(function: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that a plugin's function accepts. Functions in older plugins do not accept all of them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # the callable has no signature
        return {name: value for name, value in keywords.items() if name not in NAMED_KEYWORDS}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    names = {one.name for one in parameters if one.kind not in (one.POSITIONAL_ONLY, one.VAR_KEYWORD)}
    return {
        name: value for name, value in keywords.items() if name in names or (takes_any and name not in NAMED_KEYWORDS)
    }


def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "asyncio.Future[Any]":
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as raised:  # noqa: BLE001  # passed on to the code that awaits the future
            # A future cannot carry StopIteration, and must not carry errors that would end the event loop.
            is_carried = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            future.set_exception(raised if is_carried else RuntimeError(f"{type(raised).__name__} in a call"))
        else:
            future.set_result(result)

    # Do not use a thread pool: at exit, the process would wait for its threads, even for hanging ones.
    Thread(target=work, name=f"plugin-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return asyncio.wrap_future(future)
