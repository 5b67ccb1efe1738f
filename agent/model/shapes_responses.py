"""The neutral message list in the shape of OpenAI's Responses API: instructions, then items.

Pure functions. A call and its result are items of their own there, and so is what was thought before them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from agent.model.replies import replayable
from agent.model.wire import REASONING, WireMessage
from hermes_state.values import Reasoning

Item: TypeAlias = dict[str, Any]  # the API's JSON: it is only serialised
Thought: TypeAlias = tuple[int, Item]
"""A reasoning item, and how many outputs of the same answer (its text, its calls) stood before it."""

LONGEST_CALL_ID: Final = 64
"""The API refuses longer ones; other providers make them, and a conversation may go on from one to the next."""
_KEPT: Final = ("type", "id", "summary", "content", "encrypted_content")


def instructions_and_items(messages: Sequence[WireMessage]) -> tuple[str, list[Item]]:
    """The system prompt, and everything after it."""
    instructions = ""
    items: list[Item] = []
    for message in messages:
        match message["role"]:
            case "system":
                instructions = message["content"]
            case "user":
                items.append({"type": "message", "role": "user", "content": _content(message["content"])})
            case "assistant":
                items += _answer(message)
            case "tool":
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": _call_id(message["tool_call_id"]),
                        "output": message["content"],
                    }
                )
    return instructions, items


def _content(content: str | list[dict[str, Any]]) -> str | list[Item]:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_text", "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        for part in content
    ]


def _answer(message: WireMessage) -> list[Item]:
    """An answer's text and calls, each behind what was thought before it."""
    outputs: list[Item] = []
    if message["content"]:
        outputs.append({"type": "message", "role": "assistant", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        outputs.append(
            {
                "type": "function_call",
                "call_id": _call_id(call["id"]),
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    last = len(outputs) - 1
    for place, item in reversed(message.get(REASONING, ())):
        outputs.insert(min(place, last), item)  # one with nothing behind it would be refused
    return outputs


def _call_id(call_id: str) -> str:
    if len(call_id) <= LONGEST_CALL_ID:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"


def kept_thought(item: Mapping[str, Any]) -> Item | None:
    """What is sent back of a reasoning item; None for one that holds nothing: nobody keeps it for us."""
    if not item.get("encrypted_content") and not item.get("content"):
        return None
    kept = {key: item[key] for key in _KEPT if item.get(key) is not None}
    return kept | {"summary": kept.get("summary") or []}  # required, if only to say that there is none


def stored_thoughts(thoughts: Sequence[Thought], outputs: int, made_by: str) -> Reasoning | None:
    """The reasoning items of an answer with so many outputs, to be stored beside its calls."""
    useful = [thought for thought in thoughts if thought[0] < outputs]
    if not useful:
        return None
    return replayable(made_by, useful)
