"""Outbound messages: sending, editing, previews and typing indicators.

A message's nonce is derived from its key. Discord recognises a repeated nonce only for a few minutes. A later retry
first searches the channel's history for the message.
"""

import asyncio
import hashlib
import io
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import discord
import structlog
from msgspec.structs import replace

from hermes_state.aio import wait_until
from hermes_state.errors import ChatUnreachable, MessageRejected, PlatformError, PlatformUnavailable
from hermes_state.ratings import Sign, SignedMessage
from hermes_state.values import Clock, Millis
from platforms.base import OutboundFile, Preview, SendRequest
from platforms.buttons import ButtonCommandStore
from platforms.discord.client import GatewayClient
from platforms.discord.errors import MessageNotFound, ReplyRejected, TicketRejected
from platforms.discord.inbound import LIMIT, PERSON_MARK, snowflake_at
from platforms.discord.slash import PRIVATE, Ticket, TicketRegistry, button_view
from platforms.settings import DiscordSettings
from platforms.text import UNFINISHED, unfinished

log = structlog.get_logger(__name__)

_SIGNS = {
    Sign.SEEN: "\N{EYES}",
    Sign.DONE: "\N{WHITE HEAVY CHECK MARK}",
    Sign.FAILED: "\N{CROSS MARK}",
    Sign.EDITED: "\N{PENCIL}\N{VARIATION SELECTOR-16}",
}

NOT_PRIVATE = "I could not show you the answer to your command in private. Please send the command again."


@dataclass(eq=False, repr=False, slots=True)
class DiscordSender:
    client: GatewayClient
    tickets: TicketRegistry
    buttons: ButtonCommandStore
    clock: Clock
    salt: str
    """Random text that makes the nonces of two databases differ."""
    settings: DiscordSettings
    _delivered: OrderedDict[str, str] = field(default_factory=OrderedDict, init=False)
    """Maps each sent message's id to its key, so that a search does not return another answer with the same text."""

    async def send(self, request: SendRequest) -> str:
        text = request.part.plain if request.is_plain else request.part.text
        ref = await self._deliver(request, text, await button_view(self.buttons, request.part.buttons))
        self._delivered[ref] = request.key
        if len(self._delivered) > 2_000:
            self._delivered.popitem(last=False)
        return ref

    async def show(self, preview: Preview) -> str | None:
        """Show the unfinished answer, or only its end if it is too long for one message."""
        if preview.since is not None:
            return await self._find_earlier(preview.chat.chat_ref, f"preview:{preview.number}:", preview.since)
        from platforms.discord.rendering import render

        limit = LIMIT - len("…\n") - len(UNFINISHED)
        parts = await asyncio.to_thread(render, preview.text, limit, self.settings.tables)
        part = unfinished(parts[-1])
        text = part.text if len(parts) == 1 else f"…\n{part.text}"
        view = await button_view(self.buttons, preview.buttons)
        if preview.ref is not None:
            try:
                return await self._edit(preview.chat.chat_ref, preview.ref, text, view)
            except MessageNotFound:
                log.debug("discord.placeholder_gone")
        key = f"preview:{preview.number}:{preview.ref or ''}"
        return await self._reply(preview.chat.chat_ref, text, key, preview.reply_to, view)

    async def show_typing(self, channel_ref: str) -> None:
        async with self.client.calling(self.settings.request_seconds):
            await self._channel(channel_ref).typing()

    async def react(self, channel_ref: str, signed: SignedMessage) -> bool:
        """Set a reaction on a message. Return False if the message was deleted."""
        try:
            async with self.client.calling(self.settings.request_seconds):
                await self._message(channel_ref, signed.ref).add_reaction(_SIGNS[signed.sign])
        except MessageNotFound:
            return False
        return True

    async def _deliver(self, request: SendRequest, text: str, view: discord.ui.View | None) -> str:
        channel_ref = request.chat.chat_ref
        ticket = self.tickets.find(request.ticket)
        if ticket is not None and ticket.answered_by in (None, request.key):
            try:
                return await self._fill(ticket, request, text, view)
            except TicketRejected:
                ticket.is_valid = False
        if ticket is not None and ticket.is_valid and ticket.is_private:
            with suppress(ChatUnreachable):
                return await self._follow_up(ticket, text, view, request.file)
        if request.ticket is not None and request.ticket.endswith(PRIVATE):
            text, view, request = NOT_PRIVATE, None, replace(request, replaces=None, file=None)
        if request.replaces is not None:
            try:
                return await self._edit(channel_ref, request.replaces, text, view)
            except (MessageNotFound, ChatUnreachable) as error:
                # The placeholder was deleted, belongs to another bot, or is in an archived thread, which only a new
                # message reopens. If the bot cannot write at all, sending the new message raises the error.
                log.info("discord.placeholder_gone", reason=str(error))
                if request.only_edits:
                    return request.replaces
        if request.is_repeat and (tried_at := request.first_tried_at) is not None:
            # For two minutes, Discord recognises a repeated nonce. An answer to a command has no nonce.
            has_nonce = request.ticket is None and 0 <= self.clock.now() - tried_at <= 120_000
            found = None if has_nonce else await self._find_earlier(channel_ref, request.key, tried_at, text)
            if found is not None:
                return found
        if request.file is not None:
            return await self.post(channel_ref, text, request.key, view=view, file=request.file)
        try:
            return await self._reply(channel_ref, text, request.key, request.reply_to, view)
        except ChatUnreachable:
            # Even without permission to write in the channel, the bot can answer a command that was used there.
            if ticket is None or not ticket.is_valid:
                raise
            return await self._follow_up(ticket, text, view)

    async def _reply(
        self, channel_ref: str, text: str, key: str, reply_to: str | None, view: discord.ui.View | None = None
    ) -> str:
        """Post a message, as a reply if there is a message to reply to and Discord accepts it."""
        if reply_to is not None:
            with suppress(ReplyRejected):
                return await self.post(channel_ref, text, key, view=view, reply_to=reply_to)
        return await self.post(channel_ref, text, key, view=view)

    # Answers to interactions

    async def _fill(self, ticket: Ticket, request: SendRequest, text: str, view: discord.ui.View | None) -> str:
        """Put the answer into the command's "thinking" message, and remove the preview's placeholder."""
        if not await wait_until(ticket.deferred, self.settings.request_seconds):
            raise PlatformUnavailable("the command's acknowledgement is still pending")
        if not ticket.is_valid:
            raise TicketRejected("Discord did not accept the acknowledgement")
        ticket.answered_by = request.key
        try:
            async with self.client.calling(self.settings.request_seconds):
                filled = await ticket.interaction.edit_original_response(content=text, view=view)
        except MessageNotFound as error:
            raise TicketRejected("the command's own message was deleted") from error
        if request.replaces not in (None, str(filled.id)):
            try:
                async with self.client.calling(self.settings.request_seconds):
                    await self._message(request.chat.chat_ref, request.replaces).delete()
            except PlatformError as error:
                log.info("discord.placeholder_kept", error=type(error).__name__)
        return str(filled.id)

    async def _follow_up(
        self, ticket: Ticket, text: str, view: discord.ui.View | None, file: OutboundFile | None = None
    ) -> str:
        options: dict[str, Any] = {} if view is None else {"view": view}  # Any: the SDK's overloads do not accept None
        if file is not None:
            options["file"] = discord.File(io.BytesIO(await file.read()), file.name)
        try:
            async with self.client.calling(self.settings.request_seconds):
                send = ticket.interaction.followup.send
                message = await send(text, wait=True, ephemeral=ticket.is_private, **options)
        except TicketRejected as error:
            raise ChatUnreachable("neither the channel nor the command accepts the answer") from error
        return str(message.id)

    # Ordinary messages

    async def post(
        self,
        channel_ref: str,
        text: str,
        key: str,
        *,
        view: discord.ui.View | None = None,
        reply_to: str | None = None,
        file: OutboundFile | None = None,
    ) -> str:
        """Send a separate message, and return its id."""
        seconds = self.settings.request_seconds
        options: dict[str, Any] = {} if view is None else {"view": view}  # Any: the SDK's overloads do not accept None
        if reply_to is not None:
            options["reference"] = discord.MessageReference(
                message_id=int(reply_to), channel_id=int(channel_ref), fail_if_not_exists=False
            )
        if file is not None:
            seconds += file.size_bytes / 100_000  # a slow connection needs time to upload the file
            options["file"] = discord.File(io.BytesIO(await file.read()), file.name)
        try:
            async with self.client.calling(seconds):
                channel = await self._opened(channel_ref)
                message = await channel.send(text, nonce=self._nonce(channel_ref, key), mention_author=False, **options)
        except (MessageNotFound, TicketRejected) as error:
            raise MessageRejected(str(error)) from error
        return str(message.id)

    async def _edit(self, channel_ref: str, message_ref: str, text: str, view: discord.ui.View | None = None) -> str:
        async with self.client.calling(self.settings.request_seconds):
            edited = await self._message(channel_ref, message_ref).edit(content=text, view=view)
        return str(edited.id)

    async def _find_earlier(self, channel_ref: str, key: str, since: Millis, text: str | None = None) -> str | None:
        """Return the id of the message that was sent with this key or text since the given time.

        Searches at most 500 messages. The clocks of Discord and this machine may differ by ten seconds.
        """
        after = discord.Object(snowflake_at(Millis(min(since, self.clock.now()) - 10_000)))
        nonce = self._nonce(channel_ref, key)
        try:
            async with self.client.calling(self.settings.request_seconds, is_read=True):
                channel = await self._opened(channel_ref)
                async for message in channel.history(limit=500, after=after):
                    if not isinstance(message, discord.Message) or not self.client.is_own(message.author):
                        continue
                    is_same = message.nonce == nonce or (text and message.content.strip() == text.strip())
                    if is_same and self._delivered.get(str(message.id), key) == key:
                        return str(message.id)
        except ChatUnreachable as error:
            # The bot can write, but cannot read the history. A duplicate answer is better than none.
            log.info("discord.history_unreadable", reason=str(error))
        return None

    def _nonce(self, channel_ref: str, key: str) -> str:
        """Return 24 characters that depend on the key, the channel and the database. Discord accepts up to 25."""
        return hashlib.blake2s(f"{self.salt}:{channel_ref}:{key}".encode(), digest_size=12).hexdigest()

    async def _opened(self, channel_ref: str) -> discord.DMChannel | discord.PartialMessageable:
        """Return a channel. If the reference names a person, open their direct chat."""
        if not channel_ref.startswith(PERSON_MARK):
            return self._channel(channel_ref)
        return await self.client.create_dm(discord.Object(int(channel_ref.removeprefix(PERSON_MARK))))

    def _channel(self, channel_ref: str) -> discord.PartialMessageable:
        return self.client.get_partial_messageable(int(channel_ref))

    def _message(self, channel_ref: str, message_ref: str) -> discord.PartialMessage:
        return self._channel(channel_ref).get_partial_message(int(message_ref))
