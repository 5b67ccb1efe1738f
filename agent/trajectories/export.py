"""Exports stored conversations as trajectories for Hermes models, with reasoning and calls in tags, or as text."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby, zip_longest
from typing import Any, Final

import orjson

from agent.trajectories.format import Trajectory, TurnRole
from hermes_state.admin.lineage_queries import FullMessage, StoredConversation
from hermes_state.text import well_formed
from hermes_state.values import MessageRole

_SPEAKERS: Final = {TurnRole.SYSTEM: "System", TurnRole.HUMAN: "User", TurnRole.GPT: "Agent", TurnRole.TOOL: "Tool"}
_TAGGED: Final = re.compile(r"<(tools|think|tool_call|tool_response)>\n?(.*?)\n?</\1>", re.DOTALL)


def trajectory_line(
    conversation: StoredConversation, messages: Iterable[FullMessage], tools: Mapping[str, Mapping[str, Any]]
) -> bytes | None:
    """Return the line for a conversation, without a newline, or None if the conversation has no text.

    `tools`: tool definitions by name. Tools without a definition are written as their names.
    """
    said = [(message, turn) for message in messages if (turn := turn_of(message)) is not None]
    if not said:
        return None
    last = said[-1][0]
    names = orjson.loads(conversation.tools)
    offered = [{**tools[name], "required": None} if name in tools else {"name": name} for name in names]
    block = _tagged("tools", _json(offered)) if offered else None
    prompt = "\n\n".join(filter(None, (conversation.system_prompt, block)))
    turns: list[dict[str, Any]] = [{"from": "system", "value": prompt}] if prompt else []
    for role, group in groupby(said, key=lambda one: one[1][0]):
        together = list(group)
        turns.append({"from": role, "value": "\n".join(text for _, (_, text) in together)})
        if values := [value for message, _ in together for value in message.ratings]:
            turns[-1]["ratings"] = values
    return orjson.dumps(
        {
            "id": conversation.key,
            "kind": conversation.kind,
            "parent": conversation.parent,
            "model": conversation.model,
            "started_at": conversation.started_at,
            "conversations": turns,
            "timestamp": datetime.fromtimestamp(last.at / 1000, UTC).isoformat(timespec="seconds"),
            "completed": last.role is MessageRole.ASSISTANT and not last.calls,
        }
    )


def turn_of(message: FullMessage) -> tuple[TurnRole, str] | None:
    """Return the role and the text of a message's turn, or None if the message is empty."""
    if message.role is MessageRole.TOOL:
        result = {"tool_call_id": message.tool_call_id, "name": message.tool_name, "content": message.content}
        return TurnRole.TOOL, _tagged("tool_response", _json(result))
    text = [message.content] if message.content.strip() else []
    if message.role is MessageRole.USER:
        return (TurnRole.HUMAN, message.content) if text else None
    calls = [_tagged("tool_call", _json(call)) for call in message.calls]
    if not (message.thought or text or calls):
        return None
    return TurnRole.GPT, "\n".join([_tagged("think", message.thought), *text, *calls])


def _json(value: object) -> str:
    """Return JSON that contains no closing tags."""
    return orjson.dumps(value).decode().replace("</", "<\\/")


def _tagged(name: str, text: str) -> str:
    return f"<{name}>\n{well_formed(text)}\n</{name}>" if text else f"<{name}>\n</{name}>"


def replayed(trajectory: Trajectory) -> Iterator[str]:
    """Yield the model and time of a trajectory, then each turn as text."""
    head = (bytes(value).decode() for key, value in trajectory.fields.items() if key in ("model", "timestamp"))
    yield ", ".join(value.strip('"') for value in head if value != "null")
    for turn in trajectory.turns:
        yield "".join(f"\n{line}" for line in _lines(_SPEAKERS[turn.role], _TAGGED.split(turn.text)))


def _lines(speaker: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a turn. `texts` cycles through text outside tags, a tag's name, and the text inside it."""
    for words, tag, inner in zip_longest(texts[::3], texts[1::3], texts[2::3]):
        if words.strip():
            yield f"{speaker}: {words.strip()}"
        value: Any = inner
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(inner or "")
        match tag, value:
            case "think", _:
                yield from [f"{speaker} (thinking): {inner.strip()}"] if inner.strip() else []
            case "tool_call", {"name": name, "arguments": arguments}:
                yield f"{speaker} → {name} {_shown(arguments)}"
            case "tool_response", {"name": name, "content": content}:
                yield f"{name} → {_shown(content)}"
            case "tools", [{"name": _}, *_]:
                yield f"Tools: {', '.join(str(one.get('name')) for one in value if isinstance(one, dict))}"
            case (("tool_call" | "tool_response" | "tools"), _):
                yield f"{speaker} ({tag}): {inner}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
