"""Prices of models, by name, and what a call costs by them."""

import math
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

from msgspec.structs import replace

from agent.model.catalog import DATE, FINE_TUNED, Price, has_local_tag, load_catalog, makers_name, spellings
from hermes_state.values import CanonicalUsage, MicroUsd

FREE: Final = Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)


def cost_of(usage: CanonicalUsage, price: Price | None) -> MicroUsd | None:
    """Cost of a call with this usage, rounded up; None where the price is not known."""
    if price is None:
        return None
    if price.long_prompts is not None and usage.prompt > price.long_prompts.above_prompt_tokens:
        price = price.long_prompts
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
    """Price of a model; None where nobody knows it.

    `configured`: pattern → `input`, `output` and, if they differ, `cache_read` and `cache_write`; it wins over the
    catalog. In it the longest pattern wins that the name matches: as it is, without what stands before the last `/`,
    or without the date at its end.
    """
    names = list(spellings(model))
    matching = [pattern for pattern in configured if any(fnmatchcase(name, pattern.lower()) for name in names)]
    if matching:
        return _configured(configured[max(matching, key=len)], "claude" in names[0], keeps_cache_for_an_hour)
    price = _price_list().find(model)
    return _for_an_hour(price) if price is not None and keeps_cache_for_an_hour else price


@cache
def _price_list() -> "PriceCatalog":
    return PriceCatalog(load_catalog().prices)


def _for_an_hour(price: Price) -> Price:
    dearer = price.long_prompts and _for_an_hour(price.long_prompts)
    return replace(price, cache_write=price.cache_write_1h or price.cache_write, long_prompts=dearer)


def _configured(given: Mapping[str, float], is_claude: bool, keeps_cache_for_an_hour: bool) -> Price:
    """With what is not given about the cache: it costs as other input does; for Claude, what it costs there.

    Anthropic asks 1.25 times the input for what it keeps for five minutes, twice the input for an hour.
    """
    fresh = given["input"]
    read, write = (0.1, 2.0 if keeps_cache_for_an_hour else 1.25) if is_claude else (1.0, 1.0)
    return Price(
        input=fresh,
        output=given["output"],
        cache_read=given.get("cache_read", fresh * read),
        cache_write=given.get("cache_write", fresh * write),
    )


class PriceCatalog:
    """Prices by name, also for names that are not listed but belong to a family that is.

    A family is what a name says besides version and date: `gpt-5.4-mini` is of the family `gpt mini`, and so is
    `gpt-6.1-mini`, which takes the price of the newest that is listed.

    >>> newest = Price(input=0.75, output=4.5, cache_read=0.075, cache_write=0.75)
    >>> prices = PriceCatalog({"gpt-4.1-mini": FREE, "gpt-5.4-mini": newest})
    >>> prices.find("openai/gpt-5.4-mini-2026-03-17") == newest
    True
    >>> prices.find("gpt-6.1-mini") == replace(newest, is_estimated=True)
    True
    >>> prices.find("gpt-6.1-nano") is None
    True
    """

    def __init__(self, models: Mapping[str, Price]) -> None:
        self._named = {_parts(name): price for name, price in models.items()}
        """By words and numbers, however they are put together: `claude-3.5-haiku` is also `claude-haiku-3-5`."""
        self._families: dict[tuple[str, ...], dict[float, Price]] = {}
        """By words, and within a family by version."""
        newest_first = sorted(models, reverse=True)
        for name in sorted(newest_first, key=lambda name: (DATE.search(name) is not None, len(name))):
            self._named.setdefault(_parts(DATE.sub("", name)), models[name])
            family, numbers = _parts(_core(name))
            self._families.setdefault(family, {}).setdefault(_version(numbers), models[name])

    def find(self, model: str) -> Price | None:
        """Price of a model; None where it is not known.

        A provider before the name and a date behind it do not matter. An estimate is the price of a model whose name
        has another form (a cloud's, or with the tag of a reseller), and of one that is unknown. Nothing is estimated
        for fine-tuned models, for those of a server of one's own, and for those that anybody may host.
        """
        name = model.strip().lower()
        if name.endswith(":free") and "/" in name:
            return FREE
        if (known := self._known(name)) is not None:
            return known
        if has_local_tag(name) or FINE_TUNED.match(name) or _PARAMETERS.search(name):
            return None
        name = makers_name(name)
        found = self._known(name) or self._newest(name)
        return None if found is None else replace(found, is_estimated=True)

    def _known(self, name: str) -> Price | None:
        known = (self._named.get(_parts(spelling)) for spelling in spellings(name))
        return next((price for price in known if price is not None), None)

    def _newest(self, name: str) -> Price | None:
        """Price of the same version under another name, else of the family's newest. Older than all is not guessed."""
        family, numbers = _parts(_core(name))
        versions = self._families.get(family)
        if versions is None or not (numbers or name.endswith("-latest")):
            return None
        newest = max(versions)
        version = _version(numbers) if numbers else newest
        return None if version < min(versions) else versions.get(version, versions[newest])


_PARAMETERS: Final = re.compile(r"\d+b(?![a-z0-9])")
"""Number of parameters, which stands in the names of models that anybody may host."""
_MODE: Final = re.compile(r"-(?:preview|latest|exp|experimental|beta|thinking|non-reasoning|reasoning)(?![a-z])")
"""State or mode of a model, which costs no other price."""


def _core(name: str) -> str:
    return DATE.sub("", _MODE.sub("", name))


def _parts(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words and numbers; version 5.0 is version 5."""
    return tuple(re.findall(r"[a-z]+", name)), tuple(re.findall(r"\d+", re.sub(r"(\d)[-.]0(?!\d)", r"\1", name)))


def _version(numbers: tuple[str, ...]) -> float:
    """As a number with decimals: 4.20 came before 4.3. What has none is older than what has one."""
    return float(f"{numbers[0]}.{''.join(numbers[1:])}") if numbers else 0.0
