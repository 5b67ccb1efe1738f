"""A turn at work: its task, its preview, and a stop that is asked for and not stored yet."""

import asyncio
from dataclasses import dataclass, field
from typing import Self

from gateway.turns.previews import TurnPreview
from hermes_state.aio import wait_until
from hermes_state.turns import RunningTurn

DECISION_SECONDS = 60.0
"""Seconds in which whoever asked for a stop has to store it; after that the lane does."""


@dataclass(slots=True, kw_only=True)
class ActiveTurn:
    """A turn that a lane is in the middle of."""

    turn: RunningTurn
    preview: TurnPreview
    task: asyncio.Task[bool]
    stop_reason: str | None = None
    """Reason of a stop, as soon as people asked for one: the work is cancelled, its end is not stored yet."""
    partial_text: str = ""
    """Answer so far, as it was when the stop was asked for."""
    _stop_is_settled: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_stop(self, reason: str) -> Self:
        """Cancel the work now. A stop that is not stored yet is shared by all who ask for it."""
        if self.stop_reason is None:
            self.stop_reason, self.partial_text = reason, self.preview.text
            self.task.cancel()
        return self

    def settle_stop(self) -> None:
        """Let the lane go on: whoever asked has stored the stop, or failed to."""
        self._stop_is_settled.set()

    async def wait_for_end(self) -> None:
        """Wait for the end of the work, and then for whoever stopped it to store that."""
        await asyncio.wait({self.task})
        if self.stop_reason is not None:
            await wait_until(self._stop_is_settled, DECISION_SECONDS)
