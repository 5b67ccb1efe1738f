"""Routes to models: the configured one, its fallbacks, and the aliases that people may choose.

A route is a model at an API. Whatever is written as a route (a name, or a block that leaves things out) is completed
from `model` here, once; what it takes over from there ends where another API begins, so that no key meets a host that
it was not given for.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationError

from agent.context.limits import MIN_INPUT_WINDOW
from agent.model.catalog import sees_images
from gateway.config.blocks import BaseConfig, checked_block, first_problem, setting
from hermes_state.kinds import AnyCase, Body, Effort, FrozenBlock, Headers, Secret, Url, keyed, listed, plain_texts

DEFAULT_MODEL = "gpt-4.1-mini"
"""Model that a key alone gets: the customary variable in the environment must be enough to chat."""

CONFIGURED: Final = "default"
"""Name of the configured model in `/model`; no alias may be called so."""

Protocol: TypeAlias = Literal["chat_completions", "responses", "anthropic", "offline"]

OWN_ADDRESSES: Mapping[str, str] = {
    "chat_completions": "https://api.openai.com/v1",
    "responses": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}
"""Addresses of the APIs by protocol, where none is given."""


_UNSET = "the provider's; for a task, the route's"


class ApiConfig(BaseConfig):
    """Keys that say which model answers, and where."""

    base_url: Url | None = setting(None, default_text="the protocol's own")
    """Root of the API, such as `http://127.0.0.1:11434/v1`; OpenAI's or Anthropic's own where none is given."""
    api_key: Secret | None = None
    """Key for that API. Servers on your own machine usually need none."""
    name: str | None = setting(
        default_factory=lambda data: DEFAULT_MODEL if data.get("base_url") or data.get("api_key") else None,
        default_text=f"`{DEFAULT_MODEL}` once a key or a base URL is set",
    )
    """Name of the model as its provider spells it."""
    protocol: Annotated[Protocol, AnyCase] = setting(
        default_factory=lambda data: (
            "chat_completions" if any(map(data.get, ("name", "base_url", "api_key"))) else "offline"
        ),
        default_text="`offline` while none of key, base URL and name is set, else `chat_completions`",
    )
    """Protocol of the API. `offline` is built in and says so in every answer."""
    context_length: int | None = setting(
        None,
        ge=1_024,
        le=20_000_000,
        unit="tokens",
        default_text="as the provider says, else from the built-in list, else 32768",
    )
    """Size of the model's context window."""
    max_output_tokens: int | None = setting(
        None,
        ge=1,
        le=10_000_000,
        unit="tokens",
        default_text="what the prompt leaves of the context, at most what the model can write and 32000",
    )
    """Longest answer. It is kept free of the context, at least 2048 of which are left to prompts; where it is not set,
    the smaller of 8192 and 25 % of the context is."""
    images: bool | Literal["auto"] = "auto"
    """The model sees images. `auto` decides by the name; images for one that does not get a friendly refusal."""
    streaming: bool = True
    """Let answers come in piece by piece. `false` for servers that cannot: they are shown when whole."""


class CallConfig(BaseConfig):
    """Keys of what every call says beside the conversation."""

    temperature: float | None = setting(None, ge=0, le=2, default_text=_UNSET)
    """Randomness of the answers: 0 for the likeliest words."""
    top_p: float | None = setting(None, ge=0, le=1, unit="of the likeliest words", default_text=_UNSET)
    """Share of the likeliest words that each next one is drawn from. Set this or the temperature, not both."""
    reasoning_effort: Effort = setting(None, default_text=_UNSET)
    """Effort of thinking, where the model can; `/think` overrides it for the answers of a conversation."""
    extra_headers: Headers = setting(FrozenBlock(), default_text="none; for a task, the route's")
    """Further HTTP headers of every request, by name."""
    extra_body: Body = setting(FrozenBlock(), default_text="none; for a task, the route's")
    """Further fields of every request, as the provider's documentation has them; they win over the gateway's own."""


CALL_KEYS: Final = tuple(CallConfig.model_fields)


class RouteConfig(CallConfig, ApiConfig):
    """Complete route: a model at an API."""

    @property
    def sees_images(self) -> bool:
        if isinstance(self.images, bool):
            return self.images
        return self.name is not None and sees_images(self.name)

    @property
    def label(self) -> str:
        """Name of the model in answers to people."""
        return self.name or "offline"

    @property
    def address(self) -> str | None:
        """Address of the API, the protocol's own where none was given; None for what is built in."""
        return self.base_url or OWN_ADDRESSES.get(self.protocol)

    @property
    def host(self) -> str | None:
        """Host that the route leads to; None for what is built in."""
        return urlsplit(self.address).hostname if self.address is not None else None

    @property
    def plain_key(self) -> str:
        """The API's key itself, for its client alone; empty where there is none."""
        return self.api_key.get_secret_value() if self.api_key is not None else ""

    @property
    def plain_headers(self) -> dict[str, str]:
        """The further headers, with their secrets, for the API's client alone."""
        return plain_texts(self.extra_headers)

    @cached_property
    def route(self) -> "RouteConfig":
        """The route alone, whatever else is set beside it: equal for equal routes."""
        return RouteConfig.model_construct(**{key: getattr(self, key) for key in RouteConfig.model_fields})

    def complaint(self, key: str) -> str | None:
        """Sentence that says why the route cannot be used and calls its block `key`; None for a usable one."""
        if self.protocol != "offline" and not (self.name or "").strip():
            how = " (HERMES_MODEL__NAME), or set model.protocol to offline" if key == "model" else ""
            return f"{key}.name is missing: name the model to use{how}"
        if self.context_length is None:
            return None
        output = self.max_output_tokens or self.context_length // 4
        window = self.context_length - output
        if window < MIN_INPUT_WINDOW:
            return (
                f"{key}.context_length ({self.context_length}) less {key}.max_output_tokens ({output}) leaves {window} "
                f"tokens for the prompt; at least {MIN_INPUT_WINDOW} are needed"
            )
        return None


WrittenRoute: TypeAlias = str | Annotated[dict[str, Any], AfterValidator(FrozenBlock), PlainSerializer(str)]
"""Name of an alias or of a model, or a block with the keys that are written: a written default stops following `model`.
"""


def written_route(row: Mapping[str, Any], name: str) -> FrozenBlock:
    """Return the keys of a route that are written, checked; a null counts as left out. Raises `ValueError`."""
    known = RouteConfig.model_fields
    given = {key: value for key, value in row.items() if value is not None or key not in known}
    block = checked_block(RouteConfig, given, name, known)
    return FrozenBlock({key: getattr(block, key) for key in known if key in given})


_SIZES = ("context_length", "max_output_tokens", "images")
"""Keys that belong to a model, at whatever API."""


def completed(written: WrittenRoute, main: RouteConfig) -> RouteConfig:
    """The route that `written`, which is not the name of an alias, means beside `main`.

    Raises `ValueError` with words that follow the block's key.
    """
    values: dict[str, Any] = {"name": written} if isinstance(written, str) else dict(written)
    if "protocol" not in values:
        values["protocol"] = main.protocol
        is_elsewhere = "base_url" in values or main.protocol == "offline"
        if is_elsewhere and ("base_url" not in values or _origin(values["base_url"]) != _origin(main.address)):
            values["protocol"] = "chat_completions"  # the one that nearly everybody speaks
    own_address = OWN_ADDRESSES.get(values["protocol"])
    if "base_url" not in values and own_address == OWN_ADDRESSES.get(main.protocol):  # they share a root
        values["base_url"] = main.base_url
    if _origin(values.get("base_url") or own_address) == _origin(main.address):
        kept = CALL_KEYS if values["protocol"] == main.protocol else CALL_KEYS[:-1]  # fields have other names there
        calls = {key: getattr(main, key) for key in kept if key in main.model_fields_set}
        values = {"api_key": main.api_key} | calls | values
    if values.get("name") == main.name:
        values = {key: getattr(main, key) for key in _SIZES if key in main.model_fields_set} | values
    if "streaming" not in values and values.get("base_url") == main.base_url:
        values["streaming"] = main.streaming
    try:
        return RouteConfig.model_validate(values).route
    except ValidationError as error:
        raise ValueError(first_problem(error, RouteConfig)) from None


def _origin(address: str | None) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port: what a key is given for."""
    if address is None:
        return None
    parts = urlsplit(address)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _fallbacks(value: object) -> object:
    """A list of names and blocks, as YAML or JSON, or names with commas between them."""
    rows = listed(value)
    if isinstance(rows, dict):
        rows = [rows]
    if not isinstance(rows, (list, tuple)):
        raise ValueError("must be a list of models: names, aliases, or blocks with name, base_url and api_key")
    return tuple(_written(row, f"[{number}]") for number, row in enumerate(rows, start=1))


def _aliases(value: object) -> object:
    """A block of names, each with a model's name or a block behind it; as JSON in a variable."""
    found: dict[str, WrittenRoute] = {}
    for name, row in keyed(value).items():
        alias = str(name).strip().lower()
        if re.fullmatch(r"[a-z0-9][a-z0-9._:/@+-]{0,63}", alias) is None:
            raise ValueError(f"{name!r} cannot be an alias: write one word of letters, digits and . _ : / @ + -")
        if alias == CONFIGURED:
            raise ValueError(f"{CONFIGURED!r} is what /model calls the configured model: choose another alias")
        if alias in found:
            raise ValueError(f"the alias {alias!r} is given twice")
        found[alias] = _written(row, alias)
    return found


def _written(row: object, name: str) -> WrittenRoute:
    if isinstance(row, str) and row.strip():
        return row.strip()
    if not isinstance(row, Mapping):
        raise ValueError(f"{name} must be the name of a model, or a block with name, base_url and api_key")
    block = written_route(row, name)
    if "name" not in block and block.get("protocol") != "offline":
        raise ValueError(f"{name}.name is missing: name the model to use")
    return block


Fallbacks: TypeAlias = Annotated[tuple[WrittenRoute, ...], BeforeValidator(_fallbacks)]
Aliases: TypeAlias = Annotated[dict[str, WrittenRoute], BeforeValidator(_aliases)]
