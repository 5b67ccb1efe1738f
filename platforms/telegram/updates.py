"""Updates: each is stored, and only then may Telegram forget it."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import structlog
import telegram
from telegram import CallbackQuery, Update
from telegram.error import NetworkError

from hermes_state.errors import StoreUnavailable
from hermes_state.values import Clock, EditEvent, InboundMessage
from platforms.base import Intake
from platforms.buttons import ButtonCommands
from platforms.telegram.inbound import PLATFORM, UpdateReader, read_migration
from platforms.text import UNREADABLE

log = structlog.get_logger(__name__)

AnswerPress = Callable[[CallbackQuery, str | None], None]
"""Stops the button's spinner, with a text for the person or without; must not block."""

Received: TypeAlias = InboundMessage | EditEvent | None

MAX_ALBUMS = 64
"""Albums remembered; the pieces of one arrive within a second or two."""


class NotStoredError(NetworkError):
    """Our database could not store an update; the text says why."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class UpdateHandler:
    """Handler of one bot's updates: hands them to the intake, one after the other in Telegram's order."""

    intake: Intake
    reader: UpdateReader
    sdk: telegram.Bot
    buttons: ButtonCommands
    clock: Clock
    answer_press: AnswerPress
    _albums: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_ALBUMS), init=False)
    """Albums that are meant for us."""

    async def handle(self, raw: dict[str, Any]) -> None:  # Any: JSON as the Bot API sent it
        """Store an update; returns after the commit, and then the update may be acknowledged.

        An update that cannot be read is logged and counts as dealt with: fetched again, it would block all after it.

        Raises the SDK's `NetworkError` when nothing could be stored: to whoever fetches updates that means "not
        acknowledged, ask again", which is what must happen.
        """
        try:
            update = Update.de_json(raw, self.sdk)
            await self._store(update, self._with_its_album(update, self.reader.read(update)))
        except UNREADABLE as error:
            log.warning("update.skipped", update_id=raw.get("update_id"), error=type(error).__name__)
        except StoreUnavailable as error:
            raise NotStoredError(f"an update could not be stored and will be asked for again: {error}") from error

    async def overhear(self, raw: dict[str, Any]) -> None:  # Any: JSON as the Bot API sent it
        """Look at an update that has to wait for its turn: see `Intake.overhear`. What cannot be read is left alone."""
        with suppress(*UNREADABLE):
            received = self.reader.read(Update.de_json(raw, self.sdk))
            if isinstance(received, InboundMessage):
                await self.intake.overhear(received)

    def _with_its_album(self, update: Update, received: Received) -> Received:
        """Address the pieces of an album to whom its caption is meant for, which stands on the first of them."""
        message = update.message
        if message is None or message.media_group_id is None or not isinstance(received, InboundMessage):
            return received
        album = f"{message.chat.id}:{message.media_group_id}"
        if not received.is_addressed:
            return replace(received, is_addressed=album in self._albums)
        if album not in self._albums:
            self._albums.append(album)
        return received

    async def _store(self, update: Update, received: Received) -> None:
        if update.callback_query is not None:
            await self._store_press(update.callback_query)
        elif (refs := read_migration(update)) is not None:
            await self.intake.move_chat(PLATFORM, PLATFORM, *refs)
        elif received is not None:
            await self.intake.accept(received)

    async def _store_press(self, query: CallbackQuery) -> None:
        command = await self.buttons.command_of(query.data) if query.data else None
        if command is None or query.message is None:
            self.answer_press(query, "This button no longer works.")
            return
        await self.intake.accept(self.reader.press(query, query.message, command, self.clock.now()))
        self.answer_press(query, None)
