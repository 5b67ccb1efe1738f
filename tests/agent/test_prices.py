"""Whose price is whose, and what a call comes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.price_list import BUILT_IN
from agent.model.prices import Price, cost_of, price_of
from hermes_state.values import CanonicalUsage


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gpt-4.1-mini", "gpt-4.1-mini"),
        ("openai/gpt-4.1-mini", "gpt-4.1-mini"),
        ("gpt-4.1-mini-2025-04-14", "gpt-4.1-mini"),
        ("GPT-5", "gpt-5"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4[-.]5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4[-.]5"),
        ("claude-opus-4@20250514", "claude-opus-4"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("mistral-small-latest", "mistral-small"),
        ("mistral-large-2411", "mistral-large-2411"),
        ("x-ai/grok-4-0709", "grok-4"),
    ],
)
def test_a_name_finds_its_price_with_a_provider_before_it_and_a_date_behind_it(name: str, pattern: str) -> None:
    found = price_of(name, {})
    assert found is not None
    assert (found.input, found.output, found.cache_read) == BUILT_IN[pattern]


@pytest.mark.parametrize(
    "name", ["lab-128k", "gpt-5.9", "gpt-4o-audio-preview", "mistral-small:24b", "my-claude", "claude-opus-9", ""]
)
def test_a_model_that_nobody_has_priced_has_no_price(name: str) -> None:
    assert price_of(name, {}) is None


def test_what_is_configured_wins_and_of_it_the_longest_pattern() -> None:
    configured = {"gpt*": {"input": 1.0, "output": 2.0}, "gpt-4.1*": {"input": 3.0, "output": 4.0}}
    for order in (configured, dict(reversed(configured.items()))):
        found = price_of("openai/gpt-4.1-mini-2025-04-14", order)
        assert found == Price(input=3.0, output=4.0, cache_read=3.0, cache_write=3.0)
    assert price_of("GPT-5", configured) == Price(input=1.0, output=2.0, cache_read=1.0, cache_write=1.0)


def test_what_is_in_the_cache_costs_what_is_said_or_what_is_usual() -> None:
    said = {"*": {"input": 2.0, "output": 8.0, "cache_read": 0.5, "cache_write": 2.5}}
    assert price_of("claude-x", said) == Price(input=2.0, output=8.0, cache_read=0.5, cache_write=2.5)
    plain = {"*": {"input": 2.0, "output": 8.0}}
    assert price_of("claude-x", plain) == Price(input=2.0, output=8.0, cache_read=0.2, cache_write=2.5)
    assert price_of("other", plain) == Price(input=2.0, output=8.0, cache_read=2.0, cache_write=2.0)


@pytest.mark.parametrize(("for_an_hour", "write"), [(False, 3.75), (True, 6.0)])
def test_claude_asks_more_for_what_it_keeps_for_an_hour(for_an_hour: bool, write: float) -> None:
    found = price_of("claude-sonnet-4-5", {}, keeps_cache_for_an_hour=for_an_hour)
    assert found is not None
    assert found.cache_write == pytest.approx(write)


def test_the_built_in_list_makes_sense() -> None:
    for pattern, (fresh, output, read) in BUILT_IN.items():
        assert 0 < read <= fresh <= output, pattern
    assert {next(family for family in _FAMILIES if pattern.startswith(family)) for pattern in BUILT_IN} == set(
        _FAMILIES
    )


_FAMILIES = (
    *("gpt-", "o1", "o3", "o4", "claude-", "gemini-", "deepseek-", "mistral-", "magistral-", "codestral"),
    *("ministral-", "grok-"),
)

_counts = st.integers(0, 10**8)
_prices = st.floats(0, 1_000)


@given(usage=st.builds(CanonicalUsage, input=_counts, output=_counts, cache_read=_counts, cache_write=_counts))
def test_without_a_price_a_cost_is_unknown_and_never_nothing(usage: CanonicalUsage) -> None:
    assert cost_of(usage, None) is None


@given(
    usage=st.builds(CanonicalUsage, input=_counts, output=_counts, cache_read=_counts, cache_write=_counts),
    price=st.builds(Price, input=_prices, output=_prices, cache_read=_prices, cache_write=_prices),
)
def test_a_cost_is_rounded_up_and_grows_with_every_token(usage: CanonicalUsage, price: Price) -> None:
    cost = cost_of(usage, price)
    assert cost is not None
    exact = (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
    )
    assert exact - 1e-3 <= cost < exact + 1 + 1e-3


def test_a_call_costs_what_its_parts_cost() -> None:
    price = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    usage = CanonicalUsage(input=1_000, output=100, cache_read=10_000, cache_write=2_000, reasoning=50)
    assert cost_of(usage, price) == 3_000 + 1_500 + 3_000 + 7_500


def test_what_costs_a_round_sum_is_not_rounded_up_for_how_computers_count() -> None:
    price = Price(input=0.28, output=0.42, cache_read=0.028, cache_write=0.28)
    assert cost_of(CanonicalUsage(input=1_000_000), price) == 280_000
    assert cost_of(CanonicalUsage(input=1), price) == 1
