"""Catalog of well-known models: how large they are and what they cost, from `catalog.json`, read when first needed.

The sizes in that file are kept by hand, for families of models: where hosts differ, the smaller figure stands there.
The prices are what the makers ask; `make catalog` takes them from genai-prices, which is not needed to run the gateway.
What is configured wins over both, and what the provider says over the sizes.
"""

import re
from collections.abc import Iterator
from fnmatch import translate
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import msgspec

from hermes_state.values import Tokens


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a family of models, in tokens."""

    context_length: Tokens | None = None
    """None where that depends on how a server of one's own was started."""
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
    """Price of what is kept in the cache for an hour, where that costs more."""
    above_prompt_tokens: int = 0
    long_prompts: "Price | None" = None
    """Price of a whole call with a prompt above its `above_prompt_tokens`."""
    is_estimated: bool = False
    """True for the price of another model of the same family, or of the same model under another form of its name."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `catalog.json`."""

    sizes_taken_on: str
    """Month in which these were the figures of the makers, as far as is publicly known."""
    sizes: dict[str, KnownModel]
    """By pattern of the name; of several the longest wins."""
    prices_taken_from: str
    prices_taken_on: str
    prices: dict[str, Price]
    """By name, see `prices.PriceCatalog`."""


@cache
def load_catalog() -> Catalog:
    """The whole file."""
    return msgspec.json.decode(Path(__file__).with_name("catalog.json").read_bytes(), type=Catalog)


@lru_cache(maxsize=256)
def known_model(model: str) -> KnownModel | None:
    """Sizes of a model's family; None for a name that matches none.

    A name with a tag, such as `gpt-oss:20b`, is one of a server of one's own, whose window is what it was started with.
    """
    names = list(_names(model))
    known = next((one for pattern, one in _patterns() if any(map(pattern.match, names))), None)
    if known is None:
        return None
    return KnownModel(sees_images=known.sees_images) if has_local_tag(model) else known


@cache
def _patterns() -> list[tuple[re.Pattern[str], KnownModel]]:
    sizes = load_catalog().sizes
    return [(re.compile(translate(pattern)), sizes[pattern]) for pattern in sorted(sizes, key=len, reverse=True)]


def sees_images(model: str) -> bool:
    """True for a model that is known to see images, by its family or by what it is called."""
    known = known_model(model)
    return (known is not None and known.sees_images) or any(map(_SEEING.match, _names(model)))


_SEEING: Final = re.compile(
    r".*(?:vision|[-_]vl(?:[-_]|$)|\dvl(?:-|$)|llava|minicpm-v|internvl|moondream)|gemma[34]|llama4|mistral-small3"
)
"""Names that say it, also of models whose window is not known."""


# ---- names

DATE: Final = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|\d{6}|\d{4}|\d{2}-\d{2}|\d{2}-\d{4}|00\d|latest|default)$")
"""Date or revision behind a name."""
FINE_TUNED: Final = re.compile(r"^ft:([^:]+):.*$")
_TAG = re.compile(r":[^/]*$")
_HOSTED_TAG = re.compile(r":(?:free|batch|nitro|floor|exacto|extended|online|thinking|beta|\d+)$")
"""Tags behind names of resellers, for another way to the same model; and the revision behind Amazon's."""
_CLOUD = re.compile(
    r"^(?:[a-z]{2,6}\.)?(?:amazon|anthropic|deepseek|google|meta|minimax|mistral|moonshot|moonshotai|openai|qwen|xai|zai)\."
)
_REVISION = re.compile(r"(?:-v\d+)?(?:-maas)?$")


def spellings(model: str) -> Iterator[str]:
    """Names that a model may have in a list: `openai/gpt-5-2025-08-07` is also `gpt-5-2025-08-07` and `gpt-5`."""
    name = model.strip().lower()
    bare = name.rpartition("/")[2]
    yield from dict.fromkeys((name, bare, DATE.sub("", name), DATE.sub("", bare)))


def makers_name(name: str) -> str:
    """Name without what others put around it: `eu.anthropic.claude-opus-4-8-v1:0` is `claude-opus-4-8` at Amazon."""
    bare = _TAG.sub("", name).rpartition("/")[2]
    name = _CLOUD.sub("", bare)
    return _REVISION.sub("", name) if name != bare or name.endswith("-maas") else name


def has_local_tag(model: str) -> bool:
    """True for a name with a tag that says which build of a model a server of one's own has, such as `:20b`."""
    name = model.strip().lower()
    return bool(_TAG.search(name)) and not (_HOSTED_TAG.search(name) or FINE_TUNED.match(name))


def _names(model: str) -> Iterator[str]:
    """Every spelling, also of what was fine-tuned and of what a cloud calls otherwise."""
    name = _TAG.sub("", FINE_TUNED.sub(r"\1", model.strip().lower()))
    yield from spellings(name)
    yield from spellings(makers_name(name))
