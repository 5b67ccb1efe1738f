"""From configuration to parts: which adapters there are, and the agents with their models and tools."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

from agent.context.compressor import SummaryRoute
from agent.context.engine import Engine
from agent.context.events import Listener, OnWait
from agent.engines.adapter import PluginEngine
from agent.engines.instances import ModelInfo
from agent.engines.loader import load_engine
from agent.model.sizes import ASSUMED_CONTEXT, listed_limits
from agent.prompt import DEFAULT_PERSONA
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolRegistry
from agent.turn import Agent, AgentSettings
from gateway.config import LoadedConfig
from gateway.config.fields import secrets_of
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config
from gateway.config.types import BaseConfig
from gateway.models.agents import Agents
from gateway.models.auxiliary import route_for
from gateway.models.capacity import capacity_in, configured_limits
from gateway.models.selection import ClientRegistry
from gateway.models.window import context_settings
from hermes_state.redaction import Redactor
from hermes_state.store.view_cache import ViewCache
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Tokens
from platforms.base import CommandMenuItem, PlatformAdapter
from platforms.discord.adapter import DiscordAdapter, DiscordSettings
from platforms.local.adapter import LocalAdapter, LocalSettings
from platforms.telegram.adapter import TelegramAdapter
from platforms.telegram.settings import TelegramSettings, WebhookSettings


def make_adapters(
    loaded: LoadedConfig,
    store: Store,
    menu: Sequence[CommandMenuItem],
    clock: Clock,
    on_local_ready: Callable[[str], None],
) -> dict[str, PlatformAdapter]:
    """Every configured adapter by account name; a platform is on as soon as it has a token."""
    config = loaded.config
    adapters: dict[str, PlatformAdapter] = {}
    telegram = telegram_settings(config)
    if telegram is not None:
        adapters["telegram"] = TelegramAdapter(telegram, store=store, menu=menu, clock=clock)
    discord = discord_settings(config)
    if discord is not None:
        adapters["discord"] = DiscordAdapter(discord, store=store, menu=menu, clock=clock)
    if config.local.enabled:
        local = LocalSettings(
            state_dir=loaded.home,
            host=config.local.host,
            port=config.local.port,
            max_file_bytes=config.attachments.max_bytes,
        )
        adapters["local"] = LocalAdapter(local, store=store, menu=menu, clock=clock, on_ready=on_local_ready)
    return adapters


def telegram_settings(config: Config) -> TelegramSettings | None:
    """What the Telegram adapter is told; None without a token."""
    if config.telegram.token is None:
        return None
    return TelegramSettings(
        token=config.telegram.token.get_secret_value(),
        base_url=config.telegram.base_url,
        webhook=_webhook_settings(config),
    )


def _webhook_settings(config: Config) -> WebhookSettings | None:
    webhook = config.telegram.webhook
    if webhook.url is None:
        return None
    secret = webhook.secret.get_secret_value() if webhook.secret is not None else secrets.token_urlsafe(32)
    return WebhookSettings(url=webhook.url, secret=secret, host=webhook.host, port=webhook.port)


def discord_settings(config: Config) -> DiscordSettings | None:
    """What the Discord adapter is told; None without a token."""
    discord = config.discord
    if discord.token is None:
        return None
    return DiscordSettings(
        token=discord.token.get_secret_value(),
        api_url=discord.api_url,
        gateway_url=discord.gateway_url,
        catch_up_hours=discord.catch_up_hours,
        catch_up_messages=discord.catch_up_messages,
    )


def make_agents(
    loaded: LoadedConfig,
    lines: ClientRegistry,
    *,
    store: Store,
    extra_tools: Sequence[Tool],
    listeners: Sequence[Listener],
    on_wait: OnWait,
    clock: Clock,
) -> Agents:
    """The agents of a configuration, the configured model's first.

    Raises `ConfigError` for a context engine that is not there or is broken.
    """
    views, tools, redactor = ViewCache(store), (*recall_tools(), *extra_tools), Redactor(loaded.secrets())
    around = _engine_maker(loaded, redactor, clock)

    def make(route: RouteConfig) -> Agent:
        line = lines.of(route)
        return Agent(
            store=store,
            line=line,
            tools=ToolRegistry(tools),
            settings=_agent_settings(loaded, route),
            clock=clock,
            summary_routes=summary_routes(loaded.config, route, lines),
            listeners=listeners,
            on_wait=on_wait,
            redact=redactor,
            make_engine=None if around is None else partial(around, route),
            views=views,
        )

    return Agents(loaded.config.model.route, make, lines.of)


def _agent_settings(loaded: LoadedConfig, route: RouteConfig) -> AgentSettings:
    habits = loaded.config.agent
    zone = ZoneInfo(habits.time_zone) if habits.time_zone is not None else datetime.now().astimezone().tzinfo
    return AgentSettings(
        context_length=configured_limits(route).context_length,
        max_output_tokens=configured_limits(route).max_output_tokens,
        sees_images=route.sees_images,
        attachments=loaded.attachments,
        zone=zone or UTC,
        persona=habits.persona or DEFAULT_PERSONA,
        max_tool_rounds=habits.max_tool_rounds,
        context=context_settings(loaded.config, zone or UTC, route.name),
    )


def summary_routes(config: Config, live: RouteConfig, lines: ClientRegistry) -> list[SummaryRoute]:
    """Who is asked for the summaries of conversations with a model: whoever does that task, then the model itself.

    The built-in offline model never is: it cannot write one.
    """
    mark, routes = settings_mark(config), []
    named = route_for(config, "compression", live)
    if named is not None and named != live:
        routes.append(SummaryRoute(line=lines.of(named), context_length=_context_of(named, config), mark=mark))
    if live.protocol != "offline":
        routes.append(SummaryRoute(line=lines.of(live), mark=mark))
    return routes


def _context_of(route: RouteConfig, config: Config) -> Tokens:
    """The context of a model that only writes summaries, whose provider is not asked."""
    listed = listed_limits(route.label).context_length
    return Tokens(route.context_length or listed or config.model.context_length or ASSUMED_CONTEXT)


def _engine_maker(
    loaded: LoadedConfig, redactor: Redactor, clock: Clock
) -> Callable[[RouteConfig, Engine], Engine] | None:
    """Puts the plugin that `context.engine` names in front of the built-in engines. Raises `ConfigError`.

    All models share its engines: a conversation that changes its model keeps the one that knows it.
    """
    engine = load_engine(loaded.config.context.engine, loaded.home)
    if engine is None:
        return None
    made: list[PluginEngine] = []
    mark = settings_mark(loaded.config)

    def around(route: RouteConfig, built_in: Engine) -> Engine:
        facts = ModelInfo(
            name=route.label,
            context_length=capacity_in(route).context_length,
            base_url=route.base_url or "",
            api_key=route.api_key.get_secret_value() if route.api_key is not None else "",
            provider=route.protocol,
        )
        if made:
            return made[0].beside(built_in, facts)
        made.append(engine.around(built_in, model=facts, redact=redactor, clock=clock, mark=mark))
        return made[0]

    return around


def agent_inputs(config: Config) -> tuple[BaseConfig, ...]:
    """The blocks of the configuration that an agent is made from: when one changes, there has to be another agent."""
    return (
        *(config.model, config.agent, config.compression, config.hygiene, config.auxiliary, config.context),
        config.costs,
    )


def settings_mark(config: Config) -> str:
    """A few letters that change with any setting of the agent, its keys included: a change clears cooldowns.

    It is stored with conversations, so it is too short to tell anything about a key.
    """
    blocks = [block.model_dump_json() for block in agent_inputs(config)]
    keys = [key for block in agent_inputs(config) for key in secrets_of(block)]
    return hashlib.sha256("\n".join([*blocks, *keys]).encode()).hexdigest()[:6]
