"""Trajectories from stored conversations, in the form of Hermes models: thoughts and calls stand between tags."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import orjson

from agent.trajectories.format import TurnRole
from hermes_state.admin.lineage_queries import FullMessage, StoredConversation
from hermes_state.text import well_formed
from hermes_state.values import MessageRole


def trajectory_line(
    conversation: StoredConversation, messages: Iterable[FullMessage], tools: Mapping[str, Mapping[str, Any]]
) -> bytes | None:
    """Return the line of a conversation without its end; None if nobody says anything in it.

    `tools`: definitions of tools by name. Only the name of any other tool is written.
    """
    said = [(message, turn) for message in messages if (turn := turn_of(message)) is not None]
    if not said:
        return None
    last = said[-1][0]
    turns = [("system", prompt)] if (prompt := _system_turn(conversation, tools)) else []
    for role, group in groupby((turn for _, turn in said), key=lambda turn: turn[0]):
        turns.append((role, "\n".join(text for _, text in group)))
    return orjson.dumps(
        {
            "id": conversation.key,
            "kind": conversation.kind,
            "parent": conversation.parent,
            "model": conversation.model,
            "started_at": conversation.started_at,
            "conversations": [{"from": role, "value": text} for role, text in turns],
            "timestamp": datetime.fromtimestamp(last.at / 1000, UTC).isoformat(timespec="seconds"),
            "completed": last.role is MessageRole.ASSISTANT and not last.calls,
        }
    )


def _system_turn(conversation: StoredConversation, tools: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the system prompt and the definitions of the tools that the conversation was offered."""
    names = orjson.loads(conversation.tools)
    offered = [{**tools[name], "required": None} if name in tools else {"name": name} for name in names]
    block = [_tagged("tools", _json(offered))] if offered else []
    return "\n\n".join([*filter(None, [conversation.system_prompt]), *block])


def turn_of(message: FullMessage) -> tuple[TurnRole, str] | None:
    """Return the role and the text of a message's turn; None if it says nothing."""
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
    """JSON in which nothing ends a tag."""
    return orjson.dumps(value).decode().replace("</", "<\\/")


def _tagged(name: str, text: str) -> str:
    return f"<{name}>\n{well_formed(text)}\n</{name}>" if text else f"<{name}>\n</{name}>"
