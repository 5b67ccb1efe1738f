"""Turns of trajectories from stored rows, in the form of Hermes models: thoughts and calls between tags."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import orjson

from agent.context.excerpt import Redact, said
from agent.trajectories.format import TurnRole
from hermes_state.text import well_formed
from hermes_state.values import Message, MessageRole, ToolCall

_THOUGHT_KEYS: Final = (
    *("reasoning_details", "reasoning_content", "reasoning", "thinking", "blocks", "content", "summary", "text"),
)
"""Keys under which protocols keep thoughts that can be read; what is encrypted stands under others."""


def turn_of(row: Message, redact: Redact) -> tuple[TurnRole, str] | None:
    """A row's turn, as role and words, without secrets; None where it says nothing."""
    if row.role is MessageRole.TOOL:
        text = redact(row.text or "")
        return TurnRole.TOOL, _tagged(
            "tool_response", _json({"tool_call_id": row.tool_call_id, "name": row.tool_name, "content": text})
        )
    if row.role is MessageRole.USER:
        text = redact("\n".join(filter(None, said(row))))
        return (TurnRole.HUMAN, text) if text.strip() else None
    pieces = []
    if row.body.reasoning is not None:
        thought = "\n\n".join(thoughts(row.body.reasoning.blocks)).replace("</think>", "")
        pieces += [_tagged("think", redact(thought))] if thought else []
    pieces += [redact(row.text)] if (row.text or "").strip() and row.text else []
    pieces += [_tagged("tool_call", _json(_call(call, redact))) for call in row.body.calls]
    return (TurnRole.GPT, "\n".join(pieces)) if pieces else None


def thoughts(blocks: str) -> Iterator[str]:
    """The readable texts of stored reasoning, whichever protocol's; see `Reasoning.blocks`."""
    try:
        yield from filter(str.strip, _texts(orjson.loads(blocks)))
    except orjson.JSONDecodeError:  # of an older version: nobody could read it
        return


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item) if not isinstance(item, str) else ()
    elif isinstance(value, dict):
        for key in _THOUGHT_KEYS:
            yield from _texts(value.get(key))


def joined(turns: Iterable[tuple[TurnRole, str]]) -> Iterator[tuple[TurnRole, str]]:
    """The turns, the results of one answer's calls as one turn, and so with any that follow one of their own role."""
    before: tuple[TurnRole, str] | None = None
    for role, text in turns:
        if before is not None and before[0] is role:
            before = (role, f"{before[1]}\n{text}")
        else:
            if before is not None:
                yield before
            before = (role, text)
    if before is not None:
        yield before


def _call(call: ToolCall, redact: Redact) -> dict[str, object]:
    arguments = call.arguments
    with suppress(orjson.JSONEncodeError, orjson.JSONDecodeError):  # of numbers that no encoder takes
        arguments = orjson.dumps(orjson.loads(arguments)).decode()  # without escapes, behind which a secret is none
    arguments = redact(arguments)
    try:
        return {"name": call.name, "arguments": orjson.loads(arguments)}
    except orjson.JSONDecodeError:  # as the model wrote it, or as redaction has left it
        return {"name": call.name, "arguments": arguments}


def _json(value: dict[str, object]) -> str:
    """JSON in which nothing ends a tag."""
    return orjson.dumps(value).decode().replace("</", "<\\/")


def _tagged(name: str, text: str) -> str:
    return f"<{name}>\n{well_formed(text)}\n</{name}>"
