"""From configuration to parts: which adapters there are, and the agent with its model and tools."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent.context.compressor import CompressorSettings, SummaryRoute
from agent.context.cuts import CutRules
from agent.context.events import Listener
from agent.context.keeper import ContextSettings
from agent.context.limits import Limits, LimitSettings, limits_of
from agent.model.base import ChatModel
from agent.model.chat_completions import ChatCompletionsModel, ChatCompletionsSettings
from agent.model.offline import OfflineModel
from agent.prompt import DEFAULT_PERSONA, system_prompt
from agent.sizes import estimated_schema_tokens, estimated_text_tokens
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolRegistry
from agent.turn import Agent, AgentSettings
from gateway.config import LoadedConfig
from gateway.config.section import Section
from gateway.config.settings import Config, ModelSettings
from hermes_state.redaction import Redactor
from hermes_state.store import Store
from hermes_state.values import ChatKey, ChatKind, Clock, EstimatedTokens, Tokens
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


def make_model(settings: ModelSettings) -> ChatModel:
    """The model that answers, ready to be called."""
    if settings.protocol == "offline":
        return OfflineModel()
    assert settings.name is not None, "the settings require a name for this protocol"
    key = settings.api_key.get_secret_value() if settings.api_key is not None else ""
    return ChatCompletionsModel(
        ChatCompletionsSettings(
            model=settings.name,
            api_key=key,
            base_url=settings.base_url,
            connect_seconds=settings.connect_seconds,
            read_seconds=settings.read_seconds,
        )
    )


def make_summary_model(config: Config) -> SummaryRoute | None:
    """A model of its own for summaries; None where the conversation's model writes them.

    The key of `model` goes along only to the API that it is for.
    """
    task = config.auxiliary.compression
    name = config.compression.for_model(config.model.name or "").summary_model or task.model
    if name is None:
        return None
    is_elsewhere = task.base_url is not None and task.base_url != config.model.base_url
    key = task.api_key or (None if is_elsewhere else config.model.api_key)
    model = ChatCompletionsModel(
        ChatCompletionsSettings(
            model=name,
            api_key=key.get_secret_value() if key is not None else "",
            base_url=task.base_url or config.model.base_url,
            connect_seconds=config.model.connect_seconds,
            read_seconds=config.model.read_seconds,
        )
    )
    return SummaryRoute(model=model, context_length=Tokens(task.context_length or config.model.context_length))


def make_agent(
    model: ChatModel,
    loaded: LoadedConfig,
    *,
    summary: SummaryRoute | None,
    store: Store,
    extra_tools: Sequence[Tool],
    listeners: Sequence[Listener],
    clock: Clock,
) -> Agent:
    """The agent around a model. The built-in offline model is never asked for a summary: it cannot write one."""
    config = loaded.config
    settings, habits = config.model, config.agent
    zone = ZoneInfo(habits.time_zone) if habits.time_zone is not None else datetime.now().astimezone().tzinfo
    own = SummaryRoute(model=model, context_length=Tokens(settings.context_length))
    routes = [route for route in (summary, own if settings.protocol != "offline" else None) if route is not None]
    return Agent(
        store=store,
        model=model,
        tools=ToolRegistry([*recall_tools(), *extra_tools]),
        settings=AgentSettings(
            context_length=Tokens(settings.context_length),
            max_output_tokens=Tokens(settings.max_output_tokens),
            sees_images=settings.sees_images,
            attachments=loaded.attachments,
            zone=zone or UTC,
            persona=habits.persona or DEFAULT_PERSONA,
            max_tool_rounds=habits.max_tool_rounds,
            context=context_settings(config, zone or UTC),
        ),
        clock=clock,
        summary_routes=routes,
        listeners=listeners,
        redact=Redactor(loaded.secrets()),
    )


def agent_inputs(config: Config) -> tuple[Section, ...]:
    """The blocks of the configuration that an agent is made from: when one changes, there has to be another agent."""
    return (config.model, config.agent, config.compression, config.hygiene, config.auxiliary, config.context)


def context_settings(config: Config, zone: tzinfo) -> ContextSettings:
    """What holds for the configured model, its own overrides included."""
    compression = config.compression.for_model(config.model.name or "")
    return ContextSettings(
        is_enabled=compression.enabled,
        limits=LimitSettings(
            threshold=compression.threshold,
            target_ratio=compression.target_ratio,
            tail_mode=compression.tail_mode,
            minimum_context_length=compression.minimum_context_length,
            maximum_threshold_tokens=compression.maximum_threshold_tokens,
            summary_budget=compression.summary_budget,
            summary_max_tokens=compression.summary_max_tokens,
            hygiene_threshold=config.hygiene.threshold,
        ),
        compressor=CompressorSettings(
            cut=CutRules(
                protect_last_n=compression.protect_last_n,
                protect_first_n=compression.protect_first_n,
                protect_first=compression.protect_first,
            ),
            prune_style=compression.prune_style,
            summary_template=compression.summary_template,
            abort_on_summary_failure=compression.abort_on_summary_failure,
            zone=zone,
        ),
        hard_message_limit=config.hygiene.hard_message_limit,
        hold_seconds=config.hygiene.hold_seconds,
        note_in_system=compression.note_in_system,
        pressure_levels=compression.pressure_levels,
    )


def window_limits(config: Config) -> Limits:
    """Where conversations with the configured model are compressed, before anything is learned of it."""
    model = config.model
    return limits_of(model.context_length, model.max_output_tokens, context_settings(config, UTC).limits)


def fixed_prompt_tokens(config: Config) -> EstimatedTokens:
    """What every prompt begins with: the system prompt of a private chat and the schemas of the built-in tools."""
    tools = recall_tools()
    prompt = system_prompt(
        persona=config.agent.persona or DEFAULT_PERSONA,
        chat=ChatKey(platform="telegram", account="telegram", chat_ref=""),
        kind=ChatKind.DIRECT,
        tool_names=[tool.name for tool in tools],
    )
    schemas = sum(estimated_schema_tokens(tool.name, tool.description, tool.parameters) for tool in tools)
    return EstimatedTokens(estimated_text_tokens(prompt) + schemas)
