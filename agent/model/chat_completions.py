"""The chat completions protocol: OpenAI and everything compatible with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from agent.model import wire
from agent.model.base import ModelReply, ModelRequest, ToolSchema, maker_of
from agent.model.caching import CacheTtl, apply_anthropic_cache_control, caching_for
from agent.model.chat_reasoning import ReasoningPieces, put_back
from agent.model.connections import LONGEST_CACHE_KEY, OPENAI_HOST
from agent.model.openai_errors import Refusal
from agent.model.openai_model import Collector, OpenAIModel
from agent.model.pools import Endpoint
from agent.model.replies import ReplyBuilder
from agent.model.usage import UsageShape, normalize_usage, reported_cost
from hermes_state.errors import ContentFiltered, ModelUnavailable, ReplyMalformed
from hermes_state.values import CanonicalUsage, MicroUsd


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletionsSettings(Endpoint):
    """Where the model is and what the server there can."""

    sends_cache_key: bool | None = None
    """Whether requests say which of them begin alike. None: to OpenAI itself; not all others take what is new."""
    cache_ttl: CacheTtl = "5m"
    """For Claude models at a provider that passes breakpoints on, see `caching`."""


_LIMIT_KEY: Final = "max_tokens"
_NEWER_LIMIT_KEY: Final = "max_completion_tokens"
"""OpenAI's newer models know only this name of the output limit, most other servers only the older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDialect:
    """What servers differ in. Starts out as most of them take it, and learns from what is refused."""

    limit_key: str = _LIMIT_KEY
    has_stream_options: bool = True
    replays_reasoning: bool = True
    insists_on_reasoning: bool = False

    def after(self, refusal: Refusal) -> "ChatDialect":
        """Without what was refused."""
        match refusal:
            case Refusal.LIMIT_NAME:
                return replace(self, limit_key=_NEWER_LIMIT_KEY)
            case Refusal.STREAM_OPTIONS:
                return replace(self, has_stream_options=False)
            case Refusal.MISSING_REASONING:
                return replace(self, insists_on_reasoning=True)
            case Refusal.REPLAYED_REASONING:
                return replace(self, replays_reasoning=False)
            case Refusal.ENCRYPTED_REASONING:
                return self


class ChatCompletionsModel(OpenAIModel[ChatDialect]):
    """A model behind `POST /chat/completions`. Close it when done."""

    def __init__(self, settings: ChatCompletionsSettings) -> None:
        super().__init__(settings, protocol="chat_completions", path="/chat/completions", dialect=ChatDialect())
        is_openai = self.host == OPENAI_HOST
        self.sends_cache_key = is_openai if settings.sends_cache_key is None else settings.sends_cache_key
        self._cache_ttl = settings.cache_ttl if caching_for(self.name, "chat_completions", self.host) else None

    def _encoded(self, request: ModelRequest, dialect: ChatDialect) -> bytes:
        cache_ttl = self._cache_ttl if request.cache_key else None
        if not self.sends_cache_key:
            request = replace(request, cache_key="")
        return encoded_request(self.name, request, dialect, streams=self._streams, cache_ttl=cache_ttl)

    def _begun(self, on_text: Callable[[str], None]) -> Collector:
        return _Reply(on_text, self._maker)


def encoded_request(
    model: str,
    request: ModelRequest,
    dialect: ChatDialect | None = None,
    *,
    streams: bool = True,
    cache_ttl: CacheTtl | None = None,
) -> bytes:
    """The body of the HTTP request. `cache_ttl`: None marks nothing for caching."""
    dialect = dialect or ChatDialect()
    maker = maker_of("chat_completions", model) if dialect.replays_reasoning else ""
    messages = wire.chat_messages(request.system, request.transcript, replace(request.style, reasoning_of=maker))
    put_back(messages, always=dialect.insists_on_reasoning)
    if cache_ttl is not None:
        messages = apply_anthropic_cache_control(messages, cache_ttl)
    body: dict[str, Any] = {"model": model, "messages": messages}
    if streams:
        body["stream"] = True
        if dialect.has_stream_options:
            body["stream_options"] = {"include_usage": True}
    if request.max_output_tokens is not None:
        body[dialect.limit_key] = request.max_output_tokens
    if request.tools:
        body["tools"] = [_wire_tool(tool) for tool in request.tools]
        if not request.may_call_tools:
            body["tool_choice"] = "none"
    if request.cache_key:
        body["prompt_cache_key"] = request.cache_key[:LONGEST_CACHE_KEY]
    return orjson.dumps(body)


def _wire_tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _Reply:
    """Collects the chunks of one stream, or takes the one that is whole."""

    def __init__(self, on_text: Callable[[str], None], maker: str) -> None:
        self._reply = ReplyBuilder(on_text)
        self._reasoning = ReasoningPieces(self._reply.counted)
        self._maker = maker
        self._finish: str | None = None
        self.usage: CanonicalUsage | None = None
        self.cost: MicroUsd | None = None

    def add(self, chunk: object) -> None:
        """Take in one chunk. Raises `ReplyMalformed` when it is not shaped like one."""
        try:
            self._add(chunk)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
            raise ReplyMalformed("a chunk of the provider's reply has an unknown shape") from error

    def _add(self, chunk: Any) -> None:
        if usage := chunk.get("usage"):
            self.usage = normalize_usage(usage, UsageShape.CHAT_COMPLETIONS)
            self.cost = reported_cost(usage)
        if not (choices := chunk.get("choices")):
            return
        choice = choices[0]
        delta: Mapping[str, Any] = choice.get("delta") or choice.get("message") or {}
        self._reasoning.add(delta, is_piece="delta" in choice)
        for text in (delta.get("content"), delta.get("refusal")):
            if text:
                self._reply.add_text(text)
        for piece in delta.get("tool_calls") or ():
            self._add_call(piece)
        self._finish = choice.get("finish_reason") or self._finish

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        place = piece.get("index")
        if place is not None and not isinstance(place, int):
            raise TypeError("a call's index is a number")
        function: Mapping[str, Any] = piece.get("function") or {}
        self._reply.add_call(
            place,
            call_id=piece.get("id") or "",
            name=function.get("name") or "",
            arguments=function.get("arguments") or "",
        )

    def finished(self) -> ModelReply:
        """The whole reply. Raises `ReplyMalformed` when it broke off, `ContentFiltered` when it was stopped."""
        if self._finish is None:
            raise ReplyMalformed("the reply ended without a finish reason")
        if self._finish == "content_filter":
            raise ContentFiltered("the provider stopped its reply")
        if self._finish == "error":
            raise ModelUnavailable("the provider broke its reply off")
        reasoning = self._reasoning.whole(self._maker) if self._reply.has_calls else None
        return self._reply.finished(
            is_cut_off=self._finish == "length",
            usage=self.usage,
            reasoning=reasoning,
            cost=self.cost,
        )
