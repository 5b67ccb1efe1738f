"""Outbound messages: parts, previews and typing signals as calls of the Bot API."""

import asyncio
import base64
import hashlib
from collections.abc import Awaitable
from typing import TypeVar

import structlog
import telegram
from msgspec.structs import replace
from telegram import InlineKeyboardButton, InlineKeyboardMarkup, LinkPreviewOptions, Message, ReplyParameters
from telegram.constants import ChatAction
from telegram.error import BadRequest, InvalidToken, TelegramError

from hermes_state.errors import PlatformError, SendAmbiguous
from hermes_state.store.writer import Store
from hermes_state.values import Button, ChatKey, OutboundPart
from platforms.base import FILE_NAME, Preview, SendRequest
from platforms.buttons import ButtonCommands
from platforms.telegram.errors import NOT_EDITABLE, NOT_MODIFIED, TOPIC_GONE, is_refused, translated
from platforms.telegram.rendering import marked_as_repeat, render

log = structlog.get_logger(__name__)

LABEL_CHARACTERS = 64
"""Longest label of a button, in characters: the apps cut longer ones anyway."""

MAX_BUTTON_BYTES = 64
"""Most that Telegram takes as a button's `callback_data`."""

_NO_LINK_PREVIEW = LinkPreviewOptions(is_disabled=True)  # an answer with ten sources is not about the first of them

T = TypeVar("T")


def button_commands(store: Store) -> ButtonCommands:
    """The commands behind the buttons of one bot."""
    return ButtonCommands(
        store=store,
        note_prefix="telegram.button.",
        hash_mark="h:",
        fits=lambda data: len(data.encode()) <= MAX_BUTTON_BYTES,
        digest=lambda command: base64.urlsafe_b64encode(hashlib.sha256(command).digest()[:24]).decode(),
    )


class TelegramSender:
    """Sender of one running bot. Every method raises what `PlatformAdapter.send` lists."""

    def __init__(self, sdk: telegram.Bot, buttons: ButtonCommands) -> None:
        self._sdk = sdk
        self._buttons = buttons
        self._has_drafts = True
        self._lost_placeholders: set[int] = set()
        """Turns whose placeholder was sent without our learning its id: a few, until the connection ends."""

    async def send(self, request: SendRequest) -> str:
        """Deliver one part: into the placeholder where there is one, else as a message of its own."""
        keyboard = await self._keyboard(request.part.buttons)
        part = request.part
        if request.is_plain:
            part = replace(part, text=part.plain, markup="", file="")
        if request.replaces is not None:
            if await self._edit(request.chat, request.replaces, part, keyboard):
                return request.replaces
            log.info("telegram.placeholder_gone")
        if request.is_repeat:  # also where there was a placeholder: the first attempt may have found it gone, too
            part = marked_as_repeat(part)
        return await self._send(request.chat, part, keyboard, request.reply_to)

    async def show(self, preview: Preview) -> str | None:
        """Show the newest message's worth of an unfinished answer; returns the placeholder's id, if one is known."""
        part = (await asyncio.to_thread(render, preview.text))[-1]
        if not preview.is_shared and self._has_drafts and preview.ref is None:
            if await _call(self._draft(preview, part)):
                return None
            log.debug("telegram.draft_refused")  # a placeholder does; it serves the rest of this turn
        if preview.ref is not None and await self._edit(preview.chat, preview.ref, part, None):
            return preview.ref
        return await self._placeholder(preview, part)

    async def show_typing(self, chat: ChatKey) -> None:
        """Show for five seconds that something is being written."""
        await _call(
            self._sdk.send_chat_action(
                chat_id=int(chat.chat_ref), action=ChatAction.TYPING, message_thread_id=_thread(chat)
            )
        )

    async def _placeholder(self, preview: Preview, part: OutboundPart) -> str | None:
        """Make the turn's placeholder, unless one may stand there already: nobody could take a second copy away."""
        if preview.number in self._lost_placeholders:
            return None
        self._lost_placeholders.add(preview.number)  # until the opposite is known: this can be cancelled, too
        try:
            ref = await self._send(preview.chat, part, None, preview.reply_to)
        except SendAmbiguous:
            raise
        except PlatformError:
            self._lost_placeholders.discard(preview.number)
            raise
        self._lost_placeholders.discard(preview.number)
        return ref

    async def _draft(self, preview: Preview, part: OutboundPart) -> bool:
        """Show a draft; False where the Bot API server has none, or none for this chat."""
        try:
            await self._sdk.send_message_draft(
                chat_id=int(preview.chat.chat_ref),
                draft_id=preview.number,
                text=part.text,
                message_thread_id=_thread(preview.chat),
                api_kwargs=_entities(part),
            )
        except InvalidToken:  # also what the SDK makes of "no such method": an older Bot API server
            self._has_drafts = False
            return False
        except BadRequest as error:
            return is_refused(error, NOT_MODIFIED)
        return True

    async def _send(
        self, chat: ChatKey, part: OutboundPart, keyboard: InlineKeyboardMarkup | None, reply_to: str | None
    ) -> str:
        reply = None
        if reply_to is not None:
            reply = ReplyParameters(message_id=int(reply_to), allow_sending_without_reply=True)

        def attempt(thread: int | None) -> Awaitable[Message]:
            if part.file:
                return self._sdk.send_document(
                    chat_id=int(chat.chat_ref),
                    document=part.file.encode(),
                    filename=FILE_NAME,
                    caption=part.text,
                    message_thread_id=thread,
                    reply_parameters=reply,
                    reply_markup=keyboard,
                )
            return self._sdk.send_message(
                chat_id=int(chat.chat_ref),
                text=part.text,
                message_thread_id=thread,
                reply_parameters=reply,
                reply_markup=keyboard,
                link_preview_options=_NO_LINK_PREVIEW,
                api_kwargs=_entities(part),
            )

        try:
            return str((await attempt(_thread(chat))).message_id)
        except TelegramError as error:
            if not is_refused(error, TOPIC_GONE):
                raise translated(error) from error
        # The same people read the group's general topic; an answer that nobody gets helps nobody.
        log.info("telegram.topic_gone")
        return str((await _call(attempt(None))).message_id)

    async def _edit(
        self, chat: ChatKey, message_ref: str, part: OutboundPart, keyboard: InlineKeyboardMarkup | None
    ) -> bool:
        """Edit a message of ours; False when it is not there any more."""
        try:
            await self._sdk.edit_message_text(
                chat_id=int(chat.chat_ref),
                message_id=int(message_ref),
                text=part.text,
                reply_markup=keyboard,
                link_preview_options=_NO_LINK_PREVIEW,
                api_kwargs=_entities(part),
            )
        except TelegramError as error:
            if is_refused(error, NOT_EDITABLE):
                return False
            if not is_refused(error, NOT_MODIFIED):
                raise translated(error) from error
        return True

    async def _keyboard(self, buttons: tuple[Button, ...]) -> InlineKeyboardMarkup | None:
        if not buttons:
            return None
        row = []
        for button in buttons:
            data = await self._buttons.data_for(button.command)
            row.append(InlineKeyboardButton(button.label[:LABEL_CHARACTERS], callback_data=data))
        # Two to a row: on a phone a third would cut the labels.
        return InlineKeyboardMarkup([row[first : first + 2] for first in range(0, len(row), 2)])


async def _call(call: Awaitable[T]) -> T:
    try:
        return await call
    except TelegramError as error:
        raise translated(error) from error


def _thread(chat: ChatKey) -> int | None:
    return int(chat.thread_ref) if chat.thread_ref else None


def _entities(part: OutboundPart) -> dict[str, str] | None:
    """Stored entities as they are: JSON already, so nothing is parsed to be written again."""
    return {"entities": part.markup} if part.markup else None
