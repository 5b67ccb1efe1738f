"""Handling of updates, which are stored before they are acknowledged to Telegram."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias

import structlog
import telegram
from telegram import CallbackQuery, Update
from telegram.error import NetworkError

from hermes_state.errors import StoreUnavailable
from hermes_state.values import Clock, EditEvent, InboundMessage
from platforms.base import Intake, ReceivedEvent
from platforms.buttons import ButtonCommandStore
from platforms.telegram import inbound
from platforms.telegram.inbound import PASSED_ON, PLATFORM, ReachChange, UpdateReader, read_migration, read_reach
from platforms.text import UNREADABLE, known_parts

log = structlog.get_logger(__name__)

Content: TypeAlias = InboundMessage | EditEvent | CallbackQuery | tuple[str, str] | ReachChange | Exception | None
"""Content of an update: an event, a pressed button, the old and new id of a migrated group, a change in whether the
bot can write to a chat, or the error from parsing the update."""


@dataclass(frozen=True, slots=True)
class UpdateEvent:
    """Update with its `update_id`, which acknowledges it."""

    number: int | None
    content: Content

    @property
    def event(self) -> InboundMessage | EditEvent | None:
        return self.content if isinstance(self.content, InboundMessage | EditEvent) else None


class NotStoredError(NetworkError):
    """The database could not store an update. The message gives the reason."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class UpdateHandler:
    """Handler of one bot's updates. It passes them to the intake one by one, in Telegram's order."""

    intake: Intake
    reader: UpdateReader
    sdk: telegram.Bot
    buttons: ButtonCommandStore
    clock: Clock
    answer_press: Callable[[CallbackQuery, str | None], None]
    """Stops the button's spinner, and can show the person a text. Must not block."""
    _albums: deque[str] = field(default_factory=partial(deque, maxlen=64), init=False)
    """Ids of recent albums that are addressed to the bot. The messages of an album arrive within a second or two."""
    _ignored: set[str] = field(default_factory=set, init=False)
    """Kinds of received updates that we do not handle."""

    def read(self, raw: dict[str, Any]) -> UpdateEvent:  # Any: JSON as the Bot API sent it
        """Read an update. If it is unreadable, its content is the error, so that later updates are still handled."""
        content: Content
        try:
            content = self.reader.plain_text(raw)
            if content is None:
                update = self._parsed(raw)
                content = (
                    update.callback_query or read_migration(update) or read_reach(update) or self.reader.read(update)
                )
                written = raw.get("message") or raw.get("edited_message") or {}
                # Check the raw fields, because the SDK ignores new fields that mark forwarded text.
                if isinstance(content, InboundMessage | EditEvent) and any(map(PASSED_ON.match, written)):
                    content = replace(content, words_by=content.words_by or "")
                if isinstance(content, InboundMessage):
                    content = self._with_its_album(update, content)
        except UNREADABLE as error:
            content = error
        return UpdateEvent(raw.get("update_id"), content)

    async def store(self, updates: Sequence[UpdateEvent]) -> int:
        """Store the first updates, at least one, in one commit. Return their number.

        Raises `NotStoredError` if nothing could be stored; the updates must then be fetched again.
        """
        try:
            count = await self._store(updates)
        except UNREADABLE as error:
            _log_skipped(updates[0], error)
            return 1
        except StoreUnavailable as error:
            raise NotStoredError(f"An update could not be stored and will be requested again: {error}") from error
        for update in updates[:count]:
            if isinstance(update.content, Exception):
                _log_skipped(update, update.content)
        return count

    async def overhear(self, update: UpdateEvent) -> None:
        """Inspect an update that must wait for earlier updates. See `Intake.overhear`."""
        if isinstance(update.content, InboundMessage):
            await self.intake.overhear(update.content)

    def _parsed(self, raw: dict[str, Any]) -> Update:
        """Parse an update without the parts that the SDK cannot read. Raises one of `UNREADABLE` if nothing is left."""
        for kind in raw.keys() - {"update_id", *inbound.ALLOWED_UPDATES, *self._ignored}:
            self._ignored.add(kind)
            log.info("update.ignored", kind=kind)
        kinds, name, fields = raw.keys() & {"message", "edited_message"}, f"@{self.reader.username}", list[str]()
        raw = {**raw, **{kind: inbound.with_words(raw[kind], name) for kind in kinds}}
        try:
            update = Update.de_json(raw, self.sdk)
        except UNREADABLE:
            known = known_parts(raw, partial(Update.de_json, bot=self.sdk), fields)
            if known.keys() != raw.keys():
                raise
            update = Update.de_json(known | {kind: _marked(known[kind], raw[kind], name) for kind in kinds}, self.sdk)
        fields += [name for kind in kinds for name in inbound.unknown_content(raw[kind])]
        if fields:
            log.warning("update.partially_parsed", update_id=update.update_id, fields=fields)
        return update

    def _with_its_album(self, update: Update, received: InboundMessage) -> InboundMessage:
        """Treat all messages of an album as addressed to the bot if the first message, which has the caption, is."""
        message = update.message
        if message is None or message.media_group_id is None:
            return received
        album = f"{message.chat.id}:{message.media_group_id}"
        if received.is_addressed and album not in self._albums:
            self._albums.append(album)
        return replace(received, is_addressed=album in self._albums)

    async def _store(self, updates: Sequence[UpdateEvent]) -> int:
        first = updates[0].content
        if isinstance(first, CallbackQuery):
            await self._store_press(first)
        elif isinstance(first, tuple):
            await self.intake.move_chat(PLATFORM, PLATFORM, *first)
        elif isinstance(first, ReachChange):
            await self.intake.note_reach(PLATFORM, PLATFORM, first.chat_ref, first.is_reachable)
        else:
            together = takewhile(lambda one: not isinstance(one.content, CallbackQuery | tuple | ReachChange), updates)
            return await self.intake.accept_batch([ReceivedEvent(one.event) for one in together])
        return 1

    async def _store_press(self, query: CallbackQuery) -> None:
        command = await self.buttons.command_of(query.data) if query.data else None
        written_by = getattr(query.message, "from_user", None)
        if command is None or query.message is None or (written_by and written_by.id != self.reader.bot_id):
            self.answer_press(query, "This button no longer works.")
            return
        await self.intake.accept(self.reader.press(query, query.message, command, self.clock.now()))
        self.answer_press(query, None)


def _marked(known: dict[str, Any], raw: dict[str, Any], bot: str) -> Any:
    """Turn a message's unreadable parts into text. If one of them marks a forward, mark the message as forwarded."""
    if isinstance(answered := known.get("reply_to_message"), dict):
        known = {**known, "reply_to_message": _marked(answered, raw["reply_to_message"], bot)}
    lost = {f"{name}_": part for name, part in raw.items() if name not in known}
    origin = {"type": "hidden_user", "date": 0, "sender_user_name": "unknown"}
    instead: dict[str, Any] = {"forward_origin": origin} if any(map(PASSED_ON.match, lost)) else {}
    if "from_" in lost:  # the id still identifies the author
        instead["from"] = {"is_bot": False, **raw["from"], "first_name": "unknown"}
    return inbound.with_words({**known, **lost, **instead}, bot)


def _log_skipped(update: UpdateEvent, error: Exception) -> None:
    log.warning("update.skipped", update_id=update.number, error=type(error).__name__)
