"""Tool `todo`: the agent's list of what is to be done in a conversation."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from agent.tools.arguments import many, schema, switch, text, whole
from agent.tools.registry import Tool, ToolContext
from hermes_state.errors import ToolError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.tools.todos import OPEN_STATES, TodoRow, TodoState, load_todos, put_todos
from hermes_state.values import Clock, LineageId, Millis, ToolEffect

MAX_ITEMS = 50
MAX_TEXT_CHARACTERS = 300
"""Longest item, in characters: a list is to be seen at a glance, and comes back behind every compression."""


class _TodoItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item as a model writes it."""

    id: int | None = None
    text: str | None = None
    state: TodoState | None = None


def todo_tool(clock: Clock) -> Tool:
    """The tool `todo`."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        if "items" not in arguments:
            return shown(await context.store.read(load_todos, context.lineage_id))
        try:
            changes = msgspec.convert(arguments["items"], list[_TodoItem])
        except msgspec.ValidationError as error:
            raise ToolError(f"items: {error}") from error
        write = partial(_change, changes=changes, is_whole=not arguments["update"], now=clock.now())
        return shown(await context.store.write(write, context.lineage_id))

    item = {
        "type": "object",
        "properties": {
            "id": whole(None, "The item's number, to change one."),
            "text": text(),
            "state": text(enum=[state.value for state in TodoState]),
        },
    }
    return Tool(
        name="todo",
        description="Your list of what is to be done in this conversation, for tasks of three steps or more: write it "
        "before you begin, keep one item in_progress, and set an item to done as soon as it is. The list stays when "
        "older messages leave your view. Without items: shows it.",
        parameters=schema(
            items=many(item, "The whole list; with update: only what is new or changes."),
            update=switch("True leaves all other items as is."),
        ),
        effect=ToolEffect.WRITES,
        run=run,
        needs_approval=False,
    )


@locks(lineage="lineage_id")
def _change(
    db: Connection, lineage_id: LineageId, *, changes: Sequence[_TodoItem], is_whole: bool, now: Millis
) -> list[TodoRow]:
    """Store what a call asks for. Raises `ToolError`, and stores nothing, for what is no list."""
    known = {} if is_whole else {item.id: item for item in load_todos(db, lineage_id)}
    items = dict(known)
    for change in changes:
        number = max(items, default=0) + 1 if is_whole or change.id is None else change.id
        before = known.get(number)
        if before is None and not is_whole and change.id is not None:
            raise ToolError(f"there is no item {number}; leave the id out for a new one. {shown(list(known.values()))}")
        text = " ".join((change.text or (before.text if before is not None else "")).split())
        if not 0 < len(text) <= MAX_TEXT_CHARACTERS:
            raise ToolError(f"item {number} needs a text of 1 to {MAX_TEXT_CHARACTERS} characters")
        state = change.state or (before.state if before is not None else TodoState.PENDING)
        items[number] = TodoRow(id=number, text=text, state=state)
    if len(items) > MAX_ITEMS:
        raise ToolError(f"{len(items)} of {MAX_ITEMS} items: write the list anew without those that are done")
    return put_todos(db, lineage_id, list(items.values()), now, is_whole=is_whole)


def shown(items: Sequence[TodoRow]) -> str:
    """A list for people and models."""
    if not items:
        return "The list is empty."
    left = sum(item.state in OPEN_STATES for item in items)
    return "\n".join((f"{counted(len(items), 'item')}, {left} open:", *(item.line for item in items)))
