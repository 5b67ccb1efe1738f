"""One turn from start to end: the agent, its preview, its deadline, and what the chat is told."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from agent.context.commit import note_pressure
from agent.context.job import PressureEvent
from agent.model.base import Payer
from agent.model.caps import StoreLedger
from agent.model.client import record_cancelled
from agent.model.errors import sentence_for
from agent.tool_calls import ApprovalNeededError
from gateway.config.routes import RouteConfig
from gateway.config.settings import ModelConfig
from gateway.models.selection import Runtime, name_of, route_of
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.gates import GateRegistry
from gateway.outbound.notices import pressure_sentence
from gateway.turns.fallbacks import FallbacksFailedError, TurnAnswer, answer_with_fallbacks, change_notice
from gateway.turns.previews import LivePreview, TurnPreview
from gateway.turns.titles import TitleWriter
from hermes_state import journal, outbox, previews, sessions
from hermes_state.aio import make_way, own_cancellation
from hermes_state.errors import HermesError, ModelError, StoreUnavailable
from hermes_state.journal import ModelAnswer
from hermes_state.outbox import OutboxRow, RenderedReply, Reply
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn, TurnMoved
from hermes_state.values import Clock, Millis

log = structlog.get_logger()

LivePreviewT = TypeVar("LivePreviewT", bound=LivePreview)

MAX_RESTARTS = 3
"""A turn that has ended the process this often is more likely the cause than the victim."""

DEADLINE_SENTENCE = "This took longer than a turn may take, so I stopped. /retry tries again."
CRASH_SENTENCE = "Something went wrong on my side while I worked on this. Your message is kept; /retry tries again."
STOPPED_NOTICE = "(stopped)"
"""Takes the place of a preview when nothing of the answer was written yet."""
RESTART_SENTENCE = (
    "I was restarted several times while I worked on this, so I have stopped trying. "
    "Your message is kept; /retry tries again."
)


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class TurnRunner:
    """Runs turns. Each is its own error boundary: what goes wrong in one is told to its chat and nowhere else."""

    store: Store
    runtime: Runtime
    adapters: AdapterRegistry
    gates: GateRegistry
    delivery: Delivery
    titles: TitleWriter
    clock: Clock
    on_question: Callable[[], None]
    """Called when a turn waits for a person's yes, or may not wait any more."""
    preview_elsewhere: Callable[[RunningTurn], TurnPreview] | None = None
    """Makes the preview of a turn whose chat another process may serve; None where this one serves all chats."""

    def preview_of(self, turn: RunningTurn) -> TurnPreview:
        """The preview that shows `turn`; its `text` is the partial answer."""
        if self.preview_elsewhere is not None and self.adapters.ownership_of(turn.chat) is None:
            return self.preview_elsewhere(turn)
        return TurnPreview(turn) if self.adapters.of(turn.chat) is None else self.live_preview(turn, LivePreview)

    def live_preview(self, turn: RunningTurn, kind: type[LivePreviewT]) -> LivePreviewT:
        """Make a preview for a chat whose account is configured here."""
        adapter = self.adapters.of(turn.chat)
        assert adapter is not None, "only what is configured is served"
        return kind(
            turn,
            adapter,
            gate=self.gates.of(turn.chat_id),
            flood=self.gates.flood_of(turn.chat),
            save_ref=lambda claim, ref: self.store.write(journal.note_preview, claim, ref),
            is_certain=self.adapters.is_certain,
        )

    async def run(self, turn: RunningTurn, preview: TurnPreview) -> bool:
        """Take the turn to its end; False where it was ended, or taken up, by somebody else meanwhile.

        Cancelled, it leaves the turn open with every finished step stored.

        The deadline counts from here: with what was left before a restart, a turn would be taken up only to fail, with
        all its steps paid for. `MAX_RESTARTS` bounds how often.

        Raises `StoreUnavailable` when a step could not be stored; the turn is still open then.
        """
        began = time.monotonic()
        with bound_contextvars(
            platform=turn.chat.platform, chat=turn.chat.name, lineage_id=turn.lineage_id, turn_id=turn.id
        ):
            try:
                with own_cancellation():
                    await self._answer(turn, preview)
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
            except Exception as error:  # the turn boundary: the others must not notice
                log.exception("turn.crashed")
                await self._fail(turn, type(error).__name__, CRASH_SENTENCE)
        return True

    async def _answer(self, turn: RunningTurn, preview: TurnPreview) -> None:
        config, agent, models = self.runtime.config, self.runtime.agent, self.runtime.models
        await make_way()
        preview.open((await self.delivery.close_previews(turn.chat_id)).get(turn.id))
        done: TurnAnswer | None = None
        try:
            async with asyncio.timeout(config.model.turn_seconds):
                chosen = await self._chosen(turn, config.model)
                done = await answer_with_fallbacks(turn, preview, agent, models, chosen, config.model.fallback_routes)
        finally:
            await self._close(preview, turn, done)
        final = self._final(turn, done, tells_pressure=config.notices.pressure)
        pressure, clock = done.answer.pressure, self.clock
        try:
            await self.delivery.store_and_send(
                turn,
                final.markdown or final.text,
                lambda rendered: self.store.write_with_retry(
                    _finish_turn, turn, final, pressure, clock, rendered, preview.is_stored
                ),
            )
        except TurnMoved:  # the turn was stopped meanwhile: only its cost is kept
            await StoreLedger(self.store, self.clock).record(Payer.of(turn.conversation), final.call)
            raise
        self.titles.answered(turn, done.by)

    async def _close(self, preview: TurnPreview, turn: RunningTurn, done: TurnAnswer | None) -> None:
        """Show no more. Who stops the turn meanwhile gives an answer up that was paid for: its cost is kept.

        What is on its way then is waited for, unless the account may be another node's by now, whose answer comes last.
        """
        try:
            await (preview.close() if self.adapters.is_certain() else preview.abandon())
        except asyncio.CancelledError:
            if done is not None:
                await record_cancelled(
                    StoreLedger(self.store, self.clock), Payer.of(turn.conversation), done.answer.call
                )
            raise

    async def give_up(self, turn: RunningTurn) -> None:
        """End a turn that was restarted too often."""
        log.error("turn.given_up", turn_id=turn.id, restarts=turn.restarts)
        await self._fail(turn, "restarted too often", RESTART_SENTENCE)

    async def stop(self, turn: RunningTurn, partial_text: str, reason: str) -> None:
        """Record that people stopped the turn; a no-op when it has ended meanwhile."""
        now = self.clock.now()
        stopped = await self.store.write_with_retry(
            journal.stop_turn, turn, partial_text, reason, now, notice=STOPPED_NOTICE
        )
        if stopped:
            log.info("turn.stopped", turn_id=turn.id, chat=turn.chat.name)
        self.delivery.wake(turn.chat_id)

    async def _chosen(self, turn: RunningTurn, model: ModelConfig) -> RouteConfig:
        """The route that the turn's conversation has chosen. One that is gone is forgotten, and its people are told."""
        route = route_of(model, turn.chosen_model)
        if route is not None:
            return route
        assert turn.chosen_model is not None, "the configured model is always known"
        gone = name_of(model, turn.chosen_model)
        sentence = f"The model “{gone}” is not configured any more, so {model.label} answers here again."
        await self.store.write(_forget_choice, turn, sentence, self.clock.now())
        self.delivery.wake(turn.chat_id)
        return model.route

    def _final(self, turn: RunningTurn, done: TurnAnswer, *, tells_pressure: bool) -> ModelAnswer:
        """The answer as it is stored; what the chat is shown may have notices below it, the model never sees those."""
        answer = done.answer
        pressure = pressure_sentence(answer.pressure) if answer.pressure is not None and tells_pressure else None
        image_notice = f"_{answer.notice}_" if answer.notice is not None else None
        before = self.runtime.fallbacks.note(turn.lineage_id, done.chosen, done.by)
        notices = [line for line in (change_notice(done, before), image_notice, pressure) if line]
        return ModelAnswer(
            text=answer.text,
            call=answer.call,
            reported_prompt_tokens=answer.reported_prompt_tokens,
            markdown="\n\n".join([answer.text, *notices]) if notices else "",
        )

    async def _fail(self, turn: RunningTurn, error: str, sentence: str) -> None:
        await self.store.write_with_retry(journal.fail_turn, turn, error, sentence, self.clock.now())
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
) -> OutboxRow | None:
    """The end of a turn, with what its people know from then on; returns the reply if it is to be sent now.

    `clock`, not a time: tried again for an hour, it is still of now, so that the day's costs do not miss it.
    """
    _, first_send = journal.finish_turn(db, turn, final, clock.now(), rendered)
    if pressure is not None:
        note_pressure(db, pressure)
    if has_stored_preview:
        previews.remove(db, turn.id)
    return first_send


@locks(chat="turn.chat_id")
def _forget_choice(db: Connection, turn: RunningTurn, sentence: str, now: Millis) -> None:
    """Forget a choice that is gone, and say so in the same transaction, so that it is said once."""
    if turn.chosen_model is not None and sessions.forget_model(db, turn.lineage_id, turn.chosen_model):
        outbox.enqueue(db, Reply(chat_id=turn.chat_id, markdown=sentence, dedupe_key=f"turn:{turn.id}:model"), now)


def _sentence(error: HermesError | TimeoutError) -> str:
    """Sentence for the people of the chat: one that helps, without the details of the log."""
    if isinstance(error, FallbacksFailedError):
        others = "The fallback model" if error.count == 1 else f"The {error.count} fallback models"
        return f"{sentence_for(error.first)} {others} failed, too."
    if isinstance(error, ModelError):
        return sentence_for(error)
    return DEADLINE_SENTENCE if isinstance(error, TimeoutError) else CRASH_SENTENCE
