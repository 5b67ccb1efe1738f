"""Moments as people read them."""

from datetime import UTC, datetime

from hermes_state.values import Millis


def when(at: Millis) -> str:
    """UTC, to the minute."""
    return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M} UTC"
