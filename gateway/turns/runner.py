"""Turn runner: runs the agent with a preview and a deadline, and reports errors to the chat.

If the chosen model fails, its fallbacks are tried in order. Each fallback resumes the same turn from its stored rows,
as after a restart. Only the unfinished text of the failed model is lost.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec
import structlog
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from agent.context.commit import note_pressure
from agent.context.job import PressureEvent
from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import ModelHandle
from agent.model.base import Payer
from agent.model.caps import StoreLedger
from agent.model.client import record_cancelled
from agent.model.errors import remedy_for, sentence_for
from agent.settings import VoiceSettings
from agent.tool_calls import ApprovalNeededError
from agent.turn import Agent, Answer
from gateway.config.routes import RouteConfig
from gateway.config.settings import ModelConfig
from gateway.models.selection import ModelRegistry, Runtime, name_of, route_of
from gateway.outbound.delivery import Delivery
from gateway.outbound.notices import pressure_sentence
from gateway.outbound.webhooks import HookWriter
from gateway.switches import VOICE
from gateway.turns.previews import PreviewMaker, TurnPreview
from gateway.turns.titles import TitleWriter
from hermes_state import journal, outbox, sessions
from hermes_state.aio import make_way, own_cancellation, wait_until
from hermes_state.errors import (
    ContentRejected,
    HermesError,
    ModelError,
    ShapeRejected,
    SpendingCapExceeded,
    StoreUnavailable,
)
from hermes_state.journal import ModelAnswer
from hermes_state.outbox import OutboxRow, RenderedReply, Reply
from hermes_state.ratings import Sign, SignedMessage
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.text import both_ends
from hermes_state.turns import RunningTurn, TurnMoved, find_unended, remove_preview
from hermes_state.values import Button, ChatKind, Clock, Millis

log = structlog.get_logger()

MAX_RESTARTS = 3
"""Maximum number of restarts of a turn. If it crashes more often, the turn itself is probably the cause."""

MIN_HYGIENE_MESSAGES = 4
"""Minimum number of messages for which hygiene checks the size in tokens. Shorter views are left to the agent."""

DEADLINE_SENTENCE = "This took too long, so I stopped. Send /retry to try again."
CRASH_SENTENCE = "An internal error stopped my answer. Your message is saved. Send /retry to try again."
STOPPED_NOTICE = "(stopped)"
"""Text that replaces the preview if a turn is stopped before its answer has any text."""
RESTART_SENTENCE = (
    "I was interrupted several times while working on this, so I stopped trying. "
    "Your message is saved. Send /retry to try again."
)


class FallbacksFailedError(HermesError):
    """The model of a conversation and all its fallbacks have failed."""

    def __init__(self, first: ModelError, count: int) -> None:
        super().__init__(f"{type(first).__name__}: {first}; {count} fallback models also failed")
        self.first = first
        self.count = count


class AgentRemovedError(HermesError):
    """The agent of the turn is no longer configured."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"the agent {agent} is not configured")
        self.agent = agent


class TurnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a turn, with the chosen model and the model that answered."""

    answer: Answer
    chosen: RouteConfig
    by: RouteConfig
    why: str | None
    """Reason why the chosen model did not answer, or None if it answered."""


class ActiveTurn(msgspec.Struct, kw_only=True):
    """Turn that a lane is running."""

    turn: RunningTurn
    preview: TurnPreview
    task: asyncio.Task[bool]
    stop_reason: str | None = None
    """Reason for a requested stop. It is set when the work is cancelled, before the end of the turn is stored."""
    partial_text: str = ""
    """Text of the answer at the time of the stop."""
    _stop_is_settled: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def begin_stop(self, reason: str) -> Self:
        """Cancel the work now, unless a stop has already begun."""
        if self.stop_reason is None:
            self.stop_reason, self.partial_text = reason, self.preview.text
            self.task.cancel()
        return self

    def settle_stop(self) -> None:
        """Let the lane continue: the attempt to store the stop is over, whether or not it succeeded."""
        self._stop_is_settled.set()

    async def wait_for_end(self) -> None:
        """Wait for the work to end. After a stop, also wait until the stop is stored, but at most a minute."""
        await asyncio.wait({self.task})
        if self.stop_reason is not None:
            await wait_until(self._stop_is_settled, 60.0)


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class TurnRunner:
    """Runs turns. An error in a turn is reported to the turn's chat and does not affect other turns."""

    store: Store
    runtime: Runtime
    previews: PreviewMaker
    delivery: Delivery
    titles: TitleWriter
    clock: Clock
    hooks: HookWriter = field(default_factory=HookWriter)
    on_question: Callable[[], None]
    """Called when a turn starts or stops waiting for an approval."""

    async def run(self, turn: RunningTurn, preview: TurnPreview) -> bool:
        """Run the turn to its end. Returns False if another process has ended or resumed the turn.

        If this call is cancelled, the turn stays open with every finished step stored. The deadline restarts with each
        run, so that a resumed turn has enough time. Raises `StoreUnavailable` if a step was not stored. The turn is
        then still open.
        """
        began = time.monotonic()
        chat = turn.chat
        with bound_contextvars(
            platform=chat.platform,
            account=chat.account,
            chat=chat.name,
            **({"agent": turn.agent} if turn.agent else {}),
            lineage_id=turn.lineage_id,
            turn_id=turn.id,
        ):
            try:
                if not self.runtime.has(turn.agent):
                    raise AgentRemovedError(turn.agent)
                with own_cancellation():
                    await self._answer(turn, preview)
                for _ in range(2):  # the answer's sender, then its request; the log line and the lane can wait
                    await asyncio.sleep(0)
                log.info("turn.finished", seconds=round(time.monotonic() - began, 3), restarts=turn.restarts)
            except ApprovalNeededError:
                log.info("turn.waiting")
                self.delivery.wake(turn.chat_id)
                self.on_question()
            except TurnMoved:
                log.info("turn.closed_elsewhere")
                self.delivery.wake(turn.chat_id)
                return False
            except StoreUnavailable:
                raise
            except (HermesError, TimeoutError) as error:
                kind = type(error.first if isinstance(error, FallbacksFailedError) else error).__name__
                log.warning("turn.failed", error=kind, detail=str(error))
                await self._fail(turn, kind, _sentence(error))
            except Exception as error:  # the error must not affect other turns
                log.exception("turn.crashed")
                await self._fail(turn, type(error).__name__, CRASH_SENTENCE)
        return True

    async def _answer(self, turn: RunningTurn, preview: TurnPreview) -> None:
        runtime = self.runtime.of(turn.agent)
        config, agent, models = runtime.config, runtime.agent, runtime.models
        await make_way()
        preview.open((await self.delivery.close_previews(turn.chat_id)).get(turn.id))
        done: TurnAnswer | None = None
        try:
            async with asyncio.timeout(config.model.turn_seconds):
                chosen = await self._chosen(turn, config.model)
                done = await answer_with_fallbacks(turn, preview, agent, models, chosen, config.model.fallback_routes)
        except ApprovalNeededError:
            preview.is_paused = True
            raise
        finally:
            await self._close(preview, turn, done)
        final = self._final(turn, done, tells_pressure=config.notices.pressure)
        pressure, clock, voice = done.answer.pressure, self.clock, self.runtime.config.voice
        try:
            await self.delivery.store_and_send(
                turn,
                final.markdown or final.text,
                lambda rendered: self.store.write_with_retry(
                    _finish_turn, turn, final, pressure, clock, rendered, preview.is_stored, voice, self.hooks
                ),
            )
        except TurnMoved:  # the turn was stopped in the meantime, so record only its cost
            await StoreLedger(self.store, self.clock).record(Payer.of(turn.conversation), final.call)
            raise
        self.titles.answered(turn, done.by)

    async def _close(self, preview: TurnPreview, turn: RunningTurn, done: TurnAnswer | None) -> None:
        """End the preview. If the turn is stopped while the preview ends, record the cost of its answer.

        Waits for a request in flight, unless another node may now serve the account and send the answer.
        """
        try:
            await (preview.close() if self.previews.adapters.is_certain() else preview.abandon())
        except asyncio.CancelledError:
            if done is not None:
                ledger = StoreLedger(self.store, self.clock)
                await record_cancelled(ledger, Payer.of(turn.conversation), done.answer.call)
            raise

    async def give_up(self, turn: RunningTurn) -> None:
        """End a turn that was restarted too often."""
        log.error("turn.abandoned", turn_id=turn.id, restarts=turn.restarts)
        await self._fail(turn, "restarted too often", RESTART_SENTENCE)

    async def stop(self, turn: RunningTurn, partial_text: str, reason: str) -> None:
        """Store the stop of the turn, unless the turn has ended in the meantime."""
        args = turn, partial_text, reason, self.clock.now()
        if await self.store.write_with_retry(journal.stop_turn, *args, notice=STOPPED_NOTICE):
            log.info("turn.stopped", turn_id=turn.id, chat=turn.chat.name)
        self.delivery.wake(turn.chat_id)

    async def _chosen(self, turn: RunningTurn, model: ModelConfig) -> RouteConfig:
        """Return the conversation's chosen route. If the choice is no longer configured, clear it and tell the chat."""
        route = route_of(model, turn.chosen_model)
        if route is not None:
            return route
        assert turn.chosen_model is not None, "the configured model is always known"
        gone = name_of(model, turn.chosen_model)
        sentence = f"The model “{gone}” is no longer configured, so {model.label} answers here again."
        await self.store.write(_forget_choice, turn, sentence, self.clock.now())
        self.delivery.wake(turn.chat_id)
        return model.route

    def _final(self, turn: RunningTurn, done: TurnAnswer, *, tells_pressure: bool) -> ModelAnswer:
        """Return the answer to store. The notices below the answer are for the chat, and the model never sees them."""
        answer = done.answer
        pressure = pressure_sentence(answer.pressure) if answer.pressure is not None and tells_pressure else None
        image_notice = f"_{answer.notice}_" if answer.notice is not None else None
        before = self.runtime.of(turn.agent).fallbacks.note(turn.lineage_id, done.chosen, done.by)
        notices = [line for line in (change_notice(done, before), image_notice, pressure) if line]
        return ModelAnswer(
            text=answer.text,
            call=answer.call,
            reported_prompt_tokens=answer.reported_prompt_tokens,
            markdown="\n\n".join([answer.text, *notices]) if notices else "",
        )

    async def _fail(self, turn: RunningTurn, error: str, sentence: str) -> None:
        # The web page has its own button. A sentence without the command is about an error that would come again.
        can_retry = "/retry" in sentence and turn.chat_kind is not ChatKind.LOCAL
        buttons = (Button(label="Retry", command=f"/retry t{turn.id}"),) if can_retry else ()
        args = turn, error, sentence, self.clock.now(), buttons, self.hooks
        await self.store.write_with_retry(_fail_turn, *args)
        self.delivery.wake(turn.chat_id)


@locks(chat="turn.chat_id")
def _finish_turn(
    db: Connection,
    turn: RunningTurn,
    final: ModelAnswer,
    pressure: PressureEvent | None,
    clock: Clock,
    rendered: RenderedReply | None,
    has_stored_preview: bool,
    voice: VoiceSettings,
    hooks: HookWriter,
) -> OutboxRow | None:
    """End a turn and record its notices. Return the reply to send now. A retried transaction reads the clock again."""
    end_sign = _end_sign(db, turn, Sign.DONE, clock.now())
    if voice.model is not None:
        final = replace(final, speaks=VOICE.read(db, turn.chat_id, voice.mode))
    _, first_send = journal.finish_turn(db, turn, final, clock.now(), rendered)
    _tell_hooks(db, hooks, turn, "finished", final.text, clock.now())
    if end_sign is not None:
        outbox.enqueue(db, end_sign, clock.now())
    if pressure is not None:
        note_pressure(db, pressure)
    if has_stored_preview:
        remove_preview(db, turn.id)
    return first_send


@locks(turn="turn.id")
def _fail_turn(
    db: Connection,
    turn: RunningTurn,
    error: str,
    sentence: str,
    now: Millis,
    buttons: tuple[Button, ...],
    hooks: HookWriter,
) -> None:
    end_sign = _end_sign(db, turn, Sign.FAILED, now)
    if not journal.fail_turn(db, turn, error, sentence, now, buttons):
        return
    if end_sign is not None:
        outbox.enqueue(db, end_sign, now)
    _tell_hooks(db, hooks, turn, "failed", sentence, now)
    if error == SpendingCapExceeded.__name__:  # once a day and chat, because each message fails
        data = {"chat": turn.chat.name, "text": sentence}
        hooks.write(db, "cap.reached", turn.chat_id, str(now // 86_400_000), data, now)


def _tell_hooks(db: Connection, hooks: HookWriter, turn: RunningTurn, state: str, text: str, now: Millis) -> None:
    data = {"chat": turn.chat.name, "turn": turn.id, "state": state, "text": both_ends(text, 20_000)}
    hooks.write(db, "turn.finished", turn.chat_id, f"turn:{turn.id}", data, now)


def _end_sign(db: Connection, turn: RunningTurn, sign: Sign, now: Millis) -> Reply | None:
    """Return a reaction for the person's newest message in a long turn, because the person may have stopped watching.

    Must be called before the turn ends.
    """
    if now - turn.started_at < 60_000 or turn.chat_kind is ChatKind.LOCAL:
        return None
    newest = find_unended(db, turn)  # a message may have joined the turn after it began
    if newest is None or newest.question_ref is None or newest.ticket is not None:
        return None
    signed = SignedMessage(ref=newest.question_ref, sign=sign)
    return Reply(chat_id=turn.chat_id, markdown="", dedupe_key=f"turn:{turn.id}:sign", signed=signed)


@locks(chat="turn.chat_id")
def _forget_choice(db: Connection, turn: RunningTurn, sentence: str, now: Millis) -> None:
    """Clear a choice that is no longer configured, and tell the chat once in the same transaction."""
    if turn.chosen_model is not None and sessions.forget_model(db, turn.lineage_id, turn.chosen_model):
        outbox.enqueue(db, Reply(chat_id=turn.chat_id, markdown=sentence, dedupe_key=f"turn:{turn.id}:model"), now)


def _sentence(error: HermesError | TimeoutError) -> str:
    """Return the error message for the chat. The details are in the log."""
    if isinstance(error, FallbacksFailedError):
        others = "The fallback model" if error.count == 1 else f"The {error.count} fallback models"
        return f"{sentence_for(error.first)} {others} also failed."
    if isinstance(error, AgentRemovedError):
        removed = f"The agent {error.agent} is no longer configured, so I cannot finish this answer."
        return f"{removed} Your messages are stored. An operator can add the agent to `agents` again."
    if isinstance(error, ModelError):
        return sentence_for(error)
    return DEADLINE_SENTENCE if isinstance(error, TimeoutError) else CRASH_SENTENCE


# ---- fallbacks


async def answer_with_fallbacks(
    turn: RunningTurn,
    preview: TurnPreview,
    agent: Agent,
    models: ModelRegistry,
    chosen: RouteConfig,
    fallbacks: Sequence[RouteConfig],
) -> TurnAnswer:
    """Answer a turn with the chosen model, or with the first fallback that works.

    Each model is tried at most once, and models with an open circuit breaker come last. Raises the errors of
    `Agent.run`, or `FallbacksFailedError` if all fallbacks failed.
    """
    routes = [chosen, *(route for route in fallbacks if route != chosen)]
    open_circuits = {route: state for route in routes if (state := models.open_circuit(route)) is not None}
    order = [*(route for route in routes if route not in open_circuits), *open_circuits]
    failures: dict[RouteConfig, ModelError] = {}
    why = open_circuits[chosen].why if chosen in open_circuits else None
    for route in order:
        try:
            model = models.of(route)
            prompt = await check_size(agent, turn, model)
            answer = await agent.run(turn, preview.show, model, prompt, on_step=preview.note_step)
        except ModelError as error:
            if not _may_go_on(error, is_chosen=route == chosen) or len(routes) == 1:
                raise
            failures[route] = error
            why = remedy_for(error).trouble or "refused this request" if route == chosen else why
            log.warning("route.failed", route=model.client.route, model=route.label, kind=type(error).__name__)
            preview.forget()
            continue
        return TurnAnswer(answer=answer, chosen=chosen, by=route, why=None if route == chosen else why)
    first = failures.get(chosen) or next(iter(failures.values()))
    raise FallbacksFailedError(first, len(routes) - 1)


async def check_size(agent: Agent, turn: RunningTurn, model: ModelHandle) -> MeasuredPrompt | None:
    """Check the size of a conversation before its turn (hygiene), and compress the conversation if it is too large.

    Hygiene acts at 85 % of the context window (`hygiene.threshold`) or at 5,000 messages. If the prompt still fits,
    the turn waits at most 10 seconds for the compression. Returns the measured prompt, or None if it may be outdated.
    """
    context, conversation = agent.context, turn.conversation
    prompt = await context.measure(conversation, model)
    messages, limit = len(prompt.view.transcript), model.context.hard_message_limit
    is_large = messages >= MIN_HYGIENE_MESSAGES and prompt.estimated >= prompt.limits.hygiene
    if not (is_large or messages >= limit) or context.pending.is_pending(conversation.lineage_id):
        return prompt
    await context.compress_before_turn(prompt, message_limit=None if is_large else limit)
    return None


def _may_go_on(error: ModelError, *, is_chosen: bool) -> bool:
    """Return True if another model might succeed. Not every such error opens a circuit breaker."""
    if isinstance(error, (SpendingCapExceeded, ContentRejected)):
        return False
    return not is_chosen or remedy_for(error).trouble is not None or type(error) in (ModelError, ShapeRejected)


def change_notice(done: TurnAnswer, before: RouteConfig | None) -> str | None:
    """Return a notice if the answering model has changed, or None. `before` is the previous fallback, if any."""
    if done.why is None:
        return f"_{_named(done.chosen)} answers again._" if before is not None else None
    if before == done.by:
        return None
    return f"_{_named(done.by)} answers for now because {_named(done.chosen)} {done.why}._"


def _named(route: RouteConfig) -> str:
    return f"`{route.label.replace('`', '')}`"
