"""Anthropic's messages protocol. Its SDK is an extra: import this module only where the protocol is configured."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import anthropic
import orjson
from anthropic import AsyncAnthropic, AsyncStream

from agent.model import wire
from agent.model.base import ModelLimits, ModelReply, ModelRequest, SettingsForm, with_fields
from agent.model.caching import CacheTtl, apply_anthropic_cache_control, cache_state
from agent.model.http import EndpointSettings, HttpModel, Transport
from agent.model.protocols.anthropic_wire import (
    AnthropicReplyBuilder,
    ReasoningRejected,
    body_parts,
    effort_forms,
    response_error,
    sampling_fields,
)
from agent.model.protocols.limits import bounded_limits, limits_in
from hermes_state.errors import ModelError, ModelTimeout, ModelUnavailable, OutputCapTooLarge
from hermes_state.values import ReasoningEffort

BASE_URL: Final = "https://api.anthropic.com"
DEFAULT_MAX_TOKENS: Final = 32_000
"""Output limit where a reply must not be cut off and nothing is known of the model: every current one allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicSettings(EndpointSettings):
    """Address of the model, and what this API has to be told of it."""

    default_max_tokens: int = DEFAULT_MAX_TOKENS
    """Output limit where a request sets none; best the model's whole output limit."""
    cache_ttl: CacheTtl = "5m"
    """Time to live of cached prompts of Claude models, see `caching`."""


class AnthropicModel(HttpModel[AsyncAnthropic]):
    """A model behind `POST /v1/messages`. Close it when done."""

    def __init__(self, settings: AnthropicSettings) -> None:
        transport = Transport(
            settings,
            # The SDK adds the version to the path itself; people who are used to other SDKs have it in the address.
            re.sub(r"/v1/?$", "", settings.base_url or BASE_URL),
            sdk_client=AsyncAnthropic,
            http_client=anthropic.DefaultAsyncHttpxClient,
            stream_class=AsyncStream[object],
            errors_translated=_errors_translated,
        )
        super().__init__(settings, "anthropic", transport)
        self._default_max_tokens = settings.default_max_tokens
        self._cache_ttl = settings.cache_ttl if cache_state(self.name, self.route).is_on else None

    async def fetch_limits(self) -> ModelLimits | None:
        return await bounded_limits(self.name, self._fetched_limits)

    async def _fetched_limits(self) -> ModelLimits:
        answer = await self._transport.fetch_json(f"/v1/models/{quote(self.name, safe='/:@')}")
        if not isinstance(answer, Mapping):
            return ModelLimits()
        limits = limits_in(
            {"max_input_tokens": answer.get("max_input_tokens"), "max_output_tokens": answer.get("max_tokens")}
        )
        self._default_max_tokens = min(self._default_max_tokens, limits.max_output_tokens or self._default_max_tokens)
        return limits

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call, see `ChatModel.complete`.

        A rejection that says how to ask instead is followed: without the earlier reasoning, or, where the request
        itself sets no output limit, with a smaller one.
        """
        form, current = self._form(request), self._limited(request)
        current = replace(current, style=replace(current.style, reasoning_of=self._made_by))
        refused: tuple[ModelError, ...] = ()
        while True:
            try:
                reply = await self._complete(current, on_text, form)
                self._learn(form)
                return replace(reply, refused=refused)
            except ModelError as error:
                if (put_otherwise := _put_otherwise(error, current, request)) is not None:
                    current = put_otherwise
                elif (other := _other_form(error, form)) is not None:
                    form = other
                else:
                    error.refused = refused
                    raise
                refused = (*refused, error)

    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> list[dict[str, Any]]:
        return effort_forms(effort, self.name, self._max_tokens(request))

    def _max_tokens(self, request: ModelRequest) -> int:
        return request.max_output_tokens or min(filter(None, (self._default_max_tokens, request.output_cap)))

    async def _complete(self, request: ModelRequest, on_text: Callable[[str], None], form: SettingsForm) -> ModelReply:
        effort = self._efforts(request, form.wanted[0])[form.index]  # its budget follows the output limit
        parts = body_parts(wire.chat_messages(request.system, request.transcript, request.style), request)
        cache_ttl = self._cache_ttl if request.cache_key else None
        body = {
            "model": self.name,
            "max_tokens": self._max_tokens(request),
            **(parts if cache_ttl is None else with_cache_control(parts, cache_ttl)),
            "stream": self._streams,
        }
        reply = AnthropicReplyBuilder(on_text, self._made_by, parts=parts)
        reply.request = request
        whole = with_fields(body, sampling_fields(form.sampling, effort), effort, self._endpoint.extra_body)
        return await self._transport.complete("/v1/messages", orjson.dumps(whole), reply)


def _other_form(error: ModelError, form: SettingsForm) -> SettingsForm | None:
    """The next form of the settings; without an effort where no thoughts stand before the calls in the request."""
    if isinstance(error, ReasoningRejected) and form.wanted[0] is not None:
        return replace(form, wanted=(None, form.wanted[1]), efforts=({},), index=0)
    return form.after(error)


def _put_otherwise(error: ModelError, refused: ModelRequest, request: ModelRequest) -> ModelRequest | None:
    """The refused form of a request as the refusal wants it; None if it does not say how."""
    if isinstance(error, ReasoningRejected) and refused.style.reasoning_of:
        return replace(refused, style=replace(refused.style, reasoning_of=""))
    if not isinstance(error, OutputCapTooLarge) or not error.cap or request.max_output_tokens is not None:
        return None
    # Perhaps twice: to what the model writes at most, then to what the prompt leaves of its window.
    is_lower = refused.max_output_tokens is None or error.cap < refused.max_output_tokens
    return replace(refused, max_output_tokens=error.cap) if is_lower else None


def with_cache_control(parts: Mapping[str, Any], ttl: CacheTtl) -> dict[str, Any]:
    """The parts of a body with breakpoints in system prompt and messages; the given ones stay as they are."""
    system = [{"role": "system", "content": parts["system"]}] if "system" in parts else []
    marked = apply_anthropic_cache_control([*system, *parts["messages"]], ttl, native=True)
    changed = {"messages": marked[len(system) :]}
    return {**parts, **changed} | ({"system": marked[0]["content"]} if system else {})


@contextmanager
def _errors_translated(request: ModelRequest | None) -> Iterator[None]:
    try:
        yield
    except anthropic.APITimeoutError as error:
        raise ModelTimeout("the provider stopped answering") from error
    except anthropic.APIConnectionError as error:
        raise ModelUnavailable("the connection to the provider failed") from error
    except anthropic.APIStatusError as error:
        # The SDK has read what it refuses at once; an error inside a stream comes as its body only.
        body = error.response.text if error.status_code >= 400 else error.body
        raise response_error(error.status_code, error.response.headers, body, request) from error
