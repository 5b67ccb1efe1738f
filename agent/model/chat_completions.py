"""The chat completions protocol: OpenAI and everything compatible with it.

The SDK brings the connection, the event stream and the error classes. Its typed request transform and its typed
chunks are avoided: they cost 0.1 ms a message and 0.06 ms a chunk on the event loop, a hundred times what the plain
JSON costs.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import openai
import orjson
from openai import AsyncStream

from agent.model import wire
from agent.model.base import ModelLimits, ModelReply, ModelRequest, ToolSchema
from agent.model.connections import Connections
from agent.model.provider_errors import status_error, stream_error
from agent.model.replies import ReplyBuilder
from agent.model.usage import UsageShape, normalize_usage
from hermes_state.errors import ContentFiltered, ModelError, ModelTimeout, ModelUnavailable, ReplyMalformed
from hermes_state.values import CanonicalUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletionsSettings:
    """Where the model is and how long to wait for it; times in seconds."""

    model: str
    api_key: str
    base_url: str | None = None
    """None: OpenAI's own."""
    connect_seconds: float = 5.0
    read_seconds: float = 120.0
    """Longest silence, before the first byte and between two chunks."""
    write_seconds: float = 30.0
    pool_seconds: float = 10.0


_LIMIT_KEY: Final = "max_tokens"
_NEWER_LIMIT_KEY: Final = "max_completion_tokens"
"""OpenAI's newer models know only this name of the output limit, most other servers only the older one."""


class _LimitKeyRefused(ModelError):
    """The model knows the output limit only by its newer name."""


class ChatCompletionsModel:
    """A model behind `POST /chat/completions`. Close it when done."""

    def __init__(self, settings: ChatCompletionsSettings) -> None:
        timeout = httpx2.Timeout(
            connect=settings.connect_seconds,
            read=settings.read_seconds,
            write=settings.write_seconds,
            pool=settings.pool_seconds,
        )
        self.name = settings.model
        self._connections = Connections(
            api_key=settings.api_key or "none",  # local servers want no key, the SDK insists on one
            base_url=settings.base_url,
            timeout=timeout,
        )
        self._limit_key = _LIMIT_KEY
        self.route = f"chat_completions:{self._connections.host}"

    async def fetch_limits(self) -> ModelLimits:
        """See `ChatModel.fetch_limits`."""
        return ModelLimits()

    async def close(self) -> None:
        await self._connections.close()

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """See `ChatModel.complete`."""
        try:
            return await self._complete(request, on_text, self._limit_key)
        except _LimitKeyRefused:
            self._limit_key = _NEWER_LIMIT_KEY
            return await self._complete(request, on_text, self._limit_key)

    async def _complete(self, request: ModelRequest, on_text: Callable[[str], None], limit_key: str) -> ModelReply:
        reply = _StreamedReply(on_text)
        payload = encoded_request(self.name, request, limit_key)
        with self._connections.client() as client, _errors_translated():
            stream = await client.post(
                "/chat/completions", cast_to=object, content=payload, stream=True, stream_cls=AsyncStream[object]
            )
            async with stream:
                async for chunk in stream:
                    reply.add(chunk)
        return reply.finished()


@contextmanager
def _errors_translated() -> Iterator[None]:
    """What the SDK raises while a call is made or its stream is read becomes ours."""
    try:
        yield
    except openai.APITimeoutError as error:
        raise ModelTimeout("the provider stopped answering") from error
    except openai.APIConnectionError as error:
        raise ModelUnavailable("the connection to the provider failed") from error
    except openai.APIStatusError as error:
        if error.code == "unsupported_parameter" and error.param == _LIMIT_KEY:
            raise _LimitKeyRefused(f"HTTP {error.status_code} {error.code}") from error
        raise status_error(error.status_code, error.response.headers, error.body) from error
    except openai.APIError as error:
        raise stream_error(error.body) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReplyMalformed("the provider's event stream is not JSON") from error


def encoded_request(model: str, request: ModelRequest, limit_key: str = _LIMIT_KEY) -> bytes:
    """The body of the HTTP request."""
    body: dict[str, Any] = {
        "model": model,
        "messages": wire.chat_messages(request.system, request.transcript, request.style),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.max_output_tokens is not None:
        body[limit_key] = request.max_output_tokens
    if request.tools:
        body["tools"] = [_wire_tool(tool) for tool in request.tools]
        if not request.may_call_tools:
            body["tool_choice"] = "none"
    return orjson.dumps(body)


def _wire_tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


class _StreamedReply:
    """Collects the chunks of one stream."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._reply = ReplyBuilder(on_text)
        self._finish: str | None = None
        self._usage: CanonicalUsage | None = None

    def add(self, chunk: object) -> None:
        """Take in one chunk. Raises `ReplyMalformed` when it is not shaped like one."""
        try:
            self._add(chunk)
        except (AttributeError, TypeError, KeyError, IndexError) as error:
            raise ReplyMalformed("a chunk of the provider's stream has an unknown shape") from error

    def _add(self, chunk: Any) -> None:
        if usage := chunk.get("usage"):
            self._usage = normalize_usage(usage, UsageShape.CHAT_COMPLETIONS)
        if not (choices := chunk.get("choices")):
            return
        choice = choices[0]
        delta: Mapping[str, Any] = choice.get("delta") or {}
        if text := delta.get("content"):
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
        """The whole reply. Raises `ReplyMalformed` when the stream broke off, `ContentFiltered` when it was stopped."""
        if self._finish is None:
            raise ReplyMalformed("the stream ended without a finish reason")
        if self._finish == "content_filter":
            raise ContentFiltered("the provider stopped its reply")
        return self._reply.finished(is_cut_off=self._finish == "length", usage=self._usage)
