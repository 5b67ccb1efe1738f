"""Format and parse times for people."""

from datetime import UTC, datetime, tzinfo

from hermes_state.errors import CommandError
from hermes_state.values import Millis


def format_time(at: Millis, zone: tzinfo | None = UTC) -> str:
    """Return a time such as `2026-03-31 14:00 UTC`. With `zone=None`, use the server's time zone."""
    return f"{datetime.fromtimestamp(at / 1000, UTC).astimezone(zone):%Y-%m-%d %H:%M %Z}"


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
