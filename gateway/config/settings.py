"""Settings: every key with its default, unit, range and meaning.

A test compares `docs/reference/configuration.md` with these classes. `loader.py` loads and checks the values.

The docstring below a field is its description for users. `setting()`, or a `Setting` in a dataclass of settings, adds
the range, the unit and the restart flag.
"""

import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from agent.settings import (
    AgentSettings,
    MemorySettings,
    TerminalSettings,
    TranscriptionSettings,
    VoiceSettings,
    WebSettings,
    WorkspaceSettings,
)
from gateway.config.accounts import Bot, DiscordConfig, TelegramConfig, check_accounts, check_places
from gateway.config.agents import Agents, Routes
from gateway.config.blocks import BaseConfig, did_you_mean, setting, unknown_key
from gateway.config.context_settings import (
    AuxiliaryConfig,
    CompressionConfig,
    ContextEngineConfig,
    HygieneConfig,
    NoticeConfig,
)
from gateway.config.routes import Aliases, Fallbacks, RouteConfig, WrittenRoute, completed
from gateway.config.tool_settings import McpConfig, ToolsConfig
from gateway.config.webhooks import Webhooks
from hermes_state.engines.opening import StoreSettings
from hermes_state.files import AttachmentSettings
from hermes_state.network import NetworkSettings
from hermes_state.setting_types import AnyCase, ListenAddress, OffOrNumber, People, keyed
from platforms.settings import LocalSettings, TableStyle


class ModelConfig(RouteConfig):
    """Main model. The gateway does not send parameters that you leave out, so the provider's defaults apply."""

    fallbacks: Fallbacks = ()
    """Models to try, in this order, if the main model fails. Each entry is an alias, a model name at the same
    provider, or a block with keys such as `name`, `base_url` and `api_key`."""
    aliases: Aliases = setting({}, default_text="none")
    """Short names for `/model`. The value is a model name at the same provider, or a block as in `fallbacks`."""
    cache_ttl: Annotated[Literal["5m", "1h"], AnyCase] = "5m"
    """Lifetime of Claude prompts in the provider's cache. `1h` suits chats with long pauses, but costs more."""
    turn_seconds: float = setting(900, ge=1, le=86_400, unit="seconds")
    """Maximum time for one turn, including tool calls."""
    read_seconds: float = setting(120, ge=0.1, le=3_600, unit="seconds")
    """Maximum time without new output before a model call times out."""
    first_piece_seconds: float = setting(300, ge=0.1, le=86_400, unit="seconds")
    """Maximum time to wait until a reply begins. Increase the limit for slow reasoning models."""

    @cached_property
    def fallback_routes(self) -> tuple[RouteConfig, ...]:
        """Return the complete fallback routes in the configured order, without duplicates."""
        return tuple(dict.fromkeys(self.named_route(written) for written in self.fallbacks))

    @property
    def routes(self) -> tuple[RouteConfig, ...]:
        """Return every configured route. The route of the configured model comes first."""
        aliased = (self.alias_route(alias) for alias in self.aliases)
        return tuple(dict.fromkeys((self.route, *aliased, *self.fallback_routes)))

    def alias_route(self, alias: str) -> RouteConfig:
        """Return the route of an alias. Raises `KeyError` for an unknown alias."""
        return completed(self.aliases[alias], self)

    def named_route(self, written: WrittenRoute) -> RouteConfig:
        """Return the route of an alias, a model name or a block. Raises `ValueError` for an invalid block."""
        if isinstance(written, str):
            written = self.aliases.get(written.lower(), written)
        return completed(written, self)

    @model_validator(mode="after")
    def _is_usable(self) -> "ModelConfig":
        complaint = self.complaint("model")
        if complaint is not None:
            raise ValueError(complaint)
        routes = [(f"model.fallbacks[{number}]", written) for number, written in enumerate(self.fallbacks, start=1)]
        routes += [(f"model.aliases.{alias}", written) for alias, written in self.aliases.items()]
        for key, written in routes:
            try:
                complaint = self.named_route(written).complaint(key)
            except ValueError as error:
                raise ValueError(f"{key}.{error}") from None
            if complaint is not None:
                raise ValueError(complaint)
        return self


class AccessConfig(BaseConfig):
    """People who can use the bot. Everyone else needs a pairing code."""

    allow_all: bool = False
    """Let everyone use the bot. Use this setting only for a bot that strangers cannot find."""
    allow: People = ()
    """Stable ids of people with the `user` role, such as `telegram:42`."""
    admins: People = ()
    """Stable ids of people with the `admin` role. Admins need no entry in `allow`."""
    moderators: People = ()
    """Stable ids of users who can also use `/new`, `/resume`, `/undo`, `/model <name>`, `/compress undo`, `/memory
    add` and `/groupcontext` in shared chats."""

    @property
    def names_somebody(self) -> bool:
        return self.allow_all or bool(self.allow) or bool(self.admins) or bool(self.moderators)


class PairingConfig(BaseConfig):
    """Pairing codes, with which strangers can ask for access."""

    enabled: bool = True
    """Answer a stranger's direct message with a pairing code."""


class SessionConfig(BaseConfig):
    """Conversations and turns."""

    groups: Annotated[Literal["shared", "per_user"], AnyCase] = "shared"
    """In a group, keep one conversation for everyone (`shared`) or one for each person (`per_user`)."""
    busy_mode: Annotated[Literal["queue", "steer", "interrupt"], AnyCase] = "queue"
    """Effect of a message that arrives during an answer: wait for the next turn (`queue`), join the running turn
    (`steer`) or stop it (`interrupt`)."""
    merge_seconds: float = setting(2, ge=0, le=60, unit="seconds")
    """Merge queued messages of one person if they are sent within this time of each other. `0` turns merging off."""
    max_turns: int = setting(256, ge=1, le=10_000, unit="turns", restart=True)
    """Maximum number of turns at the same time, in all chats. Lower the limit if your model server is slow."""
    messages_per_minute: int = setting(60, ge=0, le=10_000, unit="messages")
    """Maximum number of messages that one person can send per minute. `0` means no limit."""
    idle_reset_hours: OffOrNumber = setting(None, ge=0.1, le=8_760, unit="hours", default_text="off")
    """Hours without a message after which a chat starts a new conversation."""


SwitchWord = BeforeValidator(lambda value: ("off", "on")[value] if isinstance(value, bool) else value)
"""Validator for YAML, which reads a bare `on` or `off` as true or false."""


class GroupConfig(BaseConfig):
    """Groups: what the bot reads there besides the messages to it."""

    context: Annotated[Literal["off", "on"], SwitchWord, AnyCase] = "off"
    """Store what people say between two mentions, and show it to the next turn as a quote. Each group can change this
    with `/groupcontext`. Set it to `on` if all groups of the bot should start with it."""


MAX_DOLLARS = 1_000_000


def _price_list(value: object) -> Mapping[str, Mapping[str, float]]:
    """Return prices by model pattern. In an environment variable, they are written as JSON."""
    found = {}
    for pattern, prices in keyed(value).items():
        if not isinstance(prices, dict):
            raise ValueError("must be a block of model patterns, each with `input` and `output`")
        for key in (*prices, "input", "output"):
            price = prices.get(key)
            known = ("input", "output", "cache_read", "cache_write")
            if key not in known:
                raise ValueError(f"{pattern}: {unknown_key(key, known)}")
            if price is None and key in ("input", "output"):
                raise ValueError(f"{pattern}.{key} is missing: set it in US dollars per million tokens")
            is_number = isinstance(price, int | float) and not isinstance(price, bool)
            if price is not None and not (is_number and 0 <= price <= MAX_DOLLARS):
                raise ValueError(f"{pattern}.{key} must be a price in US dollars per million tokens, such as 2.50")
        found[str(pattern).strip()] = {key: float(price) for key, price in prices.items() if price is not None}
    return found


class CostConfig(BaseConfig):
    """Prices of model calls, and spending caps."""

    prices: Annotated[dict[str, dict[str, float]], BeforeValidator(_price_list)] = setting(
        {}, default_text="built-in list"
    )
    """Prices in US dollars per million tokens, by model pattern such as `gpt-5*`. Each entry needs `input` and
    `output`; `cache_read` and `cache_write` are optional. The longest matching pattern wins."""
    daily_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Maximum spending of the gateway per day. The day begins at midnight in `agent.time_zone`."""
    chat_daily_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Maximum spending of one chat per day."""
    conversation_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Maximum cost of one conversation, until the next `/new`."""

    @property
    def has_caps(self) -> bool:
        return any(cap is not None for cap in (self.daily_cap, self.chat_daily_cap, self.conversation_cap))


class ClusterConfig(BaseConfig):
    """Settings of this node in a cluster. The nodes of a cluster share one PostgreSQL database."""

    name: str = setting(default_factory=lambda _: socket.gethostname(), default_text="the machine's name", restart=True)
    """Name of this node in logs and in `cluster status`."""
    role: Annotated[Literal["node", "worker"], AnyCase] = setting("node", restart=True)
    """Role of this node. A `worker` answers messages that other nodes receive, but connects to no platform."""
    seat_seconds: float = setting(5, ge=1, le=60, unit="seconds", restart=True)
    """Seconds without contact with the database after which other nodes take over this node's work."""


class LoggingConfig(BaseConfig):
    """Log of the daemon. The log never contains message text or secrets."""

    level: Annotated[Literal["debug", "info", "warning", "error"], AnyCase] = "info"
    """Lowest level of events to log. Set `debug` to investigate a problem."""
    format: Annotated[Literal["auto", "json", "console"], AnyCase] = setting("auto", restart=True)
    """Format of the log on standard error. `auto` means `console` at a terminal, otherwise `json`."""
    file: bool = setting(True, restart=True)
    """Also write the log to the file `logs/gateway.log`, as JSON lines. The gateway keeps five older files of 10 MB."""


class MetricsConfig(BaseConfig):
    """Health checks and metrics for monitoring systems."""

    listen: ListenAddress = setting(None, default_text="off", restart=True)
    """Address for `/healthz`, `/readyz` and `/metrics`, such as `127.0.0.1:9464`. Set an address if Prometheus or
    another program watches the gateway. There is no sign-in, so keep strangers away from other addresses."""


class RetentionConfig(BaseConfig):
    """Old conversations. The gateway writes them to the folder `archive/` and deletes them. Open conversations stay."""

    days: OffOrNumber = setting(None, ge=1, le=36_500, unit="days", default_text="off")
    """Days without a message after which a conversation is archived and deleted. Set this if old messages must not stay
    in the database. `sessions.idle_reset_hours` ends conversations that would otherwise stay open."""
    max_gb: OffOrNumber = setting(None, ge=0.001, le=100_000, unit="GB", default_text="off")
    """Maximum amount of message text. Above it, the oldest conversations are archived and deleted. Attachments have
    their own limit, and the search index is not counted."""


class LifecycleConfig(BaseConfig):
    """Shutdown of the daemon."""

    drain_seconds: float = setting(30, ge=0, le=600, unit="seconds")
    """Time for running turns to finish after SIGTERM. If you increase this time, increase `TimeoutStopSec` in the
    systemd unit as well."""


class DeliveryConfig(BaseConfig):
    """Layout of answers on Telegram and Discord."""

    tables: Annotated[TableStyle, AnyCase] = setting("list", restart=True)
    """Layout of tables that are wider than 30 characters, because phones would wrap them: a list with one entry per row
    (`list`), or monospaced text (`text`)."""


class Config(BaseConfig):
    """Complete configuration, checked by `gateway.config.load_config`."""

    agents: Agents = setting({}, default_text="none")
    """Agents by name. Each can have `persona`, `model`, `skills`, `shared_notes`, caps under `costs`, and the blocks
    `tools`, `memory`, `compression`, `hygiene` and `context`. For all other keys, the values of this file apply."""
    routes: Routes = setting((), default_text="none")
    """Rules that select the agent of a chat: `agent` with `chat`, `account`, `guild` or `role`. The most specific rule
    wins."""
    webhooks: Webhooks = setting({}, default_text="none")
    """Signed webhooks by name. Each needs `secret`. With `chat` and `template`, requests to `/hooks/<name>` become
    messages in that chat. With `url` and `events`, the gateway sends events to that address."""
    telegram: TelegramConfig = Field(default_factory=TelegramConfig)
    discord: DiscordConfig = Field(default_factory=DiscordConfig)
    local: LocalSettings = Field(default_factory=LocalSettings)
    model: ModelConfig = Field(default_factory=ModelConfig)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    tools: ToolsConfig = Field(default_factory=ToolsConfig)
    access: AccessConfig = Field(default_factory=AccessConfig)
    pairing: PairingConfig = Field(default_factory=PairingConfig)
    sessions: SessionConfig = Field(default_factory=SessionConfig)
    groups: GroupConfig = Field(default_factory=GroupConfig)
    delivery: DeliveryConfig = Field(default_factory=DeliveryConfig)
    compression: CompressionConfig = Field(default_factory=CompressionConfig)
    hygiene: HygieneConfig = Field(default_factory=HygieneConfig)
    auxiliary: AuxiliaryConfig = Field(default_factory=AuxiliaryConfig)
    context: ContextEngineConfig = Field(default_factory=ContextEngineConfig)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    notices: NoticeConfig = Field(default_factory=NoticeConfig)
    costs: CostConfig = Field(default_factory=CostConfig)
    attachments: AttachmentSettings = Field(default_factory=AttachmentSettings)
    workspace: WorkspaceSettings = Field(default_factory=WorkspaceSettings)
    transcription: TranscriptionSettings = Field(default_factory=TranscriptionSettings)
    voice: VoiceSettings = Field(default_factory=VoiceSettings)
    terminal: TerminalSettings = Field(default_factory=TerminalSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    mcp: McpConfig = Field(default_factory=McpConfig)
    network: NetworkSettings = Field(default_factory=NetworkSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    retention: RetentionConfig = Field(default_factory=RetentionConfig)
    lifecycle: LifecycleConfig = Field(default_factory=LifecycleConfig)

    @property
    def bots(self) -> Mapping[str, Bot]:
        """Settings of every bot with a token, by account."""
        bots: tuple[Bot, ...] = (*self.telegram.bots, *self.discord.bots)
        return {bot.account: bot for bot in bots}

    def label_of(self, account: str) -> str:
        """Return the name of an account for people."""
        return bot.label if (bot := self.bots.get(account)) is not None else account

    @model_validator(mode="after")
    def _is_safe(self) -> "Config":
        self.network.check()
        check_accounts(self.telegram, self.discord)
        places = {
            "tools.use_on": [*self.tools.use_on],
            "tools.approval_on": [*self.tools.approval_on],
            "webhooks": [hook.chat for hook in self.webhooks.values()],
            **{f"routes[{place}]": (one.chat, one.account) for place, one in enumerate(self.routes, start=1)},
        }
        check_places(self.telegram, self.discord, places)
        if self.webhooks and not self.local.enabled:
            raise ValueError("webhooks need the server of the web chat: set local.enabled to true")
        if self.local.enabled and not self.local.is_loopback and not self.access.names_somebody:
            raise ValueError(
                f"local.host {self.local.host} is reachable from other machines, but `access` is empty: "
                "set access.admins or access.allow, or set local.host to 127.0.0.1"
            )
        for task, word in self.auxiliary.routes.items():
            if word not in (known := ("auto", "main", "off", *self.model.aliases)):
                meant = did_you_mean(word, known) or "; use auto, main, off or an alias"
                raise ValueError(f"auxiliary.{task}: {word!r} is not an alias in model.aliases{meant}")
        if self.cluster.role == "worker" and self.store.url is None:
            raise ValueError("cluster.role is worker, but store.url is not set: set it to the PostgreSQL database")
        return self
