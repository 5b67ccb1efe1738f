"""Prices, spending caps and the ledger for model clients."""

from collections.abc import Iterable, Iterator
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from agent.model.base import Caps
from agent.model.caps import DailyUsage, SpendingCaps, SpendingCapSettings, StoreLedger, UnpricedCaps
from agent.model.catalog import FREE, Price, price_of
from gateway.config import LoadedConfig
from gateway.config.overlay import AgentConfig
from gateway.config.settings import Config
from gateway.models.routes import all_routes
from hermes_state.agents import stored_name
from hermes_state.store.writer import Store
from hermes_state.values import Clock, MicroUsd, micro_usd


class SpendingControl:
    """Ledger and spending caps for all model clients. A reload keeps them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._day = DailyUsage(store)
        self.ledger = StoreLedger(store, clock)

    def caps_in(self, config: Config, name: str | None, agent: AgentConfig | None = None) -> Caps | None:
        """Return the caps for the model `name` (None: the free built-in model), or None if no cap is set."""
        if not (config.costs.has_caps if agent is None else agent.has_caps):
            return None
        if price_in(config, name) is None:
            return UnpricedCaps(name or "")
        return SpendingCaps(self._store, cap_limits(config, agent), self._day, self._clock)


def price_in(config: Config, name: str | None) -> Price | None:
    """Return the price of a model under this configuration, or None if the price is unknown."""
    if name is None:
        return FREE
    return price_of(name, config.costs.prices, keeps_cache_for_an_hour=config.model.cache_ttl == "1h")


def cap_limits(config: Config, agent: AgentConfig | None = None) -> SpendingCapSettings:
    """Return the caps of the configuration, and those of an agent if there are several."""
    costs, zone = config.costs, config.agent.time_zone
    return SpendingCapSettings(
        daily=_limit(costs.daily_cap),
        chat_daily=_limit(costs.chat_daily_cap),
        conversation=_limit(costs.conversation_cap),
        # Days begin at midnight in this zone. The machine's zone is not used, because its UTC offset can change.
        zone=None if zone is None else ZoneInfo(zone),
        agent=agent.name if agent is not None and config.agents else None,
        agents_daily=_daily_caps([agent] if agent is not None else []),
    )


def limits_in(loaded: LoadedConfig, shown: str | None) -> SpendingCapSettings:
    """Return the caps of the agent that people see under this name, or of the gateway with the daily caps of agents."""
    if (name := stored_name(shown)) is not None and name in loaded.agent_names:
        return cap_limits(loaded.agent(name).config, loaded.agent(name))
    return replace(cap_limits(loaded.config), agents_daily=_daily_caps(loaded.agents))


def _daily_caps(agents: Iterable[AgentConfig]) -> dict[str, MicroUsd]:
    return {one.name: limit for one in agents if (limit := _limit(one.daily_cap)) is not None}


def _limit(amount: float | None) -> MicroUsd | None:
    return None if amount is None else micro_usd(amount)


def unpriced_models(agents: Iterable[AgentConfig]) -> list[str]:
    """Return the models that agents never call, because they have a cap and the price of the model is unknown."""
    capped = (agent.config for agent in agents if agent.has_caps)
    found = (name for config in capped for name in _configured_names(config) if price_in(config, name) is None)
    return [*dict.fromkeys(found)]


def estimated_models(agents: Iterable[AgentConfig]) -> list[str]:
    """Return the models of agents whose price is an estimate."""
    prices = ((name, price_in(one.config, name)) for one in agents for name in _configured_names(one.config))
    return [*dict.fromkeys(name for name, price in prices if price is not None and price.is_estimated)]


def unpriced_sentence(names: list[str]) -> str:
    """Return the warning for operators about models that are never called."""
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        f"a spending cap is set, so these models without a known price are not called: {listed}. Add their prices to "
        "costs.prices, in US dollars per million tokens. For your own model, set input: 0, output: 0"
    )


def _configured_names(config: Config) -> Iterator[str]:
    routes = all_routes(config)
    yield from (route.name for route in routes if route.protocol != "offline" and route.name is not None)
    if config.transcription.model is not None:
        yield config.transcription.model
    if config.voice.model is not None:
        yield config.voice.names[0]
