"""Parts of the daemon, made from the configuration: adapters, the agent with its tools, the models that answer."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from functools import partial
from zoneinfo import ZoneInfo

from agent.context.base import Engine
from agent.context.commit import CompressionRegistry
from agent.context.job import Listener, OnWait
from agent.context.model_handle import LearnedProfile, ModelHandle, ModelInfo, SummaryRoute
from agent.engines.adapter import PluginEngine
from agent.engines.loader import load_engine
from agent.images.model_images import ModelImages
from agent.images.scaling import ImageScaler
from agent.memory.files import MemoryDirectory
from agent.memory.sections import SectionReader
from agent.memory.skills import SkillCatalog
from agent.memory_flush import MemoryWriter
from agent.model.catalog import known_model
from agent.model.sizes import ASSUMED_CONTEXT
from agent.prompt import DEFAULT_PERSONA, PromptBuilder
from agent.subagents import SubagentRunner
from agent.tools.budgets import ResultBudget
from agent.tools.context import context_tool
from agent.tools.delegate import delegate_tool
from agent.tools.files.file_tools import file_tools
from agent.tools.files.image_reader import ImageReader
from agent.tools.files.search_files import search_tool
from agent.tools.files.send_file import FileDelivery, send_file_tool
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.memory import memory_tool
from agent.tools.offers import OfferRegistry, ToolAccess
from agent.tools.plugins import load_plugin_tools
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolRegistry, ToolSource
from agent.tools.skill import skill_tool
from agent.tools.todo import todo_tool
from agent.turn import Agent
from gateway.config import LoadedConfig
from gateway.config.fields import DEFAULT_SOURCE, block_json, secrets_of
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config
from gateway.models.auxiliary import route_for
from gateway.models.capacity import capacity_in, configured_limits
from gateway.models.clients import ClientRegistry
from gateway.models.selection import ModelRegistry
from gateway.models.window import context_settings
from hermes_state.files import open_files
from hermes_state.files.folder import AttachmentFolder
from hermes_state.redaction import Redactor
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Tokens
from platforms.base import MenuCommand, PlatformAdapter

PORT_TRIES = 20
"""Ports that are tried for the web chat where none is configured."""


def open_attachments(loaded: LoadedConfig) -> AttachmentFolder:
    """The files of attachments, in the state directory unless `attachments.url` names another place.

    Blocks. Raises `ConfigError` and `StoreUnavailable` where that cannot be written.
    """
    config = loaded.config.attachments
    if config.url is None:
        return AttachmentFolder(loaded.attachments)
    return open_files(config.url, config.plain_options, loaded.attachments_cache)


def make_adapters(
    loaded: LoadedConfig,
    store: Store,
    menu: Sequence[MenuCommand],
    files: AttachmentFolder,
    clock: Clock,
    on_local_ready: Callable[[str], None],
) -> dict[str, PlatformAdapter]:
    """Every configured adapter by account name; a platform is on as soon as it has a token."""
    adapters: dict[str, PlatformAdapter] = {}
    telegram, discord, local = loaded.config.telegram, loaded.config.discord, loaded.config.local
    # Each platform brings some 10 MB, and is imported where it is on.
    if telegram.token is not None:
        from platforms.telegram import TelegramAdapter, TelegramSettings, WebhookSettings

        webhook, given = None, telegram.webhook
        if given.url is not None:
            secret = given.secret.get_secret_value() if given.secret is not None else secrets.token_urlsafe(32)
            webhook = WebhookSettings(url=given.url, secret=secret, host=given.host, port=given.port)
        token = telegram.token.get_secret_value()
        bot = TelegramSettings(token=token, base_url=telegram.base_url, webhook=webhook)
        adapters["telegram"] = TelegramAdapter(bot, store=store, menu=menu, clock=clock)
    if discord.token is not None:
        from platforms.discord import DiscordAdapter, DiscordSettings

        client = DiscordSettings(
            token=discord.token.get_secret_value(),
            api_url=discord.api_url,
            gateway_url=discord.gateway_url,
            catch_up_hours=discord.catch_up_hours,
        )
        adapters["discord"] = DiscordAdapter(client, store=store, menu=menu, clock=clock)
    if local.enabled:
        from platforms.local import LocalAdapter, LocalSettings

        page = LocalSettings(
            state_dir=loaded.home,
            host=local.host,
            port=local.port,
            port_tries=PORT_TRIES if loaded.sources["local.port"] == DEFAULT_SOURCE and not local.public_url else 1,
            public_url=local.public_url,
            max_file_bytes=loaded.config.attachments.max_bytes,
        )
        adapters["local"] = LocalAdapter(
            page, store=store, files=files, menu=menu, clock=clock, on_ready=on_local_ready
        )
    return adapters


def make_agent(
    loaded: LoadedConfig,
    *,
    store: Store,
    pending: CompressionRegistry,
    extra_tools: Sequence[Tool],
    tool_source: ToolSource | None = None,
    tool_access: ToolAccess,
    listeners: Sequence[Listener],
    on_wait: OnWait,
    clock: Clock,
) -> Agent:
    """The agent of a configuration, which runs the turns of all its models.

    Raises `ConfigError` for a context engine that is not there or is broken.
    """
    config, redactor = loaded.config.agent, Redactor(loaded.secrets())
    files = section_reader(loaded, redactor)
    notes, memory = files.notes, loaded.config.memory
    keeping = [todo_tool(clock), *([memory_tool(notes)] if notes is not None else [])]
    writer = None
    if notes is not None and memory.flush is not False:
        is_shared = memory.flush is True
        writer = MemoryWriter(notes=notes, redact=redactor, clock=clock, is_on=files.is_on, is_shared_on=is_shared)
    tools, zone = loaded.config.tools, zone_of(loaded.config)
    delegating = [delegate_tool()] if loaded.config.auxiliary.delegate != "off" else []
    own = (context_tool(), *keeping, skill_tool(files.skills), *delegating)
    registry = ToolRegistry((*recall_tools(), *own, *extra_tools), tool_source)
    for plugin_tool in load_plugin_tools(registry.by_name):
        registry.add(plugin_tool)
    budget = ResultBudget(result_size=tools.default_result_size, turn_budget=tools.turn_budget)
    subagents = SubagentRunner(
        store=store,
        clock=clock,
        tools=registry,
        access=tool_access,
        settings=loaded.config.subagents,
        budget=budget,
        zone=zone,
        redact=redactor,
    )
    return Agent(
        store=store,
        prompts=PromptBuilder(
            tools=registry,
            offers=OfferRegistry(registry, store, tool_access),
            persona=config.persona or DEFAULT_PERSONA,
            zone=zone,
            files=files,
        ),
        clock=clock,
        pending=pending,
        listeners=listeners,
        before_split=[writer.flush] if writer is not None else [],
        on_wait=on_wait,
        redact=redactor,
        make_engine=_engine_maker(loaded, redactor, store, clock),
        max_tool_rounds=config.max_tool_rounds,
        budget=budget,
        approval_minutes=tools.approval_minutes,
        delegate=subagents.run,
    )


def make_workspaces(loaded: LoadedConfig) -> WorkspaceStore:
    """The folders of all chats for their files."""
    return WorkspaceStore(loaded.workspaces, loaded.config.workspace)


def workspace_tools(workspaces: WorkspaceStore, delivery: FileDelivery, images: ImageReader) -> tuple[Tool, ...]:
    """The tools for the files of a chat."""
    return (*file_tools(workspaces, images), search_tool(workspaces), send_file_tool(workspaces, delivery))


def section_reader(loaded: LoadedConfig, redactor: Redactor) -> SectionReader:
    """The reader of what stands in files and joins system prompts: notes, persona, context files, skills."""
    memory, home = loaded.config.memory, loaded.home
    notes = MemoryDirectory(path=home / "memory", settings=memory, holds_secret=redactor.knows)
    skills = SkillCatalog(path=home / "skills")
    skills.load()
    return SectionReader(
        home=home,
        notes=notes if memory.enabled else None,
        skills=skills,
        reads_persona=loaded.config.agent.persona is None,
        is_on=lambda name, chat: loaded.config.tools.switch_of(name, chat) == "on",
    )


def make_models(
    loaded: LoadedConfig, clients: ClientRegistry, *, store: Store, scaler: ImageScaler, clock: Clock
) -> ModelRegistry:
    """The models of a configuration that answer turns, the configured one first."""

    def make(route: RouteConfig) -> ModelHandle:
        client = clients.of(route)
        fetch = client.model.fetch_limits
        mark = _mark(route.model_dump_json(), route.plain_key)
        images = ModelImages(scaler=scaler, store=store, route=client.route, model=client.name, mark=mark, clock=clock)
        profile = LearnedProfile(store, client.route, client.name, configured_limits(route), clock, fetch=fetch)
        return ModelHandle(
            client=client,
            profile=profile,
            info=_model_info(route),
            context=context_settings(loaded.config, zone_of(loaded.config), route.name),
            summary_routes=tuple(summary_routes(loaded.config, route, clients)),
            flush_route=_flush_route(loaded.config, route, clients),
            images=images if route.sees_images else None,
            subagent_model=partial(subagent_model, route),
        )

    def subagent_model(own: RouteConfig) -> ModelHandle | None:
        route = route_for(loaded.config, "delegate", own)
        return None if route is None or route == own else models.of(route)

    models = ModelRegistry(loaded.config.model.route, make, clients.of)
    return models


def zone_of(config: Config) -> tzinfo:
    """`agent.time_zone`, else this machine's time zone."""
    name = config.agent.time_zone
    return (ZoneInfo(name) if name is not None else datetime.now().astimezone().tzinfo) or UTC


def _model_info(route: RouteConfig) -> ModelInfo:
    return ModelInfo(
        name=route.label,
        context_length=capacity_in(route).context_length,
        base_url=route.base_url or "",
        api_key=route.plain_key,
        provider=route.protocol,
    )


def summary_routes(config: Config, own: RouteConfig, clients: ClientRegistry) -> list[SummaryRoute]:
    """Summary routes of conversations with a model: whoever does that task, then the model itself.

    The built-in offline model never is: it cannot write one.
    """
    mark, routes = settings_mark(config), []
    named = route_for(config, "compression", own)
    # With settings of the task's own the conversation's model is still one: of its window, and asked once.
    is_own = named is not None and _is_same_model(named, own)
    if named is not None and named != own:
        length = None if is_own else _context_of(named, config)
        routes.append(SummaryRoute(client=clients.of(named), context_length=length, mark=mark))
    if own.protocol != "offline" and not (is_own and routes):
        routes.append(SummaryRoute(client=clients.of(own), mark=mark))
    return routes


def _flush_route(config: Config, own: RouteConfig, clients: ClientRegistry) -> SummaryRoute | None:
    """The model that notes what must not be forgotten for conversations with a model; None where nobody can."""
    route = route_for(config, "flush", own)
    if route is None:
        return None
    length = None if _is_same_model(route, own) else _context_of(route, config)
    return SummaryRoute(client=clients.of(route), context_length=length)


def _is_same_model(route: RouteConfig, own: RouteConfig) -> bool:
    """True for a conversation's own model, be it with settings of a task's own."""
    return (route.name, route.protocol, route.address) == (own.name, own.protocol, own.address)


def _context_of(route: RouteConfig, config: Config) -> Tokens:
    """The context of a model that only writes summaries, whose provider is not asked."""
    known = known_model(route.label)
    listed = None if known is None else known.context_length
    return Tokens(route.context_length or listed or config.model.context_length or ASSUMED_CONTEXT)


def _engine_maker(
    loaded: LoadedConfig, redactor: Redactor, store: Store, clock: Clock
) -> Callable[[Engine], Engine] | None:
    """Puts the plugin that `context.engine` names in front of the built-in engine. Raises `ConfigError`."""
    engine = load_engine(loaded.config.context.engine, loaded.home)
    if engine is None:
        return None
    model, mark = _model_info(loaded.config.model.route), settings_mark(loaded.config)
    return lambda built_in: PluginEngine(
        engine.name,
        engine.make,
        model=model,
        fallback=built_in,
        redact=redactor,
        clock=clock,
        mark=mark,
        schemas=engine.schemas,
        home=str(loaded.home),
        store=store,
    )


def agent_inputs(config: Config) -> tuple[object, ...]:
    """The blocks of the configuration that an agent is made from: when one changes, there has to be another agent."""
    blocks = (config.model, config.agent, config.compression, config.hygiene, config.auxiliary, config.context)
    return (*blocks, config.costs, config.tools, config.memory, config.subagents)


def settings_mark(config: Config) -> str:
    """Fingerprint of the agent's settings, six hexadecimal digits, its keys included: a change clears cooldowns.

    It is stored with conversations, so it is too short to tell anything about a key.
    """
    blocks = [block_json(block) for block in agent_inputs(config)]
    keys = [key for block in agent_inputs(config) for key in secrets_of(block)]
    return _mark(*blocks, *keys)


def _mark(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:6]
