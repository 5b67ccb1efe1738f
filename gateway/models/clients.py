"""Clients of models: made when one is first needed, from a route of the configuration."""

import importlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from agent.context.model_handle import ModelHandle
from agent.model.base import ChatModel
from agent.model.caching import CacheState, CacheTtl, cache_state
from agent.model.circuit_breaker import CircuitState
from agent.model.client import ModelClient
from agent.model.http import EndpointSettings
from agent.model.protocols import missing_extra
from agent.model.protocols.chat_completions import ChatCompletionsModel, ChatCompletionsSettings
from agent.model.protocols.offline import OfflineModel
from agent.model.protocols.responses import ResponsesModel
from gateway.config.routes import RouteConfig
from gateway.config.settings import Config, ModelConfig
from gateway.models.auxiliary import all_routes
from gateway.models.capacity import capacity_in
from gateway.models.pricing import Pricing
from hermes_state.errors import ConfigError


class ClientRegistry:
    """Clients by route: one for each model in use, shared by all that ask it; made when first asked for."""

    def __init__(self, config: Config, costs: Pricing) -> None:
        """Raises `ConfigError` where a protocol of the configuration cannot be spoken here."""
        self._config = config
        self._costs = costs
        self._clients: dict[RouteConfig, ModelClient] = {}
        for route in all_routes(config):
            if route.protocol == "anthropic":  # now, for the SDK takes longer to load than people should wait
                self.of(route)

    def of(self, route: RouteConfig) -> ModelClient:
        client = self._clients.get(route)
        if client is None:
            terms = self._costs.terms(self._config, None if route.protocol == "offline" else route.name)
            client = self._clients[route] = ModelClient(make_model(route, self._config.model), **terms)
        return client

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await client.model.close()


class ModelRegistry:
    """Models that answer turns, by route: one handle for each in use, made when it is first chosen."""

    def __init__(
        self,
        configured: RouteConfig,
        make: Callable[[RouteConfig], ModelHandle],
        client_of: Callable[[RouteConfig], ModelClient] | None = None,
    ) -> None:
        """`configured`: the route of `model`, whose handle is made at once. Raises what `make` raises for it.

        `client_of`: the client of any model, for one that answers no turns; by default that of its handle.
        """
        self._make = make
        self.client_of = client_of or (lambda route: self.of(route).client)
        self.configured = make(configured)
        self._handles = {configured: self.configured}

    def of(self, route: RouteConfig) -> ModelHandle:
        """The model at the end of a route. Raises `ConfigError` where it cannot be made."""
        handle = self._handles.get(route)
        if handle is None:
            handle = self._handles[route] = self._make(route)
        return handle

    def open_circuit(self, route: RouteConfig) -> CircuitState | None:
        """Trouble for which a route is left alone for now; None also for one that nobody has used yet."""
        handle = self._handles.get(route)
        return handle.client.breaker.open if handle is not None else None

    def in_use(self) -> list[ModelClient]:
        """Clients of the models that were chosen so far, the configured one's first."""
        return [handle.client for handle in self._handles.values()]


def make_model(route: RouteConfig, settings: ModelConfig) -> ChatModel:
    """The model at the end of a route, ready to be called. Raises `ConfigError` where its SDK is not installed."""
    if route.protocol == "offline":
        return OfflineModel()
    assert route.name is not None, "the settings require a name for this protocol"
    endpoint: dict[str, Any] = {  # Any: what the settings of every protocol begin with
        "model": route.name,
        "api_key": route.api_key.get_secret_value() if route.api_key is not None else "",
        "base_url": route.base_url,
        "connect_seconds": settings.connect_seconds,
        "read_seconds": settings.read_seconds,
        "streams": route.streaming,
    }
    match route.protocol:
        case "chat_completions":
            return ChatCompletionsModel(ChatCompletionsSettings(**endpoint, cache_ttl=settings.cache_ttl))
        case "responses":
            return ResponsesModel(EndpointSettings(**endpoint))
        case "anthropic":
            return _anthropic_model({**endpoint, "cache_ttl": settings.cache_ttl}, capacity_in(route).context_length)


def _anthropic_model(settings: dict[str, Any], context_length: int) -> ChatModel:
    """Its module imports an SDK that not everybody has, and that takes a second to load."""
    missing = missing_extra("anthropic")
    if missing is not None:
        raise ConfigError(missing)
    module = importlib.import_module("agent.model.protocols.anthropic")
    # Prompt and limit have to fit the window together, and every request names a limit: where a call sets none, such
    # as for a summary, half of a small window leaves room for a prompt. What is too much all the same is lowered once
    # the provider has refused it.
    limit = min(module.DEFAULT_MAX_TOKENS, context_length // 2)
    model: ChatModel = module.AnthropicModel(module.AnthropicSettings(**settings, default_max_tokens=limit))
    return model


def caching_of(route: RouteConfig, ttl: CacheTtl) -> CacheState:
    """Prompt caching on a route: whether prompts are marked for it, for how long, and where they go."""
    host = urlsplit(route.address).hostname if route.address is not None else None
    return cache_state(route.name or "", f"{route.protocol}:{host}" if host else route.protocol, ttl)
