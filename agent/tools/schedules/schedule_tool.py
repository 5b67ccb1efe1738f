"""Tool `schedule`: messages that come back into the chat at a time, once or again and again."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from agent.tools.approvals import fenced, inline
from agent.tools.arguments import schema, text, whole
from agent.tools.registry import Tool, ToolContext
from agent.tools.schedules.changes import add, change, find, listed, new_schedule, upcoming
from agent.tools.schedules.times import is_local, normalised
from hermes_state.errors import ToolError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.tools.schedules import NewSchedule, load_schedules
from hermes_state.transcripts import load_sender_name
from hermes_state.values import Clock, Millis, ToolEffect, UserRef

_ACTIONS = ("list", "add", "pause", "resume", "remove")


def schedule_tool(
    zone: Callable[[], str],
    may_moderate: Callable[[UserRef], bool],
    on_change: Callable[[], None],
    clock: Clock,
) -> Tool:
    """The tool `schedule`. It changes only what its own chat has, and adds nothing in a turn that a schedule began.

    `zone`: name of the time zone of new schedules; empty where the server's has none.
    """

    def draft(arguments: Mapping[str, Any], context: ToolContext, name: str) -> NewSchedule:
        creator, text = (context.started_by, name), arguments.get("text", "")
        return new_schedule(zone(), context.chat_id, creator, _spec(arguments), text, clock.now())

    def check(arguments: Mapping[str, Any], context: ToolContext) -> None:
        if arguments["action"] == "add":
            if context.is_scheduled:
                raise ToolError("a turn that a schedule began cannot add another; ask for it in a message")
            is_for_all = context.chat_kind.is_shared and not context.chat.user_ref
            if is_for_all and not may_moderate(context.started_by):
                raise ToolError("others share this chat: adding is for admins here, and for `access.moderators`")
            draft(arguments, context, "")
        elif arguments["action"] != "list" and "id" not in arguments:
            raise ToolError(f"{arguments['action']} needs the id that list shows")

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        store, action = context.store, arguments["action"]
        if action == "list":
            return listed(await store.read(load_schedules, context.chat_id))
        if action == "add":
            name = await store.read(load_sender_name, context.turn_id, context.started_by)
            new = draft(arguments, context, name or context.started_by)
            text = await store.write(add, new)
        else:
            is_in_charge = not context.chat_kind.is_shared or may_moderate(context.started_by)
            text = await store.write(partial(_change, arguments, context, is_in_charge), clock.now())
        on_change()
        return text

    def shown(arguments: Mapping[str, Any]) -> str:
        if arguments["action"] != "add":
            return f"{arguments['action'].capitalize()} schedule {arguments['id']} (`/schedule` lists them)."
        name = zone()
        spec = normalised(_spec(arguments), name)
        times = ", ".join(upcoming(spec, name, clock.now()))
        return f"At {inline(spec)} ({name}), next {times}, this comes into the chat:\n{fenced(arguments['text'])}"

    return Tool(
        name="schedule",
        description="Has a message come back into this chat at a time, once or again and again, for you to act on "
        "then: reminders, reports, checks. Times are local, as messages are stamped.",
        parameters=schema(
            "action",
            action=text(enum=list(_ACTIONS)),
            cron=text("add: five fields of cron, such as 0 8 * * mon-fri."),
            at=text("add, in place of cron: once, such as 2026-11-24 08:00."),
            text=text("add: the message, complete enough to be understood then."),
            id=whole(None, "pause, resume, remove: from list."),
        ),
        effect=ToolEffect.WRITES,
        run=run,
        check=check,
        is_exempt=lambda arguments: arguments["action"] == "list",
        shape=lambda arguments: "",
        shown=shown,
    )


def _spec(arguments: Mapping[str, Any]) -> str:
    given: list[str] = [arguments[name] for name in ("cron", "at") if name in arguments]
    if len(given) != 1:
        raise ToolError("add needs either cron or at")
    if "at" in arguments and not is_local(given[0]):
        raise ToolError(f"{given[0]!r} is no date with a time such as 2026-11-24 08:00")
    return given[0]


@locks(chat="context.chat_id")
def _change(arguments: Mapping[str, Any], context: ToolContext, is_in_charge: bool, db: Connection, now: Millis) -> str:
    row = find(db, context.chat_id, arguments["id"], context.started_by, is_in_charge=is_in_charge)
    return change(db, row, arguments["action"], now)
