"""The model that summarises trajectories, for a command that runs beside the daemon and without its database."""

from collections.abc import Sequence
from typing import Final

from agent.context.excerpt import Redact
from agent.model.base import Payer
from agent.model.caps import UnpricedCaps
from agent.model.client import ModelClient
from agent.trajectories import ModelSummary, Turn
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config
from gateway.models.auxiliary import route_for
from gateway.models.capacity import capacity_in
from gateway.models.clients import make_model
from gateway.models.pricing import cap_limits, price_in
from hermes_state.errors import (
    AuthRejected,
    CommandError,
    ModelError,
    ModelNotFound,
    PriceNotFound,
    QuotaExceeded,
    SpendingCapExceeded,
)
from hermes_state.values import MicroUsd, ModelCall, SystemClock

MAX_INPUT_TOKENS: Final = 40_000
INPUT_PERCENT: Final = 60
"""Most of the model's window that a summary is made of."""
_HOPELESS: Final = (AuthRejected, QuotaExceeded, ModelNotFound, SpendingCapExceeded, PriceNotFound)
"""Failures that every further trajectory would meet as well."""


class RunLedger:
    """Calls of one run, and the cap of a day on what they cost together: the gateway's own ledger is its daemon's."""

    def __init__(self, cap: MicroUsd | None) -> None:
        self._cap = cap
        self.cost = MicroUsd(0)

    async def record(self, payer: Payer, call: ModelCall) -> None:
        self.cost = MicroUsd(self.cost + (call.cost or 0))

    async def check(self, payer: Payer) -> None:
        """Raises `SpendingCapExceeded`."""
        if self._cap is not None and self.cost >= self._cap:
            raise SpendingCapExceeded("costs.daily_cap forbids more calls", spent=self.cost, limit=self._cap)

    async def output_cap(self, route: str, model: str) -> int | None:
        return None

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        """Not kept: the client itself remembers it."""


class TrajectorySummary:
    """Summaries by a configured model. What would fail for every trajectory ends the run instead."""

    def __init__(self, config: Config, route: RouteConfig) -> None:
        self.ledger = RunLedger(cap_limits(config).daily)
        price = price_in(config, route.name)
        caps = UnpricedCaps(route.label) if config.costs.has_caps and price is None else self.ledger
        window = capacity_in(route).context_length
        self.client = ModelClient(make_model(route, config.model), self.ledger, price=price, caps=caps)
        limit = min(MAX_INPUT_TOKENS, window * INPUT_PERCENT // 100)
        self._summary = ModelSummary(client=self.client, input_limit=limit, clock=SystemClock())

    async def __call__(self, turns: Sequence[Turn], target: int, redact: Redact) -> str:
        """Raises `ModelError` where this one has none, and `CommandError` where none will have one."""
        try:
            return await self._summary(turns, target, redact)
        except ModelError as error:
            circuit = self.client.breaker.open
            if circuit is None and not isinstance(error, _HOPELESS):
                raise
            raise CommandError(f"{self.client.name} writes no summaries: {redact(str(error))}") from error


def summary_route(config: Config, name: str | None) -> RouteConfig:
    """The route of `auxiliary.trajectories`, or of the model or alias of this name. Raises `CommandError`."""
    if name is not None:
        task = config.auxiliary.trajectories.model_copy(update={"model": name})
        auxiliary = config.auxiliary.model_copy(update={"trajectories": task})
        config = config.model_copy(update={"auxiliary": auxiliary})
    route = route_for(config, "trajectories", config.model)
    if route is None:
        raise CommandError("no model is configured that could summarise; --summary-model none does without")
    return route
