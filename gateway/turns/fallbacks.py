"""Fallback models: the routes that are tried in order when the chosen model fails.

Each fallback resumes the same turn from its stored rows, as after a restart. Only the unfinished text of the failed
model is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from agent.context.measure import MeasuredPrompt
from agent.context.model_handle import ModelHandle
from agent.model.errors import remedy_for
from agent.turn import Agent, Answer
from gateway.config.routes import RouteConfig
from gateway.models.selection import ModelRegistry
from gateway.turns.previews import TurnPreview
from hermes_state.errors import ContentRejected, HermesError, ModelError, ShapeRejected, SpendingCapExceeded
from hermes_state.turns import RunningTurn

log = structlog.get_logger()

MIN_HYGIENE_MESSAGES = 4
"""Minimum number of messages for which hygiene checks the size in tokens. Shorter views are left to the agent."""


class FallbacksFailedError(HermesError):
    """The model of a conversation and all its fallbacks have failed."""

    def __init__(self, first: ModelError, count: int) -> None:
        super().__init__(f"{type(first).__name__}: {first}; {count} fallback models also failed")
        self.first = first
        self.count = count


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAnswer:
    """Answer of a turn, with the chosen model and the model that answered."""

    answer: Answer
    chosen: RouteConfig
    by: RouteConfig
    why: str | None
    """Reason why the chosen model did not answer, or None if it answered."""


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
            answer = await agent.run(turn, preview.show, model, await check_size(agent, turn, model))
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
    """True if another model might succeed. This includes refusals without a reason, which open no circuit breaker."""
    if isinstance(error, (SpendingCapExceeded, ContentRejected)):
        return False
    return not is_chosen or remedy_for(error).trouble is not None or type(error) in (ModelError, ShapeRejected)


def change_notice(done: TurnAnswer, before: RouteConfig | None) -> str | None:
    """Return a notice if the answering model has changed, or None. `before` is the previous fallback, if any."""
    if done.why is None:
        return f"_{_named(done.chosen)} answers again._" if before is not None else None
    if before == done.by:
        return None
    return f"_{_named(done.by)} answers for now, because {_named(done.chosen)} {done.why}._"


def _named(route: RouteConfig) -> str:
    return f"`{route.label.replace('`', '')}`"
