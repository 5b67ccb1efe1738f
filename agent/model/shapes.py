"""Stricter forms of a message list, for servers that refuse the usual one.

Pure functions of the list: the same rows give the same bytes, so that a provider's prompt cache holds.
"""

from base64 import b32encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from agent.model import wire
from agent.model.wire import NOTICE, WireMessage, WireSettings
from hermes_state.values import Transcript

STRICT: Final = 1
"""Ids of nine letters and digits, text in every message, and an answer between results and a person's message."""
TEXT: Final = 2
"""User and assistant alternate in text: the system prompt, calls and results are a part of what they say."""
GO_ON: Final = f"{NOTICE} Nobody has written since. Go on from here."
"""User message after an answer that ends the list: not every server continues an answer."""


def chat_messages(
    system: str, transcript: Transcript, style: WireSettings, used_ids: set[str] | None = None
) -> list[WireMessage]:
    """The list of `wire.chat_messages` in the form that `style` asks for."""
    messages = wire.chat_messages(system, transcript, style, used_ids)
    if not style.shape:
        return messages
    names = {call["id"]: call["function"]["name"] for one in messages for call in one.get("tool_calls", ())}
    shaped: list[WireMessage] = []
    for message in messages:
        one = (_strict if style.shape == STRICT else _as_text)(message, names)
        role = shaped[-1]["role"] if shaped else None
        if style.shape == TEXT and role == one["role"]:
            shaped[-1]["content"] = _joined(shaped[-1]["content"], one["content"])
            continue
        if (role, one["role"]) == ("tool", "user"):
            shaped.append({"role": "assistant", "content": "I have the results."})
        shaped.append(one)
    if shaped and shaped[-1]["role"] == "assistant":
        shaped.append({"role": "user", "content": GO_ON})
    return shaped


def _strict(message: WireMessage, names: Mapping[str, str]) -> WireMessage:
    strict = {**message, "content": message["content"] or "I call a tool."}
    if "tool_calls" in message:
        strict["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    elif (call_id := message.get("tool_call_id")) is not None:
        strict |= {"tool_call_id": _short_id(call_id), "name": names[call_id]}
    return strict


def _short_id(call_id: str) -> str:
    return b32encode(blake2b(call_id.encode(), digest_size=10).digest())[:9].decode()


def _as_text(message: WireMessage, names: Mapping[str, str]) -> WireMessage:
    role, content = message["role"], message["content"] or ""
    if role == "tool":  # the words of a page or a file must not pass for a person's
        content = f"{NOTICE} Result of {names[message['tool_call_id']]}:\n{wire.escaped(content)}"
    for call in message.get("tool_calls", ()):
        content = f"{content}\n\nI call {call['function']['name']} with {call['function']['arguments']}".lstrip()
    return {"role": "assistant" if role == "assistant" else "user", "content": content}


def _joined(*contents: Any) -> Any:  # text, or content parts
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    lists = (content if isinstance(content, list) else [{"type": "text", "text": content}] for content in contents)
    return [part for parts in lists for part in parts]
