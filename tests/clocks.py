"""Clocks that a test sets."""

from hermes_state.values import Millis, SystemClock


class SetClock:
    """Clock that stays at `at`, in milliseconds."""

    def __init__(self, at: int = 1_800_000_000_000) -> None:
        self.at = at

    def now(self) -> Millis:
        return Millis(self.at)


class TurnedClock(SystemClock):
    """Clock that is `offset` milliseconds ahead of the machine's."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def now(self) -> Millis:
        return Millis(super().now() + self.offset)
