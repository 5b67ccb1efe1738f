"""Catalog of well-known models: their sizes and prices from `catalog.json`, and the cost of a call.

The sizes in that file are kept by hand, for families of models: where hosts differ, the smaller figure stands there.
The prices are the makers'; `make catalog` takes them from genai-prices, which is not needed to run the gateway.
The configuration wins over both, and the provider's own figures win over the sizes.
"""

import math
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from hermes_state.values import CanonicalUsage, MicroUsd, Tokens


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a family of models, in tokens."""

    context_length: Tokens | None = None
    """None where a local server sets it at its start."""
    max_input_tokens: Tokens | None = None
    """Longest prompt, where the provider bounds it below the context window."""
    max_output_tokens: Tokens | None = None
    """None: no limit of its own."""
    sees_images: bool = False


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens of a model, which is the same as millionths of a dollar for one."""

    input: float
    output: float
    """Reasoning is paid as output."""
    cache_read: float
    cache_write: float
    cache_write_1h: float | None = None
    """Price of keeping text in the cache for an hour, where that costs more."""
    above_prompt_tokens: int = 0
    long_prompts: "Price | None" = None
    """Price of a whole call with a prompt above its `above_prompt_tokens`."""
    is_estimated: bool = False
    """True for the price of another model of the same family, or of the same model under another form of its name."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `catalog.json`."""

    sizes_taken_on: str
    """Month in which these were the makers' public figures."""
    sizes: dict[str, KnownModel]
    """By pattern of the name; of several the longest wins."""
    prices_taken_from: str
    prices_taken_on: str
    prices: dict[str, Price]
    """By name, see `PriceCatalog`."""


@cache
def load_catalog() -> Catalog:
    return msgspec.json.decode(Path(__file__).with_name("catalog.json").read_bytes(), type=Catalog)


@lru_cache(maxsize=256)
def known_model(model: str) -> KnownModel | None:
    """Return the sizes of a model's family; None for a name that matches none.

    A name with a tag, such as `gpt-oss:20b`, belongs to a local server, which sets the window when it starts.
    """
    names, sizes = list(_names(model)), load_catalog().sizes
    matching = [pattern for pattern in sizes if any(fnmatchcase(name, pattern) for name in names)]
    if not matching:
        return None
    known = sizes[max(matching, key=len)]
    return KnownModel(sees_images=known.sees_images) if has_local_tag(model) else known


def sees_images(model: str) -> bool:
    """True for a model that is known to see images, by its family or by its name."""
    known = known_model(model)
    seeing = re.compile(  # also models whose window is not known
        r".*(?:vision|[-_]vl(?:[-_]|$)|\dvl(?:-|$)|llava|minicpm-v|internvl|moondream)|gemma[34]|llama4|mistral-small3"
    )
    return (known is not None and known.sees_images) or any(map(seeing.match, _names(model)))


# ---- names

DATE: Final = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{2}-\d{2}|\d{2}-\d{4}|00\d|latest|default)$")
"""Date or revision at the end of a name."""
FINE_TUNED: Final = re.compile(r"^ft:([^:]+):.*$")
_TAG = re.compile(r":[^/]*$")
_CLOUD = re.compile(
    r"^(?:[a-z]{2,6}\.)?(?:amazon|anthropic|deepseek|google|meta|minimax|mistral|moonshot|moonshotai|openai|qwen|xai|zai)\."
)


def spellings(model: str) -> Iterator[str]:
    """Yield the names of a model in lists: `openai/gpt-5-2025-08-07` is also `gpt-5-2025-08-07` and `gpt-5`."""
    name = model.strip().lower()
    bare = name.rpartition("/")[2]
    yield from dict.fromkeys((name, bare, DATE.sub("", name), DATE.sub("", bare)))


def makers_name(name: str) -> str:
    """Return a name without additions: `eu.anthropic.claude-opus-4-8-v1:0` is `claude-opus-4-8` at Amazon."""
    bare = _TAG.sub("", name).rpartition("/")[2]
    name = _CLOUD.sub("", bare)
    return re.sub(r"(?:-v\d+)?(?:-maas)?$", "", name) if name != bare or name.endswith("-maas") else name


def has_local_tag(model: str) -> bool:
    """True for a name with the tag of a build on a local server, such as `:20b`."""
    name = model.strip().lower()
    # Resellers' tags for another way to the same model, and Amazon's revisions.
    is_hosted = re.search(r":(?:free|batch|nitro|floor|exacto|extended|online|thinking|beta|\d+)$", name)
    return bool(_TAG.search(name)) and not (is_hosted or FINE_TUNED.match(name))


def _names(model: str) -> Iterator[str]:
    """Yield every spelling, also of the model that was fine-tuned and of names that clouds give."""
    name = _TAG.sub("", FINE_TUNED.sub(r"\1", model.strip().lower()))
    yield from spellings(name)
    yield from spellings(makers_name(name))


# ---- prices

FREE: Final = Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)


def cost_of(usage: CanonicalUsage, price: Price | None) -> MicroUsd | None:
    """Return the cost of a call with this usage, rounded up; None where the price is not known."""
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
    return MicroUsd(math.ceil(round(exact, 6)))  # without the error of a sum of fractions


def price_of(
    model: str, configured: Mapping[str, Mapping[str, float]], *, keeps_cache_for_an_hour: bool = False
) -> Price | None:
    """Return the price of a model; None where it is not known.

    `configured`: pattern → `input`, `output` and, if they differ, `cache_read` and `cache_write`; it wins over the
    catalog. Of the patterns that match one of the name's `spellings` the longest wins. Where it gives no price for
    the cache, cached text costs as other input. Anthropic asks a tenth of the input to read it, 1.25 times the input to
    keep it for five minutes, and twice the input for an hour.
    """
    names = list(spellings(model))
    matching = [pattern for pattern in configured if any(fnmatchcase(name, pattern.lower()) for name in names)]
    if matching:
        given = configured[max(matching, key=len)]
        read, write = (0.1, 2.0 if keeps_cache_for_an_hour else 1.25) if "claude" in names[0] else (1.0, 1.0)
        cache = {"cache_read": given["input"] * read, "cache_write": given["input"] * write}
        return msgspec.convert({**cache, **given}, Price)
    price = _price_list().find(model)
    return _for_an_hour(price) if price is not None and keeps_cache_for_an_hour else price


@cache
def _price_list() -> "PriceCatalog":
    return PriceCatalog(load_catalog().prices)


def _for_an_hour(price: Price) -> Price:
    dearer = price.long_prompts and _for_an_hour(price.long_prompts)
    return replace(price, cache_write=price.cache_write_1h or price.cache_write, long_prompts=dearer)


class PriceCatalog:
    """Prices by name, also for names that are not listed but belong to a family that is.

    A family is a name without version and date: `gpt-5.4-mini` is of the family `gpt mini`, and so is `gpt-6.1-mini`,
    which takes the price of the newest that is listed.

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
        """Return the price of a model; None where it is not known.

        A provider before the name and a date after it do not matter. The price is an estimate where the name has
        another form (a cloud's, or with the tag of a reseller) or is unknown. Nothing is estimated for fine-tuned
        models, for local servers, and for models that anybody may host.
        """
        name = model.strip().lower()
        if name.endswith(":free") and "/" in name:
            return FREE
        if (known := self._known(name)) is not None:
            return known
        has_parameters = re.search(r"\d+b(?![a-z0-9])", name)  # as models have that anybody may host
        if has_local_tag(name) or FINE_TUNED.match(name) or has_parameters:
            return None
        name = makers_name(name)
        found = self._known(name) or self._newest(name)
        return None if found is None else replace(found, is_estimated=True)

    def _known(self, name: str) -> Price | None:
        return next((self._named[parts] for parts in map(_parts, spellings(name)) if parts in self._named), None)

    def _newest(self, name: str) -> Price | None:
        """Return the price of the same version under another name, else of the family's newest, unless it is older."""
        family, numbers = _parts(_core(name))
        versions = self._families.get(family)
        if versions is None or not (numbers or name.endswith("-latest")):
            return None
        newest = max(versions)
        version = _version(numbers) if numbers else newest
        return None if version < min(versions) else versions.get(version, versions[newest])


def _core(name: str) -> str:
    """Return a name without date, and without state or mode, which do not change the price."""
    mode = r"-(?:preview|latest|exp|experimental|beta|thinking|non-reasoning|reasoning)(?![a-z])"
    return DATE.sub("", re.sub(mode, "", name))


def _parts(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words and the numbers of a name; version 5.0 is version 5."""
    return tuple(re.findall(r"[a-z]+", name)), tuple(re.findall(r"\d+", re.sub(r"(\d)[-.]0(?!\d)", r"\1", name)))


def _version(numbers: tuple[str, ...]) -> float:
    """Return a version as a number with decimals: 4.20 came before 4.3. A name without one is the oldest."""
    return float(f"{numbers[0]}.{''.join(numbers[1:])}") if numbers else 0.0
