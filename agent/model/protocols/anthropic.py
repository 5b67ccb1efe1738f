"""Anthropic's Messages protocol. The SDK is an extra, so import this module only if the protocol is configured.

Pure functions convert the message list of `wire` into request bodies: the same rows always produce the same bytes. All
tool results of an answer go into one user message, followed by the user's next text.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from io import StringIO
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import anthropic
import orjson
from msgspec.structs import replace

from agent.model.base import (
    CacheTtl,
    CallForm,
    Endpoint,
    ModelLimits,
    ModelReply,
    ModelRequest,
    refusal_text,
    with_fields,
)
from agent.model.errors.classifier import error_in, stream_error
from agent.model.http import NOTHING, HttpChatModel, KeptPromptCache, Sdk
from agent.model.protocols.caching import apply_anthropic_cache_control, marks_prompts
from agent.model.protocols.limits import limits_in
from agent.model.replies import MAX_CALLS, ReplyBuilder
from agent.model.usage import normalize_usage
from agent.model.wire import GO_ON, REASONING, WireMessage, chat_messages
from hermes_state.errors import ContentRejected, ContextOverflow, ModelError, OutputCapExceeded, ReplyMalformed
from hermes_state.text import well_formed
from hermes_state.values import Reasoning, ReasoningEffort, Transcript

ANTHROPIC_SDK: Final = Sdk(
    client=anthropic.AsyncAnthropic,
    http_client=anthropic.DefaultAioHttpClient,
    refusal=anthropic.APIStatusError,
    connection_error=anthropic.APIConnectionError,
)


class AnthropicModel(HttpChatModel):
    """Chat model that is called through `POST /v1/messages`. Close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        # The SDK's paths begin with the API version, which users of other SDKs often include in the address.
        base_url = re.sub(r"/v1/?$", "", endpoint.base_url or "https://api.anthropic.com")
        headers: dict[str, Any] = dict(endpoint.extra_headers)
        for name in headers:
            if name.lower() == "authorization" and not headers[name]:
                headers[name] = anthropic.omit  # the SDK refuses to send an empty header
        endpoint = dataclasses.replace(endpoint, extra_headers=headers)
        super().__init__(endpoint, "anthropic", ANTHROPIC_SDK, base_url, "/v1/messages")
        self._default_max_tokens = endpoint.default_max_tokens
        self._cache_ttl = endpoint.cache_ttl if marks_prompts(self.name, self.route) else None

    async def _stated_limits(self) -> ModelLimits:
        answer = await self.fetch_json(f"/v1/models/{quote(self.name, safe='/:@')}")
        if not isinstance(answer, Mapping):
            return ModelLimits()
        limits = limits_in(
            {"max_input_tokens": answer.get("max_input_tokens"), "max_output_tokens": answer.get("max_tokens")}
        )
        self._default_max_tokens = min(self._default_max_tokens, limits.max_output_tokens or self._default_max_tokens)
        return limits

    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> list[dict[str, Any]]:
        return effort_forms(effort, self.name, self._max_tokens(request))

    def _max_tokens(self, request: ModelRequest) -> int:
        return request.max_output_tokens or min(filter(None, (self._default_max_tokens, request.output_cap)))

    def _begun(
        self, request: ModelRequest, form: CallForm, on_text: Callable[[str], None]
    ) -> tuple[bytes, ReplyBuilder]:
        effort = self._efforts(request, form.wanted[0])[form.index]  # the thinking budget depends on the output limit
        body = {"model": self.name, "max_tokens": self._max_tokens(request), "stream": self._streams}
        body |= marked_parts(request, self._kept, self._cache_ttl if request.cache_key else None)
        whole = with_fields(body, temperature_field(form.temperature, effort), effort, self._endpoint.extra_body)
        return orjson.dumps(whole), AnthropicReplyBuilder(on_text, self._made_by, request)

    def _next_form(self, error: ModelError, request: ModelRequest, form: CallForm) -> tuple[ModelRequest, CallForm]:
        """Leave out reasoning, lower the output limit, or drop a setting, depending on the refusal."""
        if re.search(r"thinking[`'\"]?\s+block|thinking\.signature|`signature`", refusal_text(error), re.IGNORECASE):
            if request.style.reasoning_of:
                return replace(request, style=replace(request.style, reasoning_of="")), form
            if form.wanted[0] is not None:  # the API refuses thinking if earlier calls have no reasoning
                return request, replace(form, wanted=(None, form.wanted[1]), efforts=({},), index=0)
        if isinstance(error, OutputCapExceeded) and error.cap and error.cap < self._max_tokens(request):
            # This can happen twice: first for the model's own limit, then for the room that the prompt leaves.
            return replace(request, output_cap=error.cap), form
        return request, form.after(error) or form


def marked_parts(request: ModelRequest, kept: KeptPromptCache, cache_ttl: CacheTtl | None) -> dict[str, Any]:
    """Return the `body_parts` of a request, marked for caching unless `cache_ttl` is None."""

    def render(rows: Transcript, call_ids: set[str]) -> list[dict[str, Any]] | None:
        # Not cacheable: reasoning depends on all earlier rows, and a changed id might collide with another id.
        messages = chat_messages("", rows, request.style, call_ids)
        ids = (call["id"] for message in messages for call in message.get("tool_calls", ()))
        if any(REASONING in message for message in messages) or any(map(_ILLEGAL_IN_ID.search, ids)):
            return None
        return _messages(messages, blake2b())

    # If the request has no tools, `body_parts` finds the called tools in the complete messages.
    start = kept.beginning_of(request, render) if request.tools else NOTHING
    if start.rows and render(request.transcript[start.rows :], set(start.call_ids)) is None:
        start = NOTHING
    rest = request.transcript[start.rows :]
    parts = body_parts(chat_messages(request.system, rest, request.style, set(start.call_ids)), request)
    if cache_ttl is not None:
        parts = with_cache_control(parts, cache_ttl)
    return parts | {"messages": start.before(parts["messages"])}


def with_cache_control(parts: Mapping[str, Any], ttl: CacheTtl) -> dict[str, Any]:
    """Return a copy of the body parts with cache breakpoints in the system prompt and the messages."""
    system = [{"role": "system", "content": parts["system"]}] if "system" in parts else []
    marked = apply_anthropic_cache_control([*system, *parts["messages"]], ttl, native=True)
    changed = {"messages": marked[len(system) :]}
    return {**parts, **changed} | ({"system": marked[0]["content"]} if system else {})


# --- request bodies

_Block: TypeAlias = dict[str, Any]
_ILLEGAL_IN_ID: Final = re.compile(r"[^a-zA-Z0-9_-]")


def body_parts(messages: Sequence[WireMessage], request: ModelRequest) -> dict[str, Any]:
    """Return the request body's `system`, `tools`, `tool_choice` and `messages`. Empty fields are left out."""
    tools: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    may_call = request.may_call_tools
    called = (call["function"]["name"] for message in messages for call in message.get("tool_calls", ()))
    if not tools and (names := dict.fromkeys(called)):
        # The API requires a definition for every tool that is called in the messages.
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        may_call = False
    parts: dict[str, Any] = {}
    if messages and messages[0]["role"] == "system":
        parts["system"] = [{"type": "text", "text": messages[0]["content"]}]
        messages = messages[1:]
    if tools:
        parts["tools"] = tools
        if not may_call:
            parts["tool_choice"] = {"type": "none"}
    sent = parts["messages"] = _messages(messages, _prompt_digest(parts))
    if sent and sent[-1]["role"] == "assistant":
        sent.append({"role": "user", "content": [{"type": "text", "text": GO_ON}]})
    return parts


def stored_reasoning(blocks: Sequence[Mapping[str, str]], parts: Mapping[str, Any], made_by: str) -> Reasoning:
    """Return the reasoning to store with the calls that follow it. It includes a fingerprint of the `body_parts`.

    Newer models accept reasoning only after exactly the prompt that produced it. Once that prompt has been compressed,
    edited or pruned, the reasoning is left out.
    """
    digest = _prompt_digest(parts)
    for message in parts["messages"]:
        digest.update(orjson.dumps(message))
    stored = {"behind": digest.hexdigest(), "blocks": list(blocks)}
    return Reasoning(made_by=made_by, blocks=orjson.dumps(stored).decode())


def _prompt_digest(parts: Mapping[str, Any]) -> blake2b:
    """Return a digest of the system prompt and the tools. The caller adds the messages."""
    return blake2b(orjson.dumps([parts.get("system"), parts.get("tools")]), digest_size=12)


# --- settings


def effort_forms(effort: ReasoningEffort | None, model: str, max_tokens: int) -> list[dict[str, Any]]:
    """Return alternatives for the request fields that set a reasoning effort, best first. The last one sets no field.

    Thinking counts as output, so a thinking budget must be smaller than the output limit.
    """
    if effort is None:
        return [{}]
    if effort == "off":
        return [{"thinking": {"type": "disabled"}}, {"output_config": {"effort": "low"}}, {}]
    words = ["low"] if effort == "minimal" else [effort, "high"] if effort in ("xhigh", "max") else [effort]
    adaptive = [{"thinking": {"type": "adaptive"}, "output_config": {"effort": word}} for word in words]
    percent = {"minimal": 10, "low": 20, "medium": 50, "high": 80}.get(effort, 90)
    budget = max(1_024, max_tokens * percent // 100)  # the API's minimum
    budget = min(budget, max_tokens - 512)  # leave room for the answer
    manual = {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= 1_024 else {}
    # These models decide themselves how long to think. Newer models accept no other mode.
    is_adaptive = re.search(r"claude-(?:(?:opus|sonnet|haiku)-(?:4[-.][6-9]\b|[5-9])|fable|mythos)", model)
    return [*adaptive, manual, {}] if is_adaptive else [manual, *adaptive, {}]


def temperature_field(temperature: float | None, effort: Mapping[str, Any]) -> dict[str, float]:
    """Return the request field for the temperature. The API accepts at most 1, and no temperature with thinking."""
    thinks = effort.get("thinking", {}).get("type") in ("adaptive", "enabled")
    return {} if temperature is None or thinks else {"temperature": min(temperature, 1.0)}


# --- messages


def _messages(messages: Sequence[WireMessage], digest: blake2b) -> list[dict[str, Any]]:
    """Return messages with alternating roles, starting with the user."""
    ids = _legal_ids(messages)
    remembers = any(REASONING in message for message in messages)
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            if remembers and sent:  # the user message before this answer is now complete
                digest.update(orjson.dumps(sent[-1]))
            stored = message.get(REASONING)
            blocks: list[_Block] = []
            if isinstance(stored, dict) and stored.get("behind") == digest.hexdigest():
                blocks = stored["blocks"]
            calls = [
                {
                    "type": "tool_use",
                    "id": ids[call["id"]],
                    "name": call["function"]["name"],
                    # Arguments are not parsed, because serialising them again could change the prompt's bytes.
                    "input": orjson.Fragment(call["function"]["arguments"]),
                }
                for call in message.get("tool_calls", ())
            ]
            blocks = blocks + _parts(message["content"]) + calls
            sent.append({"role": "assistant", "content": blocks})
            if remembers:
                digest.update(orjson.dumps(sent[-1]))
            continue
        blocks = _parts(message["content"])
        if message["role"] == "tool":
            answered = ids[message["tool_call_id"]]
            blocks = [{"type": "tool_result", "tool_use_id": answered, "content": message["content"]}]
        if sent and sent[-1]["role"] == "user":
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": "user", "content": blocks})
    return sent


def _parts(content: str | list[_Block] | None) -> list[_Block]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content and content.strip() else []
    blocks = [_image(part["image_url"]["url"]) if part["type"] == "image_url" else part for part in content]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _image(url: str) -> _Block:
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _legal_ids(messages: Sequence[WireMessage]) -> Mapping[str, str]:
    """Return a valid id for each call id. Ids from other providers can contain characters that this API refuses."""
    originals: dict[str, str] = {}
    for call_id in (call["id"] for message in messages for call in message.get("tool_calls", ())):
        legal = _ILLEGAL_IN_ID.sub("_", call_id)
        while originals.setdefault(legal, call_id) != call_id:
            legal += "_"
    return {original: legal for legal, original in originals.items()}


class AnthropicReplyBuilder(ReplyBuilder):
    """Builds a reply from the events of a stream, or from a complete message."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        super().__init__(on_text, made_by, request)
        self._stop: str | None = None
        self._is_whole = False
        self._has_content = False
        self._usage: dict[str, float] = {}
        self._thoughts: dict[int, tuple[str, dict[str, StringIO]]] = {}
        """Type and texts of each reasoning block."""
        self._inputs: dict[int, str] = {}
        """Arguments from the start event of each call, used if no pieces follow."""
        self._is_interleaved = False

    def read_event(self, event: Any) -> None:
        if event.get("type") in (None, "error") and (error := error_in(event)) is not None:
            raise stream_error(error, self.request)
        match event["type"]:
            case "message":  # the server did not stream
                for index, block in enumerate(event["content"]):
                    self._begin(index, block)
                self._end(event["stop_reason"])
                self._add_usage(event)
                self._is_whole = True
            case "message_start":
                self._add_usage(event["message"])
            case "content_block_start":
                self._begin(event["index"], event["content_block"])
            case "content_block_delta":
                self._continue(event["index"], event["delta"])
            case "message_delta":
                self._end(event["delta"].get("stop_reason"))
                self._add_usage(event)
            case "message_stop":
                self._is_whole = True

    def _add_usage(self, holder: Mapping[str, Any]) -> None:
        reported = holder.get("usage") or {}
        details = reported.get("output_tokens_details")
        names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        counts = {name: reported.get(name) for name in names}
        counts["thinking_tokens"] = details.get("thinking_tokens") if isinstance(details, Mapping) else None
        self._usage |= {name: count for name, count in counts.items() if isinstance(count, int | float)}
        self.usage = normalize_usage({**self._usage, "output_tokens_details": self._usage}, "anthropic")

    def _end(self, reason: str | None) -> None:
        if reason is not None and not isinstance(reason, str):
            raise TypeError("the stop reason must be text")
        self._stop = reason or self._stop

    def _begin(self, index: int, block: Mapping[str, Any]) -> None:
        if not isinstance(index, int):
            raise TypeError("the index of a block must be a number")
        match block["type"]:
            case "text":
                self._has_content = True
                if block["text"]:
                    self.add_text(block["text"])
            case "tool_use":
                self._has_content = True
                self._inputs[index] = self.counted(json.dumps(block.get("input") or {}, ensure_ascii=False))
                self.add_call(index, call_id=block["id"], name=block["name"])
            case "thinking" | "redacted_thinking" as kind:
                if len(self._thoughts) >= MAX_CALLS:
                    raise ReplyMalformed(f"the reply has more than {MAX_CALLS} reasoning blocks")
                self._is_interleaved = self._is_interleaved or self._has_content
                keys = ("thinking", "signature") if kind == "thinking" else ("data",)
                self._thoughts[index] = (kind, texts := {key: StringIO() for key in keys})
                for key, text in texts.items():
                    text.write(self.counted(block.get(key) or ""))

    def _continue(self, index: int, delta: Mapping[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                self.add_text(delta["text"])
            case "input_json_delta" if index in self._calls_at:
                if delta["partial_json"]:
                    self._inputs.pop(index, None)
                    self.add_call(index, arguments=delta["partial_json"])
            case "thinking_delta" | "signature_delta" as kind:
                key = kind.removesuffix("_delta")
                self._thoughts[index][1][key].write(self.counted(delta[key]))

    def finished(self) -> ModelReply:
        if self._stop is None or not self._is_whole:
            raise self.broken_off("the stream ended without a stop reason")
        if self._stop == "refusal":
            raise ContentRejected("the provider stopped its reply")
        if self._stop == "model_context_window_exceeded" and not self._has_content:
            raise ContextOverflow("the prompt leaves no room for a reply")
        for index, given in self._inputs.items():
            self.add_call(index, arguments=given)
        is_cut_off = self._stop in ("max_tokens", "model_context_window_exceeded", "pause_turn")
        return self.built(is_cut_off=is_cut_off, reasoning=lambda _thought: self._stored_reasoning())

    def _stored_reasoning(self) -> Reasoning | None:
        """Return the reasoning that later requests send back before the calls.

        Return None if it is interleaved with text or calls, is unsigned, or would change when stored.
        """
        thoughts = [self._thoughts[index] for index in sorted(self._thoughts)]
        blocks = [{"type": kind} | {key: text.getvalue() for key, text in texts.items()} for kind, texts in thoughts]
        is_signed = all(block.get("data") or block.get("signature") for block in blocks)
        is_storable = all(well_formed(text) == text for block in blocks for text in block.values())
        request = self.request
        if request is None or not blocks or self._is_interleaved or not (is_signed and is_storable):
            return None
        messages = chat_messages(request.system, request.transcript, request.style)
        return stored_reasoning(blocks, body_parts(messages, request), self._made_by)
