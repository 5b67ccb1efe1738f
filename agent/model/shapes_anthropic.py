"""The messages API's form of a request, made of the neutral list of `wire`.

Pure functions, and as stable as `wire`: the same rows give the same bytes. Calls and results are blocks of messages;
all results of one answer stand at the beginning of one user message, and what people write next follows them there.

What a model thought is sent back in front of its calls. Newer models take it only behind the very prompt that it was
thought behind, so it is stored with a fingerprint of that prompt, and left out when the prompt has been compressed,
edited or pruned since.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import orjson

from agent.model.base import ModelRequest, ToolSchema
from agent.model.wire import NOTICE, REASONING, WireMessage
from hermes_state.values import Reasoning

_Block: TypeAlias = dict[str, Any]

GO_ON = f"{NOTICE} Nobody has written since. Go on from here."
"""Stands behind an answer that nothing follows: an answer is not begun for these models."""
NOTHING_RETURNED = "(the tool returned nothing)"
UNSEEN_IMAGE = f"{NOTICE} An image was sent here that you cannot see."

_SEEN_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_DATA_URL = re.compile(r"data:([a-z0-9.+/-]+);base64,", re.IGNORECASE)
_ILLEGAL_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


def body_parts(messages: Sequence[WireMessage], request: ModelRequest) -> dict[str, Any]:
    """`system`, `tools`, `tool_choice` and `messages` of a request body; what is empty is left out."""
    tools = [_wire_tool(tool) for tool in request.tools]
    may_call = request.may_call_tools
    if not tools and (names := _called_names(messages)):
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
    parts["messages"] = _messages(messages, _Fingerprint(parts))
    return parts


def stored_reasoning(blocks: Sequence[dict[str, str]], parts: dict[str, Any], made_by: str) -> Reasoning:
    """What a model thought behind the request with these `body_parts`, to be kept beside its calls."""
    fingerprint = _Fingerprint(parts)
    for message in parts["messages"]:
        fingerprint.add(message)
    stored = {"behind": fingerprint.text, "blocks": list(blocks)}
    return Reasoning(made_by=made_by, blocks=orjson.dumps(stored).decode())


class _Fingerprint:
    """Of everything that a model has read: system prompt, tools, and the messages so far."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self._digest = blake2b(digest_size=12)
        self.add([parts.get("system"), parts.get("tools")])

    def add(self, value: object) -> None:
        self._digest.update(orjson.dumps(value))

    @property
    def text(self) -> str:
        return self._digest.hexdigest()


def _wire_tool(tool: ToolSchema) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _called_names(messages: Sequence[WireMessage]) -> list[str]:
    calls = (call for message in messages for call in message.get("tool_calls", ()))
    return list(dict.fromkeys(call["function"]["name"] for call in calls))


# --- messages


def _messages(messages: Sequence[WireMessage], fingerprint: _Fingerprint) -> list[dict[str, Any]]:
    """Messages whose roles alternate, the user's first and last."""
    ids = _LegalIds()
    remembers = any(REASONING in message for message in messages)
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            if remembers and sent:
                fingerprint.add(sent[-1])  # whole now: what a user message still gets comes before the next answer
            blocks = _thought(message, fingerprint) + _parts(message["content"]) + _calls(message, ids)
            sent.append({"role": "assistant", "content": blocks})
            if remembers:
                fingerprint.add(sent[-1])
            continue
        blocks = [_result(message, ids)] if message["role"] == "tool" else _parts(message["content"])
        if sent and sent[-1]["role"] == "user":
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": "user", "content": blocks})
    if sent and sent[-1]["role"] == "assistant":
        sent.append({"role": "user", "content": [{"type": "text", "text": GO_ON}]})
    return sent


def _thought(message: WireMessage, fingerprint: _Fingerprint) -> list[_Block]:
    stored = message.get(REASONING)
    if not isinstance(stored, dict) or stored.get("behind") != fingerprint.text:
        return []
    blocks: list[_Block] = stored["blocks"]
    return blocks


def _parts(content: str | list[_Block] | None) -> list[_Block]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content and content.strip() else []
    blocks = [_image(part["image_url"]["url"]) if part["type"] == "image_url" else part for part in content]
    return [block for block in blocks if block["type"] != "text" or block["text"].strip()]


def _image(url: str) -> _Block:
    data = _DATA_URL.match(url)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    media_type = data[1].lower()
    if media_type not in _SEEN_TYPES:
        return {"type": "text", "text": UNSEEN_IMAGE}
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": url[data.end() :]}}


def _calls(message: WireMessage, ids: "_LegalIds") -> list[_Block]:
    return [
        {
            "type": "tool_use",
            "id": ids.of(call["id"]),
            "name": call["function"]["name"],
            # Taken over as it was written: read and written again, it could change, and with it the prompt's bytes.
            "input": orjson.Fragment(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]


def _result(message: WireMessage, ids: "_LegalIds") -> _Block:
    text = message["content"]
    content = text if text.strip() else NOTHING_RETURNED
    return {"type": "tool_result", "tool_use_id": ids.of(message["tool_call_id"]), "content": content}


class _LegalIds:
    """Call ids as this API takes them. Those of other providers may hold other characters."""

    def __init__(self) -> None:
        self._legal: dict[str, str] = {}
        self._used: set[str] = set()

    def of(self, call_id: str) -> str:
        """The same for the same id, another for every other."""
        legal = self._legal.get(call_id)
        if legal is None:
            legal = _ILLEGAL_IN_ID.sub("_", call_id)
            while legal in self._used:
                legal += "_"
            self._legal[call_id] = legal
            self._used.add(legal)
        return legal
