"""Anthropic's messages protocol. Its SDK is an extra: import this module only where the protocol is configured."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import anthropic
import orjson

from agent.model import shapes
from agent.model.base import (
    CacheTtl,
    CallSettings,
    EndpointSettings,
    ModelLimits,
    ModelReply,
    ModelRequest,
    refusal_text,
    with_fields,
)
from agent.model.http import HttpChatModel, Sdk
from agent.model.kept_prompts import NOTHING, KeptPrompt, KeptPromptCache
from agent.model.protocols.anthropic_wire import (
    AnthropicReplyBuilder,
    body_parts,
    effort_forms,
    sampling_fields,
    settled_messages,
)
from agent.model.protocols.caching import apply_anthropic_cache_control, marks_prompts
from agent.model.protocols.limits import bounded_limits, limits_in
from agent.model.replies import ReplyBuilder
from hermes_state.errors import ModelError, OutputCapExceeded
from hermes_state.values import ReasoningEffort, Transcript

BASE_URL: Final = "https://api.anthropic.com"
ANTHROPIC_SDK: Final = Sdk(
    client=anthropic.AsyncAnthropic,
    http_client=anthropic.DefaultAioHttpClient,
    refusal=anthropic.APIStatusError,
    connection_error=anthropic.APIConnectionError,
)


class AnthropicModel(HttpChatModel):
    """A model behind `POST /v1/messages`. Close it when done."""

    def __init__(self, endpoint: EndpointSettings) -> None:
        # The SDK's paths begin with the version; people who are used to other SDKs have it in the address.
        base_url = re.sub(r"/v1/?$", "", endpoint.base_url or BASE_URL)
        headers: dict[str, Any] = dict(endpoint.extra_headers)
        for name in headers:
            if name.lower() == "authorization" and not headers[name]:
                headers[name] = anthropic.omit  # the SDK refuses to send an empty one
        endpoint = replace(endpoint, extra_headers=headers)
        super().__init__(endpoint, "anthropic", ANTHROPIC_SDK, base_url, "/v1/messages")
        self._default_max_tokens = endpoint.default_max_tokens
        self._cache_ttl = endpoint.cache_ttl if marks_prompts(self.name, self.route) else None

    async def fetch_limits(self) -> ModelLimits | None:
        return await bounded_limits(self.name, self._fetched_limits)

    async def _fetched_limits(self) -> ModelLimits:
        answer = await self.fetch_json(f"/v1/models/{quote(self.name, safe='/:@')}")
        if not isinstance(answer, Mapping):
            return ModelLimits()
        limits = limits_in(
            {"max_input_tokens": answer.get("max_input_tokens"), "max_output_tokens": answer.get("max_tokens")}
        )
        self._default_max_tokens = min(self._default_max_tokens, limits.max_output_tokens or self._default_max_tokens)
        return limits

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call, see `ChatModel.complete`."""
        style = replace(request.style, reasoning_of=self._made_by)
        return await super().complete(replace(request, style=style), on_text)

    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> list[dict[str, Any]]:
        return effort_forms(effort, self.name, self._max_tokens(request))

    def _max_tokens(self, request: ModelRequest) -> int:
        return request.max_output_tokens or min(filter(None, (self._default_max_tokens, request.output_cap)))

    def _begun(
        self, request: ModelRequest, form: CallSettings, on_text: Callable[[str], None]
    ) -> tuple[bytes, ReplyBuilder]:
        effort = self._efforts(request, form.wanted[0])[form.index]  # its budget follows the output limit
        cache_ttl = self._cache_ttl if request.cache_key else None
        body = {
            "model": self.name,
            "max_tokens": self._max_tokens(request),
            **marked_parts(request, self._kept, cache_ttl),
            "stream": self._streams,
        }
        whole = with_fields(body, sampling_fields(form.sampling, effort), effort, self._endpoint.extra_body)
        return orjson.dumps(whole), AnthropicReplyBuilder(on_text, self._made_by, request)

    def _put_otherwise(
        self, error: ModelError, request: ModelRequest, form: CallSettings
    ) -> tuple[ModelRequest, CallSettings]:
        """Without the earlier reasoning, or, where the request itself sets no output limit, with a smaller one."""
        if _REASONING.search(refusal_text(error)):
            if request.style.reasoning_of:
                return replace(request, style=replace(request.style, reasoning_of="")), form
            if form.wanted[0] is not None:  # no effort where no thoughts stand before the calls in the request
                return request, replace(form, wanted=(None, form.wanted[1]), efforts=({},), index=0)
        if isinstance(error, OutputCapExceeded) and error.cap and error.cap < self._max_tokens(request):
            # Perhaps twice: to what the model writes at most, then to what the prompt leaves of its window.
            return replace(request, output_cap=error.cap), form
        return request, form.after(error) or form


_REASONING = re.compile(r"thinking[`'\"]?\s+block|thinking\.signature|`signature`", re.IGNORECASE)
"""Wording of refusals of earlier reasoning."""


def marked_parts(request: ModelRequest, kept: KeptPromptCache, cache_ttl: CacheTtl | None) -> dict[str, Any]:
    """The `body_parts` of a request, marked for caching where `cache_ttl` says how long; JSON as a whole."""

    def render(rows: Transcript, call_ids: set[str]) -> list[dict[str, Any]] | None:
        return settled_messages(shapes.chat_messages("", rows, request.style, call_ids))

    # Without tools it is the calls of all messages that tell which there are.
    start = kept.beginning_of(request, render) if request.tools else NOTHING
    if start.rows and render(request.transcript[start.rows :], set(start.call_ids)) is None:
        start = NOTHING
    parts = _parts_behind(start, request)
    if cache_ttl is not None:
        parts = with_cache_control(parts, cache_ttl)
    return parts | {"messages": start.before(parts["messages"])}


def _parts_behind(start: KeptPrompt, request: ModelRequest) -> dict[str, Any]:
    """The parts of a request's body, without the messages of its beginning."""
    rest = request.transcript[start.rows :]
    return body_parts(shapes.chat_messages(request.system, rest, request.style, set(start.call_ids)), request)


def with_cache_control(parts: Mapping[str, Any], ttl: CacheTtl) -> dict[str, Any]:
    """The parts of a body with breakpoints in system prompt and messages; the given ones stay as they are."""
    system = [{"role": "system", "content": parts["system"]}] if "system" in parts else []
    marked = apply_anthropic_cache_control([*system, *parts["messages"]], ttl, native=True)
    changed = {"messages": marked[len(system) :]}
    return {**parts, **changed} | ({"system": marked[0]["content"]} if system else {})
