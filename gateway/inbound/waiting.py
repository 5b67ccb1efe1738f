"""Notices about waiting messages: while the database takes nothing, each chat is told once that nothing is lost.

They come from memory and go straight to the platform, for the outbox is what is stuck. A chat that was told is told
again when its message is stored. docs/decisions/0008-commands-while-nothing-can-be-stored.md
"""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from gateway.commands.runner import CommandRunner
from hermes_state.values import ChatKey, InboundMessage

log = structlog.get_logger()

WAIT_SECONDS = 5.0
"""Seconds that a message waits to be stored until its chat is told: most locks are gone by then.

Together with a pause between two fetches of messages it is less than 10 seconds.
"""
MAX_CHATS = 1_000
"""Chats whose messages are known to wait; with more, the rest is not told."""

WAITS: Final = (
    "My database takes nothing right now: it is locked, or its disk is full. Your message waits and is not lost; I go "
    "on with it as soon as I can."
)
GOES_ON: Final = "My database takes messages again: I go on with yours."


@dataclass(slots=True)
class _WaitingChat:
    timer: asyncio.TimerHandle
    telling: asyncio.Task[bool] | None = None
    """Notice that was begun; its result is True where it was sent."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class WaitNoticeSender:
    """Tells chats that their messages wait, and that they go on."""

    commands: CommandRunner
    seconds: float = WAIT_SECONDS
    _chats: dict[ChatKey, _WaitingChat] = field(default_factory=dict, init=False)

    def note_waiting(self, message: InboundMessage) -> None:
        """A message is not stored yet; its chat is told if that lasts."""
        if message.chat not in self._chats and len(self._chats) < MAX_CHATS:
            timer = asyncio.get_running_loop().call_later(self.seconds, self._tell_waiting, message)
            self._chats[message.chat] = _WaitingChat(timer)

    def note_stored(self, message: InboundMessage) -> None:
        """A message is stored: its chat goes on, and hears so if it was told."""
        chat = self.forget(message.chat)
        if chat is not None and chat.telling is not None:
            chat.telling.add_done_callback(
                lambda told: None if told.cancelled() or not told.result() else self._send(message, GOES_ON)
            )

    def forget(self, key: ChatKey) -> _WaitingChat | None:
        """Nothing waits in the chat any more; returns what was known of it."""
        chat = self._chats.pop(key, None)
        if chat is not None:
            chat.timer.cancel()
        return chat

    def _tell_waiting(self, message: InboundMessage) -> None:
        log.warning("inbox.waits", chat=message.chat.name, seconds=self.seconds)
        self._chats[message.chat].telling = self._send(message, WAITS)

    def _send(self, message: InboundMessage, text: str) -> asyncio.Task[bool]:
        # With a name of its own for each: platforms take what has the same one for the same message.
        named = replace(message, event_ref=f"{message.event_ref}:{text}")
        return self.commands.send_unstored(named, message.chat, lambda _context, _key: text)
