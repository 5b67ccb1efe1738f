"""Configured routes: the model for each task, its limits, its call settings, and the context settings.

The command line imports this module, so it must not import an SDK.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from pydantic import SecretStr

from agent.context.limits import ContextSettings, Limits, limits_of
from agent.model.base import ModelLimits
from agent.model.catalog import UNKNOWN_LIMITS, ModelSize, SizeSource, load_catalog, model_size
from agent.model.usage import estimated_text_tokens
from agent.prompt import DEFAULT_PERSONA, system_prompt
from agent.tools.offers import MAX_SCHEMA_TOKENS, SCHEMA_PERCENT
from gateway.config import LoadedConfig
from gateway.config.context_settings import AuxiliaryTask
from gateway.config.routes import CALL_KEYS, RouteConfig, completed, written_route
from gateway.config.settings import Config
from hermes_state.models.profiles import ModelProfile, OfferedSize, load_profile
from hermes_state.store.segment import RECALL_TOOLS
from hermes_state.store.sql import Connection
from hermes_state.values import ChatKey, ChatKind, EstimatedTokens, ReasoningEffort, Tokens


def route_for(config: Config, task: AuxiliaryTask, own: RouteConfig) -> RouteConfig | None:
    """Return the route for `task` in conversations with the model `own`, or None to skip the task.

    Summaries have their own settings. For every other task, a setting selects the conversation's own model, the
    configured model, an alias, or no model. The offline model cannot do any task.
    """
    if task == "compression":
        settings = config.auxiliary.compression
        route = _summary_model(config) or (config.model.route if settings.mode == "same-as-main" else own)
        route = route.model_copy(update=settings.call_settings)
    else:
        word: str = getattr(config.auxiliary, task)
        if word == "off":
            return None
        route = own if word == "auto" else config.model.route if word == "main" else config.model.alias_route(word)
    return None if route.protocol == "offline" else route


def all_routes(config: Config) -> tuple[RouteConfig, ...]:
    """Return every configured route once: the routes that people can choose and the summary route."""
    route = _summary_model(config)
    return tuple(dict.fromkeys((*config.model.routes, *((route,) if route is not None else ()))))


def routes_of_agents(loaded: LoadedConfig) -> tuple[RouteConfig, ...]:
    """Return every route of every agent once. Those of the unnamed agent come first."""
    return tuple(dict.fromkeys(route for agent in loaded.agents for route in all_routes(agent.config)))


def _summary_model(config: Config) -> RouteConfig | None:
    """Return the route of the configured summary model, or None. `model.api_key` is sent only to the API of `model`."""
    settings, main = config.auxiliary.compression, config.model
    name = (settings.model or "").strip()
    if not name:
        return None
    keys = ("protocol", "base_url", "api_key", "context_length")
    block = written_route({"name": name} | {key: getattr(settings, key) for key in keys}, "auxiliary.compression")
    if name.lower() in main.aliases and set(block) <= {"name", "context_length"}:
        route = main.alias_route(name.lower())
        size = settings.context_length
        return route if size is None else route.model_copy(update={"context_length": size})
    return completed(block, main)


# ---- sizes


def configured_limits(route: RouteConfig) -> ModelLimits:
    """Return the configured limits of a model: context window and output."""
    context, output = route.context_length, route.max_output_tokens
    return ModelLimits(
        context_length=None if context is None else Tokens(context),
        max_output_tokens=None if output is None else Tokens(output),
    )


def capacity_in(route: RouteConfig, offer: OfferedSize | None = None) -> ModelSize:
    """Return a model's limits from the configuration, the provider's `offer` or the catalogue, but not learned ones."""
    said = offer or UNKNOWN_LIMITS
    offered = ModelLimits(context_length=said.context_length, max_output_tokens=said.max_output_tokens)
    return model_size(route.label, configured_limits(route), offered)


def window_from(source: SizeSource) -> str:
    """Return a phrase that names the source of a window's size. Callers add it in parentheses after the size."""
    return {
        SizeSource.CONFIGURED: "as configured",
        SizeSource.OFFERED: "reported by the provider",
        SizeSource.CATALOGUE: f"from the built-in list of {load_catalog().sizes_taken_on}",
        SizeSource.ASSUMED: "default; set `model.context_length` to change it",
        SizeSource.LEARNED: "reported by the provider when it refused a prompt",
        SizeSource.GUESSED: "estimated for this conversation after a prompt was refused",
    }[source]


# ---- call settings


def settings_text(route: RouteConfig, chosen: ReasoningEffort | None = None) -> str:
    """Return the call settings as text, such as `, temperature 0.2, reasoning effort high`, or an empty string.

    `chosen` is the reasoning effort chosen for a conversation. Headers and extra fields are listed only by name.
    """
    words = [f"temperature {route.temperature:g}"] if route.temperature is not None else []
    if effort := chosen or route.reasoning_effort:
        words.append(f"reasoning effort {effort}" + (" (chosen here)" if chosen else ""))
    for what, block in (("header", route.extra_headers), ("field", route.extra_body)):
        words += [f"{what} {name}" for name in block]
    return "".join(f", {word}" for word in words)


def left_out(route: RouteConfig, chosen: ReasoningEffort | None = None) -> Iterator[str]:
    """Yield sentences about call settings that the protocol does not accept, so they are not sent as configured."""
    if route.protocol == "offline":
        if chosen or any(getattr(route, key) for key in CALL_KEYS):
            yield "The built-in offline model ignores all call settings."
    elif route.protocol != "anthropic" or route.temperature is None:
        return
    elif (chosen or route.reasoning_effort) not in (None, "off"):
        yield (
            "`temperature` is not sent when reasoning is enabled (`reasoning_effort`), because the provider would "
            "reject the call."
        )
    elif route.temperature > 1:
        yield "This protocol accepts a `temperature` of at most 1, so the gateway sends 1."


def missing_keys(loaded: LoadedConfig) -> Iterator[str]:
    """Yield warnings about models of agents on the internet that are called without a key."""
    main = {agent.config.model.route: f"agents.{agent.name}." if agent.name else "" for agent in loaded.agents[::-1]}
    for route in routes_of_agents(loaded):
        host, headers = route.host or "", route.extra_headers.values()
        is_own = "." not in host or host.endswith((".local", ".localhost", ".lan", ".internal", ".home.arpa"))
        is_public = (route.address or "").startswith("https:") and not is_own and not host.replace(".", "").isdecimal()
        if is_public and route.api_key is None and not any(isinstance(value, SecretStr) for value in headers):
            where = f"{main[route]}model.api_key" if route in main else f"api_key of the model {route.label}"
            yield f"{where} is not set, so {host} is called without a key; if no key is needed, set any value"


# ---- context settings


def zone_of(config: Config) -> tzinfo:
    """Return the time zone in `agent.time_zone`, or this machine's zone."""
    name = config.agent.time_zone
    return (ZoneInfo(name) if name is not None else datetime.now().astimezone().tzinfo) or UTC


def context_settings(config: Config, zone: tzinfo, model: str | None = None) -> ContextSettings:
    """Return the context settings of a model (by default, the configured model), with its overrides applied."""
    compression = config.compression.for_model(model or config.model.name or "")
    return replace(
        compression,
        summary_seconds=config.model.turn_seconds / 4,
        hygiene_threshold=config.hygiene.threshold,
        zone=zone,
    )


def window_of(config: Config, profile: ModelProfile | None = None) -> tuple[Limits, SizeSource]:
    """Return the limits of the configured model, given its stored `profile`, and the source of its window size."""
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
