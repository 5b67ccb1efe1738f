"""Context window and context settings, computed from the configuration. This module loads no SDK."""

from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from agent.context.limits import ContextSettings, Limits, limits_of
from agent.model.sizes import SizeSource
from agent.prompt import DEFAULT_PERSONA, system_prompt
from agent.tokens import estimated_text_tokens
from agent.tools.offers import MAX_SCHEMA_TOKENS, SCHEMA_PERCENT
from gateway.config.settings import Config
from gateway.models.routes import capacity_in
from hermes_state.models.profiles import ModelProfile, load_profile
from hermes_state.store.segment import RECALL_TOOLS
from hermes_state.store.sql import Connection
from hermes_state.values import ChatKey, ChatKind, EstimatedTokens


def zone_of(config: Config) -> tzinfo:
    """Return the time zone in `agent.time_zone`, or this machine's zone."""
    name = config.agent.time_zone
    return (ZoneInfo(name) if name is not None else datetime.now().astimezone().tzinfo) or UTC


def context_settings(config: Config, zone: tzinfo, model: str | None = None) -> ContextSettings:
    """Return the context settings of a model (by default, the configured model), with its overrides applied."""
    compression = config.compression.for_model(model or config.model.name or "")
    return replace(
        compression,
        summary_seconds=min(compression.summary_seconds, config.model.turn_seconds / 4),
        hygiene_threshold=config.hygiene.threshold,
        zone=zone,
    )


def window_of(config: Config, profile: ModelProfile | None = None) -> tuple[Limits, SizeSource]:
    """Return the limits of the configured model, with its stored `profile`, and the source of its window size."""
    profile = profile or ModelProfile()
    capacity = capacity_in(config.model, profile.offer)
    window = profile.window(capacity.context_length)
    max_input = profile.max_input(capacity.context_length, capacity.max_input_tokens)
    limits = limits_of(window, capacity.reserved_in(window), context_settings(config, UTC), max_input)
    return limits, SizeSource.LEARNED if window < capacity.context_length else capacity.context_from


def load_configured_profile(db: Connection, config: Config) -> ModelProfile:
    model = config.model
    return load_profile(db, f"{model.protocol}:{model.host}", model.label)


def fixed_prompt_tokens(config: Config, limits: Limits) -> EstimatedTokens:
    """Return the maximum number of tokens in the fixed part of a prompt: the system prompt and the tool schemas."""
    prompt = system_prompt(
        persona=config.agent.persona or DEFAULT_PERSONA,
        chat=ChatKey(platform="telegram", account="telegram", chat_ref=""),
        kind=ChatKind.DIRECT,
        tool_names=RECALL_TOOLS,
    )
    schemas = min(MAX_SCHEMA_TOKENS, limits.threshold * SCHEMA_PERCENT // 100)
    return EstimatedTokens(estimated_text_tokens(prompt) + schemas)
