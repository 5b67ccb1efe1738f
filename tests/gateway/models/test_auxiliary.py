"""Models for auxiliary tasks. The key of `model` is sent only to its own API."""

from typing import get_args

import pytest

from agent.model.caps import SpendingCaps
from agent.model.catalog import price_of
from agent.model.protocols.anthropic import AnthropicModel
from gateway.config.context_settings import AuxiliaryTask
from gateway.config.routes import RouteConfig, completed
from gateway.config.settings import Config
from gateway.daemon.agent import summary_routes
from gateway.models.pricing import SpendingControl, unpriced_models
from gateway.models.routes import all_routes, route_for, window_of
from gateway.models.selection import ClientRegistry, route_of
from hermes_state.store.writer import Store
from hermes_state.values import SystemClock
from tests.gateway.config.test_config import refusal
from tests.gateway.helpers import Load

MAIN = "model: {name: main, api_key: key-of-main, aliases: {fast: {name: quick, context_length: 50000}}}\n"


def live(config: Config) -> RouteConfig:
    """Return a model that a conversation has chosen instead of the configured model."""
    return completed("chosen", config.model)


def who(config: Config, task: AuxiliaryTask) -> str | None:
    route = route_for(config, task, live(config))
    return None if route is None else route.name


ROUTED: tuple[AuxiliaryTask, ...] = ("flush", "title", "delegate")
"""Tasks with a route instead of a settings block."""


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ("", "chosen"),
        ("mode: Auto", "chosen"),
        ("mode: Same-As-Main", "main"),
        ("model: small", "small"),
        ("mode: same-as-main, model: small", "small"),
        ("mode: custom, model: small", "small"),
        ("model: Fast", "quick"),
        ("model: ' '", "chosen"),
        ("model: fast, base_url: 'http://127.0.0.1:1/v1'", "fast"),
    ],
)
def test_the_configured_summary_model_or_mode_decides_who_writes_summaries(
    load: Load, settings: str, name: str
) -> None:
    config = load(f"{MAIN}auxiliary: {{compression: {{{settings}}}}}").config
    assert (who(config, "compression"), [who(config, other) for other in ROUTED]) == (name, ["chosen"] * 3)


@pytest.mark.parametrize("task", ROUTED)
@pytest.mark.parametrize(
    ("route", "name"), [("auto", "chosen"), ("Main", "main"), ("Fast", "quick"), ("off", None), ("'OFF'", None)]
)
def test_a_task_uses_only_its_own_route(load: Load, task: AuxiliaryTask, route: str, name: str | None) -> None:
    config = load(f"{MAIN}auxiliary: {{{task}: {route}}}").config
    assert who(config, task) == name
    assert [who(config, other) for other in get_args(AuxiliaryTask) if other != task] == ["chosen"] * 3


def test_a_task_route_must_be_an_existing_alias(load: Load) -> None:
    said = refusal(load, MAIN + "auxiliary: {title: fats}")
    assert "auxiliary.title: 'fats' is not an alias in model.aliases; did you mean fast?" in said
    said = refusal(load, MAIN, HERMES_AUXILIARY__FLUSH="gpt-4.1-nano")
    assert "auxiliary.flush: 'gpt-4.1-nano' is not an alias in model.aliases; use auto, main, off or an alias" in said


def test_a_custom_model_needs_a_name(load: Load) -> None:
    said = refusal(load, "auxiliary: {compression: {mode: custom}}")
    assert "auxiliary.compression.mode is custom: set auxiliary.compression.model" in said
    assert "auxiliary.compression.mode" in refusal(load, "auxiliary: {compression: {mode: 'off'}}")


def test_the_offline_model_only_answers(load: Load) -> None:
    config = load().config
    assert [route_for(config, task, config.model.route) for task in get_args(AuxiliaryTask)] == [None] * 4
    config = load("auxiliary: {compression: {model: small}}").config
    route = route_for(config, "compression", config.model.route)
    assert route is not None
    assert (route.name, route.protocol) == ("small", "chat_completions")
    config = load("auxiliary: {title: main}").config
    assert route_for(config, "title", completed("real", config.model)) is None


@pytest.mark.parametrize(
    ("task", "protocol", "key"),
    [
        ("model: s", "anthropic", "key-of-main"),
        ("model: s, base_url: 'https://api.anthropic.com/other'", "anthropic", "key-of-main"),
        ("model: s, base_url: 'https://example.org/v1'", "chat_completions", None),
        ("model: s, base_url: 'https://example.org/v1', api_key: other", "chat_completions", "other"),
        ("model: s, base_url: 'https://example.org/v1', protocol: Responses", "responses", None),
        ("model: s, protocol: responses", "responses", None),
    ],
)
def test_protocol_and_key_of_a_configured_summary_model(load: Load, task: str, protocol: str, key: str | None) -> None:
    config = load(
        f"model: {{name: main, protocol: anthropic, api_key: key-of-main}}\nauxiliary: {{compression: {{{task}}}}}"
    ).config
    route = route_for(config, "compression", config.model.route)
    assert route is not None
    assert route.protocol == protocol
    assert (route.api_key.get_secret_value() if route.api_key is not None else None) == key


def test_a_summary_models_window_limits_only_its_input(load: Load) -> None:
    yaml = "model: {name: m, context_length: 128000}\nauxiliary: {compression: {model: s, context_length: 8192}}"
    config = load(yaml).config
    route = route_for(config, "compression", config.model.route)
    assert route is not None
    assert (route.context_length, window_of(config)[0].threshold) == (8_192, 64_000)
    config = load(MAIN + "auxiliary: {compression: {model: fast, context_length: 9000}, title: fast}").config
    sizes = [route_for(config, task, live(config)) for task in ("compression", "title")]
    assert [route.context_length for route in sizes if route is not None] == [9_000, 50_000]


@pytest.mark.parametrize(("name", "size"), [("gpt-4.1", 1_047_576), ("nobody-knows", 128_000)])
async def test_a_missing_size_is_looked_up_or_taken_from_the_configured_model(
    load: Load, store: Store, name: str, size: int
) -> None:
    yaml = f"model: {{name: m, context_length: 128000}}\nauxiliary: {{compression: {{model: {name}}}}}"
    config = load(yaml).config
    lines = ClientRegistry(config, SpendingControl(store, SystemClock()))
    named, own = summary_routes(config, config.model.route, lines)
    assert (named.context_length, own.context_length) == (size, None)
    await lines.close()


@pytest.mark.parametrize(
    ("yaml", "chosen", "names"),
    [
        ("", "fast", ["quick"]),
        ("auxiliary: {compression: {mode: same-as-main}}", "fast", ["main", "quick"]),
        ("auxiliary: {compression: {mode: same-as-main}}", None, ["main"]),
        ("auxiliary: {compression: {model: small}}", "fast", ["small", "quick"]),
        ("auxiliary: {compression: {model: fast}}", "fast", ["quick"]),
    ],
)
async def test_the_conversations_own_model_is_the_fallback_for_summaries(
    load: Load, store: Store, yaml: str, chosen: str | None, names: list[str]
) -> None:
    config = load(MAIN + yaml).config
    lines = ClientRegistry(config, SpendingControl(store, SystemClock()))
    route = route_of(config.model, chosen)
    assert route is not None
    found = summary_routes(config, route, lines)
    assert [one.client.name for one in found] == names
    assert found[-1].client is lines.of(route), "one line to one model, whatever is asked of it"
    await lines.close()


async def test_configured_models_have_their_own_price_caps_and_protocol(load: Load, store: Store) -> None:
    loaded = load(
        "model: {name: gpt-4.1, api_key: k, aliases: {own: nobody-knows}}\ncosts: {daily_cap: 1}\n"
        "auxiliary: {compression: {model: claude-sonnet-4-5, protocol: anthropic, api_key: other}, title: own}"
    )
    config = loaded.config
    lines = ClientRegistry(config, SpendingControl(store, SystemClock()))
    [summariser, *_] = summary_routes(config, config.model.route, lines)
    assert isinstance(summariser.client.model.made, AnthropicModel)
    assert summariser.client._price == price_of("claude-sonnet-4-5", {})
    assert isinstance(summariser.client._caps, SpendingCaps)
    assert unpriced_models(loaded.agents) == ["nobody-knows"]
    await lines.close()


def test_every_route_is_listed_once(load: Load) -> None:
    config = load(MAIN + "auxiliary: {title: fast, compression: {model: other}}").config
    assert [route.name for route in all_routes(config)] == ["main", "quick", "other"]
    config = load(MAIN + "auxiliary: {title: fast, compression: {mode: same-as-main}}").config
    assert [route.name for route in all_routes(config)] == ["main", "quick"]


@pytest.mark.parametrize("model", ["", "model: small, ", "model: fast, ", "mode: same-as-main, "])
def test_summary_call_settings_apply_to_every_summary_model(load: Load, model: str) -> None:
    settings = "temperature: 0, reasoning_effort: off, extra_body: {a: 1}, extra_headers: {X: y}"
    config = load(f"{MAIN}auxiliary: {{compression: {{{model}{settings}}}}}").config
    route = route_for(config, "compression", live(config))
    assert route is not None
    assert (route.temperature, route.reasoning_effort) == (0, "off")
    assert (route.extra_body, route.plain_headers) == ({"a": 1}, {"X": "y"})
    others = [route_for(config, other, live(config)) for other in ROUTED]
    assert [one.reasoning_effort for one in others if one is not None] == [None] * 3


async def test_the_conversations_own_model_uses_the_summary_settings(load: Load, store: Store) -> None:
    config = load(f"{MAIN}auxiliary: {{compression: {{reasoning_effort: low}}}}").config
    clients = ClientRegistry(config, SpendingControl(store, SystemClock()))
    [route] = summary_routes(config, live(config), clients)
    assert (route.client.name, route.context_length) == ("chosen", None)
    assert route.client is not clients.of(live(config))
    await clients.close()
