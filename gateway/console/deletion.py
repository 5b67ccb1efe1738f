"""Deletion of a web chat by its person: the question, and the deletion itself."""

import asyncio
from collections.abc import Mapping

from agent.memory.notes import MemoryDirectory, Target, entries_in
from gateway.console.registry import ConsoleContext, Page, field_of
from hermes_state.admin.deletion import hide, load_extent
from hermes_state.errors import ToolError
from hermes_state.text import counted
from hermes_state.values import ChatId
from platforms.console import ConsolePage, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    """Load what the deletion removes. Each chat has notes of its own, so all of them are listed and deleted."""
    extent = await context.store.read(load_extent, person.chat_key(field_of(query, "chat")))
    counts = {"message": extent.messages, "file": extent.files, "schedule": extent.schedules}
    parts = [counted(number, noun) for noun, number in counts.items() if number] or ["the chat"]
    notes = await asyncio.to_thread(_notes, MemoryDirectory(path=context.live.loaded.home / "memory"), extent.id)
    return {
        "sentence": f"This removes {' and '.join(parts)}. You cannot undo it. The cost of the "
        "chat stays in the statistics. Files in its workspace folder and backups of the database stay too.",
        "notes": [context.live.redactor()(note) for note in notes],
    }


def _notes(directory: MemoryDirectory, chat_id: ChatId) -> list[str]:
    found: list[str] = []
    targets: tuple[Target, ...] = ("memory", "user")
    for target in targets:
        try:
            found += [entry.text for entry in entries_in(directory.read(chat_id, target))]
        except ToolError as error:
            found.append(str(error))
    return found


async def delete(context: ConsoleContext, person: WebPerson, form: Mapping[str, str]) -> str:
    key = person.chat_key(field_of(form, "chat"))
    lineage_id = await context.store.write(hide, key, context.clock.now())
    if lineage_id is not None:
        await context.runtime.agent.context.pending.drop(lineage_id)
    context.remove_deleted()
    return "The chat is deleted. You get a message when nothing is left of it."


PAGE = Page(
    about=ConsolePage(name="deletion", title="Delete a chat", is_for_admins=False, is_in_menu=False),
    load=load,
    actions={"delete": delete},
)
