"""Replies while the database is locked or its disk is full.

`/stop` and `/status` run without the database, and chats get a notice that their messages wait. A command does not run
again when its event is stored later. See docs/decisions/0008-commands-while-nothing-can-be-stored.md.
"""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

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
    "I cannot save anything right now, so I have not run this command yet. /stop still cancels a running answer, and "
    "/status shows details."
)
STOPPED = "I have stopped this answer. I cannot save anything right now, so I will confirm the stop as soon as I can."
WAITS: Final = (
    "I cannot save anything right now, because my database is locked or its disk is full. Your message is not lost: "
    "I will answer it as soon as I can."
)
GOES_ON: Final = "I can save messages again and continue with yours."


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineResult:
    stopping: ActiveTurn | None = None
    answering: asyncio.Task[bool] | None = None
    """Task that sends the reply and returns True if the whole reply was sent."""

    def settle_stop(self) -> None:
        """If this command stopped a turn, let the turn's lane continue."""
        if self.stopping is not None:
            self.stopping.settle_stop()

    async def is_answered(self) -> bool:
        """Return True if the whole reply was sent, so that the stored command does not need to run."""
        if self.answering is None:
            return False
        await asyncio.wait({self.answering})
        return not self.answering.cancelled() and self.answering.result()


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class OfflineCommandRunner:
    """Runs `/stop` and `/status` without the database. Replies to other commands that they must wait."""

    access: AccessControl
    lanes: LaneRegistry
    commands: CommandRunner
    _results: dict[str, OfflineResult] = field(default_factory=dict, init=False)
    """Results of the newest 256 commands, by the reference of the event."""

    def find(self, event_ref: str) -> OfflineResult | None:
        return self._results.get(event_ref)

    def run(self, message: InboundMessage, key: ChatKey, command: Command) -> OfflineResult:
        """Run a command once per event, as far as possible without the database."""
        if (known := self._results.get(message.event_ref)) is not None:
            return known
        log.warning("command.answered_offline", command=command.name, chat=key.name)
        if len(self._results) >= 256:
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


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class WaitNoticeSender:
    """Tells each chat once that its messages wait, and later that they are stored. Does not use the outbox."""

    commands: CommandRunner
    seconds: float = 5.0
    """Seconds to wait before a chat gets the notice. Most database locks end earlier."""
    _chats: dict[ChatKey, asyncio.TimerHandle | asyncio.Task[bool]] = field(default_factory=dict, init=False)
    """Timer that starts the notice, or the task that sends it and returns True on success."""

    def note_waiting(self, message: InboundMessage) -> None:
        """Start the timer for the notice that this message waits."""
        if message.chat not in self._chats and len(self._chats) < 1_000:
            timer = asyncio.get_running_loop().call_later(self.seconds, self._tell_waiting, message)
            self._chats[message.chat] = timer

    def note_stored(self, message: InboundMessage) -> None:
        """If the chat got a notice that its message waits, tell it that the message is now stored."""
        if (telling := self.forget(message.chat)) is not None:
            telling.add_done_callback(
                lambda told: None if told.cancelled() or not told.result() else self._send(message, GOES_ON)
            )

    def forget(self, key: ChatKey) -> asyncio.Task[bool] | None:
        """Cancel the timer of a chat. Return the task that sends or has sent the notice, or None."""
        waiting = self._chats.pop(key, None)
        if waiting is None or isinstance(waiting, asyncio.Task):
            return waiting
        waiting.cancel()
        return None

    def _tell_waiting(self, message: InboundMessage) -> None:
        log.warning("inbox.delayed", chat=message.chat.name, seconds=self.seconds)
        self._chats[message.chat] = self._send(message, WAITS)

    def _send(self, message: InboundMessage, text: str) -> asyncio.Task[bool]:
        # Each notice needs its own reference, because a second message with the same reference is dropped.
        named = replace(message, event_ref=f"{message.event_ref}:{text}")
        return self.commands.send_unstored(named, message.chat, lambda _context, _key: text)
