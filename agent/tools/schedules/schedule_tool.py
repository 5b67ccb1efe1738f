"""Tool `schedule` for scheduled messages, and the functions that it shares with the command `/schedule`."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from msgspec import Meta

from agent.tools.approvals import fenced, inline
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from agent.tools.schedules.times import is_local, known_zone, next_occurrence, normalised, parse_crontab
from hermes_state.errors import ToolError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted, shortened
from hermes_state.tools import schedules
from hermes_state.tools.schedules import NewSchedule, ScheduleRow, ScheduleState
from hermes_state.transcripts import load_sender_name
from hermes_state.values import ChatId, Clock, Millis, ToolEffect, UserRef

MAX_TEXT_CHARACTERS = 4_000
MAX_PER_CHAT = 20
"""Maximum number of schedules in a chat. Every schedule starts turns that cost money."""
MIN_MINUTES = 5
"""Minimum time between two messages of a schedule, in minutes, so that its turns do not pile up."""


class _ChangeArguments(Arguments, frozen=True):
    action: Literal["list", "add", "pause", "resume", "remove"]
    cron: Annotated[str | None, Meta(description="For add: five cron fields, such as 0 8 * * mon-fri.")] = None
    at: Annotated[str | None, Meta(description="For add, instead of cron: one time, such as 2026-11-24 08:00.")] = None
    text: Annotated[str, Meta(description="For add: the message. It must be clear without this chat.")] = ""
    id: Annotated[int | None, Meta(description="For pause, resume and remove: id from list.")] = None

    @property
    def spec(self) -> str:
        """Return the time of a new schedule: `cron` or `at`.

        Raises `ToolError` if not exactly one is given, or `at` is not a date with a time.
        """
        given = [one for one in (self.cron, self.at) if one is not None]
        if len(given) != 1:
            raise ToolError("add needs either cron or at")
        if self.at is not None and not is_local(self.at):
            raise ToolError(f"{self.at!r} is not a date with a time, such as 2026-11-24 08:00")
        return given[0]


def schedule_tool(
    zone: Callable[[], str], may_moderate: Callable[[UserRef], bool], on_change: Callable[[], None], clock: Clock
) -> Tool:
    """Return the tool `schedule`.

    It changes only the schedules of the call's chat. Scheduled turns cannot add schedules. `zone` returns the time
    zone for new schedules, or "" if the server's time zone has no name.
    """

    def draft(asked: _ChangeArguments, context: ToolContext, name: str) -> NewSchedule:
        return new_schedule(zone(), context.chat_id, (context.started_by, name), asked.spec, asked.text, clock.now())

    def check(asked: _ChangeArguments, context: ToolContext) -> None:
        if asked.action == "add":
            if context.is_scheduled:
                raise ToolError("a scheduled turn cannot add schedules; a person must ask for it in a message")
            is_for_all = context.chat_kind.is_shared and not context.chat.user_ref
            if is_for_all and not may_moderate(context.started_by):
                raise ToolError("in a shared chat, only admins and moderators can add schedules")
            draft(asked, context, "")
        elif asked.action != "list" and asked.id is None:
            raise ToolError(f"{asked.action} needs an id; use the action `list` to see the ids")

    def shown(asked: _ChangeArguments) -> str:
        if asked.action != "add":
            return f"{asked.action.capitalize()} schedule {asked.id} (`/schedule` lists them)."
        name = zone()
        spec = normalised(asked.spec, name)
        times = ", ".join(upcoming(spec, name, clock.now()))
        return f"Send this message to the chat at {inline(spec)} ({name}; next: {times}):\n{fenced(asked.text)}"

    @tool(
        description="Schedule a message to this chat, once or repeatedly, for reminders, reports and checks. You act "
        "on it when it arrives. Times are local, like message time stamps.",
        effect=ToolEffect.WRITES,
        check=check,
        is_exempt=lambda asked: asked.action == "list",
        shape=lambda asked: "",
        shown=shown,
        step=StepWords(doing="Working on the schedule", did="used the schedule"),
    )
    async def schedule(asked: _ChangeArguments, context: ToolContext) -> str:
        store, action = context.store, asked.action
        if action == "list":
            return listed(await store.read(schedules.load_schedules, context.chat_id))
        if action == "add":
            name = await store.read(load_sender_name, context.turn_id, context.started_by)
            new = draft(asked, context, name or context.started_by)
            text = await store.write(add, new)
        else:
            is_in_charge = not context.chat_kind.is_shared or may_moderate(context.started_by)
            text = await store.write(partial(_change, asked, context, is_in_charge), clock.now())
        on_change()
        return text

    return schedule


@locks(chat="context.chat_id")
def _change(asked: _ChangeArguments, context: ToolContext, is_in_charge: bool, db: Connection, now: Millis) -> str:
    row = find(db, context.chat_id, asked.id, context.started_by, is_in_charge=is_in_charge)
    return change(db, row, asked.action, now)


# ---- changes


def new_schedule(
    zone: str, chat_id: ChatId, creator: tuple[UserRef, str], spec: str, text: str, now: Millis
) -> NewSchedule:
    """Return a new schedule to store. `spec`: a cron expression, or a date with a time.

    Raises `ToolError` if the schedule is invalid.
    """
    if not zone:
        raise ToolError("the server's time zone is unknown: the owner of this bot needs to set agent.time_zone")
    if not 0 < len(text := text.strip()) <= MAX_TEXT_CHARACTERS:
        raise ToolError(f"the text of a schedule must be 1 to {MAX_TEXT_CHARACTERS:,} characters long")
    spec = normalised(spec, zone)
    apart = 1_440 if is_local(spec) else parse_crontab(spec).shortest_minutes
    if apart < MIN_MINUTES:
        raise ToolError(f"{spec} repeats after {counted(apart, 'minute')}; the minimum is {MIN_MINUTES} minutes")
    first = next_occurrence(spec, zone, now)
    if first is None:
        clock = datetime.fromtimestamp(now / 1000, ZoneInfo(zone)).isoformat(" ", "minutes")[:16]
        raise ToolError(f"{spec} has passed or never occurs: it is now {clock} in {zone}")
    return NewSchedule(
        chat_id=chat_id,
        creator_ref=creator[0],
        creator_name=creator[1],
        spec=spec,
        zone=zone,
        text=text,
        next_at=first.at,
        created_at=now,
    )


@locks(chat="schedule.chat_id")
def add(db: Connection, schedule: NewSchedule) -> str:
    """Store a schedule and report its next times. Raises `ToolError` if the chat has `MAX_PER_CHAT` schedules."""
    if schedules.count_schedules(db, schedule.chat_id) >= MAX_PER_CHAT:
        raise ToolError(f"this chat already has the maximum of {MAX_PER_CHAT} schedules; remove one first")
    number = schedules.insert_schedule(db, schedule)
    times = ", ".join(upcoming(schedule.spec, schedule.zone, schedule.created_at))
    return f"Schedule {number} is set; next: {times} ({schedule.zone})."


def change(db: Connection, row: ScheduleRow, action: str, now: Millis) -> str:
    if action in ("pause", "remove"):
        schedules.drop_waiting(db, row, now)
    if action == "remove":
        schedules.remove_schedule(db, row.id)
        return f"Schedule {row.id} is removed."
    if action == "pause":
        schedules.set_state(db, row.id, ScheduleState.PAUSED, None)
        return f"Schedule {row.id} is paused."
    following = next_occurrence(row.spec, row.zone, now)
    if following is None:
        raise ToolError(f"the time of schedule {row.id} has passed ({row.spec}); remove it and add a new schedule")
    schedules.set_state(db, row.id, ScheduleState.ACTIVE, following.at)
    return f"Schedule {row.id} is active again; next: {_shown(following.at, row.zone)} ({row.zone})."


def find(db: Connection, chat_id: ChatId, number: int | None, who: UserRef, *, is_in_charge: bool) -> ScheduleRow:
    """Return a schedule that `who` is allowed to change. Raises `ToolError` for anyone but its creator and moderators.

    `is_in_charge`: True if `who` moderates the chat.
    """
    row = schedules.find_schedule(db, chat_id, number) if number is not None else None
    if row is None:
        raise ToolError(f"there is no schedule {number} here; {listed(schedules.load_schedules(db, chat_id))}")
    if row.creator_ref != who and not is_in_charge:
        raise ToolError(f"schedule {row.id} belongs to {row.creator_name}; only they and moderators can change it")
    return row


def listed(rows: Sequence[ScheduleRow]) -> str:
    """Return a list of schedules for people and models, one per line."""
    lines = []
    for row in rows:
        try:
            when = row.state.value if row.next_at is None else f"next {_shown(row.next_at, row.zone)}"
        except ToolError as error:
            when = str(error)
        text = shortened(row.text, 200)
        lines.append(f"- {row.id}: `{row.spec}` ({row.zone}), {when}, by {row.creator_name}: {text}")
    return "\n".join(lines) or "no schedules are set."


def upcoming(spec: str, zone: str, after: Millis) -> list[str]:
    """Return the next three local times of a schedule, formatted for people."""
    times: list[str] = []
    while len(times) < 3 and (following := next_occurrence(spec, zone, after)) is not None:
        times.append(_shown(following.at, zone))
        after = following.at
    return times


def _shown(at: Millis, zone: str) -> str:
    return f"{datetime.fromtimestamp(at / 1000, UTC).astimezone(known_zone(zone)):%a %Y-%m-%d %H:%M}"
