"""`PluginEngine`: engines that plugins wrote for message lists, as one engine of stored rows.

Whatever an engine does (it raises, hangs, returns nonsense, changes what it was given), the conversation goes on: the
attempt is aborted, and where there is no room to leave things as they are, the built-in engine takes over.
"""

import asyncio
import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from agent.context.base import Engine
from agent.context.cuts import SkipReason, has_open_calls
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
from agent.engines.contract import ContextEngine
from agent.engines.handle import EngineHandle, sent_view, session_of
from agent.engines.mapping import MappedMessages, MessageListError, SentMessages, mapped_messages, sent_messages
from agent.engines.model_calls import SummaryClient
from agent.engines.timeouts import EngineError
from agent.handoff import framed
from agent.model.base import ToolSchema
from agent.tools.registry import Tool, ToolContext
from hermes_state.compressions import Layer
from hermes_state.errors import ToolError
from hermes_state.sessions import Session, load_session
from hermes_state.store.writer import Store
from hermes_state.transcripts import load_view
from hermes_state.values import Clock, EstimatedTokens, LineageId, Origin, SessionId, Tokens, ToolEffect

log = structlog.get_logger()

MAX_HANDLES = 256
"""Conversations whose engine is kept; those idle longest are let go."""
QUICK_SECONDS = 5.0
"""Longest wait for a call that makes no model call, in seconds."""
COMPRESS_SECONDS = 120.0
"""Longest wait for `compress` and for tools, which may call a model, in seconds."""
MAX_FOCUS = 500
"""Length of the focus that an engine may ask for, in characters."""
MAX_REASON = 200
"""Length of the reason that an engine may give, in characters."""
FOLDER: Final = "context_engines"
"""Folder of the state directory in which engines keep what is theirs: a folder each, with one for each conversation."""
FAILED: Final = "engine"
"""The name of an engine's failure in attempts and cooldowns."""


class PluginEngine:
    """An `Engine` for all conversations, each with an engine object of the plugin's."""

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
        home: str = "",
        store: Store | None = None,
        compress_seconds: float = COMPRESS_SECONDS,
        quick_seconds: float = QUICK_SECONDS,
    ) -> None:
        """`make` gives a new engine object; `fallback` compresses where the engine failed and there is no room.

        `mark` changes with the settings behind the engine and the model. `home`: the state directory. `store`: None
        where engines are given no folder for a conversation.
        """
        self.name = name
        self._fallback = fallback
        self._redact = redact
        self._clock = clock
        self._mark = mark
        self._schemas = tuple(schemas)
        self._folder = Path(home, FOLDER, name)
        self._store = store
        self._compress_seconds = compress_seconds
        self._hung: set[asyncio.Future[Any]] = set()
        self._handles: OrderedDict[LineageId, EngineHandle] = OrderedDict()
        self._new_handle = partial(
            EngineHandle,
            name=name,
            make=make,
            model=model,
            home=home,
            facts=self._facts,
            quick_seconds=quick_seconds,
            hung=self._hung,
        )

    # ---- the seam

    async def request(self, job: CompressionJob) -> CompressionRequest | None:
        """The engine's own decision, and what it asked for; beyond the urgent line nobody decides otherwise."""
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
        """Prepare a compression. A cut at a given message is no part of the contract: the built-in engine makes it."""
        if job.keep_turns is not None:
            return await self._fallback.prepare(job, state)
        if has_open_calls(job.view.transcript):
            return job.not_needed(SkipReason.TOOL_RUNS), state
        key, now = self._cooldown_key(job.layer), self._clock.now()
        handle, session = self._handles.get(job.view.session.lineage_id), job.view.session
        was_lost = handle is not None and handle.lost_in == session.id
        if job.must_shrink and (was_lost or state.is_cooling(key, now)):
            return await self._fall_back(job, state, "failed a short while ago")
        await job.begin()
        calls = SummaryClient(job, state, redact=self._redact, clock=self._clock, seconds=self._compress_seconds)
        try:
            mapped = await self._compressed(job, calls)
        except EngineError as error:
            log.warning("engine.failed", engine=self.name, layer=job.layer, reason=str(error))
            state = calls.state.failed(key, FAILED, self._clock.now())
            if job.must_shrink:
                return await self._fall_back(job, state, str(error))
            return Aborted(kind=FAILED, reason=f"The context engine {self.name} {error}."), state
        finally:
            calls.close()
        state = calls.state.answered(key)
        result, judged = self._judged(job, state, mapped)
        if isinstance(result, NotNeeded):
            reason = "returned the messages as they were" if mapped is None else "returned a list that is no shorter"
            if job.must_shrink:
                return await self._fall_back(job, state, reason)
            log.warning("engine.no_change", engine=self.name, layer=job.layer, reason=reason)
        return result, judged

    def preview(self, job: CompressionJob) -> CompressionPreview | NotNeeded:
        """A plugin cannot tell what it would do without doing it."""
        if job.keep_turns is not None:
            return self._fallback.preview(job)
        return job.not_needed(SkipReason.NO_PREVIEW)

    def is_cooling(self, layer: Layer, routes: Sequence[SummaryRoute], state: ContextState) -> bool:
        return state.is_cooling(self._cooldown_key(layer), self._clock.now())

    def threshold(self, lineage_id: LineageId, limits: Limits) -> Tokens:
        """The threshold of its status, and hygiene's line at the latest, where the engine is not asked."""
        handle = self._handles.get(lineage_id)
        known = None if handle is None else handle.threshold
        return Tokens(min(known or limits.hygiene, limits.hygiene))

    async def on_event(self, event: EngineEvent) -> None:
        """Passed on at once, or as soon as the engine is done with what it is doing."""
        await self._handle(session_of(event).lineage_id).on_event(event)

    def tools(self) -> list[Tool]:
        """The engine's tools. A call goes to the engine of the conversation that it is made in."""
        return [
            Tool(
                name=schema.name,
                description=schema.description,
                parameters=schema.parameters,
                effect=ToolEffect.WRITES,  # unknown, so a restart runs none of them twice
                needs_approval=False,  # the operator has chosen the engine with its tools
                run=partial(self._run_tool, schema.name),
            )
            for schema in self._schemas
        ]

    async def _run_tool(self, name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        view = await context.store.read(load_view, context.lineage_id)
        session, sent, seconds = view.session, await sent_view(view), self._compress_seconds
        facts = {"session_id": session.key, "messages": list(sent.messages), "message_ids": sent.ids}
        try:
            async with self._handle(session.lineage_id).acquire(session, waits=True) as handle:
                result = await handle.call("handle_tool_call", name, arguments, seconds=seconds, **facts)
        except EngineError as error:
            raise ToolError(f"the context engine {self.name} {error}") from error
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

    async def close(self) -> None:
        """Lets go of all engines, and of what can be stopped of their calls."""
        self._handles.clear()
        hung = set(self._hung)
        for running in hung:
            running.cancel()
        if hung:
            await asyncio.wait(hung, timeout=0.1)

    def _handle(self, lineage_id: LineageId) -> EngineHandle:
        """A conversation's handle. The one idle longest is forgotten; none that is in the middle of something."""
        handle = self._handles.setdefault(lineage_id, self._new_handle())
        self._handles.move_to_end(lineage_id)
        for other in list(self._handles)[: max(0, len(self._handles) - MAX_HANDLES)]:
            if not self._handles[other].lock.locked():
                del self._handles[other]
        return handle

    async def _facts(self, session: Session) -> dict[str, Any]:
        """The conversation of a session, by the key of its first one, and a folder for what the engine keeps of it."""
        if self._store is None:
            return {}
        key = (await self._store.read(load_session, SessionId(session.lineage_id))).key
        await asyncio.to_thread((self._folder / key).mkdir, parents=True, exist_ok=True)
        return {"conversation": key, "storage": str(self._folder / key)}

    # ---- one compression

    async def _compressed(self, job: CompressionJob, calls: SummaryClient) -> MappedMessages | None:
        async with self._acquire(job) as handle:
            sent = await self._sent(job)
            is_async = inspect.iscoroutinefunction(getattr(handle.engine, "compress", None))
            returned = await handle.call(
                "compress",
                list(sent.messages),
                seconds=self._compress_seconds,
                # Without room at least its own threshold: some engines compress nothing below that.
                current_tokens=max(job.tokens_before, handle.threshold or 0 if job.must_shrink else 0),
                focus_topic=job.focus,
                force=job.layer == "manual",
                message_ids=sent.ids,
                call_model=calls.ask if is_async else calls.ask_and_wait,
            )
            try:
                return await asyncio.to_thread(mapped_messages, sent, returned, self._redact)
            except MessageListError as error:
                why: Exception | str = error
            except Exception as error:  # values that are no JSON, and objects that only look like lists
                log.exception("engine.list_unreadable")
                why = f"it could not be read ({type(error).__name__})"
            raise EngineError(f"returned a list that cannot be used: {why}")

    def _acquire(self, job: CompressionJob) -> AbstractAsyncContextManager[EngineHandle]:
        session = job.view.session
        handle = self._handle(session.lineage_id)
        handle.platform = job.conversation.chat.platform
        return handle.acquire(session, job.model, job.limits.context_length)

    async def _sent(self, job: CompressionJob) -> SentMessages:
        """A list of its own for every call: an engine may do with it what it likes."""
        # Images are mentioned, not shown: their bytes would be compared and copied for nothing.
        style = replace(job.request.style, image_urls={}, image_notes={})
        return await asyncio.to_thread(sent_messages, job.request.system, job.view.transcript, style)

    def _judged(
        self, job: CompressionJob, state: ContextState, mapped: MappedMessages | None
    ) -> tuple[PreparedCompression | NotNeeded, ContextState]:
        if mapped is None:
            return job.not_needed(SkipReason.NOTHING_BETWEEN), state.struck(job.tokens_before)
        gone = int(job.estimator.rows(mapped.removed, job.request.style))
        added = sum(
            int(job.estimator.text(framed(row.text or "") if row.origin is Origin.SUMMARY else row.text or ""))
            for row in mapped.added
        )
        after = EstimatedTokens(max(0, job.tokens_before - gone) + added)
        if after >= job.tokens_before:
            log.info("compression.grew", layer=job.layer, tokens_before=job.tokens_before, tokens_after=after)
            return job.not_needed(SkipReason.NOT_SMALLER), state.struck(job.tokens_before)
        prepared = PreparedCompression(
            context=mapped.context,
            summary_kind="model",
            model=self.name,
            summarised=mapped.summarised,
            tokens_after=after,
        )
        return prepared, state

    async def _fall_back(
        self, job: CompressionJob, state: ContextState, reason: str
    ) -> tuple[Preparation, ContextState]:
        """There is no room to leave the conversation as it is until the engine can do better."""
        log.warning("engine.replaced", engine=self.name, layer=job.layer, by=self._fallback.name, reason=reason)
        return await self._fallback.prepare(job, state)

    # ---- when to compress

    async def _decision(self, handle: EngineHandle, job: CompressionJob) -> CompressionRequest | None:
        taken = await handle.call("take_request")
        if isinstance(taken, CompressionRequest):  # a plugin may put anything in its place, and into it
            reason = " ".join(str(taken.reason).split())[:MAX_REASON]
            focus = " ".join(str(taken.focus).split())[:MAX_FOCUS] if taken.focus else None
            log.info("engine.requested", engine=self.name, layer=job.layer, reason=reason)
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
        """The contract's own answer, `default`, is worth no list."""
        if not handle.overrides(method):
            return default
        sent = await self._sent(job)
        return await self._says(handle, method, list(sent.messages), message_ids=sent.ids)

    async def _says(self, handle: EngineHandle, method: str, about: object, **facts: Any) -> bool:
        answer = await handle.call(method, about, **facts)
        try:
            return bool(answer)
        except Exception as error:  # such as an array of answers
            raise EngineError(f"says neither yes nor no ({type(error).__name__})") from error

    def _cooldown_key(self, layer: Layer) -> CooldownKey:
        return cooldown_key(layer, f"engine:{self.name}", self._mark)
