"""Times of schedules: cron expressions, local dates with times, and their next occurrences.

Each local time occurs once. A time that is skipped when clocks go forward occurs later, by the skipped amount. If a
time is repeated when clocks go back, only the first one counts. APScheduler's `CronTrigger` (3.11) is not used because
it skips midnights after a day of 23 hours, fires twice in a repeated hour, and treats 0 as Monday.
"""

import re
from collections.abc import Callable, Sequence
from datetime import MAXYEAR, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from hermes_state.errors import ToolError
from hermes_state.values import Millis

MAX_SPEC_CHARACTERS = 500
"""Maximum length of a cron expression, enough to list every value of every field."""

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, Sequence[str]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    ("day of the week", 0, 7, _WEEKDAYS),
)
_PART = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d{1,4}))?", re.ASCII)


class Occurrence(msgspec.Struct, frozen=True, order=True):
    at: Millis
    local: datetime

    @property
    def key(self) -> str:
        """Return the occurrence's local time as a key that is unique within the schedule."""
        return self.local.isoformat(timespec="minutes")


class Crontab(msgspec.Struct, frozen=True, kw_only=True):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Days of the week; 0 is Sunday."""
    is_either: bool
    """True if a day needs to match only one of the two day fields. In cron, this is the case if neither field begins
    with `*`.
    """

    def has(self, day: date) -> bool:
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (is_day or is_weekday if self.is_either else is_day and is_weekday)

    @property
    def times(self) -> list[time]:
        return [time(hour, minute) for hour in sorted(self.hours) for minute in sorted(self.minutes)]

    @property
    def shortest_minutes(self) -> int:
        """Return the shortest time between two occurrences in minutes, even if midnight is between them."""
        minutes = [one.hour * 60 + one.minute for one in self.times]
        return min(after - before for before, after in zip(minutes, [*minutes[1:], minutes[0] + 1_440], strict=True))


def is_local(spec: str) -> bool:
    """Return True for a date with a time, and False for a cron expression."""
    return re.match(r"\s*\d{4}-", spec) is not None


def normalised(spec: str, zone: str) -> str:
    """Return a cron expression or a date with a time in its stored form. Raises `ToolError` for any other text."""
    if is_local(spec):
        return parse_local(spec, zone)
    if len(spec := " ".join(spec.lower().split())) > MAX_SPEC_CHARACTERS:
        raise ToolError(f"a cron expression can have at most {MAX_SPEC_CHARACTERS} characters")
    parse_crontab(spec)
    return spec


@lru_cache(maxsize=1_024)
def parse_crontab(text: str) -> Crontab:
    """Parse a cron expression of five fields, or a name such as `@daily`. Raises `ToolError` if it is invalid.

    >>> parse_crontab("30 8 * * mon-fri").weekdays == {1, 2, 3, 4, 5}
    True
    """
    words = text.lower().split()
    if words and words[0].startswith("@"):
        known = _ALIASES.get(words[0]) if len(words) == 1 else None
        if known is None:
            raise ToolError(f"{text!r} is unknown; the known names are {', '.join(_ALIASES)}")
        words = known.split()
    if len(words) != 5:
        raise ToolError(
            f"a cron expression has five fields (minute, hour, day of the month, month, day of the week), not "
            f"{len(words)}; leave out seconds and years"
        )
    words = [word.replace("?", "*") if index in (2, 4) else word for index, word in enumerate(words)]
    minutes, hours, days, months, weekdays = (_values(word, *field) for word, field in zip(words, _FIELDS, strict=True))
    is_either = not words[2].startswith("*") and not words[4].startswith("*")
    return Crontab(minutes=minutes, hours=hours, days=days, months=months, weekdays=weekdays, is_either=is_either)


def _values(word: str, name: str, low: int, high: int, names: Sequence[str]) -> frozenset[int]:
    """Return the numbers in a field of a cron expression. Raises `ToolError` if the field is invalid."""
    found: set[int] = set()
    size = 7 if names is _WEEKDAYS else high - low + 1
    for part in word.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ToolError(f"{part!r} is not a valid {name} in a cron expression")
        step = int(match["step"] or 1)
        if not 0 < step <= high:
            raise ToolError(f"{part!r} is not a valid {name}: the step must be 1 to {high}")
        first = low if match["first"] is None else _number(match["first"], name, low, high, names)
        last = first if match["step"] is None and match["first"] is not None else low + size - 1
        if match["last"] is not None:
            last = _number(match["last"], name, low, high, names)
        last += size if last < first else 0  # such as from Friday to Monday
        found.update(low + (number - low) % size for number in range(first, last + 1, step))
    return frozenset(found)


def _number(word: str, name: str, low: int, high: int, names: Sequence[str]) -> int:
    number = names.index(word) if word in names else int(word) if word.isdecimal() and len(word) < 5 else -1
    if not low <= number <= high:
        known = f" or a name such as {names[1]}" if names else ""
        raise ToolError(f"{word!r} is not a valid {name}: use {low} to {high}{known}")
    return number


def parse_local(text: str, zone: str) -> str:
    """Return a date with a time in its stored form, as local time in `zone`.

    A time with a UTC offset is converted. Raises `ToolError` if `text` is not a date with a time.

    >>> parse_local("2026-11-24 08:00", "Europe/Berlin"), parse_local("2026-11-24T08:00Z", "Europe/Berlin")
    ('2026-11-24T08:00', '2026-11-24T09:00')
    """
    try:
        at = datetime.fromisoformat(text.strip())
        at = at if at.tzinfo is None else at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    except (ValueError, OverflowError):
        at = None
    if at is None or ":" not in text or at.year == MAXYEAR:  # a later conversion of the last year could overflow
        raise ToolError(f"{text[:64]!r} is not a date with a time, such as 2026-11-24 08:00")
    return at.isoformat(timespec="minutes")


def next_occurrence(spec: str, zone: str, after: Millis) -> Occurrence | None:
    """Return the first occurrence after a given time, or None if there is none.

    `spec` must be normalised. Raises `ToolError` if `spec` is invalid, or if the zone is unknown on this machine.

    >>> found = next_occurrence("30 2 * * *", "Europe/Berlin", Millis(1_774_690_000_000))  # 28 March 2026
    >>> found.at, found.key
    (1774747800000, '2026-03-29T02:30')
    """
    return _nearest(spec, zone, after, 1, lambda one: one.at > after)


def last_occurrence(spec: str, zone: str, until: Millis) -> Occurrence | None:
    """Return the last occurrence at or before a given time, or None if there is none.

    Raises `ToolError` if `spec` or `zone` is invalid.
    """
    return _nearest(spec, zone, until, -1, lambda one: one.at <= until)


def _nearest(
    spec: str, zone: str, moment: Millis, direction: int, fits: Callable[[Occurrence], bool]
) -> Occurrence | None:
    """Return the nearest occurrence that `fits` accepts, searching forward (1) or backward (-1) from a given time."""
    place = known_zone(zone)
    if is_local(spec):
        only = _occurrence(datetime.fromisoformat(parse_local(spec, zone)), place)
        return only if fits(only) else None
    crontab = parse_crontab(spec)
    times, found = crontab.times, list[Occurrence]()
    # A skipped time can occur up to a day later, so start a day earlier and check an extra day.
    day = datetime.fromtimestamp(moment / 1000, place).date() - timedelta(days=max(direction, 0))
    for _ in range(8 * 366 + 2):  # around the year 2100, there are eight years between two leap days
        all_day = (_occurrence(datetime.combine(day, one), place) for one in times) if crontab.has(day) else ()
        beside = [one for one in all_day if fits(one)]
        if found:
            return min(found + beside, key=lambda one: (direction * one.at, one.local))
        found, day = beside, day + timedelta(days=direction)
    return None


def known_zone(name: str) -> ZoneInfo:
    """Return the time zone for a stored name. Raises `ToolError` if it is unknown on this machine."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ToolError(f"the time zone {name} is unknown on this machine") from error


def _occurrence(local: datetime, zone: ZoneInfo) -> Occurrence:
    at = Millis(round(local.replace(tzinfo=zone).timestamp() * 1000))  # `fold` is 0: the first of two equal local times
    return Occurrence(at, local)
