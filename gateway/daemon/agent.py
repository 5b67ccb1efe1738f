"""The daemon's agent and models, built from the configuration.

A reload that changes the configuration builds them again.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from agent.context.compressor import Engine
from agent.context.model_handle import LearnedProfile, ModelHandle, ModelInfo, SummaryRoute
from agent.context.pending import CompressionRegistry
from agent.engines.adapter import PluginEngine
from agent.engines.loader import load_engine
from agent.images.model_images import ModelImages
from agent.images.scaling import ImageScaler
from agent.memory.notes import MemoryDirectory
from agent.memory.sections import PERSONA_FILE, SectionReader
from agent.memory.skills import SkillCatalog
from agent.memory_flush import MemoryWriter
from agent.model.catalog import ASSUMED_CONTEXT, known_model
from agent.prompt import DEFAULT_PERSONA, PromptBuilder
from agent.subagents import SubagentRunner
from agent.tool_calls import ResultBudget
from agent.tools.memory import memory_tool, skill_tool
from agent.tools.offers import OfferRegistry, ToolAccess
from agent.tools.planning import context_tool, delegate_tool, todo_tool
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolRegistry, ToolSource, load_plugin_tools
from agent.turn import Agent
from gateway.config import LiveConfig, LoadedConfig
from gateway.config.fields import block_json, secrets_of
from gateway.config.overlay import SHARED_NOTES, AgentConfig
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config
from gateway.models.pricing import SpendingControl
from gateway.models.routes import capacity_in, configured_limits, context_settings, route_for, zone_of
from gateway.models.selection import ClientRegistry, FallbackState, ModelRegistry, Runtime
from gateway.outbound.notices import NoticeWriter
from hermes_state.redaction import Redactor
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Tokens


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class AgentMaker:
    """Builds the agent and the models. Replaced models close only at shutdown, because running turns may use them."""

    store: Store
    clock: Clock
    scaler: ImageScaler
    spending: SpendingControl
    tools: Callable[[LoadedConfig, str], Sequence[Tool]] = lambda loaded, agent: ()
    """Builds the tools of an agent that need parts of the daemon."""
    access_of: Callable[[str], ToolAccess]
    """Returns the access rules of an agent's tools."""
    tool_source: ToolSource | None = None
    notices: NoticeWriter
    _pending: CompressionRegistry = field(default_factory=CompressionRegistry, init=False)
    _agents: list[Agent] = field(default_factory=list, init=False)
    _clients: list[ClientRegistry] = field(default_factory=list, init=False)

    def make(self, loaded: LoadedConfig, name: str = "") -> tuple[Agent, ModelRegistry]:
        """Return an agent and its models. The agent can run turns with any of the models.

        Raises `ConfigError` if a protocol's SDK is missing, or if the context engine is missing or broken.
        """
        settings, redactor = loaded.agent(name), Redactor(loaded.secrets())  # the secrets of all agents
        loaded = replace(loaded, config=settings.config)
        clients = ClientRegistry(loaded.config, self.spending, settings)
        self._clients.append(clients)
        agent = self._agent(loaded, settings, redactor)
        self._agents.append(agent)
        return agent, self._models(loaded, clients)

    def make_named(self, loaded: LoadedConfig, live: LiveConfig, old: Mapping[str, Runtime]) -> dict[str, Runtime]:
        """Return the runtimes of all named agents. Those in `old` are kept if their configuration has not changed."""
        found = {}
        for name, agent in loaded.named_agents.items():
            before = live.loaded.named_agents.get(name)
            if name in old and before and _all_inputs(agent, loaded) == _all_inputs(before, live.loaded):
                found[name] = old[name]
            else:
                made, models = self.make(loaded, name)
                fallbacks = old[name].fallbacks if name in old else FallbackState()
                found[name] = Runtime(live, made, models, fallbacks, name)
        return found

    def expire_learned(self) -> None:
        """Make the models reload their learned limits when they are next used."""
        for clients in self._clients:
            clients.expire_learned()

    async def close(self) -> None:
        for agent in self._agents:
            await agent.close()
        for clients in self._clients:
            await clients.close()

    def _agent(self, loaded: LoadedConfig, settings: AgentConfig, redactor: Redactor) -> Agent:
        config = loaded.config
        zone, access = zone_of(config), self.access_of(settings.name)
        skills = SkillCatalog(path=settings.skills)
        skills.load()
        notes = self._notes(loaded, settings, redactor)
        files = self._files(loaded, settings, notes, skills)
        writer = self._memory_writer(config, notes, files, redactor)
        registry = self._registry(loaded, settings, notes, skills)
        budget = ResultBudget(result_size=config.tools.default_result_size, turn_budget=config.tools.turn_budget)
        subagents = SubagentRunner(
            store=self.store,
            clock=self.clock,
            tools=registry,
            access=access,
            budget=budget,
            zone=zone,
            redact=redactor,
        )
        return Agent(
            store=self.store,
            prompts=PromptBuilder(
                tools=registry,
                offers=OfferRegistry(registry, self.store, access),
                persona=config.agent.persona or DEFAULT_PERSONA,
                zone=zone,
                files=files,
            ),
            clock=self.clock,
            pending=self._pending,
            listeners=[self.notices.write],
            before_split=[writer.flush] if writer is not None else [],
            on_wait=self.notices.write_waiting,
            redact=redactor,
            make_engine=self._engine(loaded, redactor),
            max_tool_rounds=config.agent.max_tool_rounds,
            budget=budget,
            delegate=subagents.run,
        )

    def _notes(self, loaded: LoadedConfig, settings: AgentConfig, redactor: Redactor) -> MemoryDirectory | None:
        """Return the long-term memory, or None if it is disabled."""
        memory = loaded.config.memory
        return None if not memory.enabled else replace(notes_of(loaded, settings), holds_secret=redactor.knows)

    def _files(
        self, loaded: LoadedConfig, settings: AgentConfig, notes: MemoryDirectory | None, skills: SkillCatalog
    ) -> SectionReader:
        config, persona = loaded.config, settings.persona_file
        if persona is None and config.agent.persona is None:
            persona = loaded.home / PERSONA_FILE
        return SectionReader(
            home=loaded.home_of(settings.name),
            notes=notes,
            skills=skills,
            persona=persona,
            is_on=lambda name, chat: config.tools.switch_of(name, chat) == "on",
        )

    def _memory_writer(
        self, config: Config, notes: MemoryDirectory | None, files: SectionReader, redactor: Redactor
    ) -> MemoryWriter | None:
        """Return the component that writes notes before a compression, or None if this is disabled."""
        flush = config.memory.flush
        if notes is None or flush is False:
            return None
        is_shared = flush is True
        return MemoryWriter(notes=notes, redact=redactor, clock=self.clock, is_on=files.is_on, is_shared_on=is_shared)

    def _registry(
        self, loaded: LoadedConfig, settings: AgentConfig, notes: MemoryDirectory | None, skills: SkillCatalog
    ) -> ToolRegistry:
        """Return the registry of all tools: built-in tools, tools that need parts of the daemon, and plugins."""
        tools = [*recall_tools(), context_tool, todo_tool(self.clock)]
        tools += [memory_tool(notes)] if notes is not None else []
        tools += [skill_tool(skills), *([delegate_tool] if loaded.config.auxiliary.delegate != "off" else [])]
        registry = ToolRegistry((*tools, *self.tools(loaded, settings.name)), self.tool_source)
        for plugin_tool in load_plugin_tools(registry.by_name):
            registry.add(plugin_tool)
        return registry

    def _engine(self, loaded: LoadedConfig, redactor: Redactor) -> Callable[[Engine], Engine] | None:
        """Return a function that builds the plugin's context engine, or None if there is no plugin."""
        config = loaded.config
        plugin = load_engine(config.context.engine, loaded.home)
        if plugin is None:
            return None
        mark = settings_mark(config)

        def make_engine(built_in: Engine) -> Engine:
            return PluginEngine(
                plugin.name,
                plugin.make,
                model=_model_info(config.model.route),
                fallback=built_in,
                redact=redactor,
                clock=self.clock,
                mark=mark,
                schemas=plugin.schemas,
                home=str(loaded.home),
                store=self.store,
            )

        return make_engine

    def _models(self, loaded: LoadedConfig, clients: ClientRegistry) -> ModelRegistry:
        config, store, clock = loaded.config, self.store, self.clock

        def make(route: RouteConfig) -> ModelHandle:
            client, flush = clients.of(route), route_for(config, "flush", route)
            source, name, fetch = client.route, client.name, client.model.fetch_limits
            mark = _mark(route.model_dump_json(), route.plain_key)
            images = ModelImages(scaler=self.scaler, store=store, route=source, model=name, mark=mark, clock=clock)
            flush_route = None
            if flush is not None:
                flush_route = SummaryRoute(client=clients.of(flush), context_length=_context_of(flush, route, config))
            return ModelHandle(
                client=client,
                profile=LearnedProfile(store, source, name, configured_limits(route), clock, fetch=fetch),
                info=_model_info(route),
                context=context_settings(config, zone_of(config), route.name),
                summary_routes=tuple(summary_routes(config, route, clients)),
                flush_route=flush_route,
                images=images if route.sees_images else None,
                subagent_model=partial(subagent_model, route),
            )

        def subagent_model(own: RouteConfig) -> ModelHandle | None:
            route = route_for(config, "delegate", own)
            return None if route is None or route == own else models.of(route)

        models = ModelRegistry(config.model.route, make, clients.of)
        return models


def notes_of(loaded: LoadedConfig, settings: AgentConfig) -> MemoryDirectory:
    """Return the long-term memory of an agent. Agents that share their notes about people use one folder for these."""
    own = loaded.home_of(settings.name) / "memory"
    shared = loaded.home_of("" if loaded.agent("").shares_notes else SHARED_NOTES) / "memory"
    return MemoryDirectory(path=own, people=shared if settings.shares_notes else own, settings=settings.config.memory)


def _model_info(route: RouteConfig) -> ModelInfo:
    return ModelInfo(
        name=route.label,
        context_length=capacity_in(route).context_length,
        base_url=route.base_url or "",
        api_key=route.plain_key,
        provider=route.protocol,
    )


def summary_routes(config: Config, own: RouteConfig, clients: ClientRegistry) -> list[SummaryRoute]:
    """Return the summary routes for the model `own`: the summary model, then `own`. Leaves out the offline model."""
    mark, routes, is_own = settings_mark(config), [], False
    named = route_for(config, "compression", own)
    if named is not None and named != own:
        length = _context_of(named, own, config)
        # If the summary model is also the conversation's model, add it only once, with the conversation's window.
        is_own = length is None
        routes.append(SummaryRoute(client=clients.of(named), context_length=length, mark=mark))
    if own.protocol != "offline" and not is_own:
        routes.append(SummaryRoute(client=clients.of(own), mark=mark))
    return routes


def _context_of(route: RouteConfig, own: RouteConfig, config: Config) -> Tokens | None:
    """Return a task model's context length without asking the provider, or None for the conversation's own model."""
    if (route.name, route.protocol, route.address) == (own.name, own.protocol, own.address):
        return None
    known = known_model(route.label)
    listed = None if known is None else known.context_length
    return Tokens(route.context_length or listed or config.model.context_length or ASSUMED_CONTEXT)


def agent_inputs(config: Config) -> tuple[object, ...]:
    """Return the configuration blocks from which an agent is built. A change in one of them requires a new agent."""
    blocks = (config.model, config.agent, config.compression, config.hygiene, config.auxiliary, config.context)
    return (*blocks, config.costs, config.tools, config.memory)


def _all_inputs(agent: AgentConfig, loaded: LoadedConfig) -> tuple[object, ...]:
    own = (agent.skills, agent.persona_file, agent.daily_cap, notes_of(loaded, agent))
    return (agent_inputs(agent.config), *own, loaded.secrets())


def settings_mark(config: Config) -> str:
    """Return a fingerprint of the agent's settings and keys. A change ends the pauses after failed compressions.

    The fingerprint is stored with conversations. Its six hexadecimal digits reveal nothing about a key.
    """
    blocks = [block_json(block) for block in agent_inputs(config)]
    keys = [key for block in agent_inputs(config) for key in secrets_of(block)]
    return _mark(*blocks, *keys)


def _mark(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:6]
