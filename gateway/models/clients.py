"""Clients of models: made when one is first needed, from a route of the configuration."""

import importlib
from typing import Any

from agent.model.base import ChatModel
from agent.model.catalog import known_model
from agent.model.client import ModelClient
from agent.model.http import EndpointSettings
from agent.model.protocols import missing_extra
from agent.model.protocols.chat_completions import ChatCompletionsModel, ChatCompletionsSettings
from agent.model.protocols.offline import OfflineModel
from agent.model.protocols.responses import ResponsesModel
from gateway.config.routes import CALL_KEYS, RouteConfig
from gateway.config.settings import Config, ModelConfig
from gateway.models.auxiliary import all_routes
from gateway.models.capacity import capacity_in
from gateway.models.pricing import SpendingControl, price_in
from hermes_state.errors import ConfigError


class ClientRegistry:
    """Clients by route: one for each model in use, shared by all that ask it; made when first asked for."""

    def __init__(self, config: Config, spending: SpendingControl) -> None:
        """Raises `ConfigError` where a protocol of the configuration cannot be spoken here."""
        self._config = config
        self._spending = spending
        self._clients: dict[RouteConfig, ModelClient] = {}
        for route in all_routes(config):
            if route.protocol == "anthropic":  # now, for the SDK takes longer to load than people should wait
                self.of(route)

    def of(self, route: RouteConfig) -> ModelClient:
        client = self._clients.get(route)
        if client is None:
            name = None if route.protocol == "offline" else route.name
            client = self._clients[route] = ModelClient(
                make_model(route, self._config.model),
                self._spending.ledger,
                price=price_in(self._config, name),
                caps=self._spending.caps_in(self._config, name),
            )
        return client

    async def close(self) -> None:
        for client in self._clients.values():
            await client.model.close()


def make_model(route: RouteConfig, settings: ModelConfig) -> ChatModel:
    """The model at the end of a route, ready to be called. Raises `ConfigError` where its SDK is not installed."""
    if route.protocol == "offline":
        return OfflineModel()
    assert route.name is not None, "the settings require a name for this protocol"
    endpoint: dict[str, Any] = {  # Any: what the settings of every protocol begin with
        "model": route.name,
        "api_key": route.plain_key,
        "connect_seconds": settings.connect_seconds,
        "read_seconds": settings.read_seconds,
        "first_piece_seconds": settings.first_piece_seconds,
        "streams": route.streaming,
        **{key: getattr(route, key) for key in ("base_url", "max_output_tokens", *CALL_KEYS)},
        "extra_headers": route.plain_headers,
    }
    match route.protocol:
        case "chat_completions":
            return ChatCompletionsModel(ChatCompletionsSettings(**endpoint, cache_ttl=settings.cache_ttl))
        case "responses":
            return ResponsesModel(EndpointSettings(**endpoint))
        case "anthropic":
            return _anthropic_model({**endpoint, "cache_ttl": settings.cache_ttl}, route)


def _anthropic_model(settings: dict[str, Any], route: RouteConfig) -> ChatModel:
    """Claude model; its module imports an SDK that not everybody has, and that takes a second to load."""
    missing = missing_extra("anthropic")
    if missing is not None:
        raise ConfigError(missing)
    module = importlib.import_module("agent.model.protocols.anthropic")
    # Prompt and limit have to fit the window together, and every request names a limit: where a call sets none, such
    # as for a summary, half of a small window leaves room for a prompt. What is too much all the same is lowered once
    # the provider has refused it.
    known = known_model(route.label)
    written = route.max_output_tokens or (known.max_output_tokens if known is not None else None)
    limit = min(filter(None, (module.DEFAULT_MAX_TOKENS, capacity_in(route).context_length // 2, written)))
    model: ChatModel = module.AnthropicModel(module.AnthropicSettings(**settings, default_max_tokens=limit))
    return model
