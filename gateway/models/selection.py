"""The models of a gateway: what people call them, who may choose which, and the lines that lead to them."""

import importlib
from typing import Any, Final
from urllib.parse import urlsplit

from agent.model.base import ChatModel
from agent.model.caching import CacheState, CacheTtl, cache_state
from agent.model.client import ModelClient
from agent.model.protocols import missing_extra
from agent.model.protocols.chat_completions import ChatCompletionsModel, ChatCompletionsSettings
from agent.model.protocols.offline import OfflineModel
from agent.model.protocols.responses import ResponsesModel, ResponsesSettings
from gateway.config.routes import CONFIGURED, RouteConfig, completed
from gateway.config.settings import Config, ModelConfig
from gateway.models.auxiliary import all_routes
from gateway.models.capacity import capacity_in
from gateway.models.pricing import Pricing
from hermes_state.admin.pairings import UserRole
from hermes_state.errors import CommandError, ConfigError
from hermes_state.text import closest

_EXACT: Final = "="
"""Before a choice that is no name of the configuration but a model's own: it stays, whatever the configuration says."""
LONGEST_NAME = 200


def known_routes(model: ModelConfig) -> dict[str, RouteConfig]:
    """Every name that people may choose, with its route: the configured model's, the aliases, the fallbacks'."""
    found = {model.label: model.route}
    for alias in model.aliases:
        found.setdefault(alias, model.alias_route(alias))
    for route in model.fallback_routes:
        if route not in found.values():
            found.setdefault(route.label, route)
    return found


def route_of(model: ModelConfig, choice: str | None) -> RouteConfig | None:
    """The route of a stored choice; None where the configuration does not know it any more."""
    if choice is None or choice == model.label:  # it may have become that since it was chosen
        return model.route
    if choice.startswith(_EXACT):
        return completed(choice.removeprefix(_EXACT), model)
    if choice in model.aliases:
        return model.alias_route(choice)
    return next((route for route in model.fallback_routes if route.label == choice), None)


def name_of(model: ModelConfig, choice: str | None) -> str:
    """What people call a stored choice."""
    return model.label if choice is None else choice.removeprefix(_EXACT)


def choose(model: ModelConfig, written: str, role: UserRole) -> str | None:
    """What is stored of a choice; None for the configured model. Raises `CommandError`.

    Everybody may choose what the configuration names. Another model at the same provider may cost anything: that is
    for admins.
    """
    known = known_routes(model)
    name = next((one for one in known if one == written), None)
    name = name or next((one for one in known if one.lower() == written.lower()), None)
    if written.lower() == CONFIGURED or name == model.label:
        return None
    if name is not None:
        return name
    if role is not UserRole.ADMIN:
        raise CommandError(
            f"I do not know the model “{written[:LONGEST_NAME]}”.{nearest(model, written)} /model lists them."
        )
    if len(written) > LONGEST_NAME or len(written.split()) != 1:
        raise CommandError("A model's name is one word.")
    return _EXACT + written


def place_of(route: RouteConfig) -> str | None:
    """The host that a route leads to; None for what is built in."""
    return urlsplit(route.address).hostname if route.address is not None else None


def nearest(model: ModelConfig, written: str) -> str:
    """A question about what was meant; empty where nothing is alike."""
    meant = closest(written, (*known_routes(model), CONFIGURED))
    return f" Did you mean `/model {meant}`?" if meant is not None else ""


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
            return ResponsesModel(ResponsesSettings(**endpoint))
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
    """Whether prompts to a route's model are marked for caching, for how long, and where they go."""
    host = place_of(route)
    return cache_state(route.name or "", f"{route.protocol}:{host}" if host else route.protocol, ttl)


class ClientRegistry:
    """One line to each model in use, shared by all that ask it; made when first asked for."""

    def __init__(self, config: Config, costs: Pricing) -> None:
        """Raises `ConfigError` where a protocol of the configuration cannot be spoken here."""
        self._config = config
        self._costs = costs
        self._lines: dict[RouteConfig, ModelClient] = {}
        for route in all_routes(config):
            if route.protocol == "anthropic":  # now, for the SDK takes longer to load than people should wait
                self.of(route)

    def of(self, route: RouteConfig) -> ModelClient:
        line = self._lines.get(route)
        if line is None:
            terms = self._costs.terms(self._config, None if route.protocol == "offline" else route.name)
            line = self._lines[route] = ModelClient(make_model(route, self._config.model), **terms)
        return line

    async def close(self) -> None:
        """Close every connection."""
        for line in self._lines.values():
            await line.model.close()
