"""Fallback models: the routes that answer a turn, one after the other, when the chosen one fails.

The next route takes the same turn up from its rows, as after a restart: steps that were made stay made, and what the
failed model had only begun to say is forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from agent.model.errors import remedy_for
from agent.turn import Agent, Answer
from gateway.config.routes import RouteConfig
from gateway.models.selection import ModelRegistry
from gateway.turns import hygiene
from gateway.turns.previews import TurnPreview
from hermes_state.errors import ContentRejected, HermesError, ModelError, ShapeRejected, SpendingCapExceeded
from hermes_state.turns import RunningTurn

log = structlog.get_logger()


class FallbacksFailedError(HermesError):
    """The model of a conversation and all its fallbacks have failed."""

    def __init__(self, first: ModelError, count: int) -> None:
        super().__init__(f"{type(first).__name__}: {first}; {count} fallback models failed, too")
        self.first = first
        self.count = count


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAnswer:
    """Answer of a turn, and the model that gave it."""

    answer: Answer
    chosen: RouteConfig
    by: RouteConfig
    why: str | None
    """Trouble with the chosen model; None: it has answered itself."""


async def answer_with_fallbacks(
    turn: RunningTurn,
    preview: TurnPreview,
    agent: Agent,
    models: ModelRegistry,
    chosen: RouteConfig,
    fallbacks: Sequence[RouteConfig],
) -> TurnAnswer:
    """Bring a turn to its answer, by the chosen model or by the first fallback that can.

    Each is asked at most once, those with an open circuit after all others. Raises what `Agent.run` raises;
    `FallbacksFailedError` when there were fallbacks and none could.
    """
    routes = [chosen, *(route for route in fallbacks if route != chosen)]
    open_circuits = {route: state for route in routes if (state := models.open_circuit(route)) is not None}
    order = [*(route for route in routes if route not in open_circuits), *open_circuits]
    failures: dict[RouteConfig, ModelError] = {}
    why = open_circuits[chosen].why if chosen in open_circuits else None
    for route in order:
        try:
            model = models.of(route)
            answer = await agent.run(turn, preview.show, model, await hygiene.check(agent, turn, model))
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


def _may_go_on(error: ModelError, *, is_chosen: bool) -> bool:
    """True when another model may do better. What a fallback is too small for, the next one may hold.

    What one provider refuses without a reason, too: its circuit stays closed, for others' requests are not like it.
    """
    if isinstance(error, (SpendingCapExceeded, ContentRejected)):
        return False
    return not is_chosen or remedy_for(error).trouble is not None or type(error) in (ModelError, ShapeRejected)


def change_notice(done: TurnAnswer, before: RouteConfig | None) -> str | None:
    """Line for below the answer when another model answers than before; `before`: the one that last stood in."""
    if done.why is None:
        return f"_{_named(done.chosen)} answers again._" if before is not None else None
    if before == done.by:
        return None
    return f"_{_named(done.by)} answers for now: {_named(done.chosen)} {done.why}._"


def _named(route: RouteConfig) -> str:
    """A model's name in Markdown, whatever characters it has."""
    return f"`{route.label.replace('`', '')}`"
