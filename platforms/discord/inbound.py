"""Inbound events: discord.py's objects converted to values.

A message addresses the bot only if its text mentions the bot or the bot's role. Discord's list of mentions also
contains the author of the replied-to message. If this mention counted, two bots would answer each other forever.
"""

import re

import discord
import msgspec

from hermes_state import values
from hermes_state.errors import MessageRejected
from hermes_state.values import AttachmentKind, ChatKind, InboundMessage, IncomingAttachment, Millis, Sender
from platforms.files import UNREADABLE_QUOTE, kind_of
from platforms.settings import DiscordSettings
from platforms.text import utf16_units

PLATFORM = "discord"
LIMIT = 2000
"""Maximum length of a Discord message, in UTF-16 code units."""
PERSON_MARK = "@"
"""Mark of a chat reference that names a person, because the id of their direct chat is not known yet."""
_SPOKEN = (discord.MessageType.default, discord.MessageType.reply)


def millis_of(snowflake: int) -> Millis:
    """Return the time at which Discord created the object with this id, in UTC milliseconds."""
    return Millis((snowflake >> 22) + discord.utils.DISCORD_EPOCH)


def snowflake_at(moment: Millis) -> int:
    """Return the lowest id that Discord can assign at this time, never below zero."""
    return max(0, moment - discord.utils.DISCORD_EPOCH) << 22


class FileRef(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Reference to a file. Discord's URLs expire after a day, but a new URL can be fetched with the message's id."""

    channel_id: int
    message_id: int
    file_id: int
    url: str

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, ref: str) -> "FileRef":
        """Decode a reference. Raises `MessageRejected` if the text is not a reference."""
        try:
            return msgspec.json.decode(ref, type=cls)
        except msgspec.MsgspecError as error:
            raise MessageRejected("this file cannot be fetched") from error


class EventReader:
    """Converts the events of one client. A live message and its copy from the history become equal values."""

    def __init__(self, client: discord.Client, clock: values.Clock, settings: DiscordSettings) -> None:
        self._client = client
        self._needs_mention = settings.thread_mention
        self._account = settings.account
        self._clock = clock
        self._starters: dict[int, discord.Message] = {}
        """Messages from which new threads were started, each kept until a person mentions the bot in the thread."""

    def message(self, message: discord.Message) -> InboundMessage | None:
        """Read a message from a person or another bot. Return None for our own messages, joins, pins and boosts."""
        started_from = message.reference.resolved if message.reference is not None else None
        if message.type is discord.MessageType.thread_starter_message and isinstance(started_from, discord.Message):
            self._starters[message.channel.id] = started_from
            if len(self._starters) > 256:
                del self._starters[next(iter(self._starters))]
        if message.author.id == self._bot_id or message.type not in _SPOKEN:
            return None
        (text, words_by), files = self._said(message), _files(message)
        sender, (quote, quoted_files) = _author(message), self._quote(message)
        if not (message.content or text or files or quote):
            unread = IncomingAttachment(kind=AttachmentKind.OTHER, file_ref="", name="this kind of message")
            files = [UNREADABLE_QUOTE if message.message_snapshots else unread]
        is_direct = isinstance(message.channel, discord.DMChannel)
        is_named = any(mention in message.content for mention in self._own_mentions(message))
        is_answer = quote is not None and quote.is_from_bot
        return InboundMessage(
            event_ref=self._event_ref(message.id),
            chat=self._chat(message.channel.id),
            chat_kind=_chat_kind(message.channel),
            sender=sender,
            text=text,
            message_ref=str(message.id),
            sent_at=millis_of(message.id),
            is_addressed=is_direct or is_named or (not sender.is_bot and (is_answer or self._is_own(message.channel))),
            # probably the first piece of a text that was too long for one message
            expects_more=utf16_units(message.content) >= LIMIT - 200,
            chat_title=_title(message.channel),
            attachments=(*files, *quoted_files),
            quote=quote,
            words_by=words_by,
            direct_ref=None if sender.is_bot or is_direct else f"{PERSON_MARK}{sender.id}",
            scope=scope_of(message.guild, message.channel, message.author),
        )

    def edit(self, payload: discord.RawMessageUpdateEvent) -> values.EditEvent | None:
        """Read an edit. Return None for changes that no person made: our own, and link previews that Discord adds."""
        message = payload.message
        edited_at = message.edited_at
        if edited_at is None or message.author.id == self._bot_id or message.type not in _SPOKEN:
            return None
        text, words_by = self._said(message)
        return values.EditEvent(
            event_ref=f"{self._event_ref(message.id)}:edit:{edited_at.isoformat()}",  # precise to the microsecond
            chat=self._chat(payload.channel_id),
            sender=_author(message),
            text=text,
            message_ref=str(message.id),
            sent_at=Millis(round(edited_at.timestamp() * 1000)),
            words_by=words_by,
        )

    def deletion(self, channel_id: int, message_id: int) -> values.DeletionEvent:
        """Read a deletion. Discord reports neither its time nor its author."""
        return values.DeletionEvent(
            event_ref=f"{self._event_ref(message_id)}:delete",
            chat=self._chat(channel_id),
            message_ref=str(message_id),
            sent_at=self._clock.now(),
        )

    def reaction(self, payload: discord.RawReactionActionEvent) -> values.ReactionEvent | None:
        """Read a thumb that a person set or removed. Return None for the bot's own reactions and for other emoji."""
        value = values.THUMBS.get((payload.emoji.name or "")[:1])  # a skin tone can follow
        if value is None or payload.user_id == self._bot_id:
            return None
        name, is_bot = ("", False) if payload.member is None else (payload.member.display_name, payload.member.bot)
        return values.ReactionEvent(
            event_ref=f"{self._event_ref(payload.message_id)}:{payload.event_type}:{payload.user_id}:{value}",
            chat=self._chat(payload.channel_id),
            sender=Sender(platform=PLATFORM, id=str(payload.user_id), name=name, is_bot=is_bot),
            message_ref=str(payload.message_id),
            sent_at=self._clock.now(),
            value=value,
            is_removed=payload.event_type == "REACTION_REMOVE",
        )

    def interaction(self, interaction: discord.Interaction, text: str, via: values.InputKind) -> InboundMessage | None:
        """Convert a slash command or a pressed button, whose command line is `text`, to a message."""
        if interaction.channel_id is None:
            return None
        is_direct = interaction.guild_id is None
        return InboundMessage(
            event_ref=f"{self._bot_id}:interaction:{interaction.id}",
            chat=self._chat(interaction.channel_id),
            chat_kind=ChatKind.DIRECT if is_direct else _chat_kind(interaction.channel),
            sender=_sender(interaction.user, is_bot=interaction.user.bot),
            text=text,
            message_ref=str(interaction.message.id if interaction.message else interaction.id),
            sent_at=millis_of(interaction.id),
            is_addressed=True,
            via=via,
            chat_title=_title(interaction.channel),
            ticket=str(interaction.id) if via is values.InputKind.SLASH else None,
            scope=scope_of(interaction.guild, interaction.channel, interaction.user),
        )

    @property
    def _bot_id(self) -> int:
        assert self._client.user is not None, "events arrive after the login"
        return self._client.user.id

    def _event_ref(self, message_id: int) -> str:
        return f"{self._bot_id}:{message_id}"

    def _chat(self, channel_id: int) -> values.ChatKey:
        return values.ChatKey(platform=PLATFORM, account=self._account, chat_ref=str(channel_id))

    def _is_own(self, channel: object) -> bool:
        """Return True for a thread that the bot opened, in which messages address it without a mention."""
        return isinstance(channel, discord.Thread) and channel.owner_id == self._bot_id and not self._needs_mention

    def _own_mentions(self, message: discord.Message) -> list[str]:
        mentions = [f"<@{self._bot_id}>", f"<@!{self._bot_id}>"]
        role = message.guild.self_role if message.guild is not None else None
        return [*mentions, f"<@&{role.id}>"] if role is not None else mentions

    def _said(self, message: discord.Message) -> tuple[str, str | None]:
        """Return a message's text, with names instead of mentions, and the value for `InboundMessage.words_by`."""
        is_passed_on = bool(message.message_snapshots or message.interaction_metadata or message.application_id)
        content = message.content if message.content and not message.message_snapshots else _words(message)
        is_theirs = bool(message.content or message.poll or not content) and not is_passed_on
        text = content.strip()
        if mention := next(filter(text.startswith, self._own_mentions(message)), None):
            text = text.removeprefix(mention).lstrip(" \t\n,:")
        names = {str(user.id): f"@{user.display_name}" for user in message.mentions}
        text = re.sub(r"<@!?(\d+)>", lambda found: names.get(found[1], found[0]), text)
        return text, None if is_theirs else ""

    def _quote(self, message: discord.Message) -> tuple[values.Quote | None, list[IncomingAttachment]]:
        """Return the message that a person replied to or started a thread from, and its files."""
        reference = message.reference if message.type is discord.MessageType.reply else None
        answered = reference.resolved if reference is not None else None
        if reference is None and any(mention in message.content for mention in self._own_mentions(message)):
            answered = self._starters.pop(message.channel.id, None)
        if not isinstance(answered, discord.Message):
            return None, [UNREADABLE_QUOTE] if reference is not None else []
        is_ours = answered.author.id in (self._bot_id, self._client.application_id)
        quote = values.Quote(
            message_ref=str(answered.id),
            author=answered.author.display_name,
            text=_words(answered)[: 500 if is_ours else 8_000],
            is_from_bot=is_ours,
        )
        files = [msgspec.structs.replace(file, is_quoted=True) for file in _files(answered)]
        return quote, files if quote.text or files else [UNREADABLE_QUOTE]


def _words(message: discord.Message | discord.MessageSnapshot) -> str:
    """Return all readable text of a message. The text of link previews is included only if there is no other text."""
    pieces: list[str | None] = [message.content, *map(_component_words, message.components)]
    for embed in message.embeds:
        if embed.type == "rich" or not message.content:
            fields = (f"{field.name}: {field.value}" for field in embed.fields)
            pieces += [embed.author.name, embed.title, embed.description, *fields]
            pieces += [embed.footer.text, embed.url, embed.image.url]
    if isinstance(message, discord.Message):
        pieces += map(_words, message.message_snapshots)
        if message.poll is not None:
            pieces += [f"Poll: {message.poll.question}", *(f"- {answer.text}" for answer in message.poll.answers)]
    return "\n".join(filter(None, pieces)).strip()


def _component_words(one: object) -> str:
    return "\n".join(filter(None, [getattr(one, "content", ""), *map(_component_words, getattr(one, "children", ()))]))


def _files(message: discord.Message) -> list[IncomingAttachment]:
    sources: list[discord.Message | discord.MessageSnapshot] = [message, *message.message_snapshots]
    files: list[IncomingAttachment] = []
    for source in sources:
        for one in source.attachments:
            mime = (one.content_type or "").partition(";")[0].strip() or None
            ref = FileRef(channel_id=message.channel.id, message_id=message.id, file_id=one.id, url=one.url)
            file = IncomingAttachment(
                kind=AttachmentKind.VOICE if source.flags.voice else kind_of(mime, AttachmentKind.DOCUMENT),
                file_ref=ref.encode(),
                name=one.filename,
                mime=mime,
                size_bytes=one.size,
                seconds=one.duration,
            )
            files.append(file)
    stickers = (sticker for source in sources for sticker in source.stickers)
    unread = (f"sticker {sticker.name}" for sticker in stickers)
    return [*files, *(IncomingAttachment(kind=AttachmentKind.OTHER, file_ref="", name=name) for name in unread)]


def _author(message: discord.Message) -> Sender:
    return _sender(message.author, is_bot=message.author.bot or message.webhook_id is not None)


def _sender(author: discord.User | discord.Member, *, is_bot: bool) -> Sender:
    return Sender(platform=PLATFORM, id=str(author.id), name=author.display_name, is_bot=is_bot)


def scope_of(
    guild: discord.Guild | None, channel: object, author: discord.User | discord.Member
) -> values.ChatScope | None:
    """Return where a message is, and its author's roles. Return None in a direct chat, and if the server is unknown."""
    if guild is None or guild.default_role is None or isinstance(channel, discord.PartialMessageable):
        return None
    roles = author.roles if isinstance(author, discord.Member) else []
    return values.ChatScope(
        guild_ref=str(guild.id),
        parent_ref=str(channel.parent_id) if isinstance(channel, discord.Thread) else "",
        role_refs=" ".join(str(role.id) for role in reversed(roles) if not role.is_default()),
    )


def _chat_kind(channel: object) -> ChatKind:
    if isinstance(channel, discord.DMChannel):
        return ChatKind.DIRECT
    return ChatKind.THREAD if isinstance(channel, discord.Thread) else ChatKind.GROUP


def _title(channel: object) -> str | None:
    name = getattr(channel, "name", None)
    return str(name) if name else None
