"""Model settings, requests, replies and the `ChatModel` protocol, the same for every provider API."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from agent.model.wire import WireStyle
from hermes_state.errors import ModelError, ModelNotFound, ShapeRejected
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
    ConversationRef,
    LineageId,
    MicroUsd,
    ModelCall,
    Reasoning,
    ReasoningEffort,
    SessionId,
    Tokens,
    ToolCall,
    Transcript,
    TurnId,
)


class FinishReason(StrEnum):
    """Reason why a model stopped. A reply that the provider filtered or broke off is an error instead."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


DEFAULT_MAX_TOKENS: Final = 32_000
"""Output limit of an unknown model for replies that must not be cut off. Every current model allows it."""
CacheTtl: TypeAlias = Literal["5m", "1h"]
"""Time to live of a cached prompt after its last use. Writing costs twice the input price for 1h, 1.25 times for 5m."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address of a model, time limits in seconds, and fields of its requests."""

    model: str
    api_key: str
    base_url: str | None = None
    """Root URL of the API. None: the official API of the protocol."""
    connect_seconds: float = 5.0
    read_seconds: float = 120.0
    """Maximum wait for a response, and for each further piece of it. Without streaming: time for the whole reply."""
    first_piece_seconds: float = 300.0
    """Maximum wait for the first piece of a reply while the connection is kept alive. Models can think first."""
    streams: bool = True
    max_output_tokens: int | None = None
    """Upper bound on the output limit of a request."""
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort for requests that do not choose their own. None: the provider's default."""
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # the provider's JSON
    cache_ttl: CacheTtl = "5m"
    sends_cache_key: bool | None = None
    """Send `cache_key` with chat completions. None: only to OpenAI, because some other servers refuse the field."""
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """Output limit for Anthropic's API if a request sets none. Ideally the model's full output limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """Description of a tool for the model. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """Chat and conversation that pay for a call. All None: the call only counts towards the day's costs."""

    chat_id: ChatId | None = None
    lineage_id: LineageId | None = None
    turn_id: TurnId | None = None

    @classmethod
    def of(cls, conversation: ConversationRef) -> Self:
        """Return the payer for a conversation and its turn. The caller pays for a sub-agent."""
        lineage_id, turn_id = conversation.paid_by or (conversation.lineage_id, conversation.turn_id)
        return cls(chat_id=conversation.chat_id, lineage_id=lineage_id, turn_id=turn_id)


class Ledger(Protocol):
    """Record of model calls with their payers, and of learned output limits."""

    async def record(self, payer: Payer, call: ModelCall) -> None:
        """Store the row of a call. Raises `StoreUnavailable`."""

    async def output_cap(self, route: str, model: str) -> int | None:
        """Return the output limit in tokens that the provider recently stated for this model."""

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        """Store the output limit that a provider stated in a refusal. Raises `StoreUnavailable`."""


class Caps(Protocol):
    """Spending caps."""

    async def check(self, payer: Payer) -> None:
        """Raise `SpendingCapExceeded` if `payer` has reached a cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Request for one model call. It holds stored rows, which each protocol renders through `wire`."""

    system: str
    transcript: Transcript
    tools: tuple[ToolSchema, ...] = ()
    may_call_tools: bool = True
    """False forces an answer. The tools stay listed, so that the prompt's bytes do not change."""
    max_output_tokens: int | None
    """Output limit. None for a summary, which must not be cut off."""
    output_cap: int | None = None
    """Largest useful output limit, given the free room and the model's own limit. Sent to APIs that require a limit."""
    style: WireStyle = field(default_factory=WireStyle)
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort chosen for the conversation. None: as in the model's settings."""
    payer: Payer = field(default_factory=Payer)
    view: tuple[SessionId, int] | None = None
    """Session and version of the view that the rows come from. Versions only grow. None: the rows are not a view."""
    cache_key: str = ""
    """Key shared by requests with the same beginning, for providers that route by such a key.

    A request without a key is not marked for caching, because caching a prompt that is sent once costs a quarter more.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """Complete reply: text, calls, or both. Call ids are not empty and are unique within a reply."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish: FinishReason
    usage: CanonicalUsage | None
    """Usage as reported by the provider."""
    reasoning: Reasoning | None = None
    """Reasoning before the calls, if the API expects it back with their results."""
    cost: MicroUsd | None = None
    """Cost as reported by the provider."""
    refused: tuple[ModelError, ...] = ()
    """Refusals of earlier forms of the request. Each form was a separate call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of a model. None: not stated."""

    context_length: Tokens | None = None
    max_output_tokens: Tokens | None = None


_EFFORT = re.compile(
    r"efforts?\b|enable_thinking|output_config|budget_tokens|thinking(?:[._:]| is not)|support (?:thinking|reasoning)",
    re.IGNORECASE,
)
"""Words in refusals of a reasoning effort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """Request fields for the settings of a call. After a refusal, `after` returns the next variant to try."""

    wanted: tuple[ReasoningEffort | None, bool]
    """Reasoning effort of the call, and True if it has tools."""
    sampling: Mapping[str, float]
    """Temperature and similar settings. Some models accept only one of them, or none."""
    efforts: Sequence[Mapping[str, Any]]
    """Alternative request fields for the reasoning effort, best first."""
    index: int
    faults: frozenset[str] = frozenset()
    """Parts of requests that the server refused, as `protocols.openai.RequestFault` values."""

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.sampling, **self.efforts[self.index]}

    def after(self, error: ModelError) -> Self | None:
        """Return the next form to try; None if no setting caused the error."""
        text = refusal_text(error)
        for name in self.sampling:
            if name in text:
                return replace(self, sampling={key: self.sampling[key] for key in self.sampling if key != name})
        is_effort = self.index + 1 < len(self.efforts) and _EFFORT.search(text)
        return replace(self, index=self.index + 1) if is_effort else None


def refusal_text(error: ModelError) -> str:
    """Return the beginning of a refusal if its reason is unknown. Empty for all other errors."""
    response = getattr(error.__cause__, "response", None)  # set by the status errors of both SDKs
    is_unclear = type(error) in (ModelError, ModelNotFound, ShapeRejected)
    return response.text[:4_000] if is_unclear and response is not None else ""


def with_fields(body: Mapping[str, Any], *further: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body with more fields. Later fields win, and objects are merged one level deep."""
    whole = dict(body)
    for name, value in (item for fields in further for item in fields.items()):
        before = whole.get(name)
        whole[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def made_by(route: str, model: str) -> str:
    """Return the value of `Reasoning.made_by` for a model: protocol (the first part of the route) and name."""
    return f"{route.partition(':')[0]}:{model}"


class CalledModel(Protocol):
    """Model that can be called, at one route."""

    route: str
    """Protocol and host, for the ledger and for learned limits. Never contains a credential."""
    name: str
    """The model's name at its provider."""


class ChatModel(CalledModel, Protocol):
    """Model that answers conversations."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call once. `on_text` receives the complete text so far, each time it grows.

        Raises the kinds of `ModelError`. Cancelling the call closes its connection.
        """

    async def fetch_limits(self) -> ModelLimits | None:
        """Return the model's limits. This costs nothing, takes a few seconds at most, and never raises.

        None if the provider cannot be reached, or may know more after a call.
        """

    async def close(self) -> None:
        """Close the connections."""
