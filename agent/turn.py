"""Runs one turn: model calls and tool calls until there is an answer. The caller stores the answer for delivery.

Every step is committed before the next begins, so the stored rows alone show where a turn continues.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Protocol

import msgspec
import structlog
from msgspec.structs import replace

from agent.context.compressor import Compressor, Engine
from agent.context.controller import ContextController
from agent.context.job import BeforeSplit, Listener, OnWait, PressureEvent
from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import ModelHandle
from agent.context.pending import CompressionRegistry
from agent.images.model_images import RetriedImageCall
from agent.model.base import FinishReason, ModelRequest, Payer
from agent.model.client import CompletedCall, record_cancelled
from agent.prompt import PromptBuilder
from agent.tool_calls import ResultBudget, ToolCallRunner
from agent.tools.offers import OfferRegistry
from agent.tools.registry import OnStep, PromptStatus, ToolContext
from hermes_state import journal, sessions
from hermes_state.compressions import Layer
from hermes_state.errors import ContextOverflow, ModelError, OutputCapExceeded, ReplyMalformed
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall
from hermes_state.redaction import redact
from hermes_state.store.writer import Store
from hermes_state.tool_runs import count_tool_rounds
from hermes_state.transcripts import View, ViewCache
from hermes_state.turns import RunningTurn, TurnMoved
from hermes_state.values import Clock, ConversationRef, Message, MessageId, MessageRole, ToolCall, Transcript, TurnId

log = structlog.get_logger()

MAX_OVERFLOWS = 3
"""Number of times that a turn compresses a prompt that is too long for the model. Then the turn fails."""
MAX_TOOL_ROUNDS = 50
"""Maximum number of rounds of tool calls. Then the model must answer, because it may be going in circles."""

CUT_OFF = (
    "*(This answer reached the output limit and stops here. Write “go on” to continue it. For longer answers, raise "
    "this model's `max_output_tokens`, or use /compress if the conversation is long.)*"
)


ROUNDS_USED_UP = (
    "*(This turn used all of its {} rounds of tool calls, so the work may be unfinished. Write “go on” to continue.)*"
)
SUBAGENT_ROUNDS_USED_UP = (
    "(The sub-agent used all of its {} rounds of tool calls, so the work may be unfinished. "
    "Another sub-agent can continue it.)"
)


class Delegate(Protocol):
    """Function that gives part of a turn's work to a sub-agent and returns a report. See `ToolContext.delegate`."""

    async def __call__(
        self,
        parent: RunningTurn,
        model: ModelHandle,
        call: tuple[MessageId, str],
        task: str,
        tools: tuple[str, ...] | None,
        *,
        on_step: OnStep,
    ) -> str: ...


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's answer, before it is stored."""

    text: str
    call: ModelCall
    reported_prompt_tokens: int | None
    """Prompt tokens of the last call, or None if the provider reported no usage."""
    notice: str | None = None
    """Sentence that tells people about refused images."""
    pressure: PressureEvent | None = None
    """Event that tells people that the context window is nearly full."""


class _RunState(msgspec.Struct, kw_only=True):
    turn: RunningTurn
    model: ModelHandle
    on_text: Callable[[str], None]
    on_step: OnStep
    rounds: int
    refusals: int = 0
    is_unexplained: bool = False
    """True if the last prompt was compressed because the provider refused it without giving a reason."""
    notice: str | None = None
    prompt: MeasuredPrompt | None = None
    compression: tuple[str | None] | None = None
    """If a tool requested a compression, a tuple with its focus, which can be None. Otherwise None."""

    def ask_compression(self, focus: str | None) -> None:
        self.compression = (focus,)


class Agent:
    """Runs any number of turns. Between turns, it keeps only the long views of active conversations in memory."""

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
        delegate: Delegate | None = None,
    ) -> None:
        """Create an agent. `pending`: unfinished compressions, shared by all agents of a store.

        `listeners` receive compression events. `before_split` runs before each compression. `on_wait` runs when a turn
        waits a long time for a compression. `redact` removes secrets from the input and output of summaries.
        `make_engine` wraps the built-in context engine in another one, whose tools are added to those of `prompts`.
        `delegate` runs sub-agents.
        """
        self._delegate, self._store, self._clock, self.prompts = delegate, store, clock, prompts
        self.redact = redact
        """Function that removes secrets from text."""
        self._max_tool_rounds, self._views, tools = max_tool_rounds, ViewCache(store), prompts.tools
        self._calls = ToolCallRunner(
            store=store,
            clock=clock,
            offers=prompts.offers or OfferRegistry(tools, store),
            budget=budget or ResultBudget(),
        )
        built_in: Engine = Compressor(redact=redact, clock=clock)
        engine = built_in if make_engine is None else make_engine(built_in)
        for tool in engine.tools():
            if tools.get(tool.name) is None:
                tools.add(tool)
            else:
                log.warning("engine.tool_skipped", engine=engine.name, tool=tool.name)
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
        *,
        on_step: OnStep = lambda step: None,
    ) -> Answer:
        """Run a turn until it has an answer, starting at the step that the stored rows show.

        While the answer is being written, `on_text` receives all of its text so far, and must not block. `on_step`
        receives the tool calls. `prompt`: the prompt that hygiene has just measured, if nothing has been stored since.

        Raises `ModelError`, `StoreUnavailable`, and `TurnMoved` if the turn was stopped. A cancelled run can still have
        a write in the store's queue. So before you run the turn again in the same process, await another write, such as
        `turns.take_up`.
        """
        view = await self._view(turn.conversation, model, prompt)
        if prompt is not None and prompt.request.system == view.session.system_prompt:
            prompt = replace(prompt, view=view)  # only the stored system prompt differs
        has_begun = view.session.depth > 0 or any(row.body.calls for row in _rows_of(turn.id, view.transcript))
        # Ask the store, because the view does not contain rounds that were compressed.
        rounds = await self._store.read(count_tool_rounds, turn.id) if has_begun else 0
        state = _RunState(turn=turn, model=model, on_text=on_text, on_step=on_step, rounds=rounds)
        step = _open_calls(view.transcript, turn.id)
        if step is not None:
            await self._calls.resume(turn, *step, self._context(state))
        if step is not None or _ends_with_results(view.transcript, turn.id):
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
        """Store a reply that calls tools. If the turn was stopped, store only its cost and raise `TurnMoved`."""
        step = ModelAnswer(
            text=done.reply.text,
            calls=done.reply.calls,
            call=done.call,
            reported_prompt_tokens=None if done.reply.usage is None else done.reply.usage.prompt,
            reasoning=done.reply.reasoning,
        )
        try:
            return await self._store.write(journal.append_calls, turn, step, self._clock.now())
        except TurnMoved:
            await model.client.ledger.record(Payer.of(turn.conversation), done.call)
            raise

    @property
    def offers(self) -> OfferRegistry:
        """Tools that the agent offers to each session."""
        return self._calls.offers

    async def close(self) -> None:
        """Cancel summaries that are still being written."""
        await self.context.close()

    async def _view(
        self, conversation: ConversationRef, model: ModelHandle, measured: MeasuredPrompt | None = None
    ) -> View:
        """Return the conversation's view. Store the session's system prompt when it is first assembled."""
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
        """Return the view for the next model call, with tool results and messages that joined the turn."""
        await self._calls.end_round(turn, model.limits.input_window)
        return await self._view(turn.conversation, model)

    # ---- the model

    async def _complete(
        self, state: _RunState, view: View, prompt: MeasuredPrompt | None
    ) -> tuple[MeasuredPrompt, CompletedCall]:
        """Call the model with a view. Compress before the call if needed, and again if the prompt does not fit."""
        conversation, model = state.turn.conversation, state.model
        layer: Layer = "in_loop" if state.rounds else "preflight"
        while True:
            prompt = await self.context.make_room(conversation, model, view, layer, prompt)
            tokens, window = prompt.estimated, prompt.model_limits.longest_prompt
            try:
                if tokens > window:  # do not send a prompt that cannot fit
                    raise ContextOverflow(f"about {tokens} of {window} tokens", prompt_tokens=tokens, window=window)
                sent, done = await self._call(state, prompt)
                state.is_unexplained = False
                return sent, done
            except ContextOverflow as error:
                state.refusals += 1
                if state.refusals > MAX_OVERFLOWS:
                    raise
                stated = None if tokens > window else error
                if not await self.context.after_overflow(conversation, model, stated):
                    raise
            except ModelError as error:
                if type(error) is not ModelError:
                    raise
                # The provider gave no reason. Compress once, because the prompt may have been too long.
                answered = await prompt.model.profile.largest_answered(prompt.conversation.lineage_id)
                error.has_answered = answered is not None
                was_smaller, state.is_unexplained = state.is_unexplained, True
                if not await self.context.after_unexplained(prompt, answered, is_again=was_smaller):
                    raise
            view, prompt = await self._view(conversation, model), None

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
                cap = OutputCapExceeded(str(error), cap=error.window)  # the prompt fits, so the output is too long
                request = replace(request, max_output_tokens=_lower_output(request, cap))
            except ModelError as error:
                fewer = await retry.after(request, error) if retry is not None else None
                if fewer is None:
                    raise
                request = fewer
        if done.reply.calls and not request.may_call_tools:
            await client.ledger.record(request.payer, replace(done.call, outcome="malformed"))
            raise ReplyMalformed(f"the model is still calling tools after {self._max_tool_rounds} rounds")
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
            text=text,
            call=done.call,
            reported_prompt_tokens=None if reply.usage is None else reply.usage.prompt,
            pressure=pressure,
        )

    # ---- the tools

    def _context(self, state: _RunState) -> ToolContext:
        window, prompt, use = state.model.limits.input_window, state.prompt, None
        if prompt is not None:
            use = PromptStatus(
                tokens=prompt.estimated,
                threshold=prompt.limits.threshold,
                context_length=prompt.limits.context_length,
                held_back=prompt.held_back,
                compress=state.ask_compression,
            )
        delegate = self._delegate
        return ToolContext.of(
            state.turn,
            self._store,
            input_window=window,
            result_size=self._calls.budget.longest(window),
            sees_images=state.model.images is not None,
            prompt=use,
            delegate=delegate and partial(delegate, state.turn, state.model, on_step=state.on_step),
            on_step=state.on_step,
        )


def _lower_output(request: ModelRequest, error: OutputCapExceeded) -> int:
    """Return a lower output limit for a call: the provider's, or else half of the requested one.

    Raises `error` if the lower limit is below 256 tokens.
    """
    asked = request.max_output_tokens or 0
    lower = error.cap if error.cap is not None and error.cap < asked else asked // 2
    if lower < 256:
        raise error
    return lower


def _rows_of(turn_id: TurnId, transcript: Transcript) -> Iterator[Message]:
    """Yield the rows of the newest turn, newest first. Earlier turns, which can have thousands of rows, are not read.

    Rows without a turn, such as a handoff, can be between the turn's rows.
    """
    newest = takewhile(lambda row: row.turn_id is None or row.turn_id >= turn_id, reversed(transcript))
    return (row for row in newest if row.turn_id == turn_id)


def _open_calls(transcript: Transcript, turn_id: TurnId) -> tuple[Message, list[ToolCall]] | None:
    """Return the turn's newest model reply and its calls that have no result yet. Return None if no call is open."""
    answered: set[str] = set()
    for row in _rows_of(turn_id, transcript):
        if row.role is MessageRole.TOOL and row.tool_call_id is not None:
            answered.add(row.tool_call_id)
        elif row.role is MessageRole.ASSISTANT:
            calls = [call for call in row.body.calls if call.id not in answered]
            return (row, calls) if calls else None
    return None


def _ends_with_results(transcript: Transcript, turn_id: TurnId) -> bool:
    """Return True if tool results are the newest rows of the turn, so its next step is a model call."""
    return bool(transcript) and transcript[-1].role is MessageRole.TOOL and transcript[-1].turn_id == turn_id
