"""Models: their sizes (context window, longest prompt and longest answer), their prices, and the cost of a call.

`catalog.json` lists well-known models. The sizes in that file are maintained by hand for each model family. If hosts
state different sizes, the file contains the smallest. The prices are the model makers' own prices. `make catalog`
imports them from genai-prices, a development dependency.

Each size comes from the first of these sources that states it: the configuration, the provider, the catalog. If none of
them does, a default that suits nearly every model is used. The output limit always leaves room for a prompt.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from agent.model.base import ModelLimits
from hermes_state.values import CanonicalUsage, EstimatedTokens, MicroUsd, Tokens


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a family of models, in tokens."""

    context_length: Tokens | None = None
    """Context window. None if a local server sets it when it starts."""
    max_input_tokens: Tokens | None = None
    """Longest prompt, if the provider limits prompts to less than the context window."""
    max_output_tokens: Tokens | None = None
    """Output limit. None if the model has no separate output limit."""
    sees_images: bool = False


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price of a model in US dollars per million tokens, which equals millionths of a dollar per token."""

    input: float
    output: float
    """Price of output tokens, which include reasoning."""
    cache_read: float
    cache_write: float
    cache_write_1h: float | None = None
    """Price of caching text for an hour, if that costs more than for five minutes."""
    above_prompt_tokens: int = 0
    long_prompts: "Price | None" = None
    """Price of the entire call if its prompt is longer than `long_prompts.above_prompt_tokens`."""
    is_estimated: bool = False
    """True if the price was listed for another model of the family, or under another form of the name."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `catalog.json`."""

    sizes_taken_on: str
    """Month in which the sizes were copied from the model makers' websites."""
    sizes: dict[str, KnownModel]
    """Sizes by name pattern. If several patterns match, the longest wins."""
    prices_taken_from: str
    prices_taken_on: str
    prices: dict[str, Price]
    """Prices by model name. `PriceCatalog` searches them."""


@cache
def load_catalog() -> Catalog:
    return msgspec.json.decode(Path(__file__).with_name("catalog.json").read_bytes(), type=Catalog)


@lru_cache(maxsize=256)
def known_model(model: str) -> KnownModel | None:
    """Return the limits of a model's family; None if the name matches no family.

    A tag, as in `gpt-oss:20b`, indicates a local server, which sets its own limits. All limits are then None.
    """
    names, sizes = list(_names(model)), load_catalog().sizes
    # Compare two characters first: no pattern has a wildcard there, and `fnmatchcase` compiles every pattern.
    matching = [one for one in sizes if any(name[:2] == one[:2] and fnmatchcase(name, one) for name in names)]
    if not matching:
        return None
    known = sizes[max(matching, key=len)]
    return KnownModel(sees_images=known.sees_images) if has_local_tag(model) else known


def sees_images(model: str) -> bool:
    """Return True if a model's family or name shows that it accepts images."""
    known = known_model(model)
    seeing = re.compile(  # includes models whose context window is unknown
        r".*(?:vision|[-_]vl(?:[-_]|$)|\dvl(?:-|$)|llava|minicpm-v|internvl|moondream)|gemma[34]|llama4|mistral-small3"
    )
    return (known is not None and known.sees_images) or any(map(seeing.match, _names(model)))


# ---- names

DATE: Final = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{2}-\d{2}|\d{2}-\d{4}|00\d|latest|default)$")
"""Pattern for a date or revision at the end of a model name."""
FINE_TUNED: Final = re.compile(r"^ft:([^:]+):.*$")
_TAG = re.compile(r":[^/]*$")
_CLOUD = re.compile(
    r"^(?:[a-z]{2,6}\.)?(?:amazon|anthropic|deepseek|google|meta|minimax|mistral|moonshot|moonshotai|openai|qwen|xai|zai)\."
)


def spellings(model: str) -> Iterator[str]:
    """Yield the names under which a model might be listed.

    For `openai/gpt-5-2025-08-07` they include `gpt-5-2025-08-07` and `gpt-5`.
    """
    name = model.strip().lower()
    bare = name.rpartition("/")[2]
    yield from dict.fromkeys((name, bare, DATE.sub("", name), DATE.sub("", bare)))


def makers_name(name: str) -> str:
    """Return the maker's name for a model at a cloud provider.

    For Amazon's `eu.anthropic.claude-opus-4-8-v1:0`, this is `claude-opus-4-8`.
    """
    bare = _TAG.sub("", name).rpartition("/")[2]
    name = _CLOUD.sub("", bare)
    return re.sub(r"(?:-v\d+)?(?:-maas)?$", "", name) if name != bare or name.endswith("-maas") else name


def has_local_tag(model: str) -> bool:
    """Return True if a name has a local server's tag, such as `:20b`."""
    name = model.strip().lower()
    # Some tags are not local: resellers use them for variants of a model, and Amazon uses them for revisions.
    is_hosted = re.search(r":(?:free|batch|nitro|floor|exacto|extended|online|thinking|beta|\d+)$", name)
    return bool(_TAG.search(name)) and not (is_hosted or FINE_TUNED.match(name))


def _names(model: str) -> Iterator[str]:
    """Yield all spellings of a name and of the maker's name. A fine-tuned model counts as its base model."""
    name = _TAG.sub("", FINE_TUNED.sub(r"\1", model.strip().lower()))
    yield from spellings(name)
    yield from spellings(makers_name(name))


# ---- prices

FREE: Final = Price(input=0.0, output=0.0, cache_read=0.0, cache_write=0.0)


def cost_of(usage: CanonicalUsage, price: Price | None) -> MicroUsd | None:
    """Return the cost of a call with this usage, rounded up to whole `MicroUsd`; None if the price is unknown."""
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
    return MicroUsd(math.ceil(round(exact, 6)))  # without floating-point noise


def price_of(
    model: str, configured: Mapping[str, Mapping[str, float]], *, keeps_cache_for_an_hour: bool = False
) -> Price | None:
    """Return the price of a model; None if the price is unknown.

    `configured` maps name patterns to `input`, `output` and, optionally, `cache_read` and `cache_write`. The longest
    pattern that matches one of the name's `spellings` wins. Without a match, the catalog is searched. Cache prices
    default to the input price. For Claude models, they default to multiples of the input price: 0.1 to read, 1.25 to
    cache for five minutes, and 2 to cache for an hour.
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
    """Prices by model name, with estimates for unlisted models of a listed family.

    A family is a name without version and date: `gpt-5.4-mini` and `gpt-6.1-mini` both belong to `gpt mini`. An
    unlisted version gets the price of the newest listed version.

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
        """Prices by the words and the numbers of a name, so `claude-3.5-haiku` and `claude-haiku-3-5` are the same."""
        self._families: dict[tuple[str, ...], dict[float, Price]] = {}
        """Prices by family (the words of the name), then by version."""
        newest_first = sorted(models, reverse=True)
        for name in sorted(newest_first, key=lambda name: (DATE.search(name) is not None, len(name))):
            self._named.setdefault(_parts(DATE.sub("", name)), models[name])
            family, numbers = _parts(_core(name))
            self._families.setdefault(family, {}).setdefault(_version(numbers), models[name])

    def find(self, model: str) -> Price | None:
        """Return the price of a model; None if the price is unknown.

        Ignores a provider before the name and a date after it. The price is an estimate if the name is not listed, or
        is listed only in another form (without a cloud's prefix or a reseller's tag). There are no estimates for
        fine-tuned models, local servers and open-weight models.
        """
        name = model.strip().lower()
        if name.endswith(":free") and "/" in name:
            return FREE
        if (known := self._known(name)) is not None:
            return known
        has_parameters = re.search(r"\d+b(?![a-z0-9])", name)  # the names of open-weight models contain such sizes
        if has_local_tag(name) or FINE_TUNED.match(name) or has_parameters:
            return None
        name = makers_name(name)
        found = self._known(name) or self._newest(name)
        return None if found is None else replace(found, is_estimated=True)

    def _known(self, name: str) -> Price | None:
        return next((self._named[parts] for parts in map(_parts, spellings(name)) if parts in self._named), None)

    def _newest(self, name: str) -> Price | None:
        """Return the price of the version in `name`, or the price of the family's newest version if it is not listed.

        Return None if the family is not listed, if the name has neither a version nor `-latest`, or if the version is
        older than all listed versions.
        """
        family, numbers = _parts(_core(name))
        versions = self._families.get(family)
        if versions is None or not (numbers or name.endswith("-latest")):
            return None
        newest = max(versions)
        version = _version(numbers) if numbers else newest
        return None if version < min(versions) else versions.get(version, versions[newest])


def _core(name: str) -> str:
    """Return a name without its date, release stage and mode, which do not affect the price."""
    mode = r"-(?:preview|latest|exp|experimental|beta|thinking|non-reasoning|reasoning)(?![a-z])"
    return DATE.sub("", re.sub(mode, "", name))


def _parts(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words and the numbers of a name. Version 5.0 counts as 5."""
    return tuple(re.findall(r"[a-z]+", name)), tuple(re.findall(r"\d+", re.sub(r"(\d)[-.]0(?!\d)", r"\1", name)))


def _version(numbers: tuple[str, ...]) -> float:
    """Return a version as a decimal number, so 4.20 is older than 4.3. A missing version counts as the oldest."""
    return float(f"{numbers[0]}.{''.join(numbers[1:])}") if numbers else 0.0


# ---- sizes

ASSUMED_CONTEXT: Final = 32_768
"""Context window of an unknown model, in tokens."""
DEFAULT_OUTPUT: Final = 32_000
"""Default output limit in tokens. A higher limit would count against credit and rate limits at some providers."""
MIN_OUTPUT: Final = 1_024
"""Lowest output limit, in tokens. It applies if, by our estimate, the prompt nearly fills the context window."""


class SizeSource(StrEnum):
    """Source of a model's size."""

    CONFIGURED = "configured"
    OFFERED = "offered"
    """Size that the provider stated."""
    CATALOGUE = "catalogue"
    ASSUMED = "assumed"
    """Default size, used because no source states one."""
    LEARNED = "learned"
    """Size that the provider stated when it refused a prompt."""
    GUESSED = "guessed"
    """Estimated size, used because a refusal stated no usable size."""


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a model and the source of each. Limits learned from refusals are not included."""

    context_length: Tokens
    context_from: SizeSource
    max_input_tokens: Tokens | None
    """Longest prompt, if the provider limits prompts to less than the context window."""
    max_output_tokens: Tokens | None
    """Longest answer, if a limit is known."""
    output_from: SizeSource
    reserved_output: Tokens
    """Tokens of `context_length` that are reserved for the answer."""

    @property
    def usual_output(self) -> Tokens:
        """Return the output limit for a call whose prompt leaves enough room."""
        if self.output_from is SizeSource.CONFIGURED:
            return self.reserved_output
        return Tokens(min(DEFAULT_OUTPUT, self.max_output_tokens or DEFAULT_OUTPUT))

    def reserved_in(self, window: Tokens) -> Tokens:
        """Return the tokens to reserve for the answer in a smaller window.

        The reserve shrinks first, down to a quarter of the window if it is configured, or else to the usual reserve.
        Only then does the room for prompts shrink.
        """
        least = window // 4 if self.output_from is SizeSource.CONFIGURED else usual_reserve(window)
        lost = self.context_length - window
        return Tokens(min(self.reserved_output, max(least, self.reserved_output - lost)))

    def output_beside(self, prompt: EstimatedTokens, window: Tokens) -> Tokens:
        """Return the output limit of a call: the configured limit, or else the room left, up to `usual_output`.

        If the prompt leaves almost no room, the limit is still `MIN_OUTPUT`, because the prompt's size is an estimate.
        """
        reserved = self.reserved_in(window)
        if self.output_from is SizeSource.CONFIGURED:
            return reserved
        room = room_beside(prompt, window)
        return Tokens(min(self.usual_output, max(room, min(MIN_OUTPUT, reserved))))


def room_beside(prompt: EstimatedTokens, window: Tokens) -> int:
    """Return the number of tokens that a prompt leaves free, minus a margin of 5 % of the prompt (at least 256)."""
    return window - prompt - max(256, prompt * 5 // 100)


def usual_reserve(window: Tokens) -> Tokens:
    """Return the tokens to reserve for the answer: a quarter of a small window, an eighth of a larger one.

    >>> [usual_reserve(Tokens(window)) for window in (8_192, 16_384, 32_768, 65_536, 128_000)]
    [2048, 4096, 4096, 8192, 8192]
    """
    return Tokens(max(1, min(8_192, max(min(window // 4, 4_096), window // 8))))


UNKNOWN_LIMITS: Final = ModelLimits()


def model_size(model: str, configured: ModelLimits, offered: ModelLimits = UNKNOWN_LIMITS) -> ModelSize:
    """Return the limits of the named model. If both limits are configured, they are used unchanged.

    >>> size = model_size("gpt-4o", ModelLimits(context_length=Tokens(100_000)))
    >>> size.context_length, size.context_from.value, size.max_output_tokens, size.output_from.value
    (100000, 'configured', 16384, 'catalogue')
    >>> size.reserved_output, size.output_beside(EstimatedTokens(90_000), size.context_length)
    (8192, 5500)
    """
    known, offered = known_model(model) or KnownModel(), plausible(offered)
    sources: tuple[tuple[ModelLimits | KnownModel, SizeSource], ...] = (
        (configured, SizeSource.CONFIGURED),
        (offered, SizeSource.OFFERED),
        (known, SizeSource.CATALOGUE),
    )
    stated, context_from = _first((size.context_length, source) for size, source in sources)
    output, output_from = _first((size.max_output_tokens, source) for size, source in sources)
    context = Tokens(ASSUMED_CONTEXT) if stated is None else stated
    # Do not reserve more for models with longer answers, because conversations cannot use the reserved tokens.
    reserved = usual_reserve(context)
    if output is not None and output_from is SizeSource.CONFIGURED:
        if context_from is not SizeSource.CONFIGURED:  # at most half the window; leave 2,048 tokens for the prompt
            output = Tokens(min(output, max(1, context // 4, min(context // 2, context - 2_048))))
        reserved = output
    bound = known.max_input_tokens
    if bound is not None and not bound < context <= (known.context_length or 0):
        bound = None  # not a real limit, or the actual window differs from the catalog's
    return ModelSize(
        context_length=context,
        context_from=context_from,
        max_input_tokens=bound,
        max_output_tokens=output,
        output_from=output_from,
        reserved_output=reserved,
    )


def plausible(offered: ModelLimits) -> ModelLimits:
    """Return the limits stated by a provider, with implausible values replaced by None."""
    context, output = offered.context_length, offered.max_output_tokens
    return ModelLimits(
        context_length=context if context is not None and 2_048 <= context <= 20_000_000 else None,
        max_output_tokens=output if output is not None and 256 <= output <= 10_000_000 else None,
    )


def _first(figures: Iterable[tuple[Tokens | None, SizeSource]]) -> tuple[Tokens | None, SizeSource]:
    return next((one for one in figures if one[0] is not None), (None, SizeSource.ASSUMED))
