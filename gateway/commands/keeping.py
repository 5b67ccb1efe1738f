"""`/memory`, `/todo` and `/schedule`: long-term memory, the todo list and scheduled messages of a chat."""

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
from hermes_state.tools import schedules
from hermes_state.tools.todos import clear_todos, load_todos
from hermes_state.transcripts import NewMessage, append_to_tip
from hermes_state.values import MessageRole, Millis, Origin

_ASK_NOTE = (
    "Write `/memory`, `/memory add <fact about the work>`, `/memory me add <fact about you>`, or `remove` in place of "
    "`add` with the short name of an entry, such as `/memory remove 3f2a`."
)
_ADD = re.compile(
    r"add\s+(?:(?P<at>\d{4}-\S+(?:\s+\d\d?:\S+)?)|(?P<name>@\S+)|(?P<cron>[\d*?]\S*(?:\s+\S+){4}))(?:\s+(?P<text>.+))?",
    re.IGNORECASE | re.DOTALL,
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
    lines += [f"And {others} about others."] if others else []
    return "\n".join(lines) if lines else f"Nothing is noted yet. {_ASK_NOTE}"


def _entries(title: str, entries: list[NoteEntry]) -> list[str]:
    return [f"{title}:", *(f"- `{entry.handle}` {entry.text}" for entry in entries)] if entries else []


@transaction
def todo(request: CommandRequest, db: Connection, now: Millis) -> str:
    """Show the list, or `clear` it and tell the model."""
    if request.argument.lower() not in ("", "list", "clear"):
        raise CommandError("Write `/todo`, or `/todo clear` to empty the list.")
    session = sessions.load_active(db, request.chat.id)
    items = [] if session is None else load_todos(db, session.lineage_id)
    if session is None or not items or request.argument.lower() != "clear":
        return shown(items)
    clear_todos(db, session.lineage_id)
    text = "The todo list of this conversation was emptied by a person: nothing of it is to be done any more."
    append_to_tip(db, session.lineage_id, NewMessage(role=MessageRole.USER, origin=Origin.NOTICE, text=text), now)
    return "The list is empty now."


@transaction
def schedule(request: CommandRequest, db: Connection, now: Millis) -> CommandReply:
    """List the chat's schedules, `add` one, or `pause`, `resume`, `remove` or `run` one."""
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
        "Write `/schedule`, `/schedule add 0 8 * * mon-fri <text>` (five fields of cron), `/schedule add 2026-11-24 "
        "08:00 <text>`, or `pause`, `resume`, `remove` or `run` with a number that `/schedule` shows. For any other "
        "time ask the agent in your own words, such as “remind me every weekday at eight”."
    )


def _add(request: CommandRequest, db: Connection, found: re.Match[str], now: Millis) -> str:
    zone = schedule_zone(request.context.runtime.config)
    spec, text = found["at"] or found["name"] or found["cron"], found["text"] or ""
    if re.match(r"\S*[*?]", text) is not None:
        raise CommandError("That has six fields: there are five of them, without seconds and without a year.")
    creator = request.row.sender_ref, request.row.sender_name
    return add(db, new_schedule(zone, request.chat.id, creator, spec, text, now))


def _change(request: CommandRequest, db: Connection, action: str, number: int, now: Millis) -> CommandReply:
    context, who = request.context, request.row.sender_ref
    is_in_charge = request.is_in_charge or context.access.may_moderate(who)
    row = find(db, request.chat.id, number, who, is_in_charge=is_in_charge)
    has_access = context.access.role_of(row.creator_ref) is not None
    if action in ("resume", "run") and not has_access:
        raise CommandError(f"{row.creator_name}, who made schedule {row.id}, has no access any more: add it anew.")
    if action != "run":
        return CommandReply(markdown=change(db, row, action, now), on_commit=context.reschedule)
    if schedules.waits(db, row, "run:%"):
        raise CommandError(f"Schedule {row.id} waits for its turn already.")
    note = f"{request.row.sender_name} had it come now, by a command, beside its own times"
    schedules.fire(db, row, f"run:{request.row.id}", (note,), now)
    return CommandReply(markdown=f"Schedule {row.id} comes now.", on_commit=partial(context.lanes.wake, row.chat_id))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
