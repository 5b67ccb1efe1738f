"""`/schedule`: messages that come back into the chat at a time, listed and changed by people."""

import re
from functools import partial

from agent.tools.schedules.schedule_tool import add, change, find, listed, new_schedule
from gateway.commands.registry import CommandReply, CommandRequest
from gateway.schedules import schedule_zone
from hermes_state.errors import CommandError, ToolError
from hermes_state.store.sql import Connection
from hermes_state.tools import schedules
from hermes_state.values import Millis

_ASK = (
    "Write `/schedule`, `/schedule add 0 8 * * mon-fri <text>` (five fields of cron), `/schedule add 2026-11-24 08:00 "
    "<text>`, or `pause`, `resume`, `remove` or `run` with a number that `/schedule` shows. For any other time ask the "
    "agent in your own words, such as “remind me every weekday at eight”."
)
_CHANGE = re.compile(r"(pause|resume|remove|run)\s+#?(\d{1,15})", re.IGNORECASE)
_ADD = re.compile(
    r"add\s+(?:(?P<at>\d{4}-\S+(?:\s+\d\d?:\S+)?)|(?P<name>@\S+)|(?P<cron>[\d*?]\S*(?:\s+\S+){4}))(?:\s+(?P<text>.+))?",
    re.IGNORECASE | re.DOTALL,
)


def schedule(request: CommandRequest, db: Connection, now: Millis) -> CommandReply:
    """List the chat's schedules, `add` one, or `pause`, `resume`, `remove` or `run` one."""
    argument, context = request.argument, request.context
    try:
        if argument.lower() in ("", "list"):
            return CommandReply(markdown=_sentence(listed(schedules.load_schedules(db, request.chat.id))))
        if (found := _ADD.fullmatch(argument)) is not None:
            return CommandReply(markdown=_add(request, db, found, now), on_commit=context.reschedule)
        if (found := _CHANGE.fullmatch(argument)) is not None:
            return _change(request, db, found[1].lower(), int(found[2]), now)
    except ToolError as error:
        raise CommandError(_sentence(str(error))) from error
    raise CommandError(_ASK)


def _add(request: CommandRequest, db: Connection, found: re.Match[str], now: Millis) -> str:
    zone = schedule_zone(request.context.runtime.config)
    spec, text = found["at"] or found["name"] or found["cron"], found["text"] or ""
    if re.match(r"\S*[*?]", text) is not None:
        raise CommandError("That has six fields: there are five of them, without seconds and without a year.")
    creator = request.row.sender_ref, request.row.sender_name
    new = new_schedule(zone, request.chat.id, creator, spec, text, now)
    return add(db, new)


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
