"""Model settings, requests, replies and the `ChatModel` protocol, the same for every provider API."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

import msgspec
import orjson
from msgspec.structs import replace

from agent.model.wire import WireStyle
from hermes_state.errors import ModelError, ModelNotFound, ShapeRejected
from hermes_state.models.ledger import ModelCall
from hermes_state.network import NetworkSettings
from hermes_state.values import (
    CanonicalUsage,
    ChatId,
    ConversationRef,
    LineageId,
    MicroUsd,
    Reasoning,
    ReasoningEffort,
    SessionId,
    Tokens,
    ToolCall,
    Transcript,
    TurnId,
)


class FinishReason(StrEnum):
    """Reason why a model stopped writing. A filtered or incomplete reply raises an error instead."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


DEFAULT_MAX_TOKENS: Final = 32_000
"""Output limit for an unknown model when a reply must not be cut off. Every current model allows this limit."""
CacheTtl: TypeAlias = Literal["5m", "1h"]
"""Time for which a prompt stays cached after its last use. Writing to the cache costs 1.25 times the input price for
`5m`, and twice the input price for `1h`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Settings of one model: its address, time limits in seconds, and request fields."""

    model: str
    api_key: str
    base_url: str | None = None
    """Root URL of the API. None: the URL of the protocol's official API."""
    connect_seconds: float = 5.0
    """Longest wait for a connection. A server that can be reached usually accepts one within a second, so more time
    would only delay the retry or the fallback.
    """
    read_seconds: float = 120.0
    """Longest wait for the start of a response, and for each later piece. Without streaming: for the whole response."""
    first_piece_seconds: float = 300.0
    """Longest wait for a reply's first piece if the server keeps the connection alive while the model thinks."""
    streams: bool = True
    max_output_tokens: int | None = None
    """Highest output limit that a request may set. None: no maximum."""
    temperature: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort for requests that do not set their own. None: the provider's default."""
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # the provider's JSON
    cache_ttl: CacheTtl = "5m"
    sends_cache_key: bool | None = None
    """True to send `cache_key` with chat completions. None: send it only to OpenAI, because others may refuse it."""
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """Output limit for Anthropic's API if a request sets none. Set it to the model's full output limit."""
    network: NetworkSettings = field(default_factory=NetworkSettings, repr=False)


@dataclass(frozen=True, kw_only=True)
class ToolSchema:
    """Description of a tool for the model. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, object]

    @cached_property
    def text(self) -> str:
        """The schema as one text, to estimate its tokens."""
        return f"{self.name} {self.description} {orjson.dumps(self.parameters).decode()}"


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """Chat, conversation and turn that a call is charged to. If all are None, only the daily total includes it."""

    chat_id: ChatId | None = None
    lineage_id: LineageId | None = None
    turn_id: TurnId | None = None

    @classmethod
    def of(cls, conversation: ConversationRef) -> Self:
        """Return the payer for a turn of a conversation.

        A sub-agent's calls are charged to the turn that started it."""
        lineage_id, turn_id = conversation.paid_by or (conversation.lineage_id, conversation.turn_id)
        return cls(chat_id=conversation.chat_id, lineage_id=lineage_id, turn_id=turn_id)


class Ledger(Protocol):
    """Record of model calls with their payers, and of learned output limits."""

    async def record(self, payer: Payer, call: ModelCall) -> None:
        """Store a call's ledger row. Raises `StoreUnavailable` if the database is not available."""

    async def output_cap(self, route: str, model: str) -> int | None:
        """Return the output limit in tokens that the provider recently stated for this model; None if not stated."""

    async def learn_output_cap(self, route: str, model: str, cap: int) -> None:
        """Store the output limit that a provider stated in a refusal.

        Raises `StoreUnavailable` if the database is not available.
        """


class Caps(Protocol):
    """Checks spending caps before a model call."""

    async def check(self, payer: Payer) -> None:
        """Raise `SpendingCapExceeded` if `payer` has reached a cap."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a model call. It holds message rows, which each protocol renders through `wire`."""

    system: str
    transcript: Transcript
    tools: tuple[ToolSchema, ...] = ()
    may_call_tools: bool = True
    """False forces a text answer. The tools stay in the request, so that the cached prompt stays valid."""
    max_output_tokens: int | None
    """Output limit. None for a summary, which must not be cut off."""
    output_cap: int | None = None
    """Highest output limit that the model and the context allow. Used if the API requires a limit and none is set."""
    style: WireStyle = msgspec.field(default_factory=WireStyle)
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort chosen for the conversation. None: the effort in the model's settings."""
    payer: Payer = msgspec.field(default_factory=Payer)
    view: tuple[SessionId, int] | None = None
    """Session whose prompt these rows form, and the session's version. None: the rows are not a session's prompt."""
    cache_key: str = ""
    """Key that lets providers route requests with the same prompt prefix to the same cache. Empty for a request that is
    sent only once. Such a request is not marked for caching, because writing to the cache costs a quarter more.
    """


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """Complete reply: text, tool calls, or both. Every call has an id that is unique within the reply."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    finish: FinishReason
    usage: CanonicalUsage | None
    """Usage as reported by the provider."""
    reasoning: Reasoning | None = None
    """Reasoning that precedes the tool calls, if the API expects it to be sent back with their results."""
    cost: MicroUsd | None = None
    """Cost as reported by the provider."""
    refused: tuple[ModelError, ...] = ()
    """Refusals of earlier forms of this request. Each form was sent in a separate call."""


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a model. A limit is None if it has not been stated."""

    context_length: Tokens | None = None
    max_output_tokens: Tokens | None = None


_EFFORT = re.compile(
    r"efforts?\b|enable_thinking|output_config|budget_tokens|thinking(?:[._:]| is not)|support (?:thinking|reasoning)",
    re.IGNORECASE,
)
"""Pattern for the wording that providers use to refuse a reasoning effort."""


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """Request fields for reasoning effort and temperature. After a refusal, `after` returns the next form to try."""

    wanted: tuple[ReasoningEffort | None, bool]
    """Requested reasoning effort, and True if the call has tools."""
    temperature: float | None
    """Temperature to send. None: no temperature is set, or the server refused it."""
    efforts: Sequence[Mapping[str, Any]]
    """Alternative request fields for the reasoning effort, best first."""
    index: int
    faults: frozenset[str] = frozenset()
    """Parts of requests that the server refused, as `protocols.openai.RequestFault` values."""

    @property
    def fields(self) -> dict[str, Any]:
        temperature = {} if self.temperature is None else {"temperature": self.temperature}
        return {**temperature, **self.efforts[self.index]}

    def after(self, error: ModelError) -> Self | None:
        """Return the next form to try; None if the settings did not cause the error or no other form is left."""
        text = refusal_text(error)
        if self.temperature is not None and "temperature" in text:
            return replace(self, temperature=None)
        is_effort = self.index + 1 < len(self.efforts) and _EFFORT.search(text)
        return replace(self, index=self.index + 1) if is_effort else None


def refusal_text(error: ModelError) -> str:
    """Return the start of the provider's text if the error's class does not explain the refusal, else ""."""
    response = getattr(error.__cause__, "response", None)  # set by the status errors of both SDKs
    is_unclear = type(error) in (ModelError, ModelNotFound, ShapeRejected)
    return response.text[:4_000] if is_unclear and response is not None else ""


def with_fields(body: Mapping[str, Any], *further: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body with added fields. Later values win, and objects are merged one level deep."""
    whole = dict(body)
    for name, value in (item for fields in further for item in fields.items()):
        before = whole.get(name)
        whole[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return whole


def made_by(route: str, model: str) -> str:
    """Return the value of `Reasoning.made_by` for a model: its protocol (the first part of the route) and its name."""
    return f"{route.partition(':')[0]}:{model}"


class CalledModel(Protocol):
    """Model, and the route through which it is called."""

    route: str
    """Protocol and host, for the ledger and for learned limits. Never contains a credential."""
    name: str
    """The model's name at its provider."""


class ChatModel(CalledModel, Protocol):
    """Model that answers conversations."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call once. `on_text` receives the complete text so far, each time it grows.

        Raises `ModelError` if the call fails. Cancelling the call closes its connection.
        """

    async def fetch_limits(self) -> ModelLimits | None:
        """Return the model's limits.

        Never raises. The request is free and takes a few seconds at most. Returns None if the provider cannot be
        reached now, or if it can state limits only after a call has loaded the model.
        """

    async def close(self) -> None:
        """Close the connections."""
