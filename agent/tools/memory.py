"""Tool `memory`: keeps notes beyond a conversation, about the work and about people."""

import asyncio
from collections.abc import Mapping
from typing import Any

from agent.memory.notes import MemoryDirectory, Person, Target, added, one_line, replaced
from agent.tools.arguments import schema, text
from agent.tools.registry import Tool, ToolContext
from hermes_state.errors import ToolError
from hermes_state.transcripts import load_sender_name
from hermes_state.values import ChatId, ChatKey, ChatKind, ToolEffect

MEMORY = "memory"
_ACTIONS = {"add": ("text",), "replace": ("old", "text"), "remove": ("old",)}
"""Actions, each with the arguments that it needs."""


def memory_tool(notes: MemoryDirectory) -> Tool:
    """The tool `memory`. It writes only for the chat that it runs in, and about a person only in that one's turns."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        person = None
        if has_parts(context.chat, context.chat_kind):
            name = await context.store.read(load_sender_name, context.turn_id, context.started_by)
            person = context.started_by, name or context.started_by
        return await asyncio.to_thread(change_notes, notes, context.chat_id, person, arguments)

    return Tool(
        name=MEMORY,
        description="Keep a note for later conversations. `user`: who the person is and how they want things done; "
        "`memory`: lasting facts about the work. Note preferences and corrections at once, in one sentence each; no "
        "task progress, secrets or results of tools. Never promise to remember without this.",
        parameters=schema(
            *("action", "target"),
            action=text(enum=list(_ACTIONS)),
            target=text(enum=["memory", "user"]),
            text=text("The new entry."),
            old=text("Words of the entry to replace or remove."),
        ),
        effect=ToolEffect.WRITES,
        run=run,
        needs_approval=False,
        instructs=lambda arguments: (arguments["action"], arguments["target"]) != ("remove", "user"),
    )


def has_parts(chat: ChatKey, kind: ChatKind) -> bool:
    """True for a chat in whose `USER.md` each person has a part."""
    return kind.is_shared and not chat.user_ref


def change_notes(notes: MemoryDirectory, chat_id: ChatId, person: Person | None, arguments: Mapping[str, Any]) -> str:
    """Do what a call asks for. `person`: whose part of `USER.md` may be written; None: all of it.

    Blocks its thread. Raises `ToolError`.
    """
    action: str = arguments["action"]
    target: Target = arguments["target"]
    given = {name: one_line(arguments.get(name, "")) for name in ("text", "old")}
    if missing := [name for name in _ACTIONS[action] if not given[name]]:
        raise ToolError(f"{action} needs {' and '.join(missing)}")
    text, old = given["text"], given["old"]

    def change(part: str) -> str:
        if action == "add":
            return added(part, text)
        return replaced(part, old, text if action == "replace" else None)

    return f"Noted. {notes.change(chat_id, target, person if target == 'user' else None, change)}"
