"""Change settings while the gateway runs: reload the files, or save answers from the set-up page and then reload."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from agent.model.protocols import missing_extra
from agent.model.protocols.caching import marks_prompts
from gateway.config import (
    ConfigRejected,
    LiveConfig,
    LoadedConfig,
    ReloadPlan,
    load_config,
    merge_for_reload,
    reload_differences,
)
from gateway.config.fields import VARIABLES, dotted
from gateway.config.writing import locked, new_files, write_files
from gateway.daemon.agent import AgentMaker, agent_inputs
from gateway.daemon.tools import BuiltInTools
from gateway.logs import update_logging
from gateway.models.pricing import unpriced_models, unpriced_sentence
from gateway.models.selection import Runtime, preload
from gateway.operator.checks import check_removed
from hermes_state.errors import ConfigError, StateError
from hermes_state.store.writer import Store

log = structlog.get_logger()


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Reloader:
    """Applies changed settings to the next turns."""

    environ: Mapping[str, str]
    live: LiveConfig
    runtime: Runtime
    agents: AgentMaker
    tools: BuiltInTools
    group: asyncio.TaskGroup
    changed: Sequence[asyncio.Event]
    """Events to set after a reload."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def reload(self) -> ReloadPlan:
        """Apply the changed files. If they are invalid, change nothing and raise `ConfigError`."""
        async with self._lock:
            return await self._apply()

    async def preview(self, answers: Mapping[str, str]) -> LoadedConfig:
        """Return the configuration that would result from `save`. Raises `ConfigError` if it is invalid."""
        return await asyncio.to_thread(self._preview, answers)

    async def save(self, answers: Mapping[str, str]) -> ReloadPlan:
        """Write the answers to the files, keep all other values, and reload. Raises `ConfigError` if this fails."""
        async with self._lock:
            await asyncio.to_thread(self._write, answers)
            return await self._apply()

    def _write(self, answers: Mapping[str, str]) -> None:
        home = self.live.loaded.home
        with locked(home):
            write_files(home, new_files(home, answers, keeps=True))

    def _preview(self, answers: Mapping[str, str]) -> LoadedConfig:
        if not answers:
            return load_config(self.environ)
        home = self.live.loaded.home
        loaded = load_config(self.environ, new_files(home, answers, keeps=True))
        for variable in answers:
            source = loaded.sources[dotted(VARIABLES[variable])]
            if source in (variable, f"credential {variable}"):
                raise ConfigError(
                    f"{variable} is set outside the configuration files, and that value overrides them: change it there"
                )
        if (missing := missing_extra(loaded.config.model.protocol)) is not None:
            raise ConfigError(f"{missing[0].upper()}{missing[1:]}.")
        return loaded

    async def _apply(self) -> ReloadPlan:
        loaded, runtime = self.live.loaded, self.runtime
        try:
            new = await asyncio.to_thread(load_config, self.environ)
            await asyncio.to_thread(preload, new)
            _warn(new.warnings)
            plan, merged = reload_differences(loaded, new), merge_for_reload(loaded, new)
            named = self.agents.make_named(merged, self.live, runtime.named)
            is_changed = agent_inputs(merged.config) != agent_inputs(loaded.config)
            if is_changed or merged.config.agents != loaded.config.agents:
                runtime.agent, runtime.models = self.agents.make(merged)
            runtime.named = named
        except ConfigError as error:
            _warn(error.warnings if isinstance(error, ConfigRejected) else ())
            log.error("config.rejected", error=str(error), kept="the last good configuration")
            raise
        self.live.loaded = merged
        await self.tools.reload(runtime.agent.offers.registry.by_name, self.group)
        update_logging(merged.config.logging.level, merged.secrets())
        for event in self.changed:
            event.set()
        await warn_removed(self.agents.store, merged)
        log.info("config.reloaded", applied=plan.applied, needs_restart=plan.needs_restart)
        log_prices_and_caching(merged)
        return plan


async def warn_removed(store: Store, loaded: LoadedConfig) -> None:
    """Log a warning for each agent and account that is no longer configured, but still has schedules or open turns."""
    try:
        removed = await store.read(check_removed, loaded)
    except StateError as error:  # without a database, the start and the reload continue
        log.warning("config.removed_unknown", error=str(error))
        return
    for one in removed:
        log.warning("config.removed", reason=one.text)


def log_prices_and_caching(loaded: LoadedConfig) -> None:
    if names := unpriced_models(loaded.agents):
        log.warning("model.unpriced", models=names, hint=unpriced_sentence(names))
    for model in dict.fromkeys(agent.config.model.route for agent in loaded.agents):
        route, ttl = f"{model.protocol}:{model.host}" if model.host else model.protocol, loaded.config.model.cache_ttl
        is_on = marks_prompts(model.name or "", route)
        log.info("prompt_cache.configured", is_on=is_on, route=route, ttl=ttl, model=model.label)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        log.warning("config.warned", reason=warning)
