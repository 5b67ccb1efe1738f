"""Model settings, requests, replies and the `ChatModel` protocol, whatever protocol the model speaks."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from agent.model.wire import WireSettings
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
    """Reason for which a model stopped. A call that the provider filtered or broke off is an error, not a reply."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


DEFAULT_MAX_TOKENS: Final = 32_000
"""Output limit where a reply must not be cut off and nothing is known of the model: every current one allows it."""
CacheTtl: TypeAlias = Literal["5m", "1h"]
"""Time to live of a cached prompt since it was last read. An hour costs more to write: 2 times the input, not 1.25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Address of a model, how long to wait for it, and what its requests say; times in seconds."""

    model: str
    api_key: str
    base_url: str | None = None
    """Root of the API; None: that of the protocol's inventor."""
    connect_seconds: float = 5.0
    read_seconds: float = 120.0
    """Longest silence, before the first byte and between two chunks; without streaming, until the reply is whole.

    Once the reply has begun, what brings nothing of it (comments, empty chunks) is silence, too.
    """
    first_piece_seconds: float = 300.0
    """Longest wait for the first piece of text, reasoning or call, while something else comes: models think."""
    streams: bool = True
    """Streaming; False for servers that cannot: a reply then comes as a whole."""
    max_output_tokens: int | None = None
    """Highest output limit that a request may set; what sets none keeps none."""
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    """Effort where a request asks for none of its own; None: the provider's."""
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # the provider's JSON
    cache_ttl: CacheTtl = "5m"
    """Time to live of cached prompts of Claude models, see `protocols.caching`."""
    sends_cache_key: bool | None = None
    """Chat completions say which of them begin alike. None: to OpenAI itself only; not all others accept the field."""
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
    """Chat and conversation whose costs a call counts to. Nothing known: only to the day's."""

    chat_id: ChatId | None = None
    lineage_id: LineageId | None = None
    turn_id: TurnId | None = None

    @classmethod
    def of(cls, conversation: ConversationRef) -> Self:
        """A conversation, and the turn on whose behalf it is looked at; of a sub-agent those that it works for."""
        lineage_id, turn_id = conversation.paid_by or (conversation.lineage_id, conversation.turn_id)
        return cls(chat_id=conversation.chat_id, lineage_id=lineage_id, turn_id=turn_id)


NO_PAYER = Payer()


class Ledger(Protocol):
    """Record of model calls: whom each counts to, what it used and cost; and output limits that were learned."""

    async def record(self, payer: Payer, call: ModelCall) -> None:
        """Store the row of a call. Raises `StoreUnavailable`."""

    async def output_cap(self, route: str, model: str) -> int | None:
        """Most tokens of an answer of this model, where its provider has stated them lately."""

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        """Store what a provider has stated when it refused more. Raises `StoreUnavailable`."""


class Caps(Protocol):
    """Caps on spending."""

    async def check(self, payer: Payer) -> None:
        """Return if another call may be made for `payer`; raises `SpendingCapExceeded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One model call. It carries stored rows: each protocol renders them through `wire`."""

    system: str
    transcript: Transcript
    tools: tuple[ToolSchema, ...] = ()
    may_call_tools: bool = True
    """False makes the model answer; the tools stay listed, so that the prompt keeps its bytes."""
    max_output_tokens: int | None
    """Output limit; None: none on the wire, for a summary that must not be cut off."""
    output_cap: int | None = None
    """Most tokens of an answer that there is room for, or that the model is known to write: for APIs that insist on a
    limit."""
    style: WireSettings = field(default_factory=WireSettings)
    reasoning_effort: ReasoningEffort | None = None
    """Effort that the conversation has chosen; None: that of the model's settings."""
    payer: Payer = NO_PAYER
    view: tuple[SessionId, int] | None = None
    """Session and version of the view that the rows are: in one version it only grows. None: they are not one."""
    cache_key: str = ""
    """Key that requests share which begin alike, where a provider routes by it; empty: none is sent.

    Without one nothing is marked for caching either: a prompt that is sent once would cost a quarter more.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A whole reply: text, calls, or both. Call ids are not empty and differ within one reply."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish: FinishReason
    usage: CanonicalUsage | None
    """Usage as reported; None where the provider reported none."""
    reasoning: Reasoning | None = None
    """Reasoning before the calls, if the model's API wants it back with their results."""
    cost: MicroUsd | None = None
    """Cost as the provider reports it; None where it does not."""
    refused: tuple[ModelError, ...] = ()
    """Refusals of the request before it was put in another way: calls, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Sizes of a model as a provider states them; None: it does not."""

    context_length: Tokens | None = None
    max_output_tokens: Tokens | None = None


_EFFORT = re.compile(
    r"efforts?\b|enable_thinking|output_config|budget_tokens|thinking(?:[._:]| is not)|support (?:thinking|reasoning)",
    re.IGNORECASE,
)
"""Wording of refusals that concern how much a model thinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """Form in which a call states its settings; it changes until the provider takes it."""

    wanted: tuple[ReasoningEffort | None, bool]
    """Effort that is asked for, and whether there are tools."""
    sampling: Mapping[str, float]
    """Temperature and the like. Some models take one of them, or none."""
    efforts: Sequence[Mapping[str, Any]]
    """Fields that ask for the effort in one way or another, the best first."""
    index: int
    faults: frozenset[str] = frozenset()
    """Parts of requests that the server has not taken, see `protocols.openai.RequestFault`."""

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.sampling, **self.efforts[self.index]}

    def after(self, error: ModelError) -> Self | None:
        """The next form to try; None where no setting is to blame."""
        text = refusal_text(error)
        for name in self.sampling:
            if name in text:
                return replace(self, sampling={key: self.sampling[key] for key in self.sampling if key != name})
        is_effort = self.index + 1 < len(self.efforts) and _EFFORT.search(text)
        return replace(self, index=self.index + 1) if is_effort else None


def refusal_text(error: ModelError) -> str:
    """Beginning of what a provider wrote when it refused a request without a reason that we know; else empty."""
    response = getattr(error.__cause__, "response", None)  # both SDKs' errors for a status have it
    return (
        response.text[:4_000]
        if type(error) in (ModelError, ModelNotFound, ShapeRejected) and response is not None
        else ""
    )


def with_fields(body: Mapping[str, Any], *further: Mapping[str, Any]) -> dict[str, Any]:
    """A request's body with further fields, of which the last wins; objects are joined, one level deep."""
    whole = dict(body)
    for name, value in (item for fields in further for item in fields.items()):
        before = whole.get(name)
        whole[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def made_by(route: str, model: str) -> str:
    """Name of a model in `Reasoning.made_by`: its protocol, which a route begins with, and its name."""
    return f"{route.partition(':')[0]}:{model}"


class CalledModel(Protocol):
    """A model at the end of a route, whatever is asked of it."""

    @property
    def route(self) -> str:
        """Protocol and host, for the ledger and for what is learned per route; never a credential."""

    @property
    def name(self) -> str:
        """The model's name at its provider."""


class ChatModel(CalledModel, Protocol):
    """A model that answers conversations."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call once. `on_text` receives the whole text so far, each time it has grown.

        Raises the kinds of `ModelError`. Cancelling it closes the connection.
        """

    async def fetch_limits(self) -> ModelLimits | None:
        """Sizes of the model as the provider states them. Costs nothing, takes seconds at most and raises nothing.

        None where the provider could not be reached just now, or may know more after a call.
        """

    async def close(self) -> None:
        """Let go of connections."""
