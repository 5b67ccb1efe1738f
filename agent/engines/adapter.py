"""`PluginEngine`: lets an engine plugin, which works on message lists, compress stored rows.

The conversation continues even if an engine raises an error, hangs, returns nonsense or changes its arguments. In these
cases, the compression is aborted. If the prompt no longer fits, the built-in engine takes over.
"""

import asyncio
import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import structlog
from msgspec.structs import replace

from agent.context.compressor import Engine, ask_route, outcome_of
from agent.context.cuts import SkipReason, has_open_calls
from agent.context.excerpt import without_thoughts
from agent.context.job import (
    Aborted,
    CompressionJob,
    CompressionPreview,
    CompressionRequest,
    EngineEvent,
    NotNeeded,
    Preparation,
    PreparedCompression,
)
from agent.context.limits import Limits
from agent.context.model_handle import ModelInfo, SummaryRoute
from agent.context.state import ContextState, CooldownKey, cooldown_key
from agent.context.summary import SummaryError, asking_row
from agent.engines.contract import ContextEngine, EngineError
from agent.engines.handle import EngineHandle, sent_view, session_of
from agent.engines.mapping import MappedMessages, SentMessages, mapped_messages, sent_messages
from agent.handoff import framed
from agent.model.base import FinishReason, ModelReply, ModelRequest, ToolSchema
from agent.tools.registry import Tool, ToolContext
from hermes_state.aio import cancel_all
from hermes_state.compressions import Layer
from hermes_state.errors import ModelError, ModelTimeout, ModelUnavailable, ToolError
from hermes_state.sessions import Session, load_session
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, load_view
from hermes_state.values import Clock, EstimatedTokens, LineageId, Origin, SessionId, Tokens, ToolEffect

log = structlog.get_logger()

MAX_HANDLES = 256
"""Maximum number of engine objects in memory, one per conversation. The least recently used one is dropped first."""
FAILED: Final = "engine"


@dataclass(eq=False, slots=True)
class PluginEngine:
    """An `Engine` for all conversations. It makes one instance of the plugin's engine class per conversation."""

    name: str
    make: Callable[[], ContextEngine]
    _: KW_ONLY
    model: ModelInfo
    fallback: Engine
    """Engine that compresses if the plugin fails and the prompt no longer fits."""
    redact: Callable[[str], str]
    clock: Clock
    mark: str = ""
    """Fingerprint of the engine's and the model's settings."""
    schemas: Sequence[ToolSchema] = ()
    home: str = ""
    """The state directory. It contains a folder per engine, with a subfolder per conversation."""
    store: Store | None = None
    """Store for looking up the engines' folders. None: engines get no folders."""
    compress_seconds: float = 120.0
    """Time limit in seconds for `compress` and for tools, which may call a model."""
    quick_seconds: float = 5.0
    """Time limit in seconds for engine calls other than `compress` and tools."""
    _handles: OrderedDict[LineageId, EngineHandle] = field(default_factory=OrderedDict, init=False)

    async def request(self, job: CompressionJob) -> CompressionRequest | None:
        """Return the compression that the plugin requests, or None. At the urgent limit, always return a request."""
        request = None
        try:
            async with self._acquire(job) as handle:
                request = await self._decision(handle, job)
        except EngineError:
            if job.limits.is_over_threshold(job.tokens_before):
                return CompressionRequest(reason="threshold")
        if request is None and job.limits.is_urgent(job.tokens_before):
            return CompressionRequest(reason="window")
        return request

    async def prepare(self, job: CompressionJob, state: ContextState) -> tuple[Preparation, ContextState]:
        """Prepare a compression. If `keep_turns` is set, use the built-in engine, because plugins do not support it."""
        if job.keep_turns is not None:
            return await self.fallback.prepare(job, state)
        if has_open_calls(job.view.transcript):
            return job.not_needed(SkipReason.TOOL_RUNS), state
        key, now = self._cooldown_key(job.layer), self.clock.now()
        handle = self._handles.get(job.view.session.lineage_id)
        if job.must_shrink and ((handle is not None and handle.hangs) or state.is_cooling(key, now)):
            return await self._fall_back(job, state, "failed a short time ago")
        await job.begin()
        calls = SummaryClient(job, state, redact=self.redact, clock=self.clock, seconds=self.compress_seconds)
        try:
            mapped = await self._compressed(job, calls)
        except EngineError as error:
            log.warning("engine.failed", engine=self.name, layer=job.layer, reason=str(error))
            state = calls.state.failed(key, FAILED, self.clock.now())
            if job.must_shrink:
                return await self._fall_back(job, state, str(error))
            return Aborted(kind=FAILED, reason=f"The context engine {self.name} {error}."), state
        finally:
            calls.close()
        state = calls.state.answered(key)
        result, judged = self._judged(job, state, mapped)
        if isinstance(result, NotNeeded):
            reason = "returned the messages unchanged" if mapped is None else "returned a list that is not shorter"
            if job.must_shrink:
                return await self._fall_back(job, state, reason)
            log.warning("engine.no_change", engine=self.name, layer=job.layer, reason=reason)
        return result, judged

    def preview(self, job: CompressionJob) -> CompressionPreview | NotNeeded:
        """Return `NO_PREVIEW`, because a plugin cannot show a preview without compressing."""
        if job.keep_turns is not None:
            return self.fallback.preview(job)
        return job.not_needed(SkipReason.NO_PREVIEW)

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        return state.is_cooling(self._cooldown_key(layer), self.clock.now())

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        """Return the threshold from the engine's status, but at most the hygiene limit."""
        handle = self._handles.get(lineage_id)
        known = None if handle is None else handle.threshold
        return Tokens(min(known or limits.hygiene, limits.hygiene))

    async def on_event(self, event: EngineEvent) -> None:
        await self._handle(session_of(event).lineage_id).on_event(event)

    def tools(self) -> list[Tool]:
        return [
            Tool(
                name=schema.name,
                description=schema.description,
                parameters=schema.parameters,
                effect=ToolEffect.WRITES,  # assumed, so that a restart does not repeat a call
                needs_approval=False,  # the operator allowed the tools by choosing the engine
                run=partial(self._run_tool, schema.name),
            )
            for schema in self.schemas
        ]

    async def _run_tool(self, name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        view = await context.store.read(load_view, context.lineage_id)
        session, sent, seconds = view.session, await sent_view(view), self.compress_seconds
        facts = {"session_id": session.key, "messages": list(sent.messages), "message_ids": sent.ids}
        try:
            async with self._handle(session.lineage_id).acquire(session, waits=True) as handle:
                result = await handle.call("handle_tool_call", name, arguments, seconds=seconds, **facts)
        except EngineError as error:
            raise ToolError(f"the context engine {self.name} {error}") from error
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

    async def close(self) -> None:
        hung = {handle.given_up for handle in self._handles.values() if handle.given_up is not None}
        for handle in self._handles.values():
            handle.events.clear()
            await cancel_all(handle.telling)
        self._handles.clear()
        for running in hung:
            running.cancel()
        if hung:
            await asyncio.wait(hung, timeout=0.1)

    def _handle(self, lineage_id: LineageId) -> EngineHandle:
        """Return a conversation's handle. If there are too many handles, drop the one that was idle the longest."""
        if lineage_id not in self._handles:
            make, model, home, seconds = self.make, self.model, self.home, self.quick_seconds
            self._handles[lineage_id] = EngineHandle(
                name=self.name, make=make, model=model, home=home, facts=self._facts, quick_seconds=seconds
            )
        handle = self._handles[lineage_id]
        self._handles.move_to_end(lineage_id)
        for other in list(self._handles)[: max(0, len(self._handles) - MAX_HANDLES)]:
            if not (self._handles[other].lock.locked() or self._handles[other].hangs):
                del self._handles[other]
        return handle

    async def _facts(self, session: Session) -> dict[str, Any]:
        """Return the key of the conversation's first session, and the engine's folder for the conversation."""
        if self.store is None:
            return {}
        key = (await self.store.read(load_session, SessionId(session.lineage_id))).key
        folder = Path(self.home, "context_engines", self.name, key)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        return {"conversation": key, "storage": str(folder)}

    async def _compressed(self, job: CompressionJob, calls: "SummaryClient") -> MappedMessages | None:
        async with self._acquire(job) as handle:
            sent = await self._sent(job)
            is_async = inspect.iscoroutinefunction(getattr(handle.engine, "compress", None))
            returned = await handle.call(
                "compress",
                list(sent.messages),
                seconds=self.compress_seconds,
                # If the prompt must shrink, pass at least the threshold, because some engines do nothing below it.
                current_tokens=max(job.tokens_before, handle.threshold or 0 if job.must_shrink else 0),
                focus_topic=job.focus,
                force=job.layer == "manual",
                message_ids=sent.ids,
                call_model=calls.ask if is_async else calls.ask_and_wait,
            )
            # Catch all errors, because the result can contain values that are not JSON, or may not be a real list.
            arguments = (sent, returned, self.redact)
            mapped: MappedMessages | None = await handle.guard(
                mapped_messages, *arguments, seconds=self.compress_seconds
            )
            return mapped

    def _acquire(self, job: CompressionJob) -> AbstractAsyncContextManager[EngineHandle]:
        session = job.view.session
        handle = self._handle(session.lineage_id)
        handle.platform = job.conversation.chat.platform
        return handle.acquire(session, job.model, job.limits.context_length)

    async def _sent(self, job: CompressionJob) -> SentMessages:
        """Return a fresh message list. Each call of the engine gets its own list, because an engine may change it."""
        # Leave out the bytes of images, because comparing and copying them would be useless.
        style = replace(job.request.style, image_urls={}, image_notes={})
        return await asyncio.to_thread(sent_messages, job.request.system, job.view.transcript, style)

    def _judged(
        self, job: CompressionJob, state: ContextState, mapped: MappedMessages | None
    ) -> tuple[PreparedCompression | NotNeeded, ContextState]:
        if mapped is None:
            return job.not_needed(SkipReason.UNCHANGED), state.struck(job.tokens_before)
        gone = int(job.estimator.rows(mapped.removed, job.request.style))
        new = [row for row in mapped.context if isinstance(row, NewMessage)]
        texts = (framed(row.text or "") if row.origin is Origin.SUMMARY else row.text or "" for row in new)
        after = EstimatedTokens(max(0, job.tokens_before - gone) + sum(map(int, map(job.estimator.text, texts))))
        if after >= job.tokens_before:
            log.info("compression.not_smaller", layer=job.layer, tokens_before=job.tokens_before, tokens_after=after)
            return job.not_needed(SkipReason.NOT_SMALLER), state.struck(job.tokens_before)
        made, count = mapped.context, mapped.summarised
        return PreparedCompression(
            context=made, summary_kind="model", model=self.name, summarised=count, tokens_after=after
        ), state

    async def _fall_back(
        self, job: CompressionJob, state: ContextState, reason: str
    ) -> tuple[Preparation, ContextState]:
        """Prepare with the built-in engine, because the conversation cannot wait for the plugin."""
        log.warning("engine.replaced", engine=self.name, layer=job.layer, by=self.fallback.name, reason=reason)
        return await self.fallback.prepare(job, state)

    async def _decision(self, handle: EngineHandle, job: CompressionJob) -> CompressionRequest | None:
        taken = await handle.call("take_request")
        if isinstance(taken, CompressionRequest):  # plugins can return anything, even in the fields
            reason = " ".join(str(taken.reason).split())[:200]
            focus = " ".join(str(taken.focus).split())[:500] if taken.focus else None
            log.info("engine.compression_requested", engine=self.name, layer=job.layer, reason=reason)
            request = CompressionRequest(reason=reason, focus=focus)
        elif await self._says(handle, "should_compress", int(job.tokens_before)):
            request = CompressionRequest(reason="threshold")
        elif job.layer == "preflight" and await self._says_of_list(
            handle, "should_compress_preflight", job, default=False
        ):
            request = CompressionRequest(reason="preflight")
        else:
            return None
        has_content = await self._says_of_list(handle, "has_content_to_compress", job, default=True)
        return request if has_content else None

    async def _says_of_list(self, handle: EngineHandle, method: str, job: CompressionJob, *, default: bool) -> bool:
        """Ask the engine a question about the messages. If the plugin does not override `method`, return `default`."""
        if getattr(type(handle.engine), method, None) is getattr(ContextEngine, method):
            return default
        sent = await self._sent(job)
        return await self._says(handle, method, list(sent.messages), message_ids=sent.ids)

    async def _says(self, handle: EngineHandle, method: str, about: object, **facts: Any) -> bool:
        answer = await handle.call(method, about, **facts)
        return answer if isinstance(answer, bool) else await handle.guard(bool, answer)  # bool() of an array raises

    def _cooldown_key(self, layer: Layer) -> CooldownKey:
        return cooldown_key(layer, f"engine:{self.name}", self.mark)


class SummaryClient:
    """Calls a conversation's summary models for one run of `compress`. `close` cancels open calls.

    Each call respects the spending caps, is recorded in the ledger, and contains no secrets. A failed route gets a
    cooldown in `state`, as with the built-in engine.
    """

    def __init__(
        self, job: CompressionJob, state: ContextState, *, redact: Callable[[str], str], clock: Clock, seconds: float
    ) -> None:
        """Create a client. `seconds`: maximum time for all calls together."""
        self.state = state
        self._job, self._redact, self._clock = job, redact, clock
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._waiting: set[Future[str]] = set()
        self._closed = Event()

    async def ask(self, prompt: str, system: str = "") -> str:
        failure: ModelError = ModelUnavailable("no model is available for a summary right now")
        for route in self._job.routes:
            key = route.cooldown_key(self._job.layer)
            if self.state.is_cooling(key, self._clock.now()):
                continue
            try:
                text = await self._answer(route, prompt, system)
            except ModelError as error:
                failure = error
                # A parallel call may already have started the pause.
                if not self.state.is_cooling(key, self._clock.now()):
                    self.state = self.state.failed(key, outcome_of(error), self._clock.now())
            else:
                self.state = self.state.answered(key)
                return text
        raise failure

    def ask_and_wait(self, prompt: str, system: str = "") -> str:
        """Call `ask` and wait for its result. An engine whose `compress` is not async calls this in its thread."""
        if self._closed.is_set():
            raise ModelTimeout("the compression has ended")
        waiting = asyncio.run_coroutine_threadsafe(self.ask(prompt, system), self._loop)
        self._waiting.add(waiting)
        if self._closed.is_set():  # if closed in the meantime, `close` did not see this call
            waiting.cancel()
        try:
            return waiting.result()
        except CancelledError as error:
            raise ModelTimeout("the compression has ended") from error
        finally:
            self._waiting.discard(waiting)

    def close(self) -> None:
        self._closed.set()
        for waiting in list(self._waiting):
            waiting.cancel()

    async def _answer(self, route: SummaryRoute, prompt: str, system: str) -> str:
        def whole(reply: ModelReply) -> str:
            if reply.finish is FinishReason.LENGTH:
                raise SummaryError("truncated", "The summary was cut off by the model's output limit.")
            return self._redact(without_thoughts(reply.text).strip())

        seconds = self._deadline - self._loop.time()
        if self._closed.is_set() or seconds <= 0:
            raise ModelTimeout("the compression has ended")
        texts = [await asyncio.to_thread(self._redact, text) for text in (prompt, system)]
        row = asking_row(texts[0], self._clock.now())
        request = ModelRequest(system=texts[1], transcript=(row,), max_output_tokens=None)
        return await ask_route(route, self._job, request, whole, seconds)
