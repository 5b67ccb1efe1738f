"""Model settings, requests, replies and the `ChatModel` protocol, whatever protocol the model speaks."""

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
    """Reason why a model stopped. A call that the provider filtered or broke off is an error, not a reply."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


DEFAULT_MAX_TOKENS: Final = 32_000
"""Output limit of an unknown model where a reply must not be cut off: every current model allows it."""
CacheTtl: TypeAlias = Literal["5m", "1h"]
"""Time to live of a cached prompt since it was last read. An hour costs more to write: 2 times the input, not 1.25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Address of a model, time limits in seconds, and fields of its requests."""

    model: str
    api_key: str
    base_url: str | None = None
    """Root of the API; None: the API of the protocol's inventor."""
    connect_seconds: float = 5.0
    read_seconds: float = 120.0
    """Longest silence; after the first piece, longest time without a piece. Without streaming, until it is whole."""
    first_piece_seconds: float = 300.0
    """Longest wait for the first piece of text, reasoning or call while the line is kept open: models think."""
    streams: bool = True
    max_output_tokens: int | None = None
    """Highest output limit that a request may set."""
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    """Effort of requests that ask for none; None: the provider's default."""
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # the provider's JSON
    cache_ttl: CacheTtl = "5m"
    sends_cache_key: bool | None = None
    """Send `cache_key` with chat completions. None: to OpenAI itself only; not all others accept the field."""
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """Output limit at Anthropic's API where a request sets none; best the model's whole output limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """A tool as a model sees it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payer:
    """Chat and conversation that pay for a call. All None: it counts to the day's costs only."""

    chat_id: ChatId | None = None
    lineage_id: LineageId | None = None
    turn_id: TurnId | None = None

    @classmethod
    def of(cls, conversation: ConversationRef) -> Self:
        """Return the payer of a conversation and its turn; a sub-agent is paid by its caller."""
        lineage_id, turn_id = conversation.paid_by or (conversation.lineage_id, conversation.turn_id)
        return cls(chat_id=conversation.chat_id, lineage_id=lineage_id, turn_id=turn_id)


class Ledger(Protocol):
    """Record of model calls with their payers, and of output limits that were learned."""

    async def record(self, payer: Payer, call: ModelCall) -> None:
        """Store the row of a call. Raises `StoreUnavailable`."""

    async def output_cap(self, route: str, model: str) -> int | None:
        """Return the most tokens of an answer that the provider has stated lately for this model."""

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        """Store the limit that a provider stated when it refused more. Raises `StoreUnavailable`."""


class Caps(Protocol):
    """Caps on spending."""

    async def check(self, payer: Payer) -> None:
        """Return if another call may be made for `payer`; raises `SpendingCapExceeded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Model call with stored rows, which each protocol renders through `wire`."""

    system: str
    transcript: Transcript
    tools: tuple[ToolSchema, ...] = ()
    may_call_tools: bool = True
    """False makes the model answer; the tools stay listed, so that the prompt keeps its bytes."""
    max_output_tokens: int | None
    """Output limit; None for a summary that must not be cut off."""
    output_cap: int | None = None
    """Most tokens that there is room for, or that the model can write: for APIs that insist on a limit."""
    style: WireStyle = field(default_factory=WireStyle)
    reasoning_effort: ReasoningEffort | None = None
    """Effort that the conversation has chosen; None: the effort of the model's settings."""
    payer: Payer = field(default_factory=Payer)
    view: tuple[SessionId, int] | None = None
    """Session and version of the view that the rows belong to; a version only grows. None: the rows are no view."""
    cache_key: str = ""
    """Key shared by requests that begin alike, for providers that route by it.

    Without one a request is not marked for caching: a prompt that is sent once would cost a quarter more.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """Whole reply: text, calls, or both. Call ids are not empty and differ within a reply."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish: FinishReason
    usage: CanonicalUsage | None
    """Usage as reported by the provider."""
    reasoning: Reasoning | None = None
    """Reasoning before the calls, if the model's API wants it back with their results."""
    cost: MicroUsd | None = None
    """Cost as reported by the provider."""
    refused: tuple[ModelError, ...] = ()
    """Refusals of earlier forms of the request, each of which was a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Sizes of a model; None: not stated."""

    context_length: Tokens | None = None
    max_output_tokens: Tokens | None = None


_EFFORT = re.compile(
    r"efforts?\b|enable_thinking|output_config|budget_tokens|thinking(?:[._:]| is not)|support (?:thinking|reasoning)",
    re.IGNORECASE,
)
"""Wording of refusals of an effort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """Form of a call's settings; it changes until the provider accepts it."""

    wanted: tuple[ReasoningEffort | None, bool]
    """Effort of the call, and True if it has tools."""
    sampling: Mapping[str, float]
    """Temperature and the like. Some models accept one of them, or none."""
    efforts: Sequence[Mapping[str, Any]]
    """Fields that ask for the effort in one way or another, the best first."""
    index: int
    faults: frozenset[str] = frozenset()
    """Parts of requests that the server has refused, see `protocols.openai.RequestFault`."""

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.sampling, **self.efforts[self.index]}

    def after(self, error: ModelError) -> Self | None:
        """Return the next form to try; None where no setting is to blame."""
        text = refusal_text(error)
        for name in self.sampling:
            if name in text:
                return replace(self, sampling={key: self.sampling[key] for key in self.sampling if key != name})
        is_effort = self.index + 1 < len(self.efforts) and _EFFORT.search(text)
        return replace(self, index=self.index + 1) if is_effort else None


def refusal_text(error: ModelError) -> str:
    """Return the beginning of a provider's refusal whose reason is unknown; empty for any other error."""
    response = getattr(error.__cause__, "response", None)  # both SDKs' errors for a status have it
    is_unclear = type(error) in (ModelError, ModelNotFound, ShapeRejected)
    return response.text[:4_000] if is_unclear and response is not None else ""


def with_fields(body: Mapping[str, Any], *further: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body with further fields, of which the last wins; objects are joined, one level deep."""
    whole = dict(body)
    for name, value in (item for fields in further for item in fields.items()):
        before = whole.get(name)
        whole[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def made_by(route: str, model: str) -> str:
    """Return a model's name in `Reasoning.made_by`: its protocol, which a route begins with, and its name."""
    return f"{route.partition(':')[0]}:{model}"


class CalledModel(Protocol):
    """Model at the end of a route."""

    route: str
    """Protocol and host, for the ledger and for limits learned per route; never a credential."""
    name: str
    """The model's name at its provider."""


class ChatModel(CalledModel, Protocol):
    """Model that answers conversations."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call once. `on_text` receives the whole text so far, each time it has grown.

        Raises the kinds of `ModelError`. Cancelling it closes the connection.
        """

    async def fetch_limits(self) -> ModelLimits | None:
        """Return the sizes of the model. Costs nothing, takes seconds at most and raises nothing.

        None where the provider could not be reached just now, or may know more after a call.
        """

    async def close(self) -> None:
        """Close the connections."""
