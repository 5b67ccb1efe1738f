"""Blocks of settings that keep conversations inside the window: compression, hygiene, auxiliary models, notices."""

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
from hermes_state.kinds import AnyCase, Secret, Trimmed, Url
from hermes_state.settings import Setting

GLOBAL_KEYS = ("models", "enabled", "mode")
"""Keys of `compression` that hold for every model."""


def _overrides(models: object) -> object:
    if not isinstance(models, dict) or not all(isinstance(values, dict) for values in models.values()):
        raise ValueError("must be a block of patterns, each with a block of keys below it")
    known = [key for key in fields_of(CompressionConfig) if key not in GLOBAL_KEYS]
    found = {}
    for pattern, values in models.items():
        found[pattern] = {key: value for key, value in values.items() if ("compression", str(key)) not in OLD_KEYS}
        if key := next((key for key in values if key in GLOBAL_KEYS), None):
            raise ValueError(f"{pattern}.{key} cannot be set for one model")
        checked_block(CompressionConfig, found[pattern], pattern, known)
    return found


@dataclass(frozen=True, kw_only=True)
class CompressionConfig(ContextSettings):
    """Compressing conversations before they outgrow the model's window."""

    zone: Annotated[InstanceOf[tzinfo], PlainSerializer(str)] = UTC
    models: Annotated[dict[str, dict[str, Any]], BeforeValidator(_overrides), Setting(default_text="none")] = field(
        default_factory=dict, hash=False
    )
    """Other values for some models: a pattern such as `gpt-5*`, and below it any of these keys."""

    def for_model(self, name: str) -> "CompressionConfig":
        """Settings for one model, with the overrides of every pattern that it matches, in the order of the file."""
        values = vars(self) | {"models": {}}
        for pattern, overrides in self.models.items():
            if fnmatch.fnmatchcase(name.lower(), pattern.lower()):
                values |= overrides
        return TypeAdapter(CompressionConfig).validate_python(values)


class HygieneConfig(BaseConfig):
    """The gateway's own look at a conversation, before a turn begins."""

    threshold: float = setting(LimitSettings.hygiene_threshold, ge=0.85, le=0.95, unit="of the context window")
    """Size of the prompt from which on it compresses; at 90 % of the input window at the latest."""


AuxiliaryTask: TypeAlias = Literal["compression", "flush", "title", "delegate", "trajectories"]


class SummaryModelConfig(CallConfig):
    """Model that writes summaries, and settings of its calls, whichever model it is."""

    mode: Annotated[Literal["auto", "same-as-main", "custom"], AnyCase] = "auto"
    """`auto`: the conversation's own model. `same-as-main`: the one of `model`, whatever `/model` chose. `custom`: the
    one named below. A model that is named here is used in any mode."""
    model: str | None = None
    """Name or alias of the model; not set: the one that the mode picks."""
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

    @property
    def call_settings(self) -> dict[str, Any]:
        """Keys of the calls that are set, with their values."""
        values = {key: getattr(self, key) for key in (*CALL_KEYS, "max_output_tokens")}
        return {key: value for key, value in values.items() if value not in (None, {})}


RouteWord: TypeAlias = Annotated[
    str, BeforeValidator(lambda word: "off" if word is False or word == "false" else word), AnyCase
]
"""`auto`, `main`, `off`, which YAML reads as false, or an alias."""


class AuxiliaryConfig(BaseConfig):
    """Models for the gateway's own work: `auto` (the conversation's own), `main` (`model`), `off`, or an alias."""

    compression: SummaryModelConfig = Field(default_factory=SummaryModelConfig)
    flush: RouteWord = "auto"
    """Model that notes what must be known beyond a compression, see `memory.flush`. `off`: no notes are written."""
    title: RouteWord = "auto"
    """Model that names a conversation after its first answer. `off`: conversations have the names that people give."""
    delegate: RouteWord = "auto"
    """Model of sub-agents, to which the agent hands tasks on. `off`: it has no sub-agents."""
    trajectories: RouteWord = "auto"
    """Model that summarises for `hermes-gateway trajectories compress`."""

    @property
    def routes(self) -> Mapping[str, str]:
        """The word or alias of every task that has only a route."""
        return {task: word for task, word in self if isinstance(word, str)}

    @model_validator(mode="after")
    def _is_complete(self) -> "AuxiliaryConfig":
        if self.compression.mode == "custom" and self.compression.model is None:
            raise ValueError("auxiliary.compression.mode custom needs auxiliary.compression.model")
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
