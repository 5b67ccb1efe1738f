"""`/memory`, `/todo` and `/schedule`: long-term memory, to-do list and scheduled messages."""

import asyncio
import re
from functools import partial

from agent.memory.notes import MemoryDirectory, NoteEntry, Target, entries_in, part_of
from agent.tools.memory import NoteChange, change_notes, has_parts
from agent.tools.planning import shown
from agent.tools.schedules.schedule_tool import add, change, find, listed, new_schedule
from gateway.commands.registry import CommandReply, CommandRequest, CommandResult, say, transaction
from gateway.schedules import schedule_zone
from hermes_state import sessions
from hermes_state.errors import CommandError, ToolError
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.tools import schedules
from hermes_state.tools.todos import clear_todos, load_todos
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.values import MessageRole, Millis, Origin

_ADD_NOTE = "Add a note with `/memory add <fact about the work>` or `/memory me add <fact about you>`."
_ASK_NOTE = (
    f"Send `/memory` to see the notes. {_ADD_NOTE} Remove a note by its short name, for example `/memory remove 3f2a` "
    "or `/memory me remove 3f2a`."
)
_ADD = re.compile(
    r"add\s+(?:(?P<at>\d{4}-\S+(?:\s+\d\d?:\S+)?)|(?P<name>@\S+)|(?P<cron>[\d*?]\S*(?:\s+\S+){4}))(?:\s+(?P<text>.+))?",
    re.IGNORECASE | re.DOTALL,
)


async def memory(request: CommandRequest) -> CommandResult:
    """Show, add or remove notes. A note's name never changes, so a repeated command cannot remove the wrong note."""
    files = request.context.runtime.agent.prompts.files
    if files is None or files.notes is None:
        return say("Long-term memory is turned off (`memory.enabled`).")
    try:
        if request.argument.lower() in ("", "list"):
            return say(await asyncio.to_thread(_notes_shown, files.notes, request))
        pattern = r"(me\s+)?(add|remove)\s+(.+)"
        if (found := re.fullmatch(pattern, request.argument, re.IGNORECASE | re.DOTALL)) is None:
            raise CommandError(_ASK_NOTE)
        sender = request.row.sender_ref, request.row.sender_name
        person = sender if has_parts(request.chat.key, request.chat.kind) else None
        is_removal = found[2].lower() == "remove"
        target: Target = "user" if found[1] else "memory"
        added = NoteChange(action="add", target=target, text=found[3])
        asked = NoteChange(action="remove", target=target, old=found[3]) if is_removal else added
        text = await asyncio.to_thread(change_notes, files.notes, request.chat.id, person, asked)
    except ToolError as error:
        raise CommandError(_sentence(str(error))) from error
    return say(text.replace("Noted. ", "Removed. " if is_removal else "Noted. ", 1))


def _notes_shown(notes: MemoryDirectory, request: CommandRequest) -> str:
    about_people = notes.read(request.chat.id, "user")
    is_shared = has_parts(request.chat.key, request.chat.kind)
    own = entries_in(part_of(about_people, (request.row.sender_ref, "") if is_shared else None)[1])
    others = len(entries_in(about_people)) - len(own)
    lines = _entries("About the work", entries_in(notes.read(request.chat.id, "memory")))
    lines += _entries("About you", own)
    lines += [f"{counted(others, 'note')} about other people."] if others else []
    return "\n".join(lines) if lines else f"There are no notes yet. {_ADD_NOTE}"


def _entries(title: str, entries: list[NoteEntry]) -> list[str]:
    return [f"{title}:", *(f"- `{entry.handle}` {entry.text}" for entry in entries)] if entries else []


@transaction
def todo(request: CommandRequest, db: Connection, now: Millis) -> str:
    """Show the to-do list. With `clear`, empty the list and tell the model."""
    if request.argument.lower() not in ("", "list", "clear"):
        raise CommandError("Send `/todo` to see the list, or `/todo clear` to clear it.")
    session = sessions.load_active(db, request.chat.id)
    items = [] if session is None else load_todos(db, session.lineage_id)
    if session is None or not items or request.argument.lower() != "clear":
        return shown(items)
    clear_todos(db, session.lineage_id)
    text = "A person cleared the to-do list of this conversation. Do not work on its items any more."
    append_to_tip(db, session.lineage_id, NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=text), now)
    return "The to-do list is now empty."


@transaction
def schedule(request: CommandRequest, db: Connection, now: Millis) -> CommandReply:
    """List the chat's schedules, `add` a schedule, or `pause`, `resume`, `remove` or `run` an existing schedule."""
    argument, context = request.argument, request.context
    try:
        if argument.lower() in ("", "list"):
            return CommandReply(markdown=_sentence(listed(schedules.load_schedules(db, request.chat.id))))
        if (found := _ADD.fullmatch(argument)) is not None:
            return CommandReply(markdown=_add(request, db, found, now), on_commit=context.reschedule)
        if (found := re.fullmatch(r"(pause|resume|remove|run)\s+#?(\d{1,15})", argument, re.IGNORECASE)) is not None:
            return _change(request, db, found[1].lower(), int(found[2]), now)
    except ToolError as error:
        raise CommandError(_sentence(str(error))) from error
    raise CommandError(
        "Send `/schedule` to see the list. Add a message with `/schedule add 0 8 * * mon-fri <text>` (five cron "
        "fields) or `/schedule add 2026-11-24 08:00 <text>`. Use `pause`, `resume`, `remove` or `run` with a number "
        "from the list. You can also ask me, for example “remind me every weekday at eight”."
    )


def _add(request: CommandRequest, db: Connection, found: re.Match[str], now: Millis) -> str:
    zone = schedule_zone(request.context.runtime.config)
    spec, text = found["at"] or found["name"] or found["cron"], found["text"] or ""
    if re.match(r"\S*[*?]", text) is not None:
        raise CommandError("That time has six fields. Use five: minute, hour, day of month, month and weekday.")
    creator = request.row.sender_ref, request.row.sender_name
    return add(db, new_schedule(zone, request.chat.id, creator, spec, text, now))


def _change(request: CommandRequest, db: Connection, action: str, number: int, now: Millis) -> CommandReply:
    context, who = request.context, request.row.sender_ref
    is_in_charge = request.is_in_charge or context.access.may_moderate(who)
    row = find(db, request.chat.id, number, who, is_in_charge=is_in_charge)
    has_access = context.access.role_of(row.creator_ref) is not None
    if action in ("resume", "run") and not has_access:
        raise CommandError(f"{row.creator_name}, who added schedule {row.id}, no longer has access. Add it again.")
    if action != "run":
        return CommandReply(markdown=change(db, row, action, now), on_commit=context.reschedule)
    if schedules.waits(db, row, "run:%"):
        raise CommandError(f"The message of schedule {row.id} is already in the queue.")
    note = f"{request.row.sender_name} used a command to send it now, in addition to its scheduled times"
    schedules.fire(db, row, f"run:{request.row.id}", (note,), now)
    return CommandReply(markdown=f"Sending schedule {row.id} now.", on_commit=partial(context.lanes.wake, row.chat_id))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
