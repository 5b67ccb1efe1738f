"""Block of settings for prices of model calls and caps on spending."""

import math
from typing import Annotated, Any

from pydantic import BeforeValidator

from gateway.config.blocks import BaseConfig, setting, unknown_key
from hermes_state.kinds import OffOrNumber, keyed

MAX_DOLLARS = 1_000_000
REQUIRED_KEYS = ("input", "output")
PRICE_KEYS = (*REQUIRED_KEYS, "cache_read", "cache_write")


def _price_list(value: object) -> object:
    """Pattern → prices; from a variable as JSON."""
    block = keyed(value)
    if not all(isinstance(prices, dict) for prices in block.values()):
        raise ValueError("must be a block of patterns, each with `input` and `output` below it")
    return {str(pattern).strip(): _prices(str(pattern), prices) for pattern, prices in block.items()}


def _prices(pattern: str, prices: dict[Any, Any]) -> dict[str, float]:
    for key in prices:
        if key not in PRICE_KEYS:
            raise ValueError(f"{pattern}: {unknown_key(key, PRICE_KEYS)}")
    for key in REQUIRED_KEYS:
        if prices.get(key) is None:
            raise ValueError(f"{pattern}.{key} is missing: write it in US dollars for a million tokens")
    return {key: _dollars(f"{pattern}.{key}", value) for key, value in prices.items() if value is not None}


def _dollars(key: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= float(value) <= MAX_DOLLARS:  # type: ignore[arg-type]  # it is a number
        raise ValueError(f"{key} must be US dollars for a million tokens, such as 2.50")
    return float(value)  # type: ignore[arg-type]


Prices = Annotated[dict[str, dict[str, float]], BeforeValidator(_price_list)]


class CostConfig(BaseConfig):
    """Prices of model calls, and caps on spending."""

    prices: Prices = setting({}, default_text="built in for well-known models")
    """Price of models, in US dollars for a million tokens: a pattern such as `gpt-5*`, and below it `input`, `output`
    and, where they differ, `cache_read` and `cache_write`. The longest pattern wins."""
    daily_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Most that the whole gateway may spend in a day, which begins at midnight in `agent.time_zone`."""
    chat_daily_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Most that one chat may spend in a day."""
    conversation_cap: OffOrNumber = setting(None, ge=0.0001, le=MAX_DOLLARS, unit="US dollars", default_text="off")
    """Most that one conversation may cost, from `/new` to `/new`."""

    @property
    def has_caps(self) -> bool:
        return any(cap is not None for cap in (self.daily_cap, self.chat_daily_cap, self.conversation_cap))
