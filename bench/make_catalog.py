"""Import model prices: `make catalog` updates the prices in `agent/model/catalog.json` from genai-prices.

This module is not part of the product, because genai-prices takes half a second to import. The sizes in the catalog are
maintained by hand and stay unchanged. If genai-prices states a different context window, the difference is printed.

The catalog gets the prices of models that write text, from the makers below, under the names that the makers use. From
OpenRouter it adds names of the same makers' models that the makers do not use. Anybody can host open-weight models at
any price, so models named by their number of parameters (`llama-3.3-70b`) are left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
from genai_prices.data import providers
from genai_prices.types import ModelInfo, ModelPrice, Provider, StartDateConstraint, TieredPrices, TimeOfDateConstraint

from agent.model.catalog import Price, PriceCatalog, known_model, spellings

CATALOG: Final = Path(__file__).parent.parent / "agent" / "model" / "catalog.json"

MAKERS: Final[Mapping[str, str]] = {
    "openai": r"gpt-|chatgpt-|o\d|codex-",
    "anthropic": r"claude-(?!v?\d[.\d]*$|instant)",
    "google": r"gemini-(?!(?:pro|flash)-1)",
    "x-ai": r"grok-",
    "deepseek": r"deepseek-",
    "mistral": r"mistral-|magistral-|ministral-|codestral|devstral-|pixtral-|open-mistral-|labs-",
    "meta": r"muse-",
    "moonshotai": r"kimi-",
    "zai": r"glm-",
    "minimax": r"minimax-",
}
"""For each maker, by its name in genai-prices: a pattern for the beginnings of supported model names."""

RESOLD: Final = re.compile(
    rf"(?:openai|anthropic|google|x-ai|deepseek|mistralai|meta|moonshotai|z-ai|minimax)/(?:{'|'.join(MAKERS.values())})"
    r"|qwen/.*-(?:max|plus|flash|turbo)\b"
)
"""Pattern for OpenRouter's names for models of the same makers, and for models that only Alibaba sells."""

OTHER_TRADES: Final = re.compile(
    r"\b(?:audio|banana|computer|embed|embedding|guard|image|live|moderation|ocr|omni|oss|realtime|research|robotics"
    r"|safeguard|search|tts|voice)\b|\.ft\b|:"
)
"""Words in the names of models that do something other than write text, that charge for something other than text, or
that are another model in a special mode.
"""

PARAMETERS: Final = re.compile(r"\d+b\b")
"""Number of parameters in the names of open-weight models. Mistral also sells some models under such names."""

OTHER_UNITS: Final = re.compile(r"output_(?!mtok)|requests|hours|pages|chars")
"""Units that do not measure text."""

WINDOW_TOLERANCE: Final = 0.05
"""Relative difference that two context windows may have: 1,000,000 and 1,048,576 count as equal."""


def main() -> None:
    """Rewrite the catalog file, and print what should be checked."""
    catalog = with_prices(json.loads(CATALOG.read_bytes()))
    CATALOG.write_text(rendered(catalog))
    print(f"{CATALOG.name}: {len(catalog['prices'])} prices of {catalog['prices_taken_from']}")
    for line in disagreements():
        print(line)


def with_prices(catalog: Mapping[str, Any]) -> dict[str, Any]:
    """Return the catalog with today's prices.

    If the version of genai-prices has not changed, use the prices of the day when it was imported, so that the same
    data produce the same file.
    """
    source = f"genai-prices {version('genai-prices')}"
    is_same = catalog["prices_taken_from"] == source
    day = date.fromisoformat(catalog["prices_taken_on"]) if is_same else datetime.now(UTC).date()
    prices = sorted(listed(day).items())
    return {**catalog, "prices_taken_from": source, "prices_taken_on": day.isoformat(), "prices": dict(prices)}


def listed(day: date) -> dict[str, dict[str, Any]]:
    """Return prices by name, with only the names that `PriceCatalog` needs to find them all."""
    models: dict[str, dict[str, Any]] = {}
    for provider in providers:
        if provider.id in MAKERS:
            _add(models, _own_prices(provider, day))
    own = PriceCatalog(_decoded(models))
    _add(models, ((name, price) for name, price in _resold_prices(day) if _is_unknown(own.find(name))))
    return models


def _add(models: dict[str, dict[str, Any]], named: Iterator[tuple[str, dict[str, Any]]]) -> None:
    for name, price in named:
        if PriceCatalog(_decoded(models)).find(name) != msgspec.convert(price, Price):
            models[name] = price


def _decoded(models: Mapping[str, object]) -> dict[str, Price]:
    return msgspec.convert(models, dict[str, Price])


def _is_unknown(found: Price | None) -> bool:
    return found is None or found.is_estimated


def _own_prices(provider: Provider, day: date) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every name with its price: ids before other names, and names without a date first."""
    named = [
        (len(list(spellings(name))) > 1, not model.id.lower().startswith(name), name, price)
        for model in provider.models
        if (price := _price_of(model, day)) is not None
        for name in _names_of(model)
        if re.match(MAKERS[provider.id], name) and _is_wanted(name)
    ]
    named.sort(key=lambda one: (*one[:2], one[2].replace(".", " ")))
    yield from ((name, price) for *_, name, price in named)


def _resold_prices(day: date) -> Iterator[tuple[str, dict[str, Any]]]:
    router = next(provider for provider in providers if provider.id == "openrouter")
    for model in sorted(router.models, key=lambda model: model.id):
        name, price = model.id.rpartition("/")[2], _price_of(model, day)
        if price is not None and RESOLD.match(model.id) and _is_wanted(name):
            yield name, price


def _is_wanted(name: str) -> bool:
    return not OTHER_TRADES.search(name) and (not PARAMETERS.search(name) or name.startswith("ministral-"))


def _names_of(model: ModelInfo) -> set[str]:
    """Return the model's id and the complete names that it is matched by."""
    return {name.lower().rstrip("-@") for name in (model.id, *_matched(model.match))}


def _matched(clause: Any) -> Iterator[str]:  # the clause types have no common base class
    for one in (*getattr(clause, "or_", ()), *getattr(clause, "and_", ())):
        yield from _matched(one)
    yield from (value for key, value in vars(clause).items() if key in ("equals", "starts_with"))


def _price_of(model: ModelInfo, day: date) -> dict[str, Any] | None:
    """Return the price on a given day. If it depends on the time of day, return the highest price."""
    if not isinstance(model.prices, list):
        return _listed(model.id, model.prices)
    started, hourly = [], []
    for one in model.prices:
        if isinstance(one.constraint, TimeOfDateConstraint):
            hourly.append(one)
        elif not isinstance(one.constraint, StartDateConstraint) or one.constraint.start_date <= day:
            started.append(one)
    prices = [_listed(model.id, one.prices) for one in (*started[-1:], *hourly)]
    return max((price for price in prices if price is not None), key=lambda price: price["output"], default=None)


def _listed(name: str, prices: ModelPrice) -> dict[str, Any] | None:
    """Return a price for the catalog, including cache prices.

    A missing cache price equals the input price or, for Claude models, follows Anthropic's ratios.
    """
    units = {unit: value for unit, value in vars(prices).items() if value is not None}
    if not {"input_mtok", "output_mtok"} <= units.keys() or any(map(OTHER_UNITS.search, units)):
        return None
    if "transcribe" in name:
        units["input_mtok"] = units.get("input_audio_mtok", units["input_mtok"])  # the input is audio
    tiers = {tier.start for value in units.values() if isinstance(value, TieredPrices) for tier in value.tiers}
    is_claude = "claude" in name
    price = _completed({unit: getattr(value, "base", value) for unit, value in units.items()}, is_claude)
    if tiers:
        dearest = {unit: value.tiers[-1].price if hasattr(value, "tiers") else value for unit, value in units.items()}
        price["long_prompts"] = {"above_prompt_tokens": max(tiers), **_completed(dearest, is_claude)}
    return price


def _completed(units: Mapping[str, Decimal], is_claude: bool) -> dict[str, Any]:
    fresh = units["input_mtok"]
    read, write, hour = ("0.1", "1.25", "2") if is_claude else ("1", "1", "1")
    price = {
        "input": fresh,
        "output": units["output_mtok"],
        "cache_read": units.get("cache_read_mtok", fresh * Decimal(read)),
        "cache_write": units.get("cache_write_mtok", fresh * Decimal(write)),
    }
    if is_claude:
        price["cache_write_1h"] = units.get("cache_write_1h_mtok", fresh * Decimal(hour))
    return {key: int(value) if value == int(value) else float(value) for key, value in price.items()}


def disagreements() -> Iterator[str]:
    """Yield a sentence for each model whose context window is different in genai-prices."""
    models = [
        (model.id.lower(), model.context_window, provider.id) for provider in providers for model in provider.models
    ]
    for name, theirs, maker in models:
        known = known_model(name)
        ours = None if known is None else known.context_length
        if maker not in MAKERS or not re.match(MAKERS[maker], name) or not _is_wanted(name) or not ours or not theirs:
            continue
        if abs(ours - theirs) > WINDOW_TOLERANCE * max(ours, theirs):
            yield f"{name}: our window has {ours:,} tokens, that of genai-prices {theirs:,}"


def rendered(catalog: Mapping[str, Any]) -> str:
    """Return JSON with one line per model, so that diffs are easy to read."""
    parts = []
    for key, value in catalog.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            rows = [f"    {json.dumps(name)}: {json.dumps(one)}" for name, one in value.items()]
            text = "{\n" + ",\n".join(rows) + "\n  }"
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
