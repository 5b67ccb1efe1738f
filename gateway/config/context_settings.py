"""Blocks of settings that keep conversations inside the window: compression, hygiene, auxiliary models, notices."""

import fnmatch
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gateway.config.errors import checked_block
from gateway.config.routes import CALL_KEYS, CallConfig, Protocol
from gateway.config.types import AnyCase, BaseConfig, Fractions, Secret, Trimmed, Url, setting

GLOBAL_KEYS = ("models", "enabled", "mode")
"""Keys of `compression` that hold for every model."""


class CompressionConfig(BaseConfig):
    """Compressing conversations before they outgrow the model's window."""

    enabled: bool = True
    """Compress by itself. Off: only `/compress` does."""
    mode: Annotated[Literal["background", "blocking"], AnyCase] = "background"
    """`background`: a summary is written while the conversation goes on, and waited for only without room. `blocking`:
    a compression that is due is finished before the next model call."""
    threshold: float = setting(0.50, ge=0.0, le=1.0, unit="of the context window")
    """Size of the prompt from which on the agent compresses. At most 75 % of the input window, whatever is set; `0`
    leaves it to `minimum_context_length`."""
    target_ratio: float = setting(0.20, ge=0.10, le=0.80, unit="of the threshold")
    """Most that the newest messages, which stay as they are, may take."""
    tail_mode: Annotated[Literal["fraction", "lean"], AnyCase] = "fraction"
    """`fraction`: the kept end is `target_ratio` of the threshold. `lean`: 2.5 % of the window, 10,000 to 25,000
    tokens, where that is less."""
    protect_last_n: int = setting(20, ge=1, le=1_000, unit="messages")
    """Newest messages that stay, as long as they take no more than half again of their share."""
    protect_first_n: int = setting(3, ge=0, le=100, unit="messages")
    """First messages that stay, within 4,000 tokens."""
    protect_first: Annotated[Literal["always", "first"], AnyCase] = "always"
    """`first`: the beginning is kept by the first compression only, as always on windows below 16,000 tokens."""
    minimum_context_length: int = setting(64_000, ge=0, le=20_000_000, unit="tokens")
    """The threshold is not below it, on windows at least twice as large."""
    maximum_threshold_tokens: int | None = setting(None, ge=1_024, le=20_000_000, unit="tokens")
    """The threshold is not above it."""
    summary_model: str | None = None
    """Model that writes summaries; wins over `auxiliary.compression.model`."""
    summary_budget: Annotated[Literal["proportional", "lean", "stepped"], AnyCase] = "proportional"
    """Length of a summary: a fifth of what it stands for, half of that (`lean`), or a share that falls with its
    size."""
    summary_max_tokens: int = setting(12_000, ge=256, le=200_000, unit="tokens")
    """A summary is not asked to be longer."""
    facts_share: float = setting(0.20, ge=0.0, le=0.40, unit="of the threshold")
    """Most that quoted lines with numbers, dates, paths and the like may take behind a summary; `0`: none are."""
    summary_seconds: float = setting(180, ge=5, le=3_600, unit="seconds")
    """Longest wait for one summary, however steadily it comes in; at most a quarter of `model.turn_seconds`."""
    summary_template: str | None = setting(None, default_text="thirteen headings")
    """Headings and explanations that a summary has to follow instead."""
    prune_style: Annotated[Literal["stub", "placeholder", "excerpt"], AnyCase] = "stub"
    """Form in which a summary is shown long tool results: one telling line, one bare line, or both ends."""
    note_in_system: bool = True
    """Add one sentence on compressed parts to the system prompt at the first compression."""
    abort_on_summary_failure: bool = False
    """While there is room, leave a conversation as it is when no model can summarise it, whatever the reason."""
    pressure_levels: Fractions = setting((), default_text="off")
    """Shares of the window, such as `[0.65, 0.75]`, at which a chat is told."""
    models: dict[str, dict[str, Any]] = setting({}, default_text="none")
    """Other values for some models: a pattern such as `gpt-5*`, and below it any of these keys."""

    @field_validator("models", mode="before")
    @classmethod
    def _has_usable_overrides(cls, models: object) -> object:
        if not isinstance(models, dict) or not all(isinstance(values, dict) for values in models.values()):
            raise ValueError("must be a block of patterns, each with a block of keys below it")
        known = [key for key in cls.model_fields if key not in GLOBAL_KEYS]
        for pattern, values in models.items():
            if key := next((key for key in values if key in GLOBAL_KEYS), None):
                raise ValueError(f"{pattern}.{key} cannot be set for one model")
            checked_block(cls, values, pattern, known)
        return models

    def for_model(self, name: str) -> "CompressionConfig":
        """Settings for one model, with the overrides of every pattern that it matches, in the order of the file."""
        changed = self
        for pattern, values in self.models.items():
            if fnmatch.fnmatchcase(name.lower(), pattern.lower()):
                changed = CompressionConfig.model_validate({**changed.model_dump(exclude={"models"}), **values})
        return changed


class HygieneConfig(BaseConfig):
    """The gateway's own look at a conversation, before a turn begins."""

    threshold: float = setting(0.85, ge=0.85, le=0.95, unit="of the context window")
    """Size of the prompt from which on it compresses; at 90 % of the input window at the latest."""
    hard_message_limit: int = setting(5_000, ge=50, le=1_000_000, unit="messages")
    """Compress from so many messages on, whatever their size."""
    hold_seconds: float = setting(10, ge=0, le=120, unit="seconds")
    """Longest time that a turn which could begin waits for this compression; its summary is then taken in when it is
    there."""


Mode: TypeAlias = Literal["auto", "same-as-main", "custom"]

AuxiliaryTask: TypeAlias = Literal["compression", "flush", "title", "delegate", "trajectories"]


def _mode_or_off(value: object) -> object:
    """YAML reads `off` as false."""
    return "off" if value is False or value == "false" else value


class TaskModelConfig(BaseConfig):
    """Keys that say which model does a task of the gateway, and where."""

    mode: Annotated[Mode | None, AnyCase] = setting(None, default_text="`auxiliary.mode`")
    """As `auxiliary.mode`, for this task alone."""
    model: str | None = None
    """Name or alias of the model that does it; not set: the one that the mode picks."""
    protocol: Annotated[Protocol | None, AnyCase] = setting(
        None, default_text="`model.protocol` at the same API, else `chat_completions`"
    )
    """Protocol of that API."""
    base_url: Url | None = setting(None, default_text="`model.base_url`")
    """Root of its API."""
    api_key: Secret | None = setting(None, default_text="`model.api_key`")
    """Key for that API."""
    context_length: int | None = setting(
        None,
        ge=1_024,
        le=20_000_000,
        unit="tokens",
        default_text="from the built-in list, else `model.context_length`, else 32768",
    )
    """Its context window; bounds what it is shown, never where conversations are compressed."""
    max_output_tokens: int | None = setting(None, ge=1, le=10_000_000, unit="tokens", default_text="the route's")
    """Highest output limit of its calls; a summary sets one only where the protocol wants it."""


class AuxiliaryTaskConfig(CallConfig, TaskModelConfig):
    """A model of its own for a task of the gateway; what calls say is for that task, whichever model does it."""

    @property
    def call_settings(self) -> dict[str, Any]:
        """Keys of the calls that are set, with their values."""
        values = {key: getattr(self, key) for key in (*CALL_KEYS, "max_output_tokens")}
        return {key: value for key, value in values.items() if value not in (None, {})}


class CompressionTaskConfig(AuxiliaryTaskConfig):
    """Model that writes summaries."""


class FlushTaskConfig(AuxiliaryTaskConfig):
    """Model that writes down what matters before a compression, see `memory.flush`."""


class TitleTaskConfig(AuxiliaryTaskConfig):
    """Model that names conversations without a title; asked once each, after the first answer."""

    mode: Annotated[Mode | Literal["off"] | None, BeforeValidator(_mode_or_off), AnyCase] = setting(
        None, default_text="`auxiliary.mode`"
    )  # type: ignore[assignment]  # one word more
    """As `auxiliary.mode`, for this task alone. `off`: conversations are called what people call them."""


class DelegateTaskConfig(AuxiliaryTaskConfig):
    """Model of sub-agents, to which the agent hands tasks on."""


class TrajectoriesTaskConfig(AuxiliaryTaskConfig):
    """Model that summarises for `hermes-gateway trajectories compress`."""


class AuxiliaryConfig(BaseConfig):
    """Models for the gateway's own work, such as summaries."""

    mode: Annotated[Mode, AnyCase] = "auto"
    """`auto`: the conversation's own model. `same-as-main`: the one of `model`, whatever `/model` chose. `custom`: the
    one named below; a task that names none has the conversation's own. A model that a task names does it in any
    mode."""
    compression: CompressionTaskConfig = Field(default_factory=CompressionTaskConfig)
    flush: FlushTaskConfig = Field(default_factory=FlushTaskConfig)
    title: TitleTaskConfig = Field(default_factory=TitleTaskConfig)
    delegate: DelegateTaskConfig = Field(default_factory=DelegateTaskConfig)
    trajectories: TrajectoriesTaskConfig = Field(default_factory=TrajectoriesTaskConfig)

    @property
    def tasks(self) -> Mapping[AuxiliaryTask, AuxiliaryTaskConfig]:
        """Every task by its name."""
        return {
            "compression": self.compression,
            "flush": self.flush,
            "title": self.title,
            "delegate": self.delegate,
            "trajectories": self.trajectories,
        }

    @model_validator(mode="after")
    def _is_complete(self) -> "AuxiliaryConfig":
        for name, task in self.tasks.items():
            if task.mode == "custom" and task.model is None:
                raise ValueError(f"auxiliary.{name}.mode custom needs auxiliary.{name}.model")
        if self.mode == "custom" and all(task.model is None for task in self.tasks.values()):
            raise ValueError("auxiliary.mode custom needs auxiliary.compression.model, or that of another task")
        return self


class ContextEngineConfig(BaseConfig):
    """Context engine: the code that compresses."""

    engine: Annotated[str, Trimmed] = "compressor"
    """The built-in `compressor`, or a plugin's name; `hermes-gateway plugins list` shows them."""


class NoticeConfig(BaseConfig):
    """Notices to a chat about the room of its conversation; never to the model."""

    pressure: bool = True
    """At 85 % of the threshold, once each time it is crossed."""
    accuracy: bool = True
    """At the second compression, then at every tenth: how often, and that details may have been lost."""
    waiting: bool = True
    """After 5 seconds of waiting for a compression that nobody asked for."""
