"""Model selection: names, permission to choose a model, the model that answers a conversation, and its client.

Clients are created from a route when first needed. The protocol modules are imported late, because their SDKs take half
a second to load. `preload` imports them before the first call.
"""

import asyncio
import importlib
import platform
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property, partial
from typing import Final

import msgspec

from agent.context.model_handle import ModelHandle
from agent.model.base import DEFAULT_MAX_TOKENS, ChatModel, Endpoint, ModelLimits, ModelReply, ModelRequest
from agent.model.catalog import known_model, load_catalog, spellings
from agent.model.client import CircuitState, ModelClient
from agent.model.protocols import missing_extra
from agent.model.protocols.offline import OfflineModel
from agent.turn import Agent
from gateway.config import LiveConfig, LoadedConfig
from gateway.config.agents import ROLES, route_for_chat
from gateway.config.overlay import AgentConfig
from gateway.config.routes import CONFIGURED, RouteConfig, completed
from gateway.config.settings import Config, ModelConfig
from gateway.models.pricing import SpendingControl, price_in
from gateway.models.routes import all_routes, capacity_in, routes_of_agents
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import UNNAMED, RoutedAgent
from hermes_state.errors import CommandError, ConfigError
from hermes_state.imports import ssl_context
from hermes_state.network import NetworkSettings
from hermes_state.text import closest
from hermes_state.values import ChatKey, ChatScope, LineageId

_EXACT: Final = "="
"""Prefix of a stored choice that is a model name at the provider instead of a configured name."""
MAX_NAME_CHARACTERS = 200
"""Maximum length of a chosen model name, in characters."""


class ModelRegistry:
    """Models that answer turns, by route. The handle of a model is created when the model is first chosen."""

    def __init__(
        self,
        configured: RouteConfig,
        make: Callable[[RouteConfig], ModelHandle],
        client_of: Callable[[RouteConfig], ModelClient] | None = None,
    ) -> None:
        """Raises the errors of `make`. `client_of` returns a model's client for tasks other than answering."""
        self._make = make
        self.client_of = client_of or (lambda route: self.of(route).client)
        self.configured = make(configured)
        self._handles = {configured: self.configured}

    def of(self, route: RouteConfig) -> ModelHandle:
        """Return the model handle of a route. Raises `ConfigError` if it cannot be created."""
        handle = self._handles.get(route)
        if handle is None:
            handle = self._handles[route] = self._make(route)
        return handle

    def open_circuit(self, route: RouteConfig) -> CircuitState | None:
        """Return the open circuit breaker of a route, or None if it is closed or the route was never used."""
        handle = self._handles.get(route)
        return handle.client.breaker.open if handle is not None else None

    def expire_learned(self) -> None:
        """Make the models reload their learned limits when they are next used."""
        for handle in self._handles.values():
            handle.expire_learned()

    def in_use(self) -> list[ModelClient]:
        """Return the clients of the models chosen so far, beginning with the configured model."""
        return [handle.client for handle in self._handles.values()]


class FallbackState:
    """Record of the conversations that a fallback answers. A restart clears it, so the chat is notified again."""

    def __init__(self) -> None:
        self._seen: OrderedDict[LineageId, tuple[RouteConfig, RouteConfig]] = OrderedDict()
        """The chosen route of each conversation, and the fallback that answered its last turn."""

    def of(self, lineage_id: LineageId, chosen: RouteConfig) -> RouteConfig | None:
        """Return the fallback that answered last instead of `chosen`, or None if `chosen` answered."""
        route, by = self._seen.get(lineage_id, (None, None))
        return by if route == chosen else None

    def note(self, lineage_id: LineageId, chosen: RouteConfig, by: RouteConfig) -> RouteConfig | None:
        """Record the route that answered. Return the fallback that answered the previous turn, or None."""
        before = self.of(lineage_id, chosen)
        self._seen.pop(lineage_id, None)
        if by != chosen:
            self._seen[lineage_id] = (chosen, by)
            if len(self._seen) > 4_096:
                self._seen.popitem(last=False)
        return before


class Runtime(msgspec.Struct):
    """Current configuration, agent and models. A reload replaces them; a running turn keeps its agent and models.

    The attributes describe the unnamed agent. `of` returns the runtime of a named agent.
    """

    live: LiveConfig
    agent: Agent
    models: ModelRegistry
    fallbacks: FallbackState = msgspec.field(default_factory=FallbackState)
    name: str = ""
    named: dict[str, "Runtime"] = msgspec.field(default_factory=dict)

    @property
    def config(self) -> Config:
        """Configuration of this agent, or of the unnamed agent if this agent was removed."""
        found = self.live.loaded.named_agents.get(self.name)
        return self.live.config if found is None else found.config

    def of(self, agent: str) -> "Runtime":
        """Return the runtime of an agent. If there is no such agent, return that of the unnamed agent."""
        return self.named.get(agent, self)

    def has(self, agent: str) -> bool:
        """Return True if an agent with this name is configured."""
        return agent == self.name or agent in self.named

    def clients_in_use(self) -> list[ModelClient]:
        """Return the clients of all agents' models that were chosen so far."""
        return [client for one in (self, *self.named.values()) for client in one.models.in_use()]

    @property
    def is_configured(self) -> bool:
        """False if this agent was removed from the configuration."""
        return self.name in self.live.loaded.agent_names

    def routed_agent(self, chat: ChatKey, scope: ChatScope, role: str | None) -> RoutedAgent:
        """Return the agent that the routes select for a person with a role. The role is "" in a shared session.

        If the role is unknown (None) and the routes depend on it, the chat keeps its agent.
        """
        roles = ("", *ROLES) if role is None else (role,)
        found = [route_for_chat(self.config.routes, chat, scope, one) for one in roles]
        routed = ["" if route is None or route.agent == UNNAMED else route.agent for route in found]
        names = "|".join(self.live.loaded.agent_names)
        return RoutedAgent(name=routed[0], known=f"|{names}|", keeps=len({*routed}) > 1)

    def model_of(self, choice: str | None) -> ModelHandle:
        """Return the model chosen for a conversation, or the configured model if the choice is no longer configured."""
        route = route_of(self.config.model, choice)
        return self.models.configured if choice is None or route is None else self.models.of(route)


def known_routes(model: ModelConfig) -> dict[str, RouteConfig]:
    """Return every name that people can choose, with its route: the configured model, aliases and fallbacks."""
    found = {model.label: model.route}
    for alias in model.aliases:
        found.setdefault(alias, model.alias_route(alias))
    for route in model.fallback_routes:
        if route not in found.values():
            found.setdefault(route.label, route)
    return found


def route_of(model: ModelConfig, choice: str | None) -> RouteConfig | None:
    """Return the route of a stored choice, or None if it is no longer configured."""
    if choice is None or choice == model.label:  # the chosen model may have become the configured model in the meantime
        return model.route
    if choice.startswith(_EXACT):
        return completed(choice.removeprefix(_EXACT), model)
    if choice in model.aliases:
        return model.alias_route(choice)
    return next((route for route in model.fallback_routes if route.label == choice), None)


def name_of(model: ModelConfig, choice: str | None) -> str:
    """Return the display name of a stored choice."""
    return model.label if choice is None else choice.removeprefix(_EXACT)


def choose(model: ModelConfig, written: str, role: UserRole) -> str | None:
    """Return the stored form of a choice, or None for the configured model. Raises `CommandError` for a refused name.

    Everyone can choose a configured model. Other models of the same provider may be expensive, so only admins can
    choose them. Admins must confirm a name that is not in the built-in list.
    """
    known = known_routes(model)
    alike = (one for one in known if one.lower() == written.lower())
    name = written if written in known else next(alike, None)
    if written.lower() == CONFIGURED or name == model.label:
        return None
    if name is not None:
        return name
    meant = closest(written, (*known, CONFIGURED))
    question = f" Did you mean `/model {meant}`?" if meant is not None else ""
    unknown = f"There is no model “{written[:MAX_NAME_CHARACTERS]}” in my configuration"
    if role is not UserRole.ADMIN:
        raise CommandError(f"{unknown}.{question} /model lists all models.")
    if len(written) > MAX_NAME_CHARACTERS or len(written.strip(_EXACT).split()) != 1:
        raise CommandError("A model name must be a single word of at most 200 characters.")
    is_model = any(name in load_catalog().prices for name in spellings(written))
    if not is_model and not written.startswith(_EXACT):
        raise CommandError(
            f"{unknown}, so nothing was changed.{question} If your provider has a model with exactly this name, "
            f"send `/model {_EXACT}{written}`."
        )
    return _EXACT + written.removeprefix(_EXACT)


# ---- clients


class LateModel:
    """Model that is created on the first call, which also imports its SDK."""

    def __init__(self, route: RouteConfig, settings: ModelConfig, network: NetworkSettings) -> None:
        self.route, self.name = f"{route.protocol}:{route.host}", route.label
        self._make = partial(make_model, route, settings, network)

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

    def __init__(self, config: Config, spending: SpendingControl, agent: AgentConfig | None = None) -> None:
        """Raises `ConfigError` if the SDK of a configured protocol is not installed."""
        self._config, self._agent = config, agent
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
                LateModel(route, self._config.model, self._config.network) if name is not None else OfflineModel(),
                self._spending.ledger,
                price=price_in(self._config, name),
                caps=self._spending.caps_in(self._config, name, self._agent),
            )
        return client

    def expire_learned(self) -> None:
        for client in self._clients.values():
            client.expire_learned()

    async def close(self) -> None:
        for client in self._clients.values():
            await client.model.close()


def preload(loaded: LoadedConfig) -> None:
    """Import the protocol modules of all agents' models and read the TLS certificates."""
    platform.platform()  # starts a process; `openai` needs the result for its first request
    config, routes = loaded.config, routes_of_agents(loaded)
    protocols = {route.protocol for route in routes if missing_extra(route.protocol) is None} - {"offline"}
    if protocols:
        for name in sorted(protocols):
            importlib.import_module(f"agent.model.protocols.{name}")
        ssl_context()
    if config.transcription.model is not None or config.voice.model is not None:
        importlib.import_module("agent.model.audio")


def make_model(route: RouteConfig, settings: ModelConfig, network: NetworkSettings | None = None) -> ChatModel:
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
        read_seconds=settings.read_seconds,
        first_piece_seconds=settings.first_piece_seconds,
        streams=route.streaming,
        max_output_tokens=route.max_output_tokens,
        temperature=route.temperature,
        reasoning_effort=route.reasoning_effort,
        extra_headers=route.plain_headers,
        extra_body=route.extra_body,
        cache_ttl=settings.cache_ttl,
        network=network or NetworkSettings(),
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
