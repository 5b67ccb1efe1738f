"""Conversion of token counts into one form."""

import math
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.usage import MAX_TOKENS, UsageFormat, normalize_usage, reported_cost
from hermes_state.values import CanonicalUsage

SHAPES = [None, *get_args(UsageFormat)]


def test_cached_tokens_are_subtracted_from_the_input() -> None:
    usage = {
        "prompt_tokens": 81_000,
        "completion_tokens": 500,
        "prompt_tokens_details": {"cached_tokens": 60_000},
        "completion_tokens_details": {"reasoning_tokens": 300},
    }
    found = normalize_usage(usage)
    assert found == CanonicalUsage(input=21_000, output=500, cache_read=60_000, reasoning=300)
    assert (found.prompt, found.total) == (81_000, 81_500)


@pytest.mark.parametrize("shape", [None, "responses"])
@pytest.mark.parametrize("written", ["cache_creation_tokens", "cache_write_tokens"])
def test_responses_include_cached_tokens_in_the_input(shape: UsageFormat | None, written: str) -> None:
    usage = {
        "input_tokens": 81_000,
        "input_tokens_details": {"cached_tokens": 60_000, written: 1_000},
        "output_tokens": 500,
        "output_tokens_details": {"reasoning_tokens": 300},
        "total_tokens": 81_500,
    }
    expected = CanonicalUsage(input=20_000, output=500, cache_read=60_000, cache_write=1_000, reasoning=300)
    assert normalize_usage(usage, shape) == expected


@pytest.mark.parametrize("shape", [None, "anthropic"])
def test_anthropic_excludes_cached_tokens_from_the_input(shape: UsageFormat | None) -> None:
    usage = {
        "input_tokens": 20_000,
        "cache_creation_input_tokens": 1_000,
        "cache_read_input_tokens": 60_000,
        "output_tokens": 500,
        "cache_creation": {"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 0},
    }
    found = normalize_usage(usage, shape)
    assert found == CanonicalUsage(input=20_000, output=500, cache_read=60_000, cache_write=1_000)
    assert found.prompt == 81_000


CHAT = {"prompt_tokens": 81_000, "completion_tokens": 500}
INCLUSIVE = [
    {"prompt_tokens_details": {"cached_tokens": 60_000, "cache_write_tokens": 1_000}},  # OpenRouter
    {"prompt_tokens_details": {"cached_tokens": 60_000, "cache_creation_tokens": 1_000}},  # LiteLLM
    {"prompt_tokens_details": {"cached_tokens": 60_000, "cache_creation_input_tokens": 1_000}},  # DashScope
    {"prompt_tokens_details": {"cached_tokens": 60_000}, "cache_creation_input_tokens": 1_000},
    {
        "prompt_tokens_details": {"cached_tokens": 0},
        "cache_read_input_tokens": 60_000,
        "cache_creation_input_tokens": 1_000,
    },
    {"prompt_tokens_details": None, "cache_read_input_tokens": 60_000, "cache_creation_input_tokens": 1_000},
    {"cache_read_input_tokens": 60_000, "cache_write_input_tokens": 1_000},
    {"cached_tokens": 60_000, "cache_write_tokens": 1_000},  # Moonshot
    {"prompt_cache_hit_tokens": 60_000, "cache_creation_input_tokens": 1_000},
    {"input_tokens_details": {"cached_tokens": 60_000}, "cache_creation_input_tokens": 1_000},
]


@pytest.mark.parametrize("shape", [None, "chat_completions"])
@pytest.mark.parametrize("cached", INCLUSIVE, ids=str)
def test_cached_tokens_are_found_under_every_name(cached: Any, shape: UsageFormat | None) -> None:
    expected = CanonicalUsage(input=20_000, output=500, cache_read=60_000, cache_write=1_000)
    assert normalize_usage(CHAT | cached, shape) == expected
    assert normalize_usage(CHAT | {"total_tokens": 81_500} | cached, shape) == expected


def test_deepseeks_cache_hits_are_counted_as_cached() -> None:
    usage = CHAT | {"prompt_cache_hit_tokens": 60_032, "prompt_cache_miss_tokens": 20_968}
    expected = CanonicalUsage(input=20_968, output=500, cache_read=60_032)
    assert normalize_usage(usage) == expected
    details = {"prompt_tokens_details": {"cached_tokens": 60_032}}
    assert normalize_usage(usage | details) == expected, "repeated fields count once"


@pytest.mark.parametrize("shape", [None, "chat_completions"])
@pytest.mark.parametrize("total", [{}, {"total_tokens": 81_500}, {"total_tokens": 20_500}])
def test_cached_tokens_above_the_prompt_count_are_added(shape: UsageFormat | None, total: Any) -> None:
    """Some proxies only rename Anthropic's fields, without adding the counts."""
    usage = {"prompt_tokens": 20_000, "completion_tokens": 500, **total}
    usage |= {"cache_read_input_tokens": 60_000, "cache_creation_input_tokens": 1_000}
    expected = CanonicalUsage(input=20_000, output=500, cache_read=60_000, cache_write=1_000)
    assert normalize_usage(usage, shape) == expected


def test_the_total_shows_if_cached_tokens_are_included() -> None:
    usage = {"prompt_tokens": 5_000, "completion_tokens": 100, "cache_read_input_tokens": 3_000}
    assert normalize_usage(usage | {"total_tokens": 5_100}) == CanonicalUsage(input=2_000, output=100, cache_read=3_000)
    assert normalize_usage(usage | {"total_tokens": 8_100}) == CanonicalUsage(input=5_000, output=100, cache_read=3_000)


def test_an_object_of_an_sdk_is_read_like_a_mapping() -> None:
    details = SimpleNamespace(cached_tokens=4)
    found = normalize_usage(SimpleNamespace(input_tokens=10, output_tokens=2, input_tokens_details=details))
    assert found == CanonicalUsage(input=6, output=2, cache_read=4)


def test_a_reply_with_the_names_of_two_apis_is_counted_once() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "input_tokens": 10, "cache_read_input_tokens": 5}
    assert normalize_usage(usage) == CanonicalUsage(input=5, output=2, cache_read=5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("usage", [None, {}, [], "10", 3, {"prompt_tokens": None}, {"completion_tokens": 3}])
def test_without_a_prompt_count_there_is_no_usage(usage: Any, shape: UsageFormat | None) -> None:
    assert normalize_usage(usage, shape) is None


@pytest.mark.parametrize("count", [True, -1, -0.5, math.nan, math.inf, -math.inf, "12", [12], {"n": 12}, 2**62, 1e300])
@pytest.mark.parametrize("name", ["prompt_tokens", "input_tokens"])
def test_an_invalid_prompt_count_gives_no_usage(name: str, count: Any) -> None:
    assert normalize_usage({name: count, "completion_tokens": 1, "output_tokens": 1}) is None


def test_a_count_may_be_a_float() -> None:
    usage = {"prompt_tokens": 12.0, "completion_tokens": 3.0, "prompt_tokens_details": {"cached_tokens": 2.0}}
    found = normalize_usage(usage)
    assert found == CanonicalUsage(input=10, output=3, cache_read=2)
    assert all(type(count) is int for count in (found.input, found.output, found.cache_read))


_counts = st.integers(0, 10**7)
_nonsense = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=3), st.just([1]), st.just({"a": 1})
)
_details = st.one_of(
    _nonsense,
    st.dictionaries(
        st.sampled_from(["cached_tokens", "cache_write_tokens", "cache_creation_tokens", "reasoning_tokens"]),
        st.one_of(_counts, _nonsense),
    ),
)
_names = (
    *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
)
_detail_names = tuple(f"{name}_details" for name in _names[:4])
_usages = st.fixed_dictionaries(
    {}, optional={name: st.one_of(_counts, _nonsense) for name in _names} | dict.fromkeys(_detail_names, _details)
)


@given(usage=_usages, shape=st.sampled_from(SHAPES))
def test_garbage_gives_bounded_counts_or_nothing(usage: Any, shape: UsageFormat | None) -> None:
    found = normalize_usage(usage, shape)
    if found is not None:
        parts = (found.input, found.output, found.cache_read, found.cache_write, found.reasoning)
        assert all(type(part) is int and 0 <= part <= MAX_TOKENS for part in parts)
        assert found.prompt <= MAX_TOKENS


@given(prompt=_counts, output=_counts, details=_details)
@pytest.mark.parametrize(
    ("shape", "names"),
    [("chat_completions", ("prompt_tokens", "completion_tokens")), ("responses", ("input_tokens", "output_tokens"))],
)
def test_the_parts_add_up_to_the_reported_total(
    shape: UsageFormat, names: tuple[str, str], prompt: int, output: int, details: Any
) -> None:
    usage = {names[0]: prompt, names[1]: output, f"{names[0]}_details": details}
    for found in (normalize_usage(usage, shape), normalize_usage(usage)):
        assert (found.prompt, found.total) == (prompt, prompt + output)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.002}, 2_000),
        ({"cost": 0}, None),
        ({"cost": -1}, None),
        ({"cost": "0.002"}, None),
        ({"cost": float("nan")}, None),
        ({"cost": 10**400}, None),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.002}}, 3_000),
        ({"cost": 0.001, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.002}}, 1_000),
        (None, None),
    ],
)
def test_a_reported_cost_counts_only_if_it_is_a_price(usage: Any, cost: int | None) -> None:
    assert reported_cost(usage) == cost
