"""What a model costs: the price of a name, and what a call comes to."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.model.catalog import spellings
from agent.model.price_list import BUILT_IN
from hermes_state.values import CanonicalUsage, MicroUsd


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one model: US dollars for a million tokens, which is the same as millionths of a dollar for one."""

    input: float
    output: float
    """Reasoning is paid as output."""
    cache_read: float
    cache_write: float
    is_estimated: bool = False
    """It is another model's, of the same family."""


FREE = Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)


def cost_of(usage: CanonicalUsage, price: Price | None) -> MicroUsd | None:
    """What a call with this usage costs, rounded up; None where the price is not known."""
    if price is None:
        return None
    exact = (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + usage.cache_write * price.cache_write
    )
    return MicroUsd(math.ceil(round(exact, 6)))  # a sum of fractions is a little beside itself


def price_of(
    model: str, configured: Mapping[str, Mapping[str, float]], *, keeps_cache_for_an_hour: bool = False
) -> Price | None:
    """The price of a model; None where nobody knows it.

    `configured`: pattern → `input`, `output` and, if they differ, `cache_read` and `cache_write`; it wins over the
    built-in list. In each the longest pattern wins that the name matches: as it is, without what stands before the
    last `/`, or without the date at its end.
    """
    names = list(spellings(model))
    is_claude = any("claude" in name for name in names)
    found = _longest(names, configured)
    if found is not None:
        return _configured(configured[found], is_claude, keeps_cache_for_an_hour)
    found = _longest(names, BUILT_IN)
    if found is None:
        return None
    input_price, output_price, read = BUILT_IN[found]
    write = _claude_write(input_price, keeps_cache_for_an_hour) if is_claude else input_price
    return Price(input=input_price, output=output_price, cache_read=read, cache_write=write)


def _configured(given: Mapping[str, float], is_claude: bool, keeps_cache_for_an_hour: bool) -> Price:
    """What is not given about the cache costs as other input does; for Claude, what it costs there."""
    fresh = given["input"]
    read = fresh * _CLAUDE_READ if is_claude else fresh
    write = _claude_write(fresh, keeps_cache_for_an_hour) if is_claude else fresh
    return Price(
        input=fresh,
        output=given["output"],
        cache_read=given.get("cache_read", read),
        cache_write=given.get("cache_write", write),
    )


_CLAUDE_READ = 0.1


def _claude_write(input_price: float, keeps_cache_for_an_hour: bool) -> float:
    """Anthropic asks 1.25 times the input for what it keeps for five minutes, twice the input for an hour."""
    return input_price * (2.0 if keeps_cache_for_an_hour else 1.25)


def _longest(names: Iterable[str], patterns: Iterable[str]) -> str | None:
    found = [pattern for pattern in patterns if any(fnmatchcase(name, pattern.lower()) for name in names)]
    return max(found, key=len, default=None)
