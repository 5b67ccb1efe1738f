"""Times as people read and write them."""

from datetime import UTC, datetime, tzinfo

from hermes_state.errors import CommandError
from hermes_state.values import Millis


def format_time(at: Millis, zone: tzinfo | None = UTC) -> str:
    """`2026-03-31 14:00 UTC`; in the server's time zone for None."""
    return f"{datetime.fromtimestamp(at / 1000, UTC).astimezone(zone):%Y-%m-%d %H:%M %Z}"


def parse_time(text: str, zone: tzinfo | None = UTC) -> Millis:
    """Time of a date, or of a date with a time, in `zone` unless it says otherwise. Raises `CommandError`.

    >>> format_time(parse_time("2026-03-31T14:00+02:00"))
    '2026-03-31 12:00 UTC'
    """
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(f"“{text}” is no date such as 2026-03-31 or 2026-03-31T14:00.") from None
    return Millis(round((at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp() * 1_000))
