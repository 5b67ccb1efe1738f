"""Health of the adapter. Its tasks update the state, and the gateway reads it."""

import time

from hermes_state.values import Clock, Millis
from platforms.base import AdapterHealth, AdapterState


class HealthState:
    """Health of one run of the adapter. Without a response for `stall_seconds`, the adapter counts as stalled."""

    def __init__(self, clock: Clock, stall_seconds: float) -> None:
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._state = AdapterState.STARTING
        self._detail = "not running"
        self._progress_at: Millis | None = None
        self._progressed_monotonic = time.monotonic()

    def progressed(self, detail: str = "") -> None:
        """Record that the platform responded. `detail` is a warning for the operator."""
        self.change(AdapterState.RUNNING, detail)
        self._progress_at = self._clock.now()
        self._progressed_monotonic = time.monotonic()

    def change(self, state: AdapterState, detail: str = "") -> None:
        self._state = state
        self._detail = detail

    def stopped(self) -> None:
        """Record that the run ended. Keep the message of an earlier failure."""
        if self._state in (AdapterState.RUNNING, AdapterState.STARTING, AdapterState.STALLED):
            self.change(AdapterState.STARTING, "not running")

    def current(self) -> AdapterHealth:
        silence = time.monotonic() - self._progressed_monotonic
        if self._state is AdapterState.RUNNING and silence > self._stall_seconds:
            detail = f"no progress for {silence:.0f} s"
            return AdapterHealth(state=AdapterState.STALLED, last_progress_at=self._progress_at, detail=detail)
        return AdapterHealth(state=self._state, last_progress_at=self._progress_at, detail=self._detail)
