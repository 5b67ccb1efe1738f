"""Catalog of models: listed prices, estimated prices and unknown prices."""

import json
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.model.catalog import FREE, Price, PriceCatalog, known_model, load_catalog, price_of
from bench import make_catalog

CATALOG = load_catalog()


def price(output: float, *, is_estimated: bool = False) -> Price:
    return Price(input=1.0, output=output, cache_read=1.0, cache_write=1.0, is_estimated=is_estimated)


def estimate(output: float) -> Price:
    return price(output, is_estimated=True)


def _corpus() -> list[tuple[str, str]]:
    lines = (Path(__file__).parent / "model_names.txt").read_text().splitlines()
    return [(line.split()[1], line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(("name", "expected"), _corpus())
def test_published_model_names_have_the_right_price(name: str, expected: str) -> None:
    found = price_of(name, {})
    if expected == "-":
        assert found is None
    elif expected == "free":
        assert found == FREE
    elif expected.startswith("="):
        assert found is not None
        assert found == price_of(expected[1:], {})
        assert not found.is_estimated
    else:
        assert found.is_estimated or name in CATALOG.prices
        meant = [one for listed, one in CATALOG.prices.items() if fnmatchcase(listed, expected[1:])]
        assert replace(found, is_estimated=False) in meant


def test_enough_published_model_names_are_tested() -> None:
    expected = [one for _, one in _corpus()]
    assert len(expected) > 300
    assert all(sum(one.startswith(kind) for one in expected) >= minimum for kind, minimum in (("=", 100), ("~", 50)))


CLAUDE = PriceCatalog({"claude-opus-4-6": price(25.0), "claude-opus-4.8": price(24.0), "claude-opus-5": price(20.0)})
LISTED = ["claude-opus-5", "CLAUDE-OPUS-5", "claude-opus-5.0", "claude-5-opus", "anthropic/claude-opus-5"]
LISTED += ["claude-opus-5-20260724", "claude-opus-5@20260724", "claude-opus-5@default", "claude-opus-5-latest"]
NEWER = ["claude-opus-6", "claude-opus-5-5", "claude-6.1-opus", "claude-opus-4-7", "claude-opus-latest"]
FORMS = [
    "claude-opus-4-8-thinking",
    "us.anthropic.claude-opus-4-8-v1:0",
    "claude-opus-4.8:nitro",
    "claude-opus-4-8-maas",
]
OTHERS = [
    "claude-opus-3",
    "claude-sonnet-5",
    "claude-opus-5-fast",
    "my-claude-opus-5",
    "claude-opus",
    "claude",
    "opus-5",
]
OTHERS += ["", "claude-opus-5:8b", "claude-opus-5-70b", "ft:claude-opus-5:my-org::abc123"]
"""Older, local, tuned and unrelated models."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, price(20.0)) for name in LISTED),
        *((name, estimate(20.0)) for name in NEWER),
        *((name, estimate(24.0)) for name in FORMS),
        *((name, None) for name in OTHERS),
    ],
)
def test_a_name_gets_the_price_of_its_spelling_or_an_estimate_of_its_family(name: str, expected: Price | None) -> None:
    assert CLAUDE.find(name) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({"gpt-4o": 10.0, "gpt-4o-2024-05-13": 15.0}, {"openai/gpt-4o-2024-05-13": 15.0, "gpt-4o-2024-11-20": 10.0}),
        ({"codestral-2501": 2.0, "codestral-2508": 1.0}, {"codestral-latest": 1.0, "codestral-2611": 1.0}),
        ({"grok-4.20": 3.0, "grok-4.3": 2.0}, {"grok-4-20": 3.0, "grok-5": -2.0, "grok-4.20-0309-reasoning": -3.0}),
    ],
    ids=["a snapshot", "no version", "4.20 is older than 4.3"],
)
def test_snapshots_and_versions_have_the_right_price(listed: dict[str, float], expected: dict[str, float]) -> None:
    """Negative: an estimate."""
    prices = PriceCatalog({name: price(output) for name, output in listed.items()})
    for name, output in expected.items():
        assert prices.find(name) == price(abs(output), is_estimated=output < 0)


def test_make_catalog_reproduces_the_file() -> None:
    """The sizes are kept, and the same data gives the same bytes."""
    raw = make_catalog.CATALOG.read_text()
    assert make_catalog.rendered(make_catalog.with_prices(json.loads(raw))) == raw
    assert len(raw) < 150_000


def test_prices_are_dated_and_plausible() -> None:
    assert CATALOG.prices_taken_from.startswith("genai-prices ")
    assert date.fromisoformat(CATALOG.prices_taken_on) > date(2026, 10, 1)
    for name, one in CATALOG.prices.items():
        dearer = one.long_prompts or one
        assert name == name.lower()
        assert 0 < one.cache_read <= one.input <= one.output, name
        assert one.input <= dearer.input, name
        assert one.output <= dearer.output, name


def test_every_listed_name_finds_its_own_price() -> None:
    for name, one in CATALOG.prices.items():
        assert price_of(name, {}) == one, name


def test_every_maker_is_listed() -> None:
    heads = ("gpt-", "o3", "claude-", "gemini-", "grok-", "deepseek-", "mistral-", "muse-", "kimi-", "glm-", "minimax-")
    assert [head for head in (*heads, "qwen3") if not any(name.startswith(head) for name in CATALOG.prices)] == []


def test_prompt_limits_are_within_the_window() -> None:
    bound = [one for one in CATALOG.sizes.values() if one.max_input_tokens is not None]
    assert known_model("gpt-5") in bound
    assert all(0 < (one.max_input_tokens or 0) < (one.context_length or 0) for one in bound)


def test_the_name_patterns_begin_with_two_letters_or_digits() -> None:
    assert all(pattern[:2].isalnum() for pattern in CATALOG.sizes), "`known_model` compares two characters first"
