"""One turn: a model call, tools, again, until there is an answer.

Every step is a committed row before the next one begins, and the rows alone say where a turn stands: whether it
starts, follows a steer, or was cut off by a crash, `Agent.run` looks at the view and goes on from there. The answer
itself is not stored here: whoever runs the turn stores it together with the reply that is owed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import msgspec
import structlog

from agent.context.compressor import Compressor, Engine
from agent.context.controller import ContextController
from agent.context.job import BeforeSplit, Listener, OnWait, PressureEvent
from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry
from agent.images.model_images import RetriedImageCall
from agent.model.base import FinishReason, ModelReply, ModelRequest, Payer
from agent.model.client import CompletedCall, record_cancelled
from agent.prompt import PromptBuilder
from agent.tool_calls import ToolCallRunner, ends_with_results, open_calls
from agent.tools.budgets import ResultBudget
from agent.tools.offers import OfferRegistry
from agent.tools.registry import DelegateRequest, PromptStatus, ToolContext
from agent.view_cache import ViewCache
from hermes_state import journal, sessions
from hermes_state.compressions import Layer
from hermes_state.errors import ContextOverflow, ModelError, OutputCapExceeded, ReplyMalformed
from hermes_state.journal import ModelAnswer
from hermes_state.redaction import redact
from hermes_state.store.writer import Store
from hermes_state.tool_runs import count_tool_rounds
from hermes_state.transcripts import View
from hermes_state.turns import RunningTurn, TurnMoved
from hermes_state.values import (
    Clock,
    ConversationRef,
    Message,
    ModelCall,
)

log = structlog.get_logger()

MAX_OVERFLOWS = 3
"""Most times that one turn makes room because the provider refused its prompt; then its people are told."""
MIN_OUTPUT_TOKENS = 256
"""Lowest output limit, in tokens: an answer that may not even be so long is no answer."""

APPROVAL_MINUTES = 60.0
"""Minutes in which a question can be answered."""

MAX_TOOL_ROUNDS = 50
"""A turn that still calls tools after so many rounds goes in circles; it then has to answer with what it has."""

CUT_OFF = (
    "*(This answer reached the output limit and ends here; “go on” continues it. A higher `max_output_tokens` of this "
    "model, or /compress where the conversation is long, makes room for longer answers.)*"
)


ROUNDS_USED_UP = (
    "*(This turn has used up its {} rounds of tool calls, so the work may not be finished; “go on” takes it up again.)*"
)
SUBAGENT_ROUNDS_USED_UP = (
    "(The sub-agent has used up its {} rounds of tool calls, so the work may not be finished; another one can go on.)"
)

Delegate: TypeAlias = Callable[[RunningTurn, ModelHandle, DelegateRequest], Awaitable[str]]
"""Has a sub-agent do a task for a turn, by its model, and returns the report. Raises `ToolError` for want of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a turn, not stored yet."""

    text: str
    call: ModelCall
    reported_prompt_tokens: int | None
    """None where the provider reported no usage."""
    notice: str | None = None
    """Sentence for people about images that were refused."""
    pressure: PressureEvent | None = None
    """Event that people should be told of: the window is nearly full."""


@dataclass(slots=True, kw_only=True)
class _RunState:
    """State of a turn that is brought to its answer."""

    turn: RunningTurn
    model: ModelHandle
    on_text: Callable[[str], None]
    rounds: int
    """Rounds of tool calls so far."""
    refusals: int = 0
    """Prompts of this turn that the provider has refused as too long."""
    is_unexplained: bool = False
    """The last prompt was refused without a reason, and compressed in case it was too long."""
    notice: str | None = None
    """Sentence for below the answer, as in `Answer.notice`."""
    prompt: MeasuredPrompt | None = None
    """Prompt that was answered last."""
    compression: tuple[str | None] | None = None
    """Focus, or none, of a compression that a tool has asked for."""

    def ask_compression(self, focus: str | None) -> None:
        self.compression = (focus,)


class Agent:
    """Runs turns, any number at a time; between them it keeps only the long views of conversations in use."""

    def __init__(
        self,
        *,
        store: Store,
        prompts: PromptBuilder,
        clock: Clock,
        pending: CompressionRegistry,
        listeners: Sequence[Listener] = (),
        before_split: Sequence[BeforeSplit] = (),
        on_wait: OnWait | None = None,
        redact: Callable[[str], str] = redact,
        make_engine: Callable[[Engine], Engine] | None = None,
        max_tool_rounds: int = MAX_TOOL_ROUNDS,
        budget: ResultBudget | None = None,
        approval_minutes: float = APPROVAL_MINUTES,
        delegate: Delegate | None = None,
    ) -> None:
        """`pending`: compressions on their way, shared by the agents of a store.

        `listeners` are told what happens to views, `before_split` is asked before one is compressed, `on_wait` is
        called when a turn waits long for that. `redact` takes secrets out of what a summariser reads and writes.
        `make_engine` puts another context engine in front of the built-in one; its tools join those of `prompts`,
        unless their names are taken. `delegate` runs sub-agents; None: there are none.
        """
        self._delegate = delegate
        self._store = store
        tools = prompts.tools
        self._max_tool_rounds = max_tool_rounds
        self._calls = ToolCallRunner(
            store=store,
            clock=clock,
            offers=prompts.offers or OfferRegistry(tools, store),
            budget=budget or ResultBudget(),
            approval_minutes=approval_minutes,
        )
        self._clock = clock
        self._views = ViewCache(store)
        self.prompts = prompts
        engine: Engine = Compressor(redact=redact, clock=clock)
        if make_engine is not None:
            engine = make_engine(engine)
        for tool in engine.tools():
            if tools.get(tool.name) is None:
                tools.add(tool)
            else:
                log.warning("engine.tool_left_out", engine=engine.name, tool=tool.name)
        self.context = ContextController(
            store=store,
            views=self._views,
            pending=pending,
            prompts=prompts,
            engine=engine,
            listeners=listeners,
            before_split=before_split,
            on_wait=on_wait,
            clock=clock,
        )

    async def run(
        self,
        turn: RunningTurn,
        on_text: Callable[[str], None],
        model: ModelHandle,
        prompt: MeasuredPrompt | None = None,
    ) -> Answer:
        """Bring a turn to its answer by a model, from wherever its rows say that it stands.

        `on_text` is called with the whole text so far of an answer that grows; it must not block. `prompt`: the
        conversation as hygiene has just measured it; nothing may have been stored since.

        Raises the kinds of `ModelError`, `TurnMoved` when the turn was stopped meanwhile, and `StoreUnavailable`.
        May be cancelled at any await: the rows are those of the last finished step, and running it again goes on.
        A cancelled run may leave one write in the store's queue, so whoever takes a turn up again in the same process
        awaits a write of their own first, such as `journal.take_up`.
        """
        view = await self._view(turn.conversation, model, prompt)
        if prompt is not None and prompt.request.system == view.session.system_prompt:
            prompt = replace(prompt, view=view)  # which differs by what was stored just now, and is not measured again
        rounds = await self._rounds_so_far(turn, view)
        state = _RunState(turn=turn, model=model, on_text=on_text, rounds=rounds)
        step = open_calls(view.transcript, turn.id)
        if step is not None:
            await self._calls.resume(turn, *step, self._context(state))
        if step is not None or ends_with_results(view.transcript, turn.id):
            view = await self._after_tools(turn, model)
        while True:
            known = prompt if prompt is not None and prompt.view is view else None
            prompt, done = await self._complete(state, view, known)
            if not done.reply.calls:
                answer = await self._answer(prompt, done)
                if state.rounds >= self._max_tool_rounds:
                    note = ROUNDS_USED_UP if turn.parent is None else SUBAGENT_ROUNDS_USED_UP
                    answer = replace(answer, text=f"{answer.text}\n\n{note.format(state.rounds)}")
                return replace(answer, notice=state.notice)
            message = await self._keep_calls(turn, model, done)
            await self.context.after_reply(prompt, done.reply.usage, is_last=False)
            state.rounds += 1
            state.prompt = prompt
            await self._calls.run(turn, message, message.body.calls, self._context(state))
            view = await self._after_tools(turn, model)
            if state.compression is not None:
                [focus], state.compression = state.compression, None
                await self.context.compress_as_asked(turn.conversation, model, view, focus)
                view = await self._view(turn.conversation, model)

    async def _keep_calls(self, turn: RunningTurn, model: ModelHandle, done: CompletedCall) -> Message:
        """Store a reply that calls tools. Raises `TurnMoved` when the turn was stopped; then only its cost is kept."""
        step = ModelAnswer(
            text=done.reply.text,
            calls=done.reply.calls,
            call=done.call,
            reported_prompt_tokens=_reported_prompt_tokens(done.reply),
            reasoning=done.reply.reasoning,
        )
        try:
            return await self._store.write(journal.append_calls, turn, step, self._clock.now())
        except TurnMoved:
            await model.client.ledger.record(Payer.of(turn.conversation), done.call)
            raise

    @property
    def offers(self) -> OfferRegistry:
        """The tools of the agent, and which of them each session is offered."""
        return self._calls.offers

    async def close(self) -> None:
        """Give up summaries that are still being written."""
        await self.context.close()

    async def _rounds_so_far(self, turn: RunningTurn, view: View) -> int:
        """Rounds of tool calls that the turn has made: those that were compressed since are not in the view."""
        has_begun = view.session.depth > 0 or any(row.turn_id == turn.id and row.body.calls for row in view.transcript)
        return await self._store.read(count_tool_rounds, turn.id) if has_begun else 0

    async def _view(
        self, conversation: ConversationRef, model: ModelHandle, measured: MeasuredPrompt | None = None
    ) -> View:
        """The conversation's view; a session's system prompt is kept from when it is assembled first."""
        view = await self._views.load(conversation.lineage_id) if measured is None else measured.view
        if view.session.system_prompt is not None:
            return view
        if measured is None:
            system = await self.prompts.system_for(conversation, model.limits.threshold)
        else:
            system = measured.request.system
        stored = await self._store.write(sessions.set_system_prompt, view.session.id, system)
        return replace(view, session=msgspec.structs.replace(view.session, system_prompt=stored))

    async def _after_tools(self, turn: RunningTurn, model: ModelHandle) -> View:
        """The view for the next model call: with the results, and with what people said meanwhile."""
        await self._calls.end_round(turn, model.limits.input_window)
        return await self._view(turn.conversation, model)

    # ---- the model

    async def _complete(
        self, state: _RunState, view: View, prompt: MeasuredPrompt | None
    ) -> tuple[MeasuredPrompt, CompletedCall]:
        """The model's reply to a view that was given room first. A prompt that does not fit is made smaller."""
        conversation, model = state.turn.conversation, state.model
        layer: Layer = "in_loop" if state.rounds else "preflight"
        while True:
            prompt = await self.context.make_room(conversation, model, view, layer, prompt)
            too_large = _too_large(prompt)
            try:
                if too_large is not None:
                    raise too_large
                sent, done = await self._call(state, prompt)
                state.is_unexplained = False
                return sent, done
            except ContextOverflow as error:
                state.refusals += 1
                if state.refusals > MAX_OVERFLOWS:
                    raise
                stated = None if error is too_large else error
                if not await self.context.after_overflow(conversation, model, stated):
                    raise
            except ModelError as error:
                if type(error) is not ModelError or not await self._made_smaller(state, prompt, error):
                    raise
            view, prompt = await self._view(conversation, model), None

    async def _made_smaller(self, state: _RunState, prompt: MeasuredPrompt, error: ModelError) -> bool:
        """True where a prompt that was refused without a reason is compressed: once, for it may have been too long."""
        answered = await prompt.model.profile.largest_answered(prompt.conversation.lineage_id)
        error.has_answered = answered is not None
        was_smaller, state.is_unexplained = state.is_unexplained, True
        return await self.context.after_unexplained(prompt, answered, is_again=was_smaller)

    async def _call(self, state: _RunState, prompt: MeasuredPrompt) -> tuple[MeasuredPrompt, CompletedCall]:
        client, images = prompt.model.client, prompt.model.images
        retry = RetriedImageCall(images) if images is not None else None
        purpose = "schedule" if state.turn.is_scheduled else "turn" if state.turn.parent is None else "subagent"
        may_call, effort = state.rounds < self._max_tool_rounds, state.turn.reasoning_effort
        request = replace(prompt.request, may_call_tools=may_call, reasoning_effort=effort)
        while True:
            try:
                done = await client.complete(request, state.on_text, purpose=purpose)
                break
            except OutputCapExceeded as error:
                request = replace(request, max_output_tokens=_lower_output(request, error))
            except ContextOverflow as error:
                if not await prompt.model.profile.is_disproved(error, prompt.estimated):
                    raise
                cap = OutputCapExceeded(str(error), cap=error.window)  # what else has such a limit
                request = replace(request, max_output_tokens=_lower_output(request, cap))
            except ModelError as error:
                fewer = await retry.after(request, error) if retry is not None else None
                if fewer is None:
                    raise
                request = fewer
        if done.reply.calls and not request.may_call_tools:
            await client.ledger.record(request.payer, replace(done.call, outcome="malformed"))
            raise ReplyMalformed(f"the model still calls tools after {self._max_tool_rounds} rounds")
        if retry is not None and (notice := await retry.settle(request)) is not None:
            state.notice = notice
            prompt = prompt.with_style(request.style)
        return prompt, done

    async def _answer(self, prompt: MeasuredPrompt, done: CompletedCall) -> Answer:
        text, reply = done.reply.text.strip(), done.reply
        if reply.finish is FinishReason.LENGTH:
            text = f"{text}\n\n{CUT_OFF}"
        try:
            pressure = await self.context.after_reply(prompt, reply.usage, is_last=True)
        except asyncio.CancelledError:
            await record_cancelled(prompt.model.client.ledger, prompt.request.payer, done.call)
            raise
        return Answer(
            text=text, call=done.call, reported_prompt_tokens=_reported_prompt_tokens(reply), pressure=pressure
        )

    # ---- the tools

    def _context(self, state: _RunState) -> ToolContext:
        window, prompt = state.model.limits.input_window, state.prompt
        context = ToolContext.of(state.turn, self._store, window, self._calls.budget.longest(window))
        context = replace(context, sees_images=state.model.images is not None)
        if self._delegate is not None:
            context = replace(context, delegate=partial(self._delegate, state.turn, state.model))
        if prompt is None:
            return context
        use = PromptStatus(
            tokens=prompt.estimated,
            threshold=prompt.limits.threshold,
            context_length=prompt.limits.context_length,
            held_back=prompt.held_back,
            compress=state.ask_compression,
        )
        return replace(context, prompt=use)


def _too_large(prompt: MeasuredPrompt) -> ContextOverflow | None:
    """Error of a prompt that cannot fit and is not sent. Nothing is ever left out to make it fit."""
    tokens, window = prompt.estimated, prompt.model_limits.longest_prompt
    if tokens <= window:
        return None
    return ContextOverflow(f"about {tokens} of {window} tokens", prompt_tokens=tokens, window=window)


def _lower_output(request: ModelRequest, error: OutputCapExceeded) -> int:
    """A smaller output limit for this one call: what the provider allows, else half. Raises `error` at the bottom."""
    asked = request.max_output_tokens or 0
    lower = error.cap if error.cap is not None and error.cap < asked else asked // 2
    if lower < MIN_OUTPUT_TOKENS:
        raise error
    return lower


def _reported_prompt_tokens(reply: ModelReply) -> int | None:
    return None if reply.usage is None else reply.usage.prompt
