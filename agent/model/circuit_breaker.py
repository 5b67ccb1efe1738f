"""Circuit breaker of a route: keeps one that failed from being asked for a while."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from agent.model.errors import remedy_for
from hermes_state.errors import ModelError

log = structlog.get_logger()

MAX_FAILURES = 3
"""Failed calls in a row, each with all its retries, after which the circuit opens."""
OPEN_SECONDS = (30.0, 60.0, 300.0)
"""Seconds for which a circuit stays open: the first time, after a failed trial, and after every further one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitState:
    """State of an open circuit: its route is left alone for now."""

    seconds: float
    """Seconds until the next trial."""
    why: str
    """Fault of the route: completes a sentence that begins with its name."""


class CircuitBreaker:
    """Circuit breaker of one route: opens after failures in a row, then lets one attempt at a time try again.

    Asking a provider that is down once more only delays the fallback's answer. In memory only: a restart, and a
    change of the configuration, begin anew.

    >>> from hermes_state.errors import ModelTimeout
    >>> breaker = CircuitBreaker("chat_completions:api.example.com", "gpt", now=lambda: 100.0)
    >>> for _ in range(MAX_FAILURES):
    ...     breaker.failed(ModelTimeout("no answer"))
    >>> breaker.open
    CircuitState(seconds=30.0, why='does not answer in time')
    >>> breaker.succeeded()
    >>> breaker.open is None
    True
    """

    def __init__(self, route: str, model: str, *, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds on a clock that never goes back."""
        self._route = route
        self._model = model
        self._now = now
        self._failures = 0
        self._times_opened = 0
        self._open_until = 0.0
        self._why = ""

    @property
    def open(self) -> CircuitState | None:
        """The circuit while it is open; None: the route may be called."""
        left = self._open_until - self._now()
        return CircuitState(seconds=left, why=self._why) if left > 0 else None

    @property
    def is_tripped(self) -> bool:
        """True from the first opening until a call is answered: one attempt shows if the route is well again."""
        return self._times_opened > 0

    def succeeded(self) -> None:
        """A call was answered: close the circuit."""
        if self._times_opened:
            log.info("route.recovered", route=self._route, model=self._model)
        self._failures = self._times_opened = 0
        self._open_until = 0.0

    def failed(self, error: ModelError) -> None:
        """A call was given up. Errors that are not the route's fault show that it works."""
        remedy = remedy_for(error)
        if remedy.trouble is None:
            self._failures = 0
            return
        if self.open is not None:
            return  # several calls may find out together, and one may be made all the same
        self._failures += 1
        self._why = remedy.trouble
        if not self._times_opened and self._failures < MAX_FAILURES:
            return
        seconds = OPEN_SECONDS[min(self._times_opened, len(OPEN_SECONDS) - 1)]
        seconds = max(seconds, min(error.retry_after or 0.0, OPEN_SECONDS[-1]))
        self._times_opened += 1
        self._open_until = self._now() + seconds
        log.warning("route.rested", route=self._route, model=self._model, kind=remedy.outcome, seconds=seconds)
