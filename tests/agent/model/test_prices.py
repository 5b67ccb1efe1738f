"""Prices of models, and costs of calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.catalog import Price, cost_of, price_of
from hermes_state.values import CanonicalUsage


def test_a_listed_model_has_the_prices_of_the_catalog() -> None:
    assert price_of("openai/gpt-4.1-mini-2025-04-14", {}) == Price(
        input=0.4, output=1.6, cache_read=0.1, cache_write=0.4
    )
    assert price_of("o3-pro", {}) == Price(input=20.0, output=80.0, cache_read=20.0, cache_write=20.0)


def test_an_unknown_model_of_a_known_family_has_an_estimated_price() -> None:
    found = price_of("claude-opus-99", {}, keeps_cache_for_an_hour=True)
    assert found.is_estimated
    assert found.cache_write == pytest.approx(2 * found.input)


@pytest.mark.parametrize("name", ["lab-128k", "gpt-4o-audio-preview", "mistral-small:24b", "my-claude", ""])
def test_an_unknown_model_has_no_price(name: str) -> None:
    assert price_of(name, {}) is None


def test_the_longest_configured_pattern_wins() -> None:
    configured = {"gpt*": {"input": 1.0, "output": 2.0}, "gpt-4.1*": {"input": 3.0, "output": 4.0}}
    for order in (configured, dict(reversed(configured.items()))):
        found = price_of("openai/gpt-4.1-mini-2025-04-14", order)
        assert found == Price(input=3.0, output=4.0, cache_read=3.0, cache_write=3.0)
    assert price_of("gpt-99", {"GPT-99": {"input": 1.0, "output": 2.0}}) == Price(
        input=1.0, output=2.0, cache_read=1.0, cache_write=1.0
    ), "a configured price is not an estimate"
    assert price_of("GPT-5", configured) == Price(input=1.0, output=2.0, cache_read=1.0, cache_write=1.0)


def test_cache_prices_are_configured_or_defaults() -> None:
    said = {"*": {"input": 2.0, "output": 8.0, "cache_read": 0.5, "cache_write": 2.5}}
    assert price_of("claude-x", said) == Price(input=2.0, output=8.0, cache_read=0.5, cache_write=2.5)
    plain = {"*": {"input": 2.0, "output": 8.0}}
    assert price_of("claude-x", plain) == Price(input=2.0, output=8.0, cache_read=0.2, cache_write=2.5)
    assert price_of("other", plain) == Price(input=2.0, output=8.0, cache_read=2.0, cache_write=2.0)


@pytest.mark.parametrize(("for_an_hour", "write"), [(False, 3.75), (True, 6.0)])
def test_claude_charges_more_to_cache_for_an_hour(for_an_hour: bool, write: float) -> None:
    found = price_of("claude-sonnet-4-5", {}, keeps_cache_for_an_hour=for_an_hour)
    assert found.cache_write == pytest.approx(write)


_counts = st.integers(0, 10**8)
_prices = st.floats(0, 1_000)


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


def test_the_cost_of_a_call_is_the_sum_of_its_parts() -> None:
    price = Price(input=3.0, output=15.0, cache_read=0.3, cache_write=3.75)
    usage = CanonicalUsage(input=1_000, output=100, cache_read=10_000, cache_write=2_000, reasoning=50)
    assert cost_of(usage, price) == 3_000 + 1_500 + 3_000 + 7_500
    assert cost_of(usage, None) is None, "without a price, the cost is unknown"
    price = Price(input=0.28, output=0.42, cache_read=0.028, cache_write=0.28)
    assert cost_of(CanonicalUsage(input=1_000_000), price) == 280_000, "floating point noise does not count"
    assert cost_of(CanonicalUsage(input=1), price) == 1


def test_a_long_prompt_changes_the_price_of_the_entire_call() -> None:
    price = price_of("gpt-5.4", {})
    assert price is not None
    assert cost_of(CanonicalUsage(input=200_000, cache_read=72_000, output=1_000), price) == 500_000 + 18_000 + 15_000
    assert cost_of(CanonicalUsage(input=200_000, cache_read=72_001, output=1_000), price) == 1_000_000 + 36_001 + 22_500
