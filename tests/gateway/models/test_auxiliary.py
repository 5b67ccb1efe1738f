"""Who does the gateway's own work: one rule for all its tasks, and the key of `model` for its own API alone."""

from typing import get_args

import pytest

from agent.model.caps import SpendingCaps
from agent.model.prices import price_of
from agent.model.protocols.anthropic import AnthropicModel
from gateway.assembly import summary_routes
from gateway.config.context_settings import AuxiliaryTask
from gateway.config.routes import RouteConfig, completed
from gateway.config.settings import Config
from gateway.models.auxiliary import all_routes, route_for
from gateway.models.clients import ClientRegistry
from gateway.models.pricing import SpendingControl, unpriced_models
from gateway.models.selection import route_of
from gateway.models.window import window_of
from hermes_state.store.writer import Store
from hermes_state.values import SystemClock
from tests.gateway.config.test_config import Load, home, load, refusal

__all__ = ["home", "load"]

MAIN = "model: {name: main, api_key: key-of-main, aliases: {fast: {name: quick, context_length: 50000}}}\n"


def live(config: Config) -> RouteConfig:
    """What a conversation has chosen that is not the configured model."""
    return completed("chosen", config.model)


def who(config: Config, task: AuxiliaryTask) -> str | None:
    route = route_for(config, task, live(config))
    return None if route is None else route.name


@pytest.mark.parametrize("task", get_args(AuxiliaryTask))
@pytest.mark.parametrize(
    ("yaml", "name"),
    [
        ("", "chosen"),
        ("auxiliary: {mode: auto}", "chosen"),
        ("auxiliary: {mode: same-as-main}", "main"),
        ("auxiliary: {mode: Same-As-Main, TASK: {mode: auto}}", "chosen"),
        ("auxiliary: {TASK: {mode: same-as-main}}", "main"),
        ("auxiliary: {TASK: {model: small}}", "small"),
        ("auxiliary: {mode: same-as-main, TASK: {model: small}}", "small"),
        ("auxiliary: {TASK: {mode: custom, model: small}}", "small"),
        ("auxiliary: {mode: custom, TASK: {model: small}}", "small"),
        ("auxiliary: {TASK: {model: Fast}}", "quick"),
        ("auxiliary: {TASK: {model: ' '}}", "chosen"),
        ("auxiliary: {TASK: {model: fast, base_url: 'http://127.0.0.1:1/v1'}}", "fast"),
    ],
)
def test_a_named_model_does_a_task_and_else_the_one_that_the_mode_picks(
    load: Load, task: AuxiliaryTask, yaml: str, name: str
) -> None:
    config = load(MAIN + yaml.replace("TASK", task)).config
    assert who(config, task) == name
    others = "main" if yaml.lower().startswith("auxiliary: {mode: same-as-main") else "chosen"
    assert [who(config, other) for other in get_args(AuxiliaryTask) if other != task] == [others] * 4


@pytest.mark.parametrize(
    ("yaml", "name"),
    [
        ("compression: {summary_model: best}\nauxiliary: {compression: {mode: custom, model: small}}", "best"),
        ("compression: {summary_model: best}\nauxiliary: {mode: same-as-main}", "best"),
        ("compression: {summary_model: best, models: {'cho*': {summary_model: own}}}", "own"),
        ("compression: {models: {'main': {summary_model: other}}}", "chosen"),
        ("compression: {summary_model: fast}", "quick"),
    ],
)
def test_the_model_that_compression_names_wins_for_summaries_alone(load: Load, yaml: str, name: str) -> None:
    config = load(MAIN + yaml).config
    assert who(config, "compression") == name
    assert who(config, "title") != name or name == "chosen"


def test_a_custom_model_has_to_be_named(load: Load) -> None:
    assert "auxiliary.mode custom needs auxiliary.compression.model" in refusal(load, "auxiliary: {mode: custom}")
    config = load(MAIN + "auxiliary: {mode: custom, compression: {model: small}}").config
    assert [who(config, task) for task in get_args(AuxiliaryTask)] == ["small", *["chosen"] * 4]
    for task in get_args(AuxiliaryTask):
        complaint = f"auxiliary.{task}.mode custom needs auxiliary.{task}.model"
        assert complaint in refusal(load, f"auxiliary: {{{task}: {{mode: custom}}}}")


def test_only_titles_can_be_off(load: Load) -> None:
    for written in ("off", "OFF", "false", "'off'"):
        assert who(load(f"{MAIN}auxiliary: {{title: {{mode: {written}, model: small}}}}").config, "title") is None
    assert who(load(MAIN, HERMES_AUXILIARY__TITLE__MODE="off").config, "title") is None
    assert "auxiliary.compression.mode" in refusal(load, "auxiliary: {compression: {mode: 'off'}}")
    assert "auxiliary.mode" in refusal(load, "auxiliary: {mode: 'off'}")


def test_the_offline_model_does_nothing_but_answer(load: Load) -> None:
    config = load().config
    assert [route_for(config, task, config.model.route) for task in get_args(AuxiliaryTask)] == [None] * 5
    config = load("auxiliary: {title: {model: small}}").config
    route = route_for(config, "title", config.model.route)
    assert route is not None
    assert (route.name, route.protocol) == ("small", "chat_completions")
    config = load("auxiliary: {mode: same-as-main}").config
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
def test_how_a_named_model_is_spoken_to_and_with_which_key(
    load: Load, task: str, protocol: str, key: str | None
) -> None:
    config = load(
        f"model: {{name: main, protocol: anthropic, api_key: key-of-main}}\nauxiliary: {{title: {{{task}}}}}"
    ).config
    route = route_for(config, "title", config.model.route)
    assert route is not None
    assert route.protocol == protocol
    assert (route.api_key.get_secret_value() if route.api_key is not None else None) == key


def test_a_summary_models_window_bounds_its_input_alone(load: Load) -> None:
    yaml = "model: {name: m, context_length: 128000}\nauxiliary: {compression: {model: s, context_length: 8192}}"
    config = load(yaml).config
    route = route_for(config, "compression", config.model.route)
    assert route is not None
    assert route.context_length == 8_192
    assert window_of(config)[0].threshold == 64_000
    config = load(MAIN + "auxiliary: {compression: {model: fast, context_length: 9000}, title: {model: fast}}").config
    sizes = [route_for(config, task, live(config)) for task in ("compression", "title")]
    assert [route.context_length for route in sizes if route is not None] == [9_000, 50_000]


@pytest.mark.parametrize(("name", "size"), [("gpt-4.1", 1_047_576), ("nobody-knows", 128_000)])
async def test_a_size_that_is_not_given_is_looked_up_and_else_that_of_the_configured_model(
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
        ("auxiliary: {mode: same-as-main}", "fast", ["main", "quick"]),
        ("auxiliary: {mode: same-as-main}", None, ["main"]),
        ("auxiliary: {compression: {model: small}}", "fast", ["small", "quick"]),
        ("auxiliary: {compression: {model: fast}}", "fast", ["quick"]),
    ],
)
async def test_the_conversations_own_model_stands_in_for_a_summariser(
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


async def test_named_models_have_their_price_their_caps_and_their_protocol(load: Load, store: Store) -> None:
    config = load(
        "model: {name: gpt-4.1, api_key: k}\ncosts: {daily_cap: 1}\nauxiliary: {compression: {model: claude-sonnet-4-5,"
        " protocol: anthropic, api_key: other}, title: {model: nobody-knows}, flush: {model: gpt-4.1-mini}}"
    ).config
    lines = ClientRegistry(config, SpendingControl(store, SystemClock()))
    [summariser, *_] = summary_routes(config, config.model.route, lines)
    assert isinstance(summariser.client.model.made, AnthropicModel)
    assert summariser.client._price == price_of("claude-sonnet-4-5", {})
    assert isinstance(summariser.client._caps, SpendingCaps)
    assert unpriced_models(config) == ["nobody-knows"]
    await lines.close()


def test_every_route_is_known_once_but_not_those_for_what_is_off(load: Load) -> None:
    config = load(MAIN + "auxiliary: {title: {mode: 'off', model: small}, flush: {model: other}}").config
    assert [route.name for route in all_routes(config)] == ["main", "quick", "other"]
    config = load(MAIN + "auxiliary: {title: {model: fast}, compression: {mode: same-as-main}}").config
    assert [route.name for route in all_routes(config)] == ["main", "quick"]


@pytest.mark.parametrize("task", get_args(AuxiliaryTask))
@pytest.mark.parametrize("model", ["", "model: small, ", "model: fast, ", "mode: same-as-main, "])
def test_a_task_says_what_it_wants_in_its_calls_whichever_model_does_it(
    load: Load, task: AuxiliaryTask, model: str
) -> None:
    settings = "temperature: 0, reasoning_effort: off, max_output_tokens: 9, extra_body: {a: 1}, extra_headers: {X: y}"
    config = load(f"{MAIN}auxiliary: {{{task}: {{{model}{settings}}}}}").config
    route = route_for(config, task, live(config))
    assert route is not None
    assert (route.temperature, route.reasoning_effort, route.max_output_tokens) == (0, "off", 9)
    assert (route.extra_body, route.plain_headers) == ({"a": 1}, {"X": "y"})
    others = [route_for(config, other, live(config)) for other in get_args(AuxiliaryTask) if other != task]
    assert [one.reasoning_effort for one in others if one is not None] == [None] * 4


async def test_the_conversations_own_model_writes_its_summaries_as_the_task_wants(load: Load, store: Store) -> None:
    config = load(f"{MAIN}auxiliary: {{compression: {{reasoning_effort: low}}}}").config
    clients = ClientRegistry(config, SpendingControl(store, SystemClock()))
    [route] = summary_routes(config, live(config), clients)
    assert (route.client.name, route.context_length) == ("chosen", None)
    assert route.client is not clients.of(live(config))
    await clients.close()
