"""Rest for routes that fail: who asks a provider that is down once more gets nothing but later to where an answer is.

In memory only: a restart, and a change of the configuration, begin anew.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from agent.model.failures import remedy_for, wanted_pause
from hermes_state.errors import ModelError

log = structlog.get_logger()

MOST_FAILURES = 3
"""Calls in a row, each with all its repeats: after so many it is no accident."""
REST_SECONDS = (30.0, 60.0, 300.0)
"""The first rest, the one after a failure behind it, and every further one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """A route is left alone."""

    seconds: float
    """How much longer."""
    why: str
    """What was wrong with it last: completes a sentence that begins with its name."""


class Circuit:
    """How one route has fared lately."""

    def __init__(self, route: str, model: str, *, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: seconds on a clock that never goes back."""
        self._route = route
        self._model = model
        self._now = now
        self._failures = 0
        self._rests = 0
        self._until = 0.0
        self._why = ""

    @property
    def rest(self) -> Rest | None:
        """Whether the route should be left alone; None: it may be asked."""
        left = self._until - self._now()
        return Rest(seconds=left, why=self._why) if left > 0 else None

    @property
    def is_on_trial(self) -> bool:
        """It rests, or has rested and not answered since: one attempt shows whether it is well again."""
        return self._rests > 0

    def succeeded(self) -> None:
        """A call was answered: whatever was before is over."""
        if self._rests:
            log.info("route.recovered", route=self._route, model=self._model)
        self._failures = self._rests = 0
        self._until = 0.0

    def failed(self, error: ModelError) -> None:
        """A call was given up. What is not the route's fault shows that it works, unless nothing was asked of it."""
        remedy = remedy_for(error)
        if remedy.trouble is None:
            self._failures = 0
            return
        if self.rest is not None:
            return  # several calls may find out together, and one may be made all the same
        self._failures += 1
        self._why = remedy.trouble
        if self._rests or self._failures >= MOST_FAILURES:
            self._begin_rest(error)

    def _begin_rest(self, error: ModelError) -> None:
        seconds = REST_SECONDS[min(self._rests, len(REST_SECONDS) - 1)]
        seconds = max(seconds, min(wanted_pause(error) or 0.0, REST_SECONDS[-1]))
        self._rests += 1
        self._until = self._now() + seconds
        log.warning(
            "route.rested", route=self._route, model=self._model, kind=remedy_for(error).outcome, seconds=seconds
        )
