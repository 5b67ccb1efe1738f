"""Outbound messages: parts, previews and typing indicators sent through the Bot API, and translation of its errors."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog
import telegram
from msgspec.structs import replace
from telegram import InlineKeyboardMarkup, LinkPreviewOptions, Message, ReplyParameters
from telegram.constants import ChatAction, FileSizeLimit, ReactionEmoji
from telegram.error import BadRequest, ChatMigrated, Conflict, Forbidden, InvalidToken, TelegramError

from hermes_state import errors
from hermes_state.errors import MessageRejected, PlatformError, SendAmbiguous
from hermes_state.ratings import Sign, SignedMessage
from hermes_state.values import Button, ChatKey, OutboundPart
from platforms.base import OutboundFile, Preview, SendRequest
from platforms.buttons import ButtonCommandStore
from platforms.settings import TableStyle
from platforms.telegram.transport import FloodControl, NotSentError
from platforms.text import UNREADABLE, unfinished

log = structlog.get_logger(__name__)

# Only the text of a refusal shows its reason. It is compared in lower case.
_NOBODY_THERE = (
    "chat not found",
    "user not found",
    "peer_id_invalid",
    "not enough rights",
    "need administrator rights",
    "have no rights to send",
    "chat_write_forbidden",
    "chat_restricted",
    "topic_closed",
    "group chat was deactivated",
    "user is deactivated",
)
_TOPIC_GONE = ("message thread not found", "topic_deleted", "topic_id_invalid")
_NOT_EDITABLE = ("message to edit not found", "message can't be edited", "message_id_invalid", "there is no text in")

_NO_MESSAGE = ("message to react not found", "message_id_invalid")
_SIGNS = {
    Sign.SEEN: ReactionEmoji.EYES,
    Sign.DONE: ReactionEmoji.OK_HAND_SIGN,
    Sign.FAILED: ReactionEmoji.BROKEN_HEART,
    Sign.EDITED: ReactionEmoji.WRITING_HAND,
}
"""Emoji of the signs. Bots can use only 73 emoji, which include neither a check mark nor a cross."""

RENDERED_AT_ONCE = 500
"""Maximum length, in characters, of an unfinished answer that is rendered on the event loop."""
_NO_LINK_PREVIEW = LinkPreviewOptions(is_disabled=True)  # Telegram would preview only one of many links


class TelegramSender:
    """Sends the messages of a running bot. Every method can raise the errors of `PlatformAdapter.send`."""

    def __init__(self, bot: telegram.Bot, buttons: ButtonCommandStore, tables: TableStyle) -> None:
        self._bot = bot
        self._buttons = buttons
        self._tables = tables
        self._has_drafts = True
        self._lost_placeholders: set[int] = set()
        """Turns whose placeholder might have been sent, but whose message id is unknown."""

    async def send(self, request: SendRequest) -> str:
        """Deliver one part, which replaces the preview's placeholder or becomes a new message."""
        keyboard = await self._keyboard(request.part.buttons)
        part = request.part
        if request.is_plain:
            part = replace(part, text=part.plain, markup="")
        if request.replaces is not None:
            if await self._edit(request.chat, request.replaces, part, keyboard) or request.only_edits:
                return request.replaces
            log.info("telegram.placeholder_gone")
        if request.is_repeat:  # even with a placeholder, because the first attempt may have sent a new message
            from platforms.telegram.rendering import marked_as_repeat

            part = marked_as_repeat(part)
        return await self._send(request.chat, part, keyboard, request.reply_to, request.file)

    async def show(self, preview: Preview) -> str | None:
        """Show the newest part of an unfinished answer, and return the placeholder's id if it is known."""
        from platforms.telegram.rendering import render

        args = preview.text, self._tables
        is_short = len(preview.text) <= RENDERED_AT_ONCE  # starting a thread takes longer than rendering this
        part = (render(*args) if is_short else await asyncio.to_thread(render, *args))[-1]
        # A draft cannot have buttons.
        if not preview.is_shared and self._has_drafts and preview.ref is None and not preview.buttons:
            if await self._draft(preview, part):
                return None
            log.debug("telegram.draft_refused")  # from now on, this turn uses a placeholder
        part, keyboard = unfinished(part), await self._keyboard(preview.buttons)
        if preview.ref is not None and await self._edit(preview.chat, preview.ref, part, keyboard):
            return preview.ref
        return await self._placeholder(preview, part, keyboard)

    async def show_typing(self, chat: ChatKey, *, is_recording: bool = False) -> None:
        action = ChatAction.RECORD_VOICE if is_recording else ChatAction.TYPING
        await _answered(self._bot.send_chat_action(chat.chat_ref, action, message_thread_id=_thread_id(chat)))

    async def react(self, chat: ChatKey, signed: SignedMessage) -> bool:
        """Set the bot's only reaction on a message. Return False if the message was deleted."""
        emoji = telegram.ReactionTypeEmoji(_SIGNS[signed.sign])
        reacting = self._bot.set_message_reaction(chat.chat_ref, int(signed.ref), emoji)
        return await _answered(reacting, unless=_NO_MESSAGE) is not None

    async def is_admin(self, group: ChatKey) -> bool:
        """Return False if the bot is an ordinary member of a group, to whom Telegram reports no reactions."""
        with suppress(TelegramError, *UNREADABLE):
            return (await self._bot.get_chat_member(group.chat_ref, self._bot.id)).status != telegram.ChatMember.MEMBER
        return True

    async def _placeholder(
        self, preview: Preview, part: OutboundPart, keyboard: InlineKeyboardMarkup | None
    ) -> str | None:
        """Create the turn's placeholder, unless it might already exist. A second copy could never be removed."""
        if preview.number in self._lost_placeholders:
            return None
        self._lost_placeholders.add(preview.number)  # lost until the send succeeds, because it can be cancelled
        try:
            ref = await self._send(preview.chat, part, keyboard, preview.reply_to)
        except PlatformError as error:
            if not isinstance(error, SendAmbiguous):
                self._lost_placeholders.discard(preview.number)
            raise
        self._lost_placeholders.discard(preview.number)
        return ref

    async def _draft(self, preview: Preview, part: OutboundPart) -> bool:
        """Show a draft. Return False if the Bot API server does not support drafts at all or in this chat."""
        drafting = self._bot.send_message_draft(
            int(preview.chat.chat_ref),
            preview.number,
            part.text,
            message_thread_id=_thread_id(preview.chat),
            api_kwargs=_stored_entities(part),
        )
        try:
            await _answered(drafting)
        except PlatformError as error:
            if isinstance(error.__cause__, InvalidToken):  # also raised by the SDK if an older server lacks the method
                self._has_drafts = False
            elif not isinstance(error.__cause__, BadRequest):
                raise
            return False
        return True

    async def _send(
        self,
        chat: ChatKey,
        part: OutboundPart,
        keyboard: InlineKeyboardMarkup | None,
        reply_to: str | None,
        file: OutboundFile | None = None,
    ) -> str:
        reply = ReplyParameters(int(reply_to), allow_sending_without_reply=True) if reply_to is not None else None
        about = {"reply_parameters": reply, "reply_markup": keyboard}
        made = await self._post(chat, part, file, {**about, "message_thread_id": _thread_id(chat)})
        if made is None:
            # Send to the general topic, which the same people read.
            log.info("telegram.topic_missing")
            made = await self._post(chat, part, file, about)
        if not made:
            raise SendAmbiguous("Telegram's answer has no message id")
        return made

    async def _post(
        self,
        chat: ChatKey,
        part: OutboundPart,
        file: OutboundFile | None,
        about: dict[str, Any],  # Any: arguments shared by all methods that send
    ) -> str | None:
        """Send a text, a photo (for an image), a voice message or a document. Return None if the topic was deleted."""
        bot, chat_id = self._bot, chat.chat_ref
        if file is None:
            entities = _stored_entities(part)
            sending = bot.send_message(
                chat_id, part.text, link_preview_options=_NO_LINK_PREVIEW, api_kwargs=entities, **about
            )
            return await _answered(sending, unless=_TOPIC_GONE)
        upload = telegram.InputFile(await file.read(), file.name)
        upload.mimetype = file.mime
        about = {**about, "caption": part.text or None}
        is_photo = file.mime in ("image/jpeg", "image/png", "image/webp")
        send: Callable[..., Awaitable[Message]] | None = None
        if is_photo and file.size_bytes <= FileSizeLimit.PHOTOSIZE_UPLOAD:
            send = bot.send_photo
        elif file.is_voice and file.mime in ("audio/ogg", "audio/mpeg"):
            send = bot.send_voice
        if send is not None:
            try:
                return await _answered(send(chat_id, upload, **about), unless=_TOPIC_GONE)
            except MessageRejected as error:  # unsupported proportions, or the person accepts no voice messages
                log.info("telegram.sent_as_document", reason=str(error))
        return await _answered(bot.send_document(chat_id, upload, **about), unless=_TOPIC_GONE)

    async def _edit(
        self, chat: ChatKey, message_ref: str, part: OutboundPart, keyboard: InlineKeyboardMarkup | None = None
    ) -> bool:
        """Edit one of the bot's messages. Return False if the message no longer exists."""
        editing = self._bot.edit_message_text(
            part.text,
            chat.chat_ref,
            int(message_ref),
            link_preview_options=_NO_LINK_PREVIEW,
            reply_markup=keyboard,
            api_kwargs=_stored_entities(part),
        )
        return await _answered(editing, unless=_NOT_EDITABLE) is not None

    async def _keyboard(self, buttons: tuple[Button, ...]) -> InlineKeyboardMarkup | None:
        row = [
            telegram.InlineKeyboardButton(button.label[:64], callback_data=await self._buttons.data_for(button))
            for button in buttons
        ]
        # Two buttons per row, because phones would cut the labels of three.
        return InlineKeyboardMarkup([row[first : first + 2] for first in range(0, len(row), 2)]) if row else None


async def _answered(call: Awaitable[Message | bool], *, unless: tuple[str, ...] = ()) -> str | None:
    """Return the message id in a Bot API response, or an empty string if it has none.

    Returns None if the API refuses with an error text in `unless`. An edit that changes nothing is not an error.
    """
    try:
        made = await call
    except TelegramError as error:
        if is_refused(error, ("message is not modified",)):
            return ""
        if is_refused(error, unless):
            return None
        raise translated(error) from error
    except UNREADABLE:  # Telegram accepted the call, but the SDK cannot parse the response
        return ""
    return str(made.message_id) if isinstance(made, Message) else ""


def _thread_id(chat: ChatKey) -> int | None:
    return int(chat.thread_ref) if chat.thread_ref else None


def _stored_entities(part: OutboundPart) -> dict[str, str] | None:
    """Return `api_kwargs` with the part's entities. They are JSON text, which the SDK sends unchanged."""
    return {"entities": part.markup} if part.markup else None


def translated(error: TelegramError) -> errors.PlatformError:
    """Translate the SDK's exception into one of our errors. After a 4xx status, the request had no effect.

    After a lost connection, a 5xx status or an unreadable response, the outcome is unknown.
    """
    match error:
        case NotSentError() | Conflict():
            return errors.PlatformUnavailable(error.message)
        case FloodControl(retry_after=retry_after):
            return errors.RateLimited(retry_after)
        case ChatMigrated(new_chat_id=new_chat_id):
            return errors.ChatMoved(str(new_chat_id))
        case InvalidToken():
            # The poller gets the same error and ends the adapter.
            return errors.PlatformUnavailable("Telegram rejected the bot token")
        case BadRequest() if not is_refused(error, _NOBODY_THERE):
            return errors.MessageRejected(error.message)
        case BadRequest() | Forbidden():
            return errors.ChatUnreachable(error.message)
        case _:
            return errors.SendAmbiguous(error.message)


def is_refused(error: TelegramError, texts: tuple[str, ...]) -> bool:
    """Return True if the Bot API refused a request with an error message that contains one of `texts`."""
    message = error.message.lower()
    return isinstance(error, BadRequest) and any(text in message for text in texts)
