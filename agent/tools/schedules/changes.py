"""Changes of a chat's schedules, as the tool and the command make them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from agent.tools.schedules.times import is_local, known_zone, next_occurrence, normalised, parse_crontab
from hermes_state.errors import ToolError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted, shortened
from hermes_state.tools import schedules
from hermes_state.tools.schedules import NewSchedule, ScheduleRow, ScheduleState
from hermes_state.values import ChatId, Millis, UserRef

MAX_TEXT_CHARACTERS = 4_000
MAX_PER_CHAT = 20
"""Most schedules of one chat: every one of them starts turns that cost money."""
MIN_MINUTES = 5
"""Shortest time, in minutes, between two messages of a schedule, so that the turns of one do not pile up."""
SHOWN_TIMES = 3
"""Next times that people are shown before they say yes."""


def new_schedule(
    zone: str, chat_id: ChatId, creator: tuple[UserRef, str], spec: str, text: str, now: Millis
) -> NewSchedule:
    """Make a schedule that can be stored. Raises `ToolError`.

    `zone`: name of the time zone; empty where the server's has none. `spec`: a cron expression, or a date with a time.
    """
    if not zone:
        raise ToolError("the server's time zone has no name: whoever runs the gateway has to set agent.time_zone")
    if not 0 < len(text := text.strip()) <= MAX_TEXT_CHARACTERS:
        raise ToolError(f"a schedule needs a text of 1 to {MAX_TEXT_CHARACTERS:,} characters")
    spec = normalised(spec, zone)
    apart = 1_440 if is_local(spec) else parse_crontab(spec).shortest_minutes
    if apart < MIN_MINUTES:
        raise ToolError(f"{spec} comes {counted(apart, 'minute')} apart; the shortest time is {MIN_MINUTES} minutes")
    first = next_occurrence(spec, zone, now)
    if first is None:
        clock = datetime.fromtimestamp(now / 1000, ZoneInfo(zone)).isoformat(" ", "minutes")[:16]
        raise ToolError(f"{spec} never comes: it is {clock} in {zone}")
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
    """Store a schedule and say when it comes. Raises `ToolError` in a chat that has as many as it may."""
    if schedules.count_schedules(db, schedule.chat_id) >= MAX_PER_CHAT:
        raise ToolError(f"this chat has {MAX_PER_CHAT} schedules, and a chat cannot have more: remove one")
    number = schedules.insert_schedule(db, schedule)
    times = ", ".join(upcoming(schedule.spec, schedule.zone, schedule.created_at))
    return f"Schedule {number} is set; next: {times} ({schedule.zone})."


def change(db: Connection, row: ScheduleRow, action: str, now: Millis) -> str:
    """Pause, resume or remove a schedule. Raises `ToolError`."""
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
        raise ToolError(f"the time of schedule {row.id} is over ({row.spec}): remove it, and add another")
    schedules.set_state(db, row.id, ScheduleState.ACTIVE, following.at)
    return f"Schedule {row.id} is active again; next: {_shown(following.at, row.zone)} ({row.zone})."


def find(db: Connection, chat_id: ChatId, number: int | None, who: UserRef, *, is_in_charge: bool) -> ScheduleRow:
    """A schedule that somebody may change: its creator, and whoever is in charge. Raises `ToolError`."""
    row = schedules.find_schedule(db, chat_id, number) if number is not None else None
    if row is None:
        raise ToolError(f"there is no schedule {number} here; {listed(schedules.load_schedules(db, chat_id))}")
    if row.creator_ref != who and not is_in_charge:
        raise ToolError(f"schedule {row.id} is {row.creator_name}'s: only they, and admins, can change it")
    return row


def listed(rows: Sequence[ScheduleRow]) -> str:
    """Schedules for people and models, a line each."""
    return "\n".join(_line(row) for row in rows) or "no schedules are set."


def _line(row: ScheduleRow) -> str:
    try:
        when = row.state.value if row.next_at is None else f"next {_shown(row.next_at, row.zone)}"
    except ToolError as error:
        when = str(error)
    return f"- {row.id}: `{row.spec}` ({row.zone}), {when}, by {row.creator_name}: {shortened(row.text, 200)}"


def upcoming(spec: str, zone: str, after: Millis) -> list[str]:
    """The next local times of a schedule, as people read them."""
    times: list[str] = []
    while len(times) < SHOWN_TIMES and (following := next_occurrence(spec, zone, after)) is not None:
        times.append(_shown(following.at, zone))
        after = following.at
    return times


def _shown(at: Millis, zone: str) -> str:
    return f"{datetime.fromtimestamp(at / 1000, UTC).astimezone(known_zone(zone)):%a %Y-%m-%d %H:%M}"
