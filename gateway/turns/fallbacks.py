"""Who answers when the model that should does not: the fallbacks, one after the other.

The next route takes the same turn up from its rows, as after a restart: steps that were made stay made, and what the
failed model had only begun to say is forgotten.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from agent.model.errors import remedy_for
from agent.turn import Agent, Answer, PreviewSink
from gateway.config.routes import RouteConfig
from gateway.models.agents import Agents
from gateway.turns import hygiene
from hermes_state.errors import ContentFiltered, HermesError, ModelError, SpendingCapExceeded
from hermes_state.journal import RunningTurn
from hermes_state.values import LineageId

log = structlog.get_logger()

KEPT_CONVERSATIONS = 4_096
"""Of which it is remembered who has answered them last, so that a change is announced once."""


class Sink(PreviewSink, Protocol):
    """A preview that can be taken back."""

    def forget(self) -> None:
        """What was shown is no part of an answer any more."""


class FallbacksFailedError(HermesError):
    """The model of a conversation and all its fallbacks have failed."""

    def __init__(self, first: ModelError, count: int) -> None:
        super().__init__(f"{type(first).__name__}: {first}; {count} fallback models failed, too")
        self.first = first
        self.count = count


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnAnswer:
    """An answer, and by whom."""

    answer: Answer
    chosen: RouteConfig
    by: RouteConfig
    why: str | None
    """What is wrong with the chosen model; None: it has answered itself."""


async def answered(
    turn: RunningTurn, sink: Sink, agents: Agents, chosen: RouteConfig, fallbacks: Sequence[RouteConfig]
) -> TurnAnswer:
    """Bring a turn to its answer, by the chosen model or by the first fallback that can.

    Each is asked at most once, those that rest after all others. Raises what `Agent.run` raises; `FallbacksFailedError`
    when there were fallbacks and none could.
    """
    routes = [chosen, *(route for route in fallbacks if route != chosen)]
    resting = [route for route in routes if agents.rest_of(route) is not None]
    order = [*(route for route in routes if route not in resting), *resting]
    failures: dict[RouteConfig, ModelError] = {}
    rest = agents.rest_of(chosen)
    why = rest.why if rest is not None else None
    for route in order:
        try:
            answer = await _run(turn, sink, agents.of(route))
        except ModelError as error:
            if not _may_go_on(error, is_chosen=route == chosen) or len(routes) == 1:
                raise
            failures[route] = error
            why = remedy_for(error).trouble if route == chosen else why
            log.warning("route.failed", route=agents.of(route).line.route, model=route.label, kind=type(error).__name__)
            sink.forget()
            continue
        return TurnAnswer(answer=answer, chosen=chosen, by=route, why=None if route == chosen else why)
    first = failures.get(chosen) or next(iter(failures.values()))
    raise FallbacksFailedError(first, len(routes) - 1)


async def _run(turn: RunningTurn, sink: Sink, agent: Agent) -> Answer:
    return await agent.run(turn, sink, await hygiene.check(agent, turn))


def _may_go_on(error: ModelError, *, is_chosen: bool) -> bool:
    """Whether another model may do better. What a stand-in is too small for, the next one may hold."""
    if isinstance(error, (SpendingCapExceeded, ContentFiltered)):
        return False
    return not is_chosen or remedy_for(error).trouble is not None


@dataclass(slots=True)
class _LastAnswer:
    chosen: RouteConfig
    by: RouteConfig


class FallbackState:
    """Which conversations are answered by another model than theirs; in memory, so a restart says it once more."""

    def __init__(self) -> None:
        self._seen: OrderedDict[LineageId, _LastAnswer] = OrderedDict()

    def of(self, lineage_id: LineageId, chosen: RouteConfig) -> RouteConfig | None:
        """Who has answered last in place of `chosen`; None: that one itself."""
        seen = self._seen.get(lineage_id)
        return seen.by if seen is not None and seen.chosen == chosen else None

    def noticed(self, lineage_id: LineageId, done: TurnAnswer) -> str | None:
        """A line for below the answer, when somebody else answers than before."""
        before = self.of(lineage_id, done.chosen)
        self._seen.pop(lineage_id, None)
        if done.why is None:
            return f"_{_named(done.chosen)} answers again._" if before is not None else None
        self._seen[lineage_id] = _LastAnswer(done.chosen, done.by)
        if len(self._seen) > KEPT_CONVERSATIONS:
            self._seen.popitem(last=False)
        if before == done.by:
            return None
        return f"_{_named(done.by)} answers for now: {_named(done.chosen)} {done.why}._"


def _named(route: RouteConfig) -> str:
    """A model's name in Markdown, whatever characters it has."""
    return f"`{route.label.replace('`', '')}`"
