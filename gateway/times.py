"""Times as people read and write them."""

from datetime import UTC, datetime

from hermes_state.errors import CommandError
from hermes_state.values import Millis


def format_time(at: Millis) -> str:
    """`2026-03-31 14:00 UTC`."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def parse_time(text: str) -> Millis:
    """Time of a date, or of a date with a time, UTC unless it says otherwise. Raises `CommandError`.

    >>> format_time(parse_time("2026-03-31T14:00+02:00"))
    '2026-03-31 12:00 UTC'
    """
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(f"“{text}” is no date such as 2026-03-31 or 2026-03-31T14:00.") from None
    return Millis(round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1_000))
