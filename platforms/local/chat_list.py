"""The list of chats as the sidebar shows it: grouped by day in the reader's time zone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from zoneinfo import ZoneInfo

from hermes_state.values import Millis
from hermes_state.web_chats import ListedChat, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEntry:
    """A chat of the list, in the group with the heading `heading`."""

    chat: ListedChat
    heading: str
    is_first: bool
    """True if the heading is shown above this entry."""
    clock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView:
    """A part of the list."""

    entries: Sequence[ListEntry]
    shown: str
    """Name of the chat that the page shows; empty on other pages."""
    is_archived: bool
    is_start: bool
    """True if the part replaces the whole list."""
    next: Position | None
    """Position after which the next part begins, or None at the end."""


def zone_named(name: str) -> tzinfo:
    """Return the time zone that the browser reported, or UTC if this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # an unknown name is a KeyError
        return UTC


def grouped(chats: Sequence[ListedChat], zone: tzinfo, now: Millis, heading: str = "") -> Iterator[ListEntry]:
    """Yield the entries of the list. `heading` is the last heading above them."""
    today = _moment(now, zone).date()
    for chat in chats:
        at = _moment(chat.used_at, zone)
        own = "Pinned" if chat.is_pinned else heading_of(at.date(), today)
        yield ListEntry(chat=chat, heading=own, is_first=own != heading, clock=f"{at:%H:%M}")
        heading = own


def heading_of(day: date, today: date) -> str:
    """Return the heading of a day: a word or a weekday in the last week, else the date.

    >>> [heading_of(date(2026, *day), date(2026, 11, 29)) for day in ((11, 29), (11, 28), (11, 24), (11, 2))]
    ['Today', 'Yesterday', 'Tuesday', '2 November']
    >>> heading_of(date(2025, 12, 31), date(2026, 1, 20))
    '31 December 2025'
    """
    days = (today - day).days
    if days < 2:
        return "Yesterday" if days == 1 else "Today"
    if days < 7:
        return f"{day:%A}"
    return f"{day.day} {day:%B}" + ("" if day.year == today.year else f" {day.year}")


def position_in(text: str) -> Position | None:
    """Return the position that a link of the list names, or None if it is not valid."""
    numbers = text.split("-")
    if len(numbers) != 3 or not all(one.isascii() and one.isdecimal() and len(one) < 19 for one in numbers):
        return None
    pinned, used_at, chat_id = map(int, numbers)
    return pinned, used_at, chat_id


def _moment(at: Millis, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at / 1000, zone)
