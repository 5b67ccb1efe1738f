"""Change settings while the gateway runs: reload the files, or save answers from the set-up page and then reload."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
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
from gateway.config.fields import DEFAULT_SOURCE, VARIABLES, dotted
from gateway.config.writing import load_draft, new_files, write_files
from gateway.daemon.agent import AgentMaker, agent_inputs
from gateway.daemon.tools import BuiltInTools
from gateway.logs import update_logging
from gateway.models.pricing import unpriced_models, unpriced_sentence
from gateway.models.selection import Runtime, preload
from hermes_state.agents import load_removed
from hermes_state.errors import ConfigError, StateError
from hermes_state.store.writer import Store
from hermes_state.text import counted

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
    on_applied: Callable[[], None]
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
            home = self.live.loaded.home
            await asyncio.to_thread(lambda: write_files(home, new_files(home, answers, keeps=True)))
            return await self._apply()

    def _preview(self, answers: Mapping[str, str]) -> LoadedConfig:
        if not answers:
            return load_config(self.environ)
        home = self.live.loaded.home
        loaded = load_draft(self.environ, home, new_files(home, answers, keeps=True))
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
            await asyncio.to_thread(preload, new.config)
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
        self.on_applied()
        await warn_removed_agents(self.agents.store, merged)
        log.info("config.reloaded", applied=plan.applied, needs_restart=plan.needs_restart)
        log_prices_and_caching(merged)
        return plan


async def warn_removed_agents(store: Store, loaded: LoadedConfig) -> None:
    """Log a warning for each agent that is no longer configured, but still has schedules or open turns."""
    known = f"|{'|'.join(loaded.agent_names)}|"
    try:
        removed = await store.read(load_removed, known)
    except StateError as error:  # without a database, the start and the reload continue
        log.warning("agent.removed_unknown", error=str(error))
        return
    source = loaded.sources["agents"]
    where = str(loaded.config_file) if source == DEFAULT_SOURCE else source
    for one in removed:
        work = ((one.schedules, "active schedule"), (one.turns, "open turn"))
        has = " and ".join(counted(number, noun) for number, noun in work if number)
        facts = [f"has {has}"] if has else []
        facts += [f"was chosen in {counted(one.chats, 'chat')}"] if one.chats else []
        hint = ", or remove the schedules with /schedule" if one.schedules else ""
        reason = f"{where}: agents has no {one.agent}, but it {', and '.join(facts)}: add it again to continue{hint}"
        log.warning("agent.removed", agent=one.agent, reason=reason)


def log_prices_and_caching(loaded: LoadedConfig) -> None:
    """Log the models without a price that spending caps block, and how each agent uses the prompt cache."""
    if names := unpriced_models(loaded.config, loaded.named_agents.values()):
        log.warning("model.unpriced", models=names, hint=unpriced_sentence(names))
    for name in loaded.agent_names:
        model = loaded.agent(name).config.model
        route = f"{model.protocol}:{model.route.host}" if model.route.host else model.protocol
        is_on, named = marks_prompts(model.route.name or "", route), {"agent": name} if name else {}
        log.info("prompt_cache.configured", is_on=is_on, route=route, ttl=model.cache_ttl, model=model.label, **named)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        log.warning("config.warned", reason=warning)
