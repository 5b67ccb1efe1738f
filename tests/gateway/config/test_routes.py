"""Fallbacks and aliases: keys inherited from `model`, API keys and errors."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import reload_differences
from gateway.config.fields import secrets_of
from gateway.config.routes import CALL_KEYS, RouteConfig, WrittenRoute, completed, written_route
from gateway.config.settings import ModelConfig
from hermes_state.setting_types import FrozenBlock
from tests.gateway.config.test_config import Load, refusal

KEY, OTHER_KEY = "key-of-model", "key-of-another"


def main(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate({"name": "big", "api_key": KEY, **changes})


def key_of(written: WrittenRoute, model: ModelConfig) -> str | None:
    key = completed(written, model).api_key
    return key.get_secret_value() if key is not None else None


def block(**values: object) -> FrozenBlock:
    return written_route({"name": "small", **values}, "a")


def test_a_plain_name_is_another_model_at_the_same_api() -> None:
    model = main(protocol="responses", base_url="https://api.example.org/v1", context_length=200_000)
    route = completed("small", model)
    assert (route.name, route.protocol, route.base_url) == ("small", "responses", "https://api.example.org/v1")
    assert key_of("small", model) == KEY
    assert route.context_length is None, "what is known of the size belongs to the other model"


def test_the_same_model_at_another_api_keeps_its_sizes() -> None:
    model = main(context_length=200_000, max_output_tokens=4_000, images=True)
    route = completed(block(name="big", base_url="http://127.0.0.1:1234/v1"), model)
    assert (route.context_length, route.max_output_tokens, route.images) == (200_000, 4_000, True)
    assert route.api_key is None


@pytest.mark.parametrize(
    ("model", "written", "key"),
    [
        ({}, {}, KEY),
        ({}, {"protocol": "responses"}, KEY),
        ({}, {"base_url": "https://api.openai.com/v1"}, KEY),
        ({"base_url": "https://openrouter.ai/api/v1"}, {"base_url": "https://openrouter.ai/api"}, KEY),
        ({}, {"base_url": "https://openrouter.ai/api/v1"}, None),
        ({}, {"base_url": "http://api.openai.com/v1"}, None),
        ({}, {"base_url": "https://api.openai.com:8443/v1"}, None),
        ({}, {"base_url": "https://api.openai.com.example.org/v1"}, None),
        ({}, {"protocol": "anthropic"}, None),
        ({"protocol": "anthropic"}, {"protocol": "chat_completions"}, None),
        ({"protocol": "anthropic"}, {}, KEY),
        ({}, {"protocol": "anthropic", "api_key": OTHER_KEY}, OTHER_KEY),
        ({"base_url": "https://a.example/v1"}, {"protocol": "anthropic"}, None),
        ({}, {"protocol": "offline"}, None),
    ],
)
def test_a_key_is_used_only_for_its_own_host(
    model: dict[str, object], written: dict[str, object], key: str | None
) -> None:
    assert key_of(block(**written), main(**model)) == key


def test_a_base_url_alone_gets_the_protocol_chat_completions() -> None:
    assert (
        completed(block(base_url="http://127.0.0.1:1234/v1"), main(protocol="anthropic")).protocol == "chat_completions"
    )
    beside = completed(
        block(base_url="https://a.example/other"), main(protocol="responses", base_url="https://a.example/v1")
    )
    assert beside.protocol == "responses"


def test_fallbacks_are_names_aliases_and_blocks(load: Load) -> None:
    model = load(
        "model:\n  name: big\n  api_key: k\n"
        "  aliases:\n    Fast: small\n"
        "    local: {name: llama, base_url: 'http://127.0.0.1:1234/v1', context_length: 8192}\n"
        "  fallbacks: [fast, other, LOCAL, {name: claude, protocol: anthropic, api_key: k2}, small]\n"
    ).config.model
    assert [route.name for route in model.fallback_routes] == ["small", "other", "llama", "claude"]
    assert (model.fallback_routes[2].context_length, model.alias_route("fast").name) == (8_192, "small")


def test_a_variable_contains_names_with_commas_or_json(load: Load) -> None:
    one = load(HERMES_MODEL__NAME="big", HERMES_MODEL__FALLBACKS="a, b").config.model
    assert [route.name for route in one.fallback_routes] == ["a", "b"]
    json = '[{"name": "c", "base_url": "http://127.0.0.1:1/v1"}]'
    two = load(HERMES_MODEL__NAME="big", HERMES_MODEL__FALLBACKS=json, HERMES_MODEL__ALIASES='{"x": "y"}').config.model
    assert ([route.name for route in two.fallback_routes], two.alias_route("x").name) == (["c"], "y")


REFUSED = {
    "fallbacks: [{nmae: x}]": "model.fallbacks: [1]: unknown key nmae; did you mean name?",
    "fallbacks: [a, {base_url: 'http://x/v1'}]": "model.fallbacks: [2].name is missing: set it to the name of a model",
    "fallbacks: [{name: x, base_url: nonsense}]": "model.fallbacks: [1].base_url: must be an address such as",
    "fallbacks: [{name: x, context_length: 5}]": "model.fallbacks: [1].context_length: must be a whole number between",
    "fallbacks: [{name: x, protocol: smtp}]": "model.fallbacks: [1].protocol: must be one of chat_completions,",
    "fallbacks: [{name: x, images: maybe}]": "model.fallbacks: [1].images: must be true or false",
    "fallbacks: [[a]]": "model.fallbacks: [1] must be the name of a model, or a block",
    "fallbacks: 7": "model.fallbacks: must be a list of models",
    "aliases: [a]": "model.aliases: must be a block of names",
    "aliases: {default: x}": "model.aliases: 'default' is reserved for the configured model",
    "aliases: {two words: x}": "model.aliases: 'two words' cannot be an alias",
    "aliases: {a: x, A: y}": "model.aliases: the alias 'a' occurs twice",
    "aliases: {a: {name: x, contextlength: 1}}": "model.aliases: a: unknown key contextlength; did you mean",
}


@pytest.mark.parametrize("yaml", REFUSED)
def test_invalid_routes_are_refused_with_file_line_and_key(load: Load, home: Path, yaml: str) -> None:
    said = refusal(load, f"model:\n  name: big\n  {yaml}\n")
    assert f"{home}/config.yaml line 3: {REFUSED[yaml]}" in said


def test_a_window_too_small_for_a_prompt_names_its_block(load: Load) -> None:
    said = refusal(load, "model: {name: big, aliases: {tiny: {name: t, context_length: 2048}}}")
    assert "model.aliases.tiny.context_length (2048) minus model.aliases.tiny.max_output_tokens (512)" in said


def test_an_error_in_a_route_shows_no_key(load: Load) -> None:
    for yaml in (
        "model: {name: big, fallbacks: [{name: x, api_key: 'sk secret word'}]}",
        "model: {name: big, aliases: {a: {name: x, api_key: 'sk-secret-word', nope: 1}}}",
    ):
        assert "secret" not in refusal(load, yaml)
    assert "secret" not in refusal(load, "", HERMES_MODEL__NAME="m", HERMES_MODEL__FALLBACKS='[{"api_key": "secret"')


def test_keys_of_fallbacks_and_aliases_are_redacted(load: Load) -> None:
    loaded = load(
        "model:\n  name: big\n  api_key: sk-first\n"
        "  fallbacks: [{name: x, base_url: 'https://b.example', api_key: sk-second}]\n"
        "  aliases: {a: {name: y, protocol: anthropic, api_key: sk-third}}\n"
    )
    assert set(loaded.secrets()) == {"sk-first", "sk-second", "sk-third"}
    assert set(secrets_of(loaded.config.model)) == set(loaded.secrets())
    assert not [key for key in loaded.secrets() if key in repr(loaded)]


def test_an_explicit_default_does_not_follow_the_main_model(load: Load) -> None:
    """Keys that are not set follow `model`. Keys that are set stay, even with the same value."""
    yaml = "model: {name: big, aliases: {a: {name: small%s}}}"
    assert reload_differences(load(yaml % ""), load(yaml % ", streaming: true")).applied == ("model.aliases",)
    assert reload_differences(load(yaml % ""), load(yaml % ", streaming: null")).applied == ()


def test_a_reload_sees_a_changed_key_in_a_list(load: Load) -> None:
    yaml = "model: {name: big, fallbacks: [{name: x, base_url: 'https://b.example', api_key: %s}]}"
    assert reload_differences(load(yaml % "one"), load(yaml % "two")).applied == ("model.fallbacks",)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("name"), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_any_fallbacks_give_routes_or_an_error(value: object) -> None:
    for key in ("fallbacks", "aliases"):
        with contextlib.suppress(ValueError):
            model = main(**{key: value})
            assert all(route.name or route.protocol == "offline" for route in model.fallback_routes)


# -- call parameters ------------------------------------------------------------------------------------------------

CALLS = {
    "temperature": 0.2,
    "reasoning_effort": "high",
    "extra_headers": {"X-Title": "lab", "X-Api-Key": "sesame-sesame"},
    "extra_body": {"provider": {"sort": "price"}},
}


def calls_of(route: RouteConfig) -> dict[str, object]:
    return {key: value for key in CALL_KEYS if (value := getattr(route, key))}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("small", set(CALLS)),
        ({"name": "small", "temperature": 0}, set(CALLS) - {"temperature"}),
        ({"name": "small", "protocol": "responses"}, set(CALLS) - {"extra_body"}),
        ({"name": "small", "base_url": "https://api.example.org/v1"}, set()),
        ({"name": "big", "base_url": "https://api.example.org/v1"}, set()),
    ],
)
def test_call_parameters_are_inherited_only_at_the_same_api(written: str | dict[str, object], kept: set[str]) -> None:
    block = written if isinstance(written, str) else written_route(written, "a")
    assert set(calls_of(completed(block, main(**CALLS)))) == kept


def test_routes_with_extra_fields_are_hashable_and_distinct() -> None:
    assert len({completed(block(extra_body=body), main()) for body in ({"a": 1}, {"a": 2}, {"a": 1})}) == 2
    secrets = [completed(block(extra_headers={"X-Key": key}), main()) for key in ("one-secret", "other-secret")]
    assert len(set(secrets)) == 2


def test_secret_headers_stay_secret(load: Load) -> None:
    loaded = load(
        "model: {name: m, extra_headers: {X-Title: Hermes Lab, X-Design: plain words, anthropic-version: 2023-06-01, "
        "Authorization: Basic bGFiOnNlY3JldA==}}"
    )
    assert loaded.secrets() == ("Basic bGFiOnNlY3JldA==",)
    assert "bGFi" not in loaded.config.model_dump_json()
    assert loaded.config.model.plain_headers["Authorization"] == "Basic bGFiOnNlY3JldA=="


def test_a_variable_may_contain_blocks_as_json(load: Load) -> None:
    variables = {
        "HERMES_MODEL__NAME": "m",
        "HERMES_MODEL__EXTRA_BODY": '{"top_k": 40}',
        "HERMES_MODEL__EXTRA_HEADERS": '{"X-Lab": 1}',
        "HERMES_MODEL__REASONING_EFFORT": "None",
        "HERMES_AUXILIARY__COMPRESSION__REASONING_EFFORT": "LOW",
    }
    config = load("", **variables).config
    assert (config.model.extra_body, config.model.plain_headers) == ({"top_k": 40}, {"X-Lab": "1"})
    assert (config.model.reasoning_effort, config.auxiliary.compression.reasoning_effort) == ("off", "low")
    assert load("model: {name: m, reasoning_effort: off}").config.model.reasoning_effort == "off"


def test_extra_fields_may_have_numbers_as_names(load: Load) -> None:
    config = load("model: {name: m, extra_body: {logit_bias: {50256: -100}}}").config
    assert config.model.extra_body == {"logit_bias": {"50256": -100}}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("temperature: 2.1", "model.temperature: must be a number between 0 and 2"),
        ("temperature: warm", "model.temperature: must be a number between 0 and 2"),
        ("reasoning_effort: lots", "model.reasoning_effort: must be one of"),
        ("extra_headers: {'a b': x}", "model.extra_headers: 'a b' is not a valid header name"),
        ('extra_headers: {X: "a\\nb"}', "model.extra_headers: 'X' is not a valid header name, or its value has"),
        ("extra_headers: [X]", "model.extra_headers: must be a block of names"),
        ("extra_body: {messages: []}", "model.extra_body: messages cannot be set here"),
        ("extra_body: {day: 2026-01-01}", "model.extra_body: has a value that JSON cannot represent"),
        ("extra_body: 3", "model.extra_body: must be a block of names"),
        ("aliases: {a: {name: b, temperature: 9}}", "model.aliases: a.temperature: must be between 0 and 2"),
        (
            "fallbacks: [{name: b, extra_body: {stream: 1}}]",
            "model.fallbacks: [1].extra_body: stream cannot be set here",
        ),
    ],
)
def test_invalid_call_parameters_are_refused_with_a_reason(load: Load, settings: str, words: str) -> None:
    said = refusal(load, f"model: {{name: m, {settings}}}")
    assert words.replace("a number between", "between") in said.replace("a number between", "between")
    assert "\n" not in said.strip()
