"""Anthropic's messages API as JSON: request bodies and replies. It knows nothing of the SDK.

Request bodies are made of the neutral list of `wire` by pure functions, as stable as it: the same rows give the same
bytes. Calls and results are blocks of messages; all results of one answer stand at the beginning of one user message,
and what people write next follows them there.

What a model thought is sent back in front of its calls. Newer models take it only behind the very prompt that it was
thought behind, so it is stored with a fingerprint of that prompt, and left out when the prompt has been compressed,
edited or pruned since.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from io import StringIO
from typing import Any, Final, TypeAlias

import orjson

from agent.model import shapes
from agent.model.base import ModelReply, ModelRequest
from agent.model.errors.classifier import error_in, stream_error
from agent.model.replies import MAX_CALLS, ReplyBuilder
from agent.model.usage import normalize_usage
from agent.model.wire import REASONING, WireMessage
from hermes_state.errors import ContentRejected, ContextOverflow, ReplyMalformed
from hermes_state.text import well_formed
from hermes_state.values import Reasoning, ReasoningEffort

_Block: TypeAlias = dict[str, Any]

_ILLEGAL_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def body_parts(messages: Sequence[WireMessage], request: ModelRequest) -> dict[str, Any]:
    """`system`, `tools`, `tool_choice` and `messages` of a request body; what is empty is left out."""
    tools: list[dict[str, Any]] = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in request.tools
    ]
    may_call = request.may_call_tools
    called = (call["function"]["name"] for message in messages for call in message.get("tool_calls", ()))
    if not tools and (names := dict.fromkeys(called)):
        # Calls in the list have to be of tools that the request names.
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
        sent.append({"role": "user", "content": [{"type": "text", "text": shapes.GO_ON}]})
    return parts


def settled_messages(messages: Sequence[WireMessage]) -> list[dict[str, Any]] | None:
    """Messages in front of others, without the system prompt; None where they cannot be made without them.

    Reasoning stands behind all that came before it, and an id that has to be changed may meet another one.
    """
    ids = (call["id"] for message in messages for call in message.get("tool_calls", ()))
    if any(REASONING in message for message in messages) or any(map(_ILLEGAL_IN_ID.search, ids)):
        return None
    return _messages(messages, blake2b())


def stored_reasoning(blocks: Sequence[Mapping[str, str]], parts: Mapping[str, Any], made_by: str) -> Reasoning:
    """Reasoning behind the request with these `body_parts`, to be stored beside the calls."""
    digest = _prompt_digest(parts)
    for message in parts["messages"]:
        digest.update(orjson.dumps(message))
    stored = {"behind": digest.hexdigest(), "blocks": list(blocks)}
    return Reasoning(made_by=made_by, blocks=orjson.dumps(stored).decode())


def _prompt_digest(parts: Mapping[str, Any]) -> blake2b:
    """Digest that is to take in everything a model has read: system prompt and tools so far, then the messages."""
    return blake2b(orjson.dumps([parts.get("system"), parts.get("tools")]), digest_size=12)


# --- settings

_ADAPTIVE = re.compile(r"claude-(?:(?:opus|sonnet|haiku)-(?:4[-.][6-9]\b|[5-9])|fable|mythos)")
"""Models that decide by themselves how long to think; newer ones take nothing else."""
_BUDGET_PERCENT: Final[Mapping[ReasoningEffort, int]] = {"minimal": 10, "low": 20, "medium": 50, "high": 80}
MIN_BUDGET_TOKENS: Final = 1_024
"""Least that a model may be told to think, in tokens."""


def effort_forms(effort: ReasoningEffort | None, model: str, max_tokens: int) -> list[dict[str, Any]]:
    """Fields of a request's body that ask for an effort, as many for each, the best first; the last ask for none.

    Thinking is paid and counted as output, so that a budget has to stay below the output limit.
    """
    if effort is None:
        return [{}]
    if effort == "off":
        return [{"thinking": {"type": "disabled"}}, {"output_config": {"effort": "low"}}, {}]
    words = ["low"] if effort == "minimal" else [effort, "high"] if effort in ("xhigh", "max") else [effort]
    adaptive = [{"thinking": {"type": "adaptive"}, "output_config": {"effort": word}} for word in words]
    budget = max(MIN_BUDGET_TOKENS, max_tokens * _BUDGET_PERCENT.get(effort, 90) // 100)
    budget = min(budget, max_tokens - MIN_BUDGET_TOKENS // 2)  # the rest is for the answer
    manual = {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= MIN_BUDGET_TOKENS else {}
    return [*adaptive, manual, {}] if _ADAPTIVE.search(model) else [manual, *adaptive, {}]


def sampling_fields(sampling: Mapping[str, float], effort: Mapping[str, Any]) -> dict[str, float]:
    """Temperature, or else `top_p`: newer models take one of them, and whoever thinks takes next to none."""
    thinks = effort.get("thinking", {}).get("type") in ("adaptive", "enabled")
    if "temperature" in sampling:
        return {} if thinks else {"temperature": min(sampling["temperature"], 1.0)}
    return {name: value for name, value in sampling.items() if not thinks or value >= 0.95}


# --- messages


def _messages(messages: Sequence[WireMessage], digest: blake2b) -> list[dict[str, Any]]:
    """Messages whose roles alternate, the user's first."""
    ids = _legal_ids(messages)
    remembers = any(REASONING in message for message in messages)
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            if remembers and sent:  # whole now: what a user message still gets comes before the next answer
                digest.update(orjson.dumps(sent[-1]))
            blocks = _reasoning_blocks(message, digest) + _parts(message["content"]) + _calls(message, ids)
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


def _reasoning_blocks(message: WireMessage, digest: blake2b) -> list[_Block]:
    stored = message.get(REASONING)
    if not isinstance(stored, dict) or stored.get("behind") != digest.hexdigest():
        return []
    blocks: list[_Block] = stored["blocks"]
    return blocks


def _parts(content: str | list[_Block] | None) -> list[_Block]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content and content.strip() else []
    blocks = [_image(part["image_url"]["url"]) if part["type"] == "image_url" else part for part in content]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _image(url: str) -> _Block:
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _calls(message: WireMessage, ids: Mapping[str, str]) -> list[_Block]:
    return [
        {
            "type": "tool_use",
            "id": ids[call["id"]],
            "name": call["function"]["name"],
            # Taken over as it was written: read and written again, it could change, and with it the prompt's bytes.
            "input": orjson.Fragment(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]


def _legal_ids(messages: Sequence[WireMessage]) -> Mapping[str, str]:
    """An id that this API takes, by the id of each call; those of other providers may hold other characters."""
    originals: dict[str, str] = {}
    for call_id in (call["id"] for message in messages for call in message.get("tool_calls", ())):
        legal = _ILLEGAL_IN_ID.sub("_", call_id)
        while originals.setdefault(legal, call_id) != call_id:
            legal += "_"
    return {original: legal for legal, original in originals.items()}


_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CUT_OFF = frozenset({"max_tokens", "model_context_window_exceeded", "pause_turn"})
"""Stop reasons after which more would have come. The last is of tools at the provider, which are not offered."""


class AnthropicReplyBuilder(ReplyBuilder):
    """A reply made of the events of one stream, or of the message that is whole."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        super().__init__(on_text, made_by, request)
        self._stop: str | None = None
        self._is_whole = False
        self._has_content = False
        self._usage: dict[str, float] = {}
        self._thoughts: dict[int, tuple[str, dict[str, StringIO]]] = {}
        """Type and texts of each block that holds what the model thought."""
        self._inputs: dict[int, str] = {}
        """Arguments of calls for which they have not come in pieces (yet)."""
        self._call_indexes: set[int] = set()
        self._is_interleaved = False

    def read_event(self, event: Any) -> None:
        if event.get("type") in (None, "error") and (error := error_in(event)) is not None:
            raise stream_error(error, self.request)
        match event["type"]:
            case "message":
                self._read_message(event)
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

    def _read_message(self, message: Any) -> None:
        """Take in a message that did not come as a stream."""
        for index, block in enumerate(message["content"]):
            self._begin(index, block)
        self._end(message["stop_reason"])
        self._add_usage(message)
        self._is_whole = True

    def _add_usage(self, holder: Mapping[str, Any]) -> None:
        reported = holder.get("usage") or {}
        details = reported.get("output_tokens_details")
        counts = {name: reported.get(name) for name in _COUNTS}
        counts["thinking_tokens"] = details.get("thinking_tokens") if isinstance(details, Mapping) else None
        self._usage |= {name: count for name, count in counts.items() if isinstance(count, int | float)}
        self.usage = normalize_usage({**self._usage, "output_tokens_details": self._usage}, "anthropic")

    def _end(self, reason: str | None) -> None:
        if reason is not None and not isinstance(reason, str):
            raise TypeError("a stop reason is text")
        self._stop = reason or self._stop

    def _begin(self, index: int, block: Mapping[str, Any]) -> None:
        if not isinstance(index, int):
            raise TypeError("a block's index is a number")
        match block["type"]:
            case "text":
                self._has_content = True
                if block["text"]:
                    self.add_text(block["text"])
            case "tool_use":
                self._has_content = True
                self._call_indexes.add(index)
                self._inputs[index] = self.counted(json.dumps(block.get("input") or {}, ensure_ascii=False))
                self.add_call(index, call_id=block["id"], name=block["name"])
            case "thinking":
                self._begin_reasoning(index, "thinking", block, "thinking", "signature")
            case "redacted_thinking":
                self._begin_reasoning(index, "redacted_thinking", block, "data")

    def _begin_reasoning(self, index: int, kind: str, block: Mapping[str, Any], *keys: str) -> None:
        if len(self._thoughts) >= MAX_CALLS:
            raise ReplyMalformed(f"a reply with more than {MAX_CALLS} thoughts")
        self._is_interleaved = self._is_interleaved or self._has_content
        self._thoughts[index] = (kind, texts := {key: StringIO() for key in keys})
        for key, text in texts.items():
            text.write(self.counted(block.get(key) or ""))

    def _continue(self, index: int, delta: Mapping[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                self.add_text(delta["text"])
            case "input_json_delta" if index in self._call_indexes:
                if delta["partial_json"]:
                    self._inputs.pop(index, None)
                    self.add_call(index, arguments=delta["partial_json"])
            case "thinking_delta":
                self._thoughts[index][1]["thinking"].write(self.counted(delta["thinking"]))
            case "signature_delta":
                self._thoughts[index][1]["signature"].write(self.counted(delta["signature"]))

    def finished(self) -> ModelReply:
        if self._stop is None or not self._is_whole:
            raise self.broken_off("the stream ended without a stop reason")
        if self._stop == "refusal":
            raise ContentRejected("the provider stopped its reply")
        if self._stop == "model_context_window_exceeded" and not self._has_content:
            raise ContextOverflow("the prompt leaves no room for a reply")
        for index, given in self._inputs.items():
            self.add_call(index, arguments=given)
        return self.built(is_cut_off=self._stop in _CUT_OFF, reasoning=lambda _thought: self._stored_reasoning())

    def _stored_reasoning(self) -> Reasoning | None:
        """Reasoning that can go back in front of the calls.

        None if it was thought between text and calls: it would have to stand there again.
        """
        thoughts = [self._thoughts[index] for index in sorted(self._thoughts)]
        blocks = [{"type": kind} | {key: text.getvalue() for key, text in texts.items()} for kind, texts in thoughts]
        request = self.request
        if request is None or not blocks or self._is_interleaved or not all(map(_can_go_back, blocks)):
            return None
        messages = shapes.chat_messages(request.system, request.transcript, request.style)
        return stored_reasoning(blocks, body_parts(messages, request), self._made_by)


def _can_go_back(block: Mapping[str, str]) -> bool:
    """Blocks are taken back signed, and as they were: text that cannot be stored would come back changed."""
    is_signed = bool(block.get("data") or block.get("signature"))
    return is_signed and all(well_formed(text) == text for text in block.values())
