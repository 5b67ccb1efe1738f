"""Settings for compression, hygiene, auxiliary models and notices."""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, InstanceOf, PlainSerializer, TypeAdapter, model_validator

from agent.context.limits import ContextSettings, LimitSettings
from gateway.config.blocks import BaseConfig, checked_block, fields_of, setting
from gateway.config.old_keys import OLD_KEYS
from gateway.config.routes import CALL_KEYS, CallConfig, Protocol
from hermes_state.setting_types import AnyCase, Secret, Trimmed, Url
from hermes_state.settings import Setting

GLOBAL_KEYS = ("models", "enabled", "mode")
"""Keys of `compression` that apply to all models."""


def _overrides(models: object) -> object:
    if not isinstance(models, dict) or not all(isinstance(values, dict) for values in models.values()):
        raise ValueError("must be a block of model patterns, each with a block of keys")
    known = [key for key in fields_of(CompressionConfig) if key not in GLOBAL_KEYS]
    found = {}
    for pattern, values in models.items():
        found[pattern] = {key: value for key, value in values.items() if ("compression", str(key)) not in OLD_KEYS}
        if key := next((key for key in values if key in GLOBAL_KEYS), None):
            raise ValueError(f"{pattern}.{key} applies to all models: set compression.{key} instead")
        checked_block(CompressionConfig, found[pattern], pattern, known)
    return found


@dataclass(frozen=True, kw_only=True)
class CompressionConfig(ContextSettings):
    """Automatic compression of conversations."""

    zone: Annotated[InstanceOf[tzinfo], PlainSerializer(str)] = UTC
    models: Annotated[dict[str, dict[str, Any]], BeforeValidator(_overrides), Setting(default_text="none")] = field(
        default_factory=dict, hash=False
    )
    """Overrides for models that match a pattern such as `gpt-5*`. An override can contain all keys of this block except
    `enabled` and `mode`."""

    def for_model(self, name: str) -> "CompressionConfig":
        """Return the settings for one model. All matching overrides apply, in the order in the file."""
        values = vars(self) | {"models": {}}
        for pattern, overrides in self.models.items():
            if fnmatch.fnmatchcase(name.lower(), pattern.lower()):
                values |= overrides
        return TypeAdapter(CompressionConfig).validate_python(values)


class HygieneConfig(BaseConfig):
    """Hygiene: compression by the gateway before a turn begins."""

    threshold: float = setting(LimitSettings.hygiene_threshold, ge=0.85, le=0.95, unit="of the context window")
    """Prompt size at which hygiene compresses a conversation, but at most 90 % of the input window."""


AuxiliaryTask: TypeAlias = Literal["compression", "flush", "title", "delegate"]


class SummaryModelConfig(CallConfig):
    """Model that writes summaries. If you leave out a parameter, the value of the selected model applies."""

    mode: Annotated[Literal["auto", "same-as-main", "custom"], AnyCase] = "auto"
    """Model to use if `auxiliary.compression.model` is not set: the conversation's model (`auto`) or the configured
    model (`same-as-main`). `custom` requires `auxiliary.compression.model`."""
    model: str | None = None
    """Name or alias of the summary model. If not set, `auxiliary.compression.mode` selects the model."""
    protocol: Annotated[Protocol | None, AnyCase] = setting(
        None, default_text="`model.protocol` if the API is the same, else `chat_completions`"
    )
    """Protocol of the summary model's API."""
    base_url: Url | None = setting(None, default_text="`model.base_url`")
    """Base URL of the summary model's API."""
    api_key: Secret | None = setting(None, default_text="`model.api_key`")
    """API key of the summary model."""
    context_length: int | None = setting(
        None,
        ge=1_024,
        le=20_000_000,
        unit="tokens",
        default_text="from the built-in list, else `model.context_length`, else 32768",
    )
    """Context window of the summary model. This window limits the length of the text to summarise."""

    @property
    def call_settings(self) -> dict[str, Any]:
        """Return the call parameters that are set."""
        values = {key: getattr(self, key) for key in CALL_KEYS}
        return {key: value for key, value in values.items() if value not in (None, {})}


RouteWord: TypeAlias = Annotated[
    str, BeforeValidator(lambda word: "off" if word is False or word == "false" else word), AnyCase
]
"""Model of a background task: `auto`, `main`, `off` (which YAML reads as false) or an alias."""


class AuxiliaryConfig(BaseConfig):
    """Models for background work: `auto` (the conversation's model), `main` (the configured one), `off` or an alias."""

    compression: SummaryModelConfig = Field(default_factory=SummaryModelConfig)
    flush: RouteWord = "auto"
    """Model that saves notes to memory before a compression. With `off`, no notes are saved."""
    title: RouteWord = "auto"
    """Model that writes a conversation's title after the first answer. With `off`, only `/title` sets titles."""
    delegate: RouteWord = "auto"
    """Model that sub-agents use. `off` removes the tool `delegate`."""

    @property
    def routes(self) -> Mapping[str, str]:
        """Return the configured keyword or alias of every background task except `compression`."""
        return {task: word for task, word in self if isinstance(word, str)}

    @model_validator(mode="after")
    def _is_complete(self) -> "AuxiliaryConfig":
        if self.compression.mode == "custom" and self.compression.model is None:
            raise ValueError("auxiliary.compression.mode is custom: set auxiliary.compression.model as well")
        return self


class ContextEngineConfig(BaseConfig):
    """Context engine: the code that compresses conversations."""

    engine: Annotated[str, Trimmed] = "compressor"
    """Name of the context engine: the built-in `compressor` or a plugin. `hermes-gateway plugins list` shows all
    engines."""


class NoticeConfig(BaseConfig):
    """Notices to the chat about compression and running answers. The model never sees them."""

    pressure: bool = True
    """Tell the chat when a compression is near (85 % of the threshold), delays an answer, or may have lost details."""
    steps: Annotated[Literal["off", "short", "full"], AnyCase] = "short"
    """Line under a running answer in Telegram and Discord that says what the tools do: nothing, the current step, or a
    list. Set `off` if people find it distracting. `/steps` changes it for one chat."""
    reactions: bool = True
    """Use reactions: people rate answers and, in Telegram and Discord, the bot marks messages. Set it to `false` if
    people find reactions distracting. `/reactions` changes it for one chat."""
