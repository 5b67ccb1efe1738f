"""Offline commands: run from memory while the database is locked by somebody, or its disk is full.

`/stop` acts, `/status` answers, every other command is told that it was not taken yet: all from memory, within a
second. What was heard is remembered by its event, so that it is not heard twice when the event comes to be stored. A
process that dies in between forgets it: the platform brings the event again, and it is answered as if it were new.
docs/decisions/0008-commands-while-nothing-can-be-stored.md
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from gateway.access.permissions import AccessControl
from gateway.commands.registry import Command
from gateway.commands.runner import CommandRunner
from gateway.turns.lanes import LaneRegistry
from gateway.turns.runner import ActiveTurn
from hermes_state.admin.pairings import UserRole
from hermes_state.values import ChatKey, InboundMessage

log = structlog.get_logger()

NOT_TAKEN = (
    "My database takes nothing right now, so I have not taken this yet. /stop ends a running answer meanwhile, and "
    "/status says more."
)
STOPPED = "I have stopped working on this. My database takes nothing right now; I confirm it as soon as it does."

MAX_EVENTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineResult:
    """Result of a command that could not be stored."""

    stopping: ActiveTurn | None = None
    answering: asyncio.Task[bool] | None = None
    """Task that tells whether the whole answer was sent."""

    def settle_stop(self) -> None:
        """Let a lane that was stopped go on."""
        if self.stopping is not None:
            self.stopping.settle_stop()

    async def is_answered(self) -> bool:
        """Tell whether nothing is left to do but to store it."""
        if self.answering is None:
            return False
        await asyncio.wait({self.answering})
        return not self.answering.cancelled() and self.answering.result()


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class OfflineCommandRunner:
    """Runs commands without the database."""

    access: AccessControl
    lanes: LaneRegistry
    commands: CommandRunner
    _results: dict[str, OfflineResult] = field(default_factory=dict, init=False)
    """Newest results by the commands' events."""

    def find(self, event_ref: str) -> OfflineResult | None:
        return self._results.get(event_ref)

    def run(self, message: InboundMessage, key: ChatKey, command: Command) -> OfflineResult:
        """Do at once what can be done for a command, once for each event."""
        known = self._results.get(message.event_ref)
        if known is not None:
            return known
        log.warning("command.from_memory", command=command.name, chat=key.name)
        if len(self._results) >= MAX_EVENTS:
            del self._results[next(iter(self._results))]
        stopping = answering = None
        if command.unstored is not None:
            answering = self.commands.send_unstored(message, key, command.unstored)
        else:
            if command.name == "stop":
                is_admin = self.access.role_of(message.sender.ref) is UserRole.ADMIN
                stopping = self.lanes.stop_from_memory(key, message.sender.ref, is_admin)
            text = NOT_TAKEN if stopping is None else STOPPED
            self.commands.send_unstored(message, key, lambda _context, _key: text)
        result = self._results[message.event_ref] = OfflineResult(stopping=stopping, answering=answering)
        return result
