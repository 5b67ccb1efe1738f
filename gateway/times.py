"""Format and parse times for people."""

from datetime import UTC, datetime, tzinfo

from hermes_state.errors import CommandError
from hermes_state.values import Millis


def format_time(at: Millis, zone: tzinfo | None = UTC) -> str:
    """Return a time such as `2026-03-31 14:00 UTC`. With `zone=None`, use the server's time zone."""
    return f"{datetime.fromtimestamp(at / 1000, UTC).astimezone(zone):%Y-%m-%d %H:%M %Z}"


def spoken_time(at: Millis, now: Millis, zone: tzinfo | None = UTC) -> str:
    """Return a past time in words, relative to the time `now`.

    >>> now = parse_time("2026-03-31T12:00")
    >>> [spoken_time(parse_time(f"{at}T09:30"), now) for at in ("2026-03-31", "2026-03-30", "2026-03-29", "2025-03-01")]
    ['today 09:30', 'yesterday 09:30', 'Sunday 09:30', '1 Mar 2025']
    >>> spoken_time(Millis(now - 300_000), now)
    '5 min ago'
    """
    then, today = (datetime.fromtimestamp(one / 1000, UTC).astimezone(zone) for one in (at, now))
    minutes, days = (now - at) // 60_000, (today.date() - then.date()).days
    if 0 <= minutes < 60:
        return f"{minutes} min ago" if minutes else "just now"
    if 0 <= days < 7:
        return f"{('today', 'yesterday')[days] if days < 2 else f'{then:%A}'} {then:%H:%M}"
    return f"{then.day} {then:%b}" + (f" {then:%Y}" if then.year != today.year else "")


def parse_time(text: str, zone: tzinfo | None = UTC) -> Millis:
    """Parse a date, with or without a time. Times without a UTC offset are in `zone`. Raises `CommandError` if invalid.

    >>> format_time(parse_time("2026-03-31T14:00+02:00"))
    '2026-03-31 12:00 UTC'
    """
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(f"“{text}” is not a date. Use the form 2026-03-31 or 2026-03-31T14:00.") from None
    return Millis(round((at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp() * 1_000))
