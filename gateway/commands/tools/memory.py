"""`/memory`: the notes of a chat, shown and changed by people."""

import asyncio
import re

from agent.memory.notes import MemoryDirectory, NoteEntry, Target, entries_in, part_of
from agent.tools.memory import NoteChange, change_notes, has_parts
from gateway.commands.registry import CommandRequest, CommandResult, say
from hermes_state.errors import CommandError, ToolError

_CHANGE = re.compile(r"(me\s+)?(add|remove)\s+(.+)", re.IGNORECASE | re.DOTALL)
_ASK = (
    "Write `/memory`, `/memory add <fact about the work>`, `/memory me add <fact about you>`, or `remove` in place of "
    "`add` with the short name of an entry, such as `/memory remove 3f2a`."
)


async def memory(request: CommandRequest) -> CommandResult:
    """Show the notes; `add` and `remove` change those about the work, `me add` and `me remove` those about the sender.

    An entry is removed by a name that no other change moves: a command that is carried out again removes nothing else.
    """
    files = request.context.runtime.agent.prompts.files
    if files is None or files.notes is None:
        return say("There is no memory: `memory.enabled` is off.")
    try:
        if request.argument.lower() in ("", "list"):
            return say(await asyncio.to_thread(_shown, files.notes, request))
        if (change := _CHANGE.fullmatch(request.argument)) is None:
            raise CommandError(_ASK)
        sender = request.row.sender_ref, request.row.sender_name
        person = sender if has_parts(request.chat.key, request.chat.kind) else None
        is_removal = change[2].lower() == "remove"
        target: Target = "user" if change[1] else "memory"
        added = NoteChange(action="add", target=target, text=change[3])
        asked = NoteChange(action="remove", target=target, old=change[3]) if is_removal else added
        text = await asyncio.to_thread(change_notes, files.notes, request.chat.id, person, asked)
    except ToolError as error:
        raise CommandError(f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    return say(text.replace("Noted. ", "Removed. " if is_removal else "Noted. ", 1))


def _shown(notes: MemoryDirectory, request: CommandRequest) -> str:
    about_work, about_people = notes.read(request.chat.id, "memory"), notes.read(request.chat.id, "user")
    is_shared = has_parts(request.chat.key, request.chat.kind)
    own = part_of(about_people, (request.row.sender_ref, "") if is_shared else None)[1]
    others = len(entries_in(about_people)) - len(entries_in(own))
    lines = [
        *_listed("About the work", entries_in(about_work)),
        *_listed("About you", entries_in(own)),
        *([f"And {others} about others."] if others else []),
    ]
    return "\n".join(lines) if lines else f"Nothing is noted yet. {_ASK}"


def _listed(title: str, entries: list[NoteEntry]) -> list[str]:
    return [f"{title}:", *(f"- `{entry.handle}` {entry.text}" for entry in entries)] if entries else []
