"""Anthropic's messages protocol. Its SDK is an extra, so this module is imported only where the protocol is configured.

As with chat completions the SDK brings the connection, the event stream and the error classes, and the request goes
past its typed transform as prepared bytes.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import anthropic
import httpx2
import orjson
from anthropic import AsyncAnthropic, AsyncStream

from agent.model import wire
from agent.model.base import ModelLimits, ModelReply, ModelRequest, made_by
from agent.model.caching import CacheTtl, apply_anthropic_cache_control, supports_cache_control
from agent.model.errors import with_usage
from agent.model.http import CONNECTION_LIMITS, Endpoint, LoopBudget, Pools, read_json, ssl_context
from agent.model.protocols.anthropic_wire import (
    CollectedReply,
    ReasoningRejected,
    answered_error,
    body_parts,
    stored_reasoning,
)
from agent.model.protocols.offered_sizes import MAX_BYTES, bounded_limits
from hermes_state.errors import (
    ModelError,
    ModelTimeout,
    ModelUnavailable,
    OutputCapTooLarge,
    ReplyMalformed,
)
from hermes_state.values import Tokens

BASE_URL: Final = "https://api.anthropic.com"
DEFAULT_MAX_TOKENS: Final = 32_000
"""Asked for where a reply must not be cut off and nothing is known of the model: every current one allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicSettings(Endpoint):
    """Where the model is, and what this API has to be told of it."""

    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """What is asked for where a request sets no output limit; best the model's whole output limit."""
    cache_ttl: CacheTtl = "5m"
    """For Claude models, see `caching`."""


class AnthropicModel:
    """A model behind `POST /v1/messages`. Close it when done."""

    def __init__(self, settings: AnthropicSettings) -> None:
        self.name = settings.model
        self._streams = settings.streams
        self._default_max_tokens = settings.default_max_tokens
        self._pools = _pools(settings)
        host = httpx2.URL(str(self._pools.first.base_url)).host
        self.route = f"anthropic:{host}"
        self._maker = made_by(self.route, self.name)
        self._cache_ttl = settings.cache_ttl if supports_cache_control(self.name, "anthropic", host) else None

    async def close(self) -> None:
        await self._pools.close()

    async def fetch_limits(self) -> ModelLimits | None:
        """See `ChatModel.fetch_limits`."""
        return await bounded_limits(self.name, self._asked_for_limits)

    async def _asked_for_limits(self) -> ModelLimits:
        path = f"/v1/models/{quote(self.name, safe='/:@')}"
        with self._pools.client() as client, _errors_translated():
            stream = await client.get(path, cast_to=object, stream=True, stream_cls=AsyncStream[object])
            async with stream:
                said = await read_json(stream.response, MAX_BYTES)
        if not isinstance(said, Mapping):
            return ModelLimits()
        return ModelLimits(
            context_length=_size(said.get("max_input_tokens")), max_output_tokens=_size(said.get("max_tokens"))
        )

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """See `ChatModel.complete`.

        A refusal that says how to ask instead is followed: without what was thought before, or, where the request
        itself sets no output limit, with a smaller one.
        """
        asked = replace(request, style=replace(request.style, reasoning_of=self._maker))
        while True:
            try:
                return await self._complete(asked, on_text)
            except ModelError as error:
                other = _asked_otherwise(asked, error, may_lower_cap=request.max_output_tokens is None)
                if other is None:
                    raise
                asked = other

    async def _complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        parts = body_parts(wire.chat_messages(request.system, request.transcript, request.style), request)
        cache_ttl = self._cache_ttl if request.cache_key else None
        body = {
            "model": self.name,
            "max_tokens": request.max_output_tokens or self._default_max_tokens,
            **(parts if cache_ttl is None else with_cache_control(parts, cache_ttl)),
            "stream": self._streams,
        }
        reply = CollectedReply(on_text, partial(stored_reasoning, parts=parts, made_by=self._maker))
        try:
            async with self._posted(orjson.dumps(body)) as said:
                if self._streams:
                    share = LoopBudget()
                    async for event in said:
                        reply.add(event)
                        await share.checkpoint()
                else:
                    reply.add_whole(await read_json(said.response))
            return reply.finished()
        except ModelError as error:
            with_usage(error, reply.usage)
            raise

    @asynccontextmanager
    async def _posted(self, payload: bytes) -> AsyncIterator[AsyncStream[object]]:
        """Send a request. Leaving it, however, closes the connection."""
        with self._pools.client() as client, _errors_translated():
            stream = await client.post(
                "/v1/messages", cast_to=object, content=payload, stream=True, stream_cls=AsyncStream[object]
            )
            async with stream:
                yield stream


def _pools(settings: AnthropicSettings) -> Pools[AsyncAnthropic]:
    # The SDK adds the version to the path itself; people who are used to other SDKs have it in the address.
    base_url = re.sub(r"/v1/?$", "", settings.base_url or BASE_URL)

    def make() -> AsyncAnthropic:
        return AsyncAnthropic(
            api_key=settings.api_key or "none",  # else the SDK looks for credentials of whoever runs us
            base_url=base_url,
            timeout=settings.timeout,
            max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(
                timeout=settings.timeout, limits=CONNECTION_LIMITS, verify=ssl_context()
            ),
        )

    return Pools(make)


def with_cache_control(parts: Mapping[str, Any], ttl: CacheTtl) -> dict[str, Any]:
    """The parts of a body with breakpoints in system prompt and messages; the given ones stay as they are."""
    system = [{"role": "system", "content": parts["system"]}] if "system" in parts else []
    marked = apply_anthropic_cache_control([*system, *parts["messages"]], ttl, native=True)
    changed = {"messages": marked[len(system) :]}
    return {**parts, **changed} | ({"system": marked[0]["content"]} if system else {})


def _without_reasoning(request: ModelRequest) -> ModelRequest:
    return replace(request, style=replace(request.style, reasoning_of=""))


def _asked_otherwise(asked: ModelRequest, error: ModelError, *, may_lower_cap: bool) -> ModelRequest | None:
    """The request as the provider may take it; None where nothing is left to change."""
    if isinstance(error, ReasoningRejected) and asked.style.reasoning_of:
        return _without_reasoning(asked)
    if isinstance(error, OutputCapTooLarge) and error.cap and may_lower_cap:
        # It may be lowered twice: to what the model writes at most, and to what the prompt leaves of its window.
        known = asked.max_output_tokens
        return replace(asked, max_output_tokens=error.cap) if known is None or error.cap < known else None
    return None


def _size(value: object) -> Tokens | None:
    return Tokens(value) if type(value) is int and value > 0 else None


@contextmanager
def _errors_translated() -> Iterator[None]:
    """What the SDK raises while a call is made or its answer is read becomes ours."""
    try:
        yield
    except (anthropic.APITimeoutError, httpx2.TimeoutException) as error:
        raise ModelTimeout("the provider stopped answering") from error
    except (anthropic.APIConnectionError, httpx2.HTTPError) as error:
        raise ModelUnavailable("the connection to the provider failed") from error
    except anthropic.APIStatusError as error:
        raise answered_error(error.status_code, error.response.headers, error.body) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReplyMalformed("the provider's answer is not JSON") from error
