"""Turns of trajectories from stored rows, in the form of Hermes models: thoughts and calls between tags."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import orjson

from agent.context.excerpt import Redact, said
from agent.tools.registry import Tool
from agent.trajectories.format import TurnRole
from hermes_state.text import well_formed
from hermes_state.values import Message, MessageRole

_THOUGHT_KEYS: Final = (
    *("reasoning_details", "reasoning_content", "reasoning", "thinking", "blocks", "content", "summary", "text"),
)
"""Keys under which protocols keep thoughts that can be read; what is encrypted stands under others."""


def system_turn(prompt: str | None, names: Iterable[str], tools: Mapping[str, Tool], redact: Redact) -> str | None:
    """Prompt of a conversation with the definitions of the tools that it was offered; None where it has neither.

    Only the name is told of one that is not in `tools`.
    """
    known = ((name, tools.get(name)) for name in names)
    offered = [{"name": name} | ({} if tool is None else _definition(tool)) for name, tool in known]
    block = [_tagged("tools", redact(_json(offered)))] if offered else []
    return "\n\n".join([*filter(None, [redact(prompt or "")]), *block]) or None


def _definition(tool: Tool) -> dict[str, object]:
    return {"description": tool.description, "parameters": tool.parameters, "required": None}


def turn_of(row: Message, redact: Redact) -> tuple[TurnRole, str] | None:
    """A row's turn, as role and words, without secrets; None where it says nothing."""
    if row.role is MessageRole.TOOL:
        text = row.text or ""
        content = _parsed(text, redact) if text.lstrip().startswith(("{", "[")) else redact(text)
        return TurnRole.TOOL, _tagged(
            "tool_response", _json({"tool_call_id": row.tool_call_id, "name": row.tool_name, "content": content})
        )
    if row.role is MessageRole.USER:
        text = redact("\n".join(filter(None, said(row))))
        return (TurnRole.HUMAN, text) if text.strip() else None
    thought = "" if row.body.reasoning is None else "\n\n".join(thoughts(row.body.reasoning.blocks))
    pieces = [_tagged("think", redact(thought.replace("</think>", "")))]
    pieces += [redact(row.text)] if (row.text or "").strip() and row.text else []
    calls = ({"name": call.name, "arguments": _parsed(call.arguments, redact)} for call in row.body.calls)
    pieces += [_tagged("tool_call", _json(call)) for call in calls]
    return (TurnRole.GPT, "\n".join(pieces)) if thought or len(pieces) > 1 else None


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


def _parsed(text: str, redact: Redact) -> object:
    """Value of a JSON text, or the text as it is where it is none or redaction leaves none."""
    try:
        value = json.loads(text)  # which keeps long numbers
        safe = redact(orjson.dumps(value).decode())  # without escapes, behind which a secret is none
        return orjson.loads(safe)
    except (ValueError, RecursionError):  # as it was written, or of numbers that no encoder takes
        return redact(text)


def _json(value: object) -> str:
    """JSON in which nothing ends a tag."""
    return orjson.dumps(value).decode().replace("</", "<\\/")


def _tagged(name: str, text: str) -> str:
    return f"<{name}>\n{well_formed(text)}\n</{name}>" if text else f"<{name}>\n</{name}>"
