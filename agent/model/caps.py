"""Spending caps, which are checked before every attempt of a model call, and the ledger, which records every call.

A call counts once its row is in the ledger, so simultaneous calls can exceed a cap by their own cost.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, tzinfo

import msgspec

from agent.model.base import Payer
from hermes_state.errors import PriceNotFound, SpendingCapExceeded
from hermes_state.models import ledger, profiles
from hermes_state.models.ledger import ModelCall, cost_around, cost_of_chat, cost_of_conversation
from hermes_state.store.writer import Store
from hermes_state.text import dollars
from hermes_state.values import Clock, MicroUsd, Millis


class SpendingCapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Spending caps, where None means no cap. Days begin at midnight in `zone` (None: this machine's time zone)."""

    daily: MicroUsd | None = None
    chat_daily: MicroUsd | None = None
    conversation: MicroUsd | None = None
    zone: tzinfo | None = UTC
    agent: str | None = None
    """Agent whose calls count for `chat_daily` and its daily cap. None: there is only one agent."""
    agents_daily: Mapping[str, MicroUsd] = msgspec.field(default_factory=dict)
    """Daily caps by agent: that of `agent`, or those of all agents in a report about the whole gateway."""


def day_start(now: Millis, zone: tzinfo | None) -> Millis:
    """Return the time at which the current day began in `zone`."""
    return midnight(day_of(now, zone), zone)


def day_of(moment: Millis, zone: tzinfo | None) -> date:
    return datetime.fromtimestamp(moment / 1_000, zone).date()


def midnight(day: date, zone: tzinfo | None) -> Millis:
    """Return the time at which a day begins in `zone`."""
    return Millis(round(datetime.combine(day, time.min, zone).timestamp() * 1_000))


SETTLED_MILLIS = 10 * 60_000
"""Age after which a call is certainly in the ledger. Retrying a failed write takes far less time."""


class DailyUsage:
    """Amount that the gateway, or one agent, has spent today.

    The sum of older calls is kept, so each check adds only recent calls.
    """

    def __init__(self, store: Store, agent: str | None = None) -> None:
        self._store, self._agent = store, agent
        self._since = Millis(0)
        self._until = Millis(0)  # `_cost` includes the calls before this time
        self._cost = MicroUsd(0)

    async def cost(self, since: Millis, now: Millis) -> MicroUsd:
        """Return the cost of all calls today. `since`: the beginning of the day."""
        if since != self._since or now < self._until:  # a new day, or the clock was set back
            self._since, self._until, self._cost = since, since, MicroUsd(0)
        begun, known = self._until, self._cost
        until = Millis(max(begun, now - SETTLED_MILLIS))
        settled, recent = await self._store.read(cost_around, begun, until, self._agent)
        if since == self._since and until > self._until:  # otherwise a concurrent check has already updated the sum
            self._until, self._cost = until, MicroUsd(known + settled)
        return MicroUsd(known + settled + recent)


class SpendingCaps:
    """Spending caps for a model with a known price. Implements `base.Caps`."""

    def __init__(self, store: Store, limits: SpendingCapSettings, day: DailyUsage, clock: Clock) -> None:
        self._store, self._limits, self._day, self._clock = store, limits, day, clock
        self._agent_day = DailyUsage(store, limits.agent)

    async def check(self, payer: Payer) -> None:
        """Raise `SpendingCapExceeded` for the first cap that has been reached."""
        limits, now = self._limits, self._clock.now()
        since = day_start(now, limits.zone)
        if limits.conversation is not None and payer.lineage_id is not None:
            spent = await self._store.read(cost_of_conversation, payer.lineage_id)
            _check_cap("costs.conversation_cap", spent, limits.conversation)
        if limits.chat_daily is not None and payer.chat_id is not None:
            spent = await self._store.read(cost_of_chat, payer.chat_id, since, limits.agent)
            _check_cap("costs.chat_daily_cap", spent, limits.chat_daily)
        for agent, cap in limits.agents_daily.items():
            _check_cap(f"agents.{agent}.costs.daily_cap", await self._agent_day.cost(since, now), cap)
        if limits.daily is not None:
            _check_cap("costs.daily_cap", await self._day.cost(since, now), limits.daily)


def _check_cap(cap: str, spent: MicroUsd, limit: MicroUsd) -> None:
    if spent >= limit:
        raise SpendingCapExceeded(f"{dollars(spent)} of {dollars(limit)}", cap=cap, spent=spent, limit=limit)


class StoreLedger:
    """Stores the ledger and learned output limits in the database. Implements `base.Ledger`."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def record(self, payer: Payer, call: ModelCall) -> None:
        now = self._clock.now()
        await self._store.write(ledger.record, payer.turn_id, payer.lineage_id, call, now, chat_id=payer.chat_id)

    async def output_cap(self, route: str, model: str) -> int | None:
        return await self._store.read(profiles.load_output_cap, route, model, self._clock.now())

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        await self._store.write(profiles.learn_output_cap, route, model, cap, self._clock.now())


class UnpricedCaps:
    """Spending caps for a model with an unknown price: every call is refused. Implements `base.Caps`."""

    def __init__(self, model: str) -> None:
        self._model = model

    async def check(self, payer: Payer) -> None:
        """Raise `PriceNotFound` for every call."""
        raise PriceNotFound("the price of the model is unknown", model=self._model)
