"""Routes to models: the configured model, its fallbacks, and the aliases for `/model`.

A route is one model at one API. A route in the configuration is a name or a block with some keys. This module fills in
missing keys from `model`. It copies the API key only if the route uses the same host as `model`.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationError

from agent.context.limits import MIN_INPUT_WINDOW
from agent.model.catalog import sees_images, usual_reserve
from gateway.config.blocks import BaseConfig, checked_block, first_problem, setting
from gateway.config.old_keys import OLD_KEYS
from hermes_state.setting_types import (
    AnyCase,
    Body,
    Effort,
    FrozenBlock,
    Headers,
    Secret,
    Url,
    keyed,
    listed,
    plain_texts,
)
from hermes_state.values import Tokens

DEFAULT_MODEL = "gpt-4.1-mini"
"""Default model if only an API key is set, so that a single variable such as OPENAI_API_KEY is enough."""

CONFIGURED: Final = "default"
"""Name of the configured model in `/model`. It cannot be an alias."""

Protocol: TypeAlias = Literal["chat_completions", "responses", "anthropic", "offline"]

OWN_ADDRESSES: Mapping[str, str] = {
    "chat_completions": "https://api.openai.com/v1",
    "responses": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
}
"""Default API addresses by protocol."""


class ApiConfig(BaseConfig):
    """Keys that name a model and its API."""

    base_url: Url | None = setting(None, default_text="the address of OpenAI or Anthropic")
    """Base URL of the API, such as `http://127.0.0.1:11434/v1`."""
    api_key: Secret | None = None
    """API key. Servers on your own machine usually need no key."""
    name: str | None = setting(
        default_factory=lambda data: DEFAULT_MODEL if data.get("base_url") or data.get("api_key") else None,
        default_text=f"`{DEFAULT_MODEL}` if a key or a base URL is set",
    )
    """Name of the model, as its provider spells it."""
    protocol: Annotated[Protocol, AnyCase] = setting(
        default_factory=lambda data: (
            "chat_completions" if any(map(data.get, ("name", "base_url", "api_key"))) else "offline"
        ),
        default_text="`chat_completions` if a key, base URL or name is set, else `offline`",
    )
    """Protocol of the API. `offline` is a built-in stand-in that answers without a model."""
    context_length: int | None = setting(
        None,
        ge=1_024,
        le=20_000_000,
        unit="tokens",
        default_text="from the provider, else from the built-in list, else 32768",
    )
    """Context window of the model. Set the size for a local server, or to compress conversations earlier."""
    max_output_tokens: int | None = setting(
        None,
        ge=1,
        le=10_000_000,
        unit="tokens",
        default_text="the space left by the prompt, at most 32000 or the model's own limit, whichever is lower",
    )
    """Maximum length of an answer. The gateway reserves this many tokens of the context window. If the key is not set,
    the gateway reserves a quarter of a small window or an eighth of a large one, at most 8192 tokens."""
    images: bool | Literal["auto"] = "auto"
    """Send images to the model. `auto` decides by the model's name."""
    streaming: bool = True
    """Show answers while the model writes them. Set `false` for a server that cannot stream."""


class CallConfig(BaseConfig):
    """Keys for the parameters of every model call."""

    temperature: float | None = setting(None, ge=0, le=2)
    """Randomness of answers; `0` is the least random."""
    reasoning_effort: Effort = None
    """Amount of reasoning before an answer. `/think` overrides `model.reasoning_effort` in one conversation."""
    extra_headers: Headers = setting(FrozenBlock(), default_text="none")
    """HTTP headers to add to every request, by name."""
    extra_body: Body = setting(FrozenBlock(), default_text="none")
    """Fields to add to every request body. These fields override the gateway's own."""


CALL_KEYS: Final = tuple(CallConfig.model_fields)


class RouteConfig(CallConfig, ApiConfig):
    """Complete route: one model at one API."""

    @property
    def sees_images(self) -> bool:
        if isinstance(self.images, bool):
            return self.images
        return self.name is not None and sees_images(self.name)

    @property
    def label(self) -> str:
        """Return the model's name for messages to people."""
        return self.name or "offline"

    @property
    def shown_label(self) -> str:
        """Return the model's name for operators, in words for the built-in offline model."""
        return "built-in offline model" if self.protocol == "offline" else self.label

    @property
    def address(self) -> str | None:
        """Return the address of the API, or None for the built-in offline model."""
        return self.base_url or OWN_ADDRESSES.get(self.protocol)

    @property
    def host(self) -> str | None:
        """Return the host of the API, or None for the built-in offline model."""
        return urlsplit(self.address).hostname if self.address is not None else None

    @property
    def plain_key(self) -> str:
        """Return the unmasked API key, or an empty string. Only the API client uses it."""
        return self.api_key.get_secret_value() if self.api_key is not None else ""

    @property
    def plain_headers(self) -> dict[str, str]:
        """Return the extra headers, including secrets. Only the API client uses them."""
        return plain_texts(self.extra_headers)

    @cached_property
    def route(self) -> "RouteConfig":
        """Return a copy with only the fields of a route, so that two routes can be compared."""
        return RouteConfig.model_construct(**{key: getattr(self, key) for key in RouteConfig.model_fields})

    def complaint(self, key: str) -> str | None:
        """Return the reason why the route cannot be used, or None. `key` is the name of the route's block."""
        if self.protocol != "offline" and not (self.name or "").strip():
            how = " (or HERMES_MODEL__NAME), or set model.protocol to offline" if key == "model" else ""
            return f"{key}.name is missing: set it to the name of a model{how}"
        if self.context_length is None:
            return None
        output = self.max_output_tokens or usual_reserve(Tokens(self.context_length))
        window = self.context_length - output
        if window < MIN_INPUT_WINDOW:
            return (
                f"{key}.context_length ({self.context_length}) minus {key}.max_output_tokens ({output}) leaves "
                f"{window} tokens for prompts, but {MIN_INPUT_WINDOW} are needed: raise context_length or lower "
                "max_output_tokens"
            )
        return None


WrittenRoute: TypeAlias = str | Annotated[dict[str, Any], AfterValidator(FrozenBlock), PlainSerializer(str)]
"""Alias, model name, or a block with the keys that are set. A key set to its default value also counts as set."""


def written_route(row: Mapping[str, Any], name: str) -> FrozenBlock:
    """Return the keys of a route that are set. Null counts as not set, and keys of earlier versions are ignored.

    Raises `ValueError` for an invalid key.
    """
    known = RouteConfig.model_fields
    current = {key: value for key, value in row.items() if ("model", str(key)) not in OLD_KEYS}
    given = {key: value for key, value in current.items() if value is not None or key not in known}
    block = checked_block(RouteConfig, given, name, known)
    return FrozenBlock({key: getattr(block, key) for key in known if key in given})


_SIZES = ("context_length", "max_output_tokens", "images")
"""Keys that describe the model, not its API."""


def completed(written: WrittenRoute, main: RouteConfig) -> RouteConfig:
    """Fill in the missing keys of a route with values from `main`. `written` must not be the name of an alias.

    Raises `ValueError` with a message of the form `key: message`.
    """
    values: dict[str, Any] = {"name": written} if isinstance(written, str) else dict(written)
    if "protocol" not in values:
        values["protocol"] = main.protocol
        is_elsewhere = "base_url" in values or main.protocol == "offline"
        if is_elsewhere and ("base_url" not in values or _origin(values["base_url"]) != _origin(main.address)):
            values["protocol"] = "chat_completions"  # the protocol that most servers use
    own_address = OWN_ADDRESSES.get(values["protocol"])
    if "base_url" not in values and own_address == OWN_ADDRESSES.get(main.protocol):  # the same provider
        values["base_url"] = main.base_url
    if _origin(values.get("base_url") or own_address) == _origin(main.address):
        # If the protocols differ, do not inherit `extra_body` (the last key): its field names depend on the protocol.
        kept = CALL_KEYS if values["protocol"] == main.protocol else CALL_KEYS[:-1]
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
    """Return the scheme, host and port of an address. An API key is sent only to its own origin."""
    if address is None:
        return None
    parts = urlsplit(address)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _fallbacks(value: object) -> object:
    """Return a list of names and blocks from YAML, JSON or comma-separated names."""
    rows = listed(value)
    if isinstance(rows, dict):
        rows = [rows]
    if not isinstance(rows, (list, tuple)):
        raise ValueError("must be a list of models: names, aliases, or blocks with name, base_url and api_key")
    return tuple(_written(row, f"[{number}]") for number, row in enumerate(rows, start=1))


def _aliases(value: object) -> object:
    """Return a mapping from alias to model name or block. In an environment variable, it is written as JSON."""
    found: dict[str, WrittenRoute] = {}
    for name, row in keyed(value).items():
        alias = str(name).strip().lower()
        if re.fullmatch(r"[a-z0-9][a-z0-9._:/@+-]{0,63}", alias) is None:
            raise ValueError(f"{name!r} cannot be an alias: use one word of letters, digits and . _ : / @ + -")
        if alias == CONFIGURED:
            raise ValueError(f"{CONFIGURED!r} is reserved for the configured model: choose another alias")
        if alias in found:
            raise ValueError(f"the alias {alias!r} occurs twice: remove one of them")
        found[alias] = _written(row, alias)
    return found


def _written(row: object, name: str) -> WrittenRoute:
    if isinstance(row, str) and row.strip():
        return row.strip()
    if not isinstance(row, Mapping):
        raise ValueError(f"{name} must be the name of a model, or a block with name, base_url and api_key")
    block = written_route(row, name)
    if "name" not in block and block.get("protocol") != "offline":
        raise ValueError(f"{name}.name is missing: set it to the name of a model")
    return block


Fallbacks: TypeAlias = Annotated[tuple[WrittenRoute, ...], BeforeValidator(_fallbacks)]
Aliases: TypeAlias = Annotated[dict[str, WrittenRoute], BeforeValidator(_aliases)]
