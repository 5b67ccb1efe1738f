"""Conversion of Telegram's updates to our own values, without side effects."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final  # Any: JSON as the Bot API sent it

import msgspec
import telegram
from telegram import Chat, ChatMember, ExternalReplyInfo, Message, MessageEntity, Update, User
from telegram.constants import MessageType

from hermes_state import values
from hermes_state.values import AttachmentKind, ChatKey, ChatKind, InboundMessage, IncomingAttachment, Millis, Sender
from platforms.files import UNREADABLE_QUOTE
from platforms.text import text_in, utf16_units

PLATFORM: Final = "telegram"

MESSAGE_UNITS = 4096
"""Maximum length of a message, in UTF-16 code units. Apps split longer pastes at this length."""
PASSED_ON: Final = re.compile("forward_|via_|guest_|is_automatic_forward|sender_business_bot")
"""Prefixes of message fields, in any version of the Bot API, that show that the sender did not write the text."""
ALLOWED_UPDATES: Final = ("message", "edited_message", "callback_query", "my_chat_member", "message_reaction")
"""Kinds of updates to request. Without this list, Telegram sends the kinds that the bot requested earlier."""
_KNOWN: Final = frozenset(inspect.signature(Message).parameters) | {"from"}
_ABOUT: Final = {"effect_id", "sender_boost_count", "sender_business_bot", "reply_to_story", "suggested_post_info"}
_CONTENT: Final = {kind.value for kind in MessageType} - _ABOUT - {"business_connection_id"}
_FILES: Final = (  # an animation also has a document with the same file
    ("animation", AttachmentKind.VIDEO, "animation.mp4"),
    ("document", AttachmentKind.DOCUMENT, "document"),
    ("sticker", AttachmentKind.OTHER, "sticker"),
    ("voice", AttachmentKind.VOICE, "voice.ogg"),
    ("audio", AttachmentKind.AUDIO, "audio"),
    ("video", AttachmentKind.VIDEO, "video.mp4"),
    ("video_note", AttachmentKind.VIDEO, "video-note.mp4"),
)


class UpdateReader(msgspec.Struct, frozen=True, kw_only=True):
    """Converts one bot's updates to inbound events. The `event_ref` of a message is the same in every redelivery.

    It does not contain the update's id, because ids can repeat. After a week without updates, Telegram continues from a
    random id.
    """

    bot_id: int
    username: str
    """Name of the bot without the @."""
    account: str = PLATFORM

    def read(self, update: Update) -> InboundMessage | values.EditEvent | values.ReactionEvent | None:
        """Read a message, an edit or a reaction. Return None if the gateway ignores it. `press` reads buttons."""
        if update.message is not None:
            return self._message(update.message)
        if update.edited_message is not None:
            return self._edit(update, update.edited_message)
        return None if update.message_reaction is None else self._reaction(update.message_reaction)

    def plain_text(self, raw: dict[str, Any]) -> InboundMessage | None:  # Any: JSON as the Bot API sent it
        """Read a plain private text message without the SDK's slow objects. Returns None for other updates."""
        match raw:
            case {
                "message": {
                    "message_id": int(message_id),
                    "from": {"id": int(user_id), "is_bot": bool(is_bot), "first_name": str(name)} as user,
                    "chat": {"id": int(chat_id), "type": Chat.PRIVATE} as chat,
                    "date": int(date),
                    "text": str(text),
                } as message
            } if len(raw) == 2 and len(message) == 5 and name and text and 0 <= date < 1 << 32:
                name = f"{name} {user['last_name']}" if user.get("last_name") else name
                return InboundMessage(
                    event_ref=f"{self.bot_id}:m:{chat_id}:{message_id}",
                    chat=ChatKey(platform=PLATFORM, account=self.account, chat_ref=str(chat_id)),
                    chat_kind=ChatKind.DIRECT,
                    chat_title=chat.get("title"),
                    sender=Sender(platform=PLATFORM, id=str(user_id), name=name, is_bot=is_bot),
                    text=text,
                    message_ref=str(message_id),
                    sent_at=Millis(date * 1000),
                    is_addressed=True,
                    expects_more=_is_near_limit(text),
                )
        return None

    def press(
        self,
        query: telegram.CallbackQuery,
        message: telegram.MaybeInaccessibleMessage,
        command: str,
        kind: values.InputKind,
        now: Millis,
    ) -> InboundMessage:
        """Read a pressed button as its command. Telegram sends no time for it, so the event gets the time `now`."""
        return InboundMessage(
            event_ref=f"{self.bot_id}:p:{query.id}",
            chat=self._chat(message),
            chat_kind=_chat_kind(message),
            chat_title=message.chat.title,
            sender=_person(query.from_user),
            text=command,
            message_ref=str(message.message_id),
            sent_at=now,
            is_addressed=True,
            via=kind,
        )

    def _message(self, message: Message) -> InboundMessage | None:
        """Read a message. Return None for service messages and for commands to other bots."""
        sender = _sender(message)
        attachments = _attachments(message)
        raw = message.text or message.caption or describe(message) or ""
        if sender is None or not (raw or attachments) or (addressed := self._addressed_text(message, raw)) is None:
            return None
        quote, quoted_files = self._quote(message)
        is_answer = quote is not None and quote.is_from_bot
        is_called = message.chat.type == Chat.PRIVATE or addressed.is_named or is_answer
        return InboundMessage(
            event_ref=f"{self.bot_id}:m:{message.chat.id}:{message.message_id}",
            chat=self._chat(message),
            chat_kind=_chat_kind(message),
            chat_title=message.chat.title,
            sender=sender,
            text=addressed.text,
            message_ref=str(message.message_id),
            sent_at=_millis(message),
            is_addressed=is_called or addressed.is_bare_command,
            is_bare_command=addressed.is_bare_command and not is_called,
            expects_more=message.media_group_id is not None or _is_near_limit(raw),
            attachments=(*attachments, *(quoted_files if raw or message.media_group_id is None else ())),
            quote=quote,
            words_by=_words_by(message),
            # works only if the person has started the bot
            direct_ref=None if message.sender_chat is not None or message.chat.type == Chat.PRIVATE else sender.id,
        )

    def _edit(self, update: Update, message: Message) -> values.EditEvent | None:
        """Read an edit. Return None if the message now has no text, or is for another bot."""
        sender = _sender(message)
        raw = message.text or message.caption or ""
        if sender is None or not raw or (addressed := self._addressed_text(message, raw)) is None:
            return None
        sent_at = _millis(message)
        return values.EditEvent(
            # The update's id distinguishes two edits within a second.
            event_ref=f"{self.bot_id}:e:{message.chat.id}:{message.message_id}:{sent_at}:{update.update_id}",
            chat=self._chat(message),
            sender=sender,
            text=addressed.text,
            message_ref=str(message.message_id),
            sent_at=sent_at,
            words_by=_words_by(message),
        )

    def _reaction(self, changed: telegram.MessageReactionUpdated) -> values.ReactionEvent | None:
        """Read the thumb that a person set or removed. Return None for other emoji and for anonymous people."""
        old, new = (
            {values.THUMBS.get(one.emoji, 0) for one in reactions if isinstance(one, telegram.ReactionTypeEmoji)} - {0}
            for reactions in (changed.old_reaction, changed.new_reaction)
        )
        if changed.user is None or not (old or new):
            return None
        sent_at = Millis(int(changed.date.timestamp() * 1000))
        return values.ReactionEvent(
            event_ref=f"{self.bot_id}:r:{changed.chat.id}:{changed.message_id}:{changed.user.id}:{sent_at}",
            chat=ChatKey(platform=PLATFORM, account=self.account, chat_ref=str(changed.chat.id)),
            sender=_person(changed.user),
            message_ref=str(changed.message_id),
            sent_at=sent_at,
            value=max(new - old or new or old),
            is_removed=not new,
        )

    def _chat(self, message: telegram.MaybeInaccessibleMessage) -> ChatKey:
        chat_ref, thread_ref = str(message.chat.id), _thread_ref(message)
        return ChatKey(platform=PLATFORM, account=self.account, chat_ref=chat_ref, thread_ref=thread_ref)

    def _addressed_text(self, message: Message, text: str) -> "_AddressedText | None":
        """Remove the name in a leading `@our_bot` or `/stop@our_bot`. Return None for a command to another bot.

        Quoted lines get the prefix `> `. They never count as commands, mentions or the sender's own words.
        """
        is_named, start, entities = False, 0, message.entities or message.caption_entities
        quotes = [one for one in entities if "quot" in one.type]
        marks = [*quotes, *(one for one in entities if one.url)]
        for entity in entities:
            if any(quote.offset <= entity.offset < quote.offset + quote.length for quote in quotes):
                continue
            if entity.type == MessageEntity.BOT_COMMAND and entity.offset == 0:
                command, _, addressee = text[: entity.length].partition("@")  # ASCII, so units are characters
                if addressee and addressee.lower() != self.username.lower():
                    return None
                rest = _marked(text, entity.length, marks)
                return _AddressedText(command + rest, is_named=bool(addressee), is_bare_command=not addressee)
            if self._is_our_name(entity, text):
                is_named, start = True, start or (entity.length if entity.offset == 0 else 0)
        marked = _marked(text, start, marks) if start or marks else text
        return _AddressedText((marked.lstrip(" \n\t,:") or marked.strip()) if start else marked, is_named=is_named)

    def _is_our_name(self, entity: MessageEntity, text: str) -> bool:
        if entity.type == MessageEntity.TEXT_MENTION:
            return entity.user is not None and entity.user.id == self.bot_id
        if entity.type != MessageEntity.MENTION:
            return False
        units = text.encode("utf-16-le")[entity.offset * 2 : (entity.offset + entity.length) * 2]
        return units.decode("utf-16-le").lower() == f"@{self.username}".lower()

    def _quote(self, message: Message) -> tuple[values.Quote | None, list[IncomingAttachment]]:
        """Return the message that a person replied to, with its files.

        A topic's first service message is ignored, because every message in the topic is formally a reply to it.
        """
        quoted = message.external_reply or message.reply_to_message
        if quoted is None or getattr(quoted, "forum_topic_created", None) is not None:
            return None, [UNREADABLE_QUOTE] if message.reply_to_story is not None else []
        is_here = isinstance(quoted, Message)
        place = quoted.chat.title if quoted.chat and not is_here else ""
        is_ours = getattr(getattr(quoted, "from_user", None), "id", None) == self.bot_id
        # If the person selected a part of the message, only that part is quoted.
        words = getattr(quoted, "text", None) or getattr(quoted, "caption", None) or describe(quoted) or ""
        text = message.quote.text if message.quote is not None else words
        chosen = message.reply_to_checklist_task_id or message.reply_to_poll_option_id
        for one in quoted.checklist.tasks if quoted.checklist else quoted.poll.options if quoted.poll else ():
            is_chosen = chosen and getattr(one, "id", getattr(one, "persistent_id", None)) == chosen
            text += f"\nAnswered: {one.text}" if is_chosen else ""
        quote = values.Quote(
            message_ref=str(quoted.message_id) if is_here else "",
            author=" in ".join(dict.fromkeys(filter(None, (_name_of(quoted), place)))),
            text=text[: 500 if is_ours else 8_000],
            is_from_bot=is_ours,
            is_selection=message.quote is not None,
        )
        files = [msgspec.structs.replace(file, is_quoted=True) for file in _attachments(quoted) if file.file_ref]
        return quote, files if text or files else [UNREADABLE_QUOTE]


def read_migration(update: Update) -> tuple[str, str] | None:
    """Return the old and new id of a group that became a supergroup, or None for other updates."""
    message = update.message
    if message is None:
        return None
    if message.migrate_to_chat_id is not None:
        return str(message.chat.id), str(message.migrate_to_chat_id)
    return None if message.migrate_from_chat_id is None else (str(message.migrate_from_chat_id), str(message.chat.id))


class ReachChange(msgspec.Struct, frozen=True):
    """Change in the bot's ability to write to a chat, for example because a person blocked the bot."""

    chat_ref: str
    is_reachable: bool


def read_reach(update: Update) -> ReachChange | None:
    """Return the change if the bot gained or lost the ability to write to a chat. Return None for other updates."""
    if (changed := update.my_chat_member) is None:
        return None
    member = changed.new_chat_member
    is_reachable = member.status not in (ChatMember.LEFT, ChatMember.BANNED)
    if isinstance(member, telegram.ChatMemberRestricted):
        is_reachable = member.is_member and member.can_send_messages
    return ReachChange(str(changed.chat.id), is_reachable)


class _AddressedText(msgspec.Struct, frozen=True):
    text: str
    is_named: bool = False
    is_bare_command: bool = False
    """True if the text begins with a command that does not name a bot."""


def _thread_ref(message: telegram.MaybeInaccessibleMessage) -> str:
    """Return a message's topic id, or an empty string. Without topics, the thread id of a reply is ignored."""
    thread = message.message_thread_id if isinstance(message, Message) and message.is_topic_message else None
    return "" if thread in (None, 1) else str(thread)  # 1 is the general topic, which needs no thread id


def _chat_kind(message: telegram.MaybeInaccessibleMessage) -> ChatKind:
    if message.chat.type == Chat.PRIVATE:
        return ChatKind.DIRECT
    if message.chat.type == Chat.CHANNEL:
        return ChatKind.CHANNEL
    return ChatKind.THREAD if _thread_ref(message) else ChatKind.GROUP


def _sender(message: Message) -> Sender | None:
    """Return the sender: a person, or the chat of an anonymous admin or a linked channel."""
    if message.sender_chat is not None:
        name = message.sender_chat.effective_name or "anonymous"
        return Sender(platform=PLATFORM, id=str(message.sender_chat.id), name=name)
    return None if message.from_user is None else _person(message.from_user)


def _person(user: User) -> Sender:
    return Sender(platform=PLATFORM, id=str(user.id), name=user.full_name, is_bot=user.is_bot)


def _words_by(message: Message) -> str | None:
    """Return the author of forwarded text, or None if the sender wrote it."""
    source = message.forward_origin or message.via_bot or message.sender_business_bot
    return None if source is None else _name_of(source)


def _name_of(source: telegram.TelegramObject) -> str:
    for field in ("origin", "sender_user", "sender_chat", "from_user", "chat"):
        source = getattr(source, field, None) or source
    return next(filter(None, (getattr(source, name, "") for name in ("full_name", "title", "sender_user_name"))), "")


def _marked(text: str, start: int, marks: list[MessageEntity]) -> str:
    """Return the text after a UTF-16 position, with `> ` before quoted lines and URLs after links."""
    units, added = text.encode("utf-16-le"), list[tuple[int, int, str]]()
    for one in marks:
        end = one.offset + one.length
        ends = [at + 1 for at in range(one.offset, end - 1) if units[2 * at : 2 * at + 2] == b"\n\0"]
        quote = [(one.offset, 1, "\n> "), *((at, 1, "> ") for at in ends), (end, 1, "\n")]
        added += [(end, 0, f" ({one.url})")] if one.url else quote
    for at, _, words in sorted(added, reverse=True):
        units = units[: 2 * at] + words.encode("utf-16-le") + units[2 * at :]
    marked = units[start * 2 :].decode("utf-16-le")
    return marked.strip("\n") if marks else marked


def _millis(message: Message) -> Millis:
    return Millis(int((message.edit_date or message.date).timestamp() * 1000))


def _is_near_limit(text: str) -> bool:
    """Return True if the text is probably the first piece of a paste that the app split."""
    units = MESSAGE_UNITS - 200
    # Fast path: a text with fewer characters than half the limit cannot reach it, even at two units each.
    return len(text) * 2 >= units and utf16_units(text) >= units


def _attachments(message: Message | ExternalReplyInfo) -> tuple[IncomingAttachment, ...]:
    """Return the file of a message. There is at most one, because an album is several messages."""
    live_photo = getattr(message, "live_photo", None)
    if photo := message.photo or (live_photo and live_photo.photo):
        name = f"photo-{message.message_id or ''}.jpg"
        return (_attachment(AttachmentKind.IMAGE, photo[-1], name, mime="image/jpeg"),)  # the largest
    for field, kind, name in _FILES:
        if (file := getattr(message, field)) is None:
            continue
        if field == "sticker":
            name = f"sticker {file.emoji or ''}".strip()
        elif field == "document" and (file.mime_type or "").startswith("image/"):
            kind = AttachmentKind.IMAGE
        return (_attachment(kind, file, name),)
    if not isinstance(message, Message):
        return ()
    # For other content, such as a game, the person gets a notice that the bot cannot read it.
    kinds = ("game", "story", "paid_media", "giveaway", "giveaway_winners", "invoice", "passport_data")
    unread = [name for name in kinds if getattr(message, name)]
    if names := unread or ([] if message.text else unknown_content(message.to_dict())):
        return (IncomingAttachment(kind=AttachmentKind.OTHER, file_ref="", name=names[0].replace("_", " ").strip()),)
    return ()


def _attachment(kind: AttachmentKind, file: object, name: str, mime: str | None = None) -> IncomingAttachment:
    """Return the attachment for one of the SDK's file objects, which share field names but no type."""
    # Read the raw duration in seconds, because the SDK will change the attribute's type.
    seconds = file.to_dict().get("duration") if isinstance(file, telegram.Voice | telegram.Audio) else None
    return IncomingAttachment(
        kind=kind,
        file_ref=str(getattr(file, "file_id", "")),
        name=getattr(file, "file_name", None) or name,
        mime=getattr(file, "mime_type", mime),
        size_bytes=getattr(file, "file_size", None),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
    )


# Text descriptions of messages that contain no text


def describe(message: Message | ExternalReplyInfo) -> str | None:
    """Describe a location, venue, contact, poll, checklist or dice as text. Return None for other messages."""
    if location := message.venue.location if message.venue is not None else message.location:
        venue = f"{message.venue.title}, {message.venue.address}: " if message.venue is not None else ""
        kind = "Venue" if venue else "Live location" if "live_period" in location.to_dict() else "Location"
        return f"{kind}: {venue}latitude {location.latitude}, longitude {location.longitude}"
    if (contact := message.contact) is not None:
        name = " ".join(filter(None, (contact.first_name, contact.last_name)))
        return "\n".join(filter(None, (f"Contact: {name}, phone {contact.phone_number}", contact.vcard)))
    if (poll := message.poll) is not None:
        options = (f"- {option.text} ({option.voter_count} votes)" for option in poll.options)
        return "\n".join((f"{poll.type.capitalize()} poll: {poll.question}", *options))
    if (checklist := message.checklist) is not None:
        tasks = (f"- {one.text}{' (done)' * bool(one.completed_by_user)}" for one in checklist.tasks)
        return "\n".join((f"Checklist: {checklist.title}", *tasks))
    return None if message.dice is None else f"Dice: {message.dice.emoji} shows {message.dice.value}"


def unknown_content(message: Mapping[str, Any]) -> list[str]:
    """Return the names of content fields that the SDK does not know."""
    if any(message.get(kind) for kind in _CONTENT):
        return []
    # suffixes of fields that are not content: service messages, message details, and other messages
    unsaid = r"(ed|left|set|done|paid|gift|members|user|chat|bot|reply|quote|origin|_message_)_?$"
    said = (name for name, part in message.items() if part and isinstance(part, dict | list | str))
    return [name for name in said if name not in _KNOWN and not re.search(unsaid, name)]


def with_words(message: Any, bot: str) -> Any:
    """Return the message with the words of unknown content as its text. The replied-to message is treated the same way.

    The new text begins with the field's name, so it is never a command. A mention of `bot` in it addresses the bot.
    """
    if isinstance(answered := message.get("reply_to_message"), dict):
        message = {**message, "reply_to_message": with_words(answered, bot)}
    said = {name: words for name in unknown_content(message) if (words := text_in(message[name]))}
    if not said or "caption" in message:
        return message
    text = "\n".join(f"{name.replace('_', ' ').strip().capitalize()}:\n{words}" for name, words in said.items())
    mention = {"type": "mention", "offset": utf16_units(text.partition(bot)[0]), "length": len(bot)}
    return {**message, "text": text, "entities": [mention] if bot in text else []}
