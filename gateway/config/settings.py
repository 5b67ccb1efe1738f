"""Settings: every key with its default, unit, range and meaning.

`docs/reference/configuration.md` is compared with these classes by a test. How values are found and checked is in
`loader.py`; nothing else reads a file or the environment.

The docstring below a field is what people read about it. `setting()`, or a `Setting` at a field of a part's own
settings, adds the range and the unit, and tells whether a changed value needs a restart.
"""

import socket
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from agent.settings import (
    AgentSettings,
    MemorySettings,
    SubagentSettings,
    TerminalSettings,
    TranscriptionSettings,
    WebSettings,
    WorkspaceSettings,
)
from gateway.config.blocks import BaseConfig, did_you_mean, setting, unknown_key
from gateway.config.context_settings import (
    AuxiliaryConfig,
    CompressionConfig,
    ContextEngineConfig,
    HygieneConfig,
    NoticeConfig,
)
from gateway.config.routes import Aliases, Fallbacks, RouteConfig, WrittenRoute, completed
from gateway.config.tool_settings import McpConfig, ScheduleConfig, ToolsConfig
from hermes_state.engines.opening import StoreSettings
from hermes_state.files import AttachmentSettings
from hermes_state.kinds import AnyCase, OffOrNumber, People, keyed
from platforms.settings import DiscordSettings, LocalSettings, TelegramSettings


class ModelConfig(RouteConfig):
    """The model that answers."""

    fallbacks: Fallbacks = ()
    """Models that answer, in this order, when that one fails: aliases, names of models at the same provider, or blocks
    with any of the keys from `base_url` to `extra_body`."""
    aliases: Aliases = setting({}, default_text="none")
    """Short names for `/model`: each with the name of a model at the same provider, or with a block as above."""
    cache_ttl: Annotated[Literal["5m", "1h"], AnyCase] = "5m"
    """Time for which Claude models keep a prompt for the next call; an hour costs more to write. Other providers keep
    what they like."""
    turn_seconds: float = setting(900, ge=1, le=86_400, unit="seconds")
    """Longest time a whole turn may take, tools included. It begins anew when a restart takes the turn up again."""
    connect_seconds: float = setting(5, ge=0.1, le=120, unit="seconds")
    """Longest wait for a connection to the provider."""
    read_seconds: float = setting(120, ge=0.1, le=3_600, unit="seconds")
    """Longest silence of the provider before a call counts as timed out. Once a reply has begun, what brings nothing of
    it, such as comments that keep the line open, is silence, too."""
    first_piece_seconds: float = setting(300, ge=0.1, le=86_400, unit="seconds")
    """Longest wait for a reply to begin, with text, reasoning or a call, while the provider keeps the line open: models
    that think take their time."""

    @cached_property
    def fallback_routes(self) -> tuple[RouteConfig, ...]:
        """The fallbacks, complete, in their order; none is there twice."""
        return tuple(dict.fromkeys(self.named_route(written) for written in self.fallbacks))

    @property
    def routes(self) -> tuple[RouteConfig, ...]:
        """Every route that the configuration names, the configured model's first."""
        aliased = (self.alias_route(alias) for alias in self.aliases)
        return tuple(dict.fromkeys((self.route, *aliased, *self.fallback_routes)))

    def alias_route(self, alias: str) -> RouteConfig:
        """The route that an alias stands for. Raises `KeyError`."""
        return completed(self.aliases[alias], self)

    def named_route(self, written: WrittenRoute) -> RouteConfig:
        """The route of an alias, of a model at the same provider, or of a block. Raises `ValueError`."""
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
    """People who may write to the gateway. Nobody, unless named here or paired."""

    allow_all: bool = False
    """Let everybody in. For bots that nobody else can find."""
    allow: People = ()
    """People with the role user, as stable ids."""
    admins: People = ()
    """People with the role admin, as stable ids; they need no other entry."""
    moderators: People = ()
    """People who, beside admins, may use `/new`, `/resume`, `/undo`, `/model <name>`, `/compress undo` and `/memory
    add` in a chat of several people, as stable ids; they have the role user and need no other entry."""

    @property
    def names_somebody(self) -> bool:
        return self.allow_all or bool(self.allow) or bool(self.admins) or bool(self.moderators)


class PairingConfig(BaseConfig):
    """Codes by which strangers ask for access in a direct chat."""

    enabled: bool = True
    """Answer a stranger's direct message with a pairing code that an admin can approve."""


class SessionConfig(BaseConfig):
    """Rules by which chats become conversations and turns."""

    groups: Annotated[Literal["shared", "per_user"], AnyCase] = "shared"
    """One conversation per group, or one per person in it."""
    busy_mode: Annotated[Literal["queue", "steer", "interrupt"], AnyCase] = "queue"
    """Effect of a message that arrives during a turn: it waits for the next one, joins it, or ends it."""
    merge_seconds: float = setting(2, ge=0, le=60, unit="seconds")
    """Waiting messages of one sender within this span become one turn. 0: off."""
    max_turns: int = setting(256, ge=1, le=10_000, unit="turns", restart=True)
    """Turns running at one time, over all chats."""
    messages_per_minute: int = setting(60, ge=0, le=10_000, unit="messages")
    """Messages of one person that are taken within a minute; one sentence refuses the next, and what follows until the
    minute is over. 0: as many as come."""
    idle_reset_hours: OffOrNumber = setting(None, ge=0.1, le=8_760, unit="hours", default_text="off")
    """Silence after which a chat starts a new conversation."""


MAX_DOLLARS = 1_000_000


def _price_list(value: object) -> Mapping[str, Mapping[str, float]]:
    """Return prices by pattern; from a variable as JSON."""
    found = {}
    for pattern, prices in keyed(value).items():
        if not isinstance(prices, dict):
            raise ValueError("must be a block of patterns, each with `input` and `output` below it")
        for key in (*prices, "input", "output"):
            price = prices.get(key)
            known = ("input", "output", "cache_read", "cache_write")
            if key not in known:
                raise ValueError(f"{pattern}: {unknown_key(key, known)}")
            if price is None and key in ("input", "output"):
                raise ValueError(f"{pattern}.{key} is missing: write it in US dollars for a million tokens")
            is_number = isinstance(price, int | float) and not isinstance(price, bool)
            if price is not None and not (is_number and 0 <= price <= MAX_DOLLARS):
                raise ValueError(f"{pattern}.{key} must be US dollars for a million tokens, such as 2.50")
        found[str(pattern).strip()] = {key: float(price) for key, price in prices.items() if price is not None}
    return found


class CostConfig(BaseConfig):
    """Prices of model calls, and caps on spending."""

    prices: Annotated[dict[str, dict[str, float]], BeforeValidator(_price_list)] = setting(
        {}, default_text="built in for well-known models"
    )
    """Price of models, in US dollars for a million tokens: a pattern such as `gpt-5*`, and below it `input`, `output`
    and, where they differ, `cache_read` and `cache_write`. The longest pattern wins."""
    daily_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Most that the whole gateway may spend in a day, which begins at midnight in `agent.time_zone`."""
    chat_daily_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Most that one chat may spend in a day."""
    conversation_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Most that one conversation may cost, from `/new` to `/new`."""

    @property
    def has_caps(self) -> bool:
        return any(cap is not None for cap in (self.daily_cap, self.chat_daily_cap, self.conversation_cap))


class ClusterConfig(BaseConfig):
    """This gateway among others that share its PostgreSQL database."""

    name: str = setting(default_factory=lambda _: socket.gethostname(), default_text="the machine's name", restart=True)
    """Name of this node, in the log and in `cluster status`."""
    role: Annotated[Literal["node", "worker"], AnyCase] = setting("node", restart=True)
    """`worker`: it never serves a bot or the web chat, and answers what the others take in."""
    seat_seconds: float = setting(5, ge=1, le=60, unit="seconds", restart=True)
    """Time without a sign of life after which others take over the work of this node."""


class LoggingConfig(BaseConfig):
    """Log of the daemon; never message text or secrets."""

    level: Annotated[Literal["debug", "info", "warning", "error"], AnyCase] = "info"
    """Lowest level that is written."""
    format: Annotated[Literal["auto", "json", "console"], AnyCase] = setting("auto", restart=True)
    """On standard error. `auto`: `console` at a terminal, else `json`."""
    file: bool = setting(True, restart=True)
    """Also write JSON lines to `logs/gateway.log`, rotated at 10 MB, five old files kept."""


class LifecycleConfig(BaseConfig):
    """Starting and stopping."""

    drain_seconds: float = setting(30, ge=0, le=600, unit="seconds")
    """Time in which running turns may finish after SIGTERM; what is left resumes at the next start."""


class Config(BaseConfig):
    """Everything that can be configured, checked and complete.

    Made by `gateway.config.load_config`, which alone knows where values come from; this reads nothing.
    """

    telegram: TelegramSettings = Field(default_factory=TelegramSettings)
    discord: DiscordSettings = Field(default_factory=DiscordSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)
    model: ModelConfig = Field(default_factory=ModelConfig)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    tools: ToolsConfig = Field(default_factory=ToolsConfig)
    access: AccessConfig = Field(default_factory=AccessConfig)
    pairing: PairingConfig = Field(default_factory=PairingConfig)
    sessions: SessionConfig = Field(default_factory=SessionConfig)
    compression: CompressionConfig = Field(default_factory=CompressionConfig)
    hygiene: HygieneConfig = Field(default_factory=HygieneConfig)
    auxiliary: AuxiliaryConfig = Field(default_factory=AuxiliaryConfig)
    context: ContextEngineConfig = Field(default_factory=ContextEngineConfig)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    subagents: SubagentSettings = Field(default_factory=SubagentSettings)
    schedules: ScheduleConfig = Field(default_factory=ScheduleConfig)
    notices: NoticeConfig = Field(default_factory=NoticeConfig)
    costs: CostConfig = Field(default_factory=CostConfig)
    attachments: AttachmentSettings = Field(default_factory=AttachmentSettings)
    workspace: WorkspaceSettings = Field(default_factory=WorkspaceSettings)
    transcription: TranscriptionSettings = Field(default_factory=TranscriptionSettings)
    terminal: TerminalSettings = Field(default_factory=TerminalSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    mcp: McpConfig = Field(default_factory=McpConfig)
    store: StoreSettings = Field(default_factory=StoreSettings)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    lifecycle: LifecycleConfig = Field(default_factory=LifecycleConfig)

    @model_validator(mode="after")
    def _is_safe(self) -> "Config":
        if self.local.enabled and not self.local.is_loopback and not self.access.names_somebody:
            raise ValueError(
                f"local.host {self.local.host} is reachable from other machines, but access names nobody: "
                "set access.admins (or access.allow), or keep local.host at 127.0.0.1"
            )
        for task, word in self.auxiliary.routes.items():
            if word not in (known := ("auto", "main", "off", *self.model.aliases)):
                meant = did_you_mean(word, known) or "; write auto, main, off, or an alias"
                raise ValueError(f"auxiliary.{task}: {word!r} is no alias of model.aliases{meant}")
        if self.cluster.role == "worker" and self.store.url is None:
            raise ValueError("cluster.role is worker, but store.url names no PostgreSQL database with other nodes")
        return self
