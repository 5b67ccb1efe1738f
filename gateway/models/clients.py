"""Model clients, created from a route when first needed.

The protocol modules are imported late, because their SDKs take half a second. `preload` imports them before the first
call.
"""

import asyncio
import importlib
from collections.abc import Callable
from functools import cached_property, partial

from agent.model.base import DEFAULT_MAX_TOKENS, ChatModel, Endpoint, ModelLimits, ModelReply, ModelRequest
from agent.model.catalog import known_model
from agent.model.client import ModelClient
from agent.model.errors.answer import load_features
from agent.model.protocols import missing_extra
from agent.model.protocols.offline import OfflineModel
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config, ModelConfig
from gateway.models.pricing import SpendingControl, price_in
from gateway.models.routes import all_routes, capacity_in
from hermes_state.errors import ConfigError


class LateModel:
    """Model that is created on the first call, which also imports its SDK."""

    def __init__(self, route: RouteConfig, settings: ModelConfig) -> None:
        self.route, self.name = f"{route.protocol}:{route.host}", route.label
        self._make = partial(make_model, route, settings)

    @cached_property
    def made(self) -> ChatModel:
        return self._make()

    async def _loaded(self) -> ChatModel:
        """Return the model. A thread creates it, because the import of its SDK would block the event loop."""
        return self.made if "made" in self.__dict__ else await asyncio.to_thread(lambda: self.made)

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        return await (await self._loaded()).complete(request, on_text)

    async def fetch_limits(self) -> ModelLimits | None:
        return await (await self._loaded()).fetch_limits()

    async def close(self) -> None:
        if "made" in self.__dict__:
            await self.made.close()


class ClientRegistry:
    """Clients by route. A client is created when it is first needed, and everything that uses its route shares it."""

    def __init__(self, config: Config, spending: SpendingControl) -> None:
        """Raises `ConfigError` if the SDK of a configured protocol is not installed."""
        self._config = config
        self._spending = spending
        self._clients: dict[RouteConfig, ModelClient] = {}
        for route in all_routes(config):
            if (missing := missing_extra(route.protocol)) is not None:
                raise ConfigError(missing)

    def of(self, route: RouteConfig) -> ModelClient:
        client = self._clients.get(route)
        if client is None:
            name = None if route.protocol == "offline" else route.name
            client = self._clients[route] = ModelClient(
                LateModel(route, self._config.model) if name is not None else OfflineModel(),
                self._spending.ledger,
                price=price_in(self._config, name),
                caps=self._spending.caps_in(self._config, name),
            )
        return client

    def expire_learned(self) -> None:
        for client in self._clients.values():
            client.expire_learned()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.model.close()


def preload(config: Config) -> None:
    """Import the protocol modules of the configured models and read the TLS certificates."""
    protocols = {route.protocol for route in all_routes(config) if missing_extra(route.protocol) is None} - {"offline"}
    if protocols:
        for name in sorted(protocols):
            importlib.import_module(f"agent.model.protocols.{name}")
        importlib.import_module("agent.model.connections").ssl_context()
    load_features()
    if config.transcription.model is not None:
        importlib.import_module("agent.model.transcription")


def make_model(route: RouteConfig, settings: ModelConfig) -> ChatModel:
    """Return the model of a route, ready to be called. Raises `ConfigError` if its SDK is not installed."""
    if route.protocol == "offline":
        return OfflineModel()
    if (missing := missing_extra(route.protocol)) is not None:
        raise ConfigError(missing)
    assert route.name is not None, "the settings require a name for this protocol"
    # Anthropic requires an output limit. By default, it is at most half of the window, to leave room for the prompt.
    known = known_model(route.label)
    written = route.max_output_tokens or (known.max_output_tokens if known is not None else None)
    endpoint = Endpoint(
        model=route.name,
        api_key=route.plain_key,
        base_url=route.base_url,
        connect_seconds=settings.connect_seconds,
        read_seconds=settings.read_seconds,
        first_piece_seconds=settings.first_piece_seconds,
        streams=route.streaming,
        max_output_tokens=route.max_output_tokens,
        temperature=route.temperature,
        top_p=route.top_p,
        reasoning_effort=route.reasoning_effort,
        extra_headers=route.plain_headers,
        extra_body=route.extra_body,
        cache_ttl=settings.cache_ttl,
        default_max_tokens=min(filter(None, (DEFAULT_MAX_TOKENS, capacity_in(route).context_length // 2, written))),
    )
    match route.protocol:
        case "chat_completions":
            from agent.model.protocols.chat_completions import ChatCompletionsModel

            return ChatCompletionsModel(endpoint)
        case "responses":
            from agent.model.protocols.responses import ResponsesModel

            return ResponsesModel(endpoint)
        case "anthropic":
            from agent.model.protocols.anthropic import AnthropicModel

            return AnthropicModel(endpoint)
