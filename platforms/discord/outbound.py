"""Outbound messages: sending, editing, previews, typing, deduplicated by nonces.

Every message carries a nonce made from its key. Discord keeps nonces for a few minutes, so a repeat within
two minutes shows nothing new; later the channel's history is searched for our own message first.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import discord
import msgspec
import structlog
from discord.http import Route

from hermes_state.aio import wait_until
from hermes_state.errors import ChatUnreachable, MessageRejected, PlatformError, PlatformUnavailable, SendAmbiguous
from hermes_state.values import Clock, Millis
from platforms.base import OutboundFile, Preview, SendRequest
from platforms.buttons import ButtonCommandStore
from platforms.discord.errors import MessageNotFound, ReplyRejected, TicketRejected, rest_errors
from platforms.discord.inbound import snowflake_at
from platforms.discord.rendering import LIMIT, render
from platforms.discord.slash import Ticket, TicketRegistry, components
from platforms.text import UNFINISHED, unfinished

NONCE_MS = 120_000
"""Milliseconds after the first attempt in which Discord surely still knows the nonce."""

SKEW_MS = 10_000
"""Largest difference of this machine's clock and Discord's when looking for an earlier attempt, in milliseconds."""

SLOW_UPLOAD = 100_000
"""Bytes a second that an upload may take as its time."""

PAGE = 100
MAX_PAGES = 5
MAX_DELIVERED = 2_000
NO_MENTIONS: Mapping[str, object] = {"parse": [], "replied_user": False}

log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False, slots=True)
class DiscordSender:
    """Sender of one client."""

    client: discord.Client
    tickets: TicketRegistry
    buttons: ButtonCommandStore
    clock: Clock
    salt: str
    """Text that makes nonces of two databases differ."""
    request_seconds: float
    _delivered: OrderedDict[str, str] = field(default_factory=OrderedDict, init=False)
    """Keys by the messages they made, so that a search does not take another answer with the same words."""

    async def send(self, request: SendRequest) -> str:
        """Deliver one part; see `PlatformAdapter.send`."""
        payload: dict[str, object] = {"content": request.part.plain if request.is_plain else request.part.text}
        if request.part.buttons or request.replaces is not None:
            payload["components"] = await components(self.buttons, request.part.buttons)
        ref = await self._deliver(request, payload)
        self._delivered[ref] = request.key
        while len(self._delivered) > MAX_DELIVERED:
            self._delivered.popitem(last=False)
        return ref

    async def announce(self, channel_ref: str, text: str, key: str) -> str:
        """Send a sentence of the adapter's own."""
        return await self._post(channel_ref, {"content": text}, key)

    async def show(self, preview: Preview) -> str | None:
        """Show the growing answer: its end once it is longer than a message."""
        if preview.since is not None:
            return await self._find_earlier(preview.chat.chat_ref, f"preview:{preview.number}:", preview.since)
        parts = await asyncio.to_thread(render, preview.text, LIMIT - len("…\n") - len(UNFINISHED))
        part = unfinished(parts[-1])
        payload: dict[str, object] = {"content": part.text if len(parts) == 1 else f"…\n{part.text}"}
        if preview.ref is not None:
            try:
                return await self._edit(preview.chat.chat_ref, preview.ref, payload)
            except MessageNotFound:
                log.debug("discord.placeholder_gone")
        key = f"preview:{preview.number}:{preview.ref or ''}"
        return await self._reply(preview.chat.chat_ref, payload, key, preview.reply_to)

    async def show_typing(self, channel_ref: str) -> None:
        await self._request(Route("POST", "/channels/{channel_id}/typing", channel_id=channel_ref))

    async def _deliver(self, request: SendRequest, payload: dict[str, object]) -> str:
        channel_ref = request.chat.chat_ref
        ticket = self.tickets.find(request.ticket)
        if ticket is not None and ticket.answered_by in (None, request.key):
            try:
                return await self._fill(ticket, request, payload)
            except TicketRejected:
                ticket.is_valid = False
        if request.replaces is not None:
            try:
                return await self._edit(channel_ref, request.replaces, payload)
            except (MessageNotFound, ChatUnreachable) as error:
                # It was deleted, is another bot's, or stands in a thread that only a new message opens again. Where
                # nothing can be written at all, the new message says so.
                log.info("discord.placeholder_gone", reason=str(error))
        if request.is_repeat and (found := await self._find_repeated(request, str(payload["content"]))):
            return found
        if request.file is not None:
            return await self._post(channel_ref, payload, request.key, request.file)
        try:
            return await self._reply(channel_ref, payload, request.key, request.reply_to)
        except ChatUnreachable:
            # The bot may lack the right to write here and still answer the command that was given here.
            if ticket is None or not ticket.is_valid:
                raise
            return await self._follow_up(ticket, payload)

    async def _reply(self, channel_ref: str, payload: dict[str, object], key: str, reply_to: str | None) -> str:
        """Post a message, as a reply where there is something to reply to and Discord lets us."""
        if reply_to is not None:
            reference = {"message_id": reply_to, "fail_if_not_exists": False}
            with suppress(ReplyRejected):
                return await self._post(channel_ref, {**payload, "message_reference": reference}, key)
        return await self._post(channel_ref, payload, key)

    # An interaction's own place

    async def _fill(self, ticket: Ticket, request: SendRequest, payload: dict[str, object]) -> str:
        """Put the answer where the command shows "thinking"; the preview's placeholder is then one too many."""
        if not await wait_until(ticket.deferred, self.request_seconds):
            raise PlatformUnavailable("the command's acknowledgement is still under way")
        if not ticket.is_valid:
            raise TicketRejected("Discord did not take the acknowledgement")
        ticket.answered_by = request.key
        try:
            ref = _id_of(await self._request(_ticket_route("PATCH", ticket, "/messages/@original"), payload))
        except MessageNotFound as error:
            raise TicketRejected("the command's own message was deleted") from error
        if request.replaces is not None:
            try:
                await self._request(_message_route("DELETE", request.chat.chat_ref, request.replaces))
            except PlatformError as error:
                log.info("discord.placeholder_kept", error=type(error).__name__)
        return ref

    async def _follow_up(self, ticket: Ticket, payload: dict[str, object]) -> str:
        try:
            return _id_of(await self._request(_ticket_route("POST", ticket), payload))
        except TicketRejected as error:
            raise ChatUnreachable("neither the channel nor the command takes the answer") from error

    # Ordinary messages

    async def _post(
        self, channel_ref: str, payload: Mapping[str, object], key: str, file: OutboundFile | None = None
    ) -> str:
        body = {**payload, "nonce": self._nonce(channel_ref, key), "enforce_nonce": True}
        route = Route("POST", "/channels/{channel_id}/messages", channel_id=channel_ref)
        try:
            return _id_of(await self._request(route, body, file))
        except (MessageNotFound, TicketRejected) as error:
            raise MessageRejected(str(error)) from error

    async def _edit(self, channel_ref: str, message_ref: str, payload: Mapping[str, object]) -> str:
        return _id_of(await self._request(_message_route("PATCH", channel_ref, message_ref), payload))

    async def _find_repeated(self, request: SendRequest, text: str) -> str | None:
        """The message of an earlier attempt, where Discord may have forgotten the nonce."""
        first_tried_at = request.first_tried_at
        if first_tried_at is None:
            return None
        if request.ticket is None and 0 <= self.clock.now() - first_tried_at <= NONCE_MS:
            return None  # the nonce answers the question
        return await self._find_earlier(request.chat.chat_ref, request.key, first_tried_at, text)

    async def _find_earlier(self, channel_ref: str, key: str, since: Millis, text: str | None = None) -> str | None:
        """The message that was sent with this key, or this text, since then."""
        if self.client.user is None:
            raise PlatformUnavailable("not connected to Discord")
        after = snowflake_at(Millis(min(since, self.clock.now()) - SKEW_MS))
        nonce = self._nonce(channel_ref, key)
        for _ in range(MAX_PAGES):
            try:
                with rest_errors(is_read=True):
                    async with asyncio.timeout(self.request_seconds):
                        rows = await self.client.http.logs_from(int(channel_ref), PAGE, after=after)
            except ChatUnreachable as error:
                # The right to write is not the right to read the history, and losing an answer is worse than two.
                log.info("discord.history_unreadable", reason=str(error))
                return None
            for row in sorted(rows, key=lambda row: int(row["id"])):
                if self._is_earlier(dict(row), key, text, nonce):
                    return str(row["id"])
            if len(rows) < PAGE:
                break
            after = max(int(row["id"]) for row in rows)
        return None

    def _is_earlier(self, row: Mapping[str, object], key: str, text: str | None, nonce: str) -> bool:
        author = row.get("author")
        user = self.client.user
        ours = (str(user.id if user is not None else None), str(self.client.application_id))
        if not isinstance(author, dict) or str(author.get("id")) not in ours:
            return False
        if self._delivered.get(str(row["id"]), key) != key:
            return False
        is_same = text is not None and str(row.get("content", "")).strip() == text.strip()
        return is_same or row.get("nonce") == nonce

    def _nonce(self, channel_ref: str, key: str) -> str:
        """24 characters that depend on the key, the channel and the database; Discord takes 25."""
        return hashlib.blake2s(f"{self.salt}:{channel_ref}:{key}".encode(), digest_size=12).hexdigest()

    async def _request(
        self, route: Route, payload: Mapping[str, object] | None = None, file: OutboundFile | None = None
    ) -> object:
        if self.client.is_closed():
            raise PlatformUnavailable("not connected to Discord")
        with rest_errors():
            upload_seconds = 0 if file is None else file.size_bytes / SLOW_UPLOAD
            async with asyncio.timeout(self.request_seconds + upload_seconds):
                if payload is None:
                    return await self.client.http.request(route)
                body = {**payload, "allowed_mentions": NO_MENTIONS}
                if file is None:
                    return await self.client.http.request(route, json=body)
                form: list[dict[str, object]] = [
                    {"name": "payload_json", "value": msgspec.json.encode(body).decode()},
                    {
                        "name": "files[0]",
                        "value": await file.read(),
                        "filename": file.name,
                        "content_type": file.mime,
                    },
                ]
                return await self.client.http.request(route, form=form)


def _message_route(method: str, channel_ref: str, message_ref: str) -> Route:
    return Route(method, "/channels/{channel_id}/messages/{message_id}", channel_id=channel_ref, message_id=message_ref)


def _ticket_route(method: str, ticket: Ticket, path: str = "") -> Route:
    address = "/webhooks/{webhook_id}/{webhook_token}" + path
    return Route(method, address, webhook_id=ticket.application_id, webhook_token=ticket.token)


def _id_of(answer: object) -> str:
    if not isinstance(answer, dict) or "id" not in answer:
        raise SendAmbiguous("Discord's answer could not be read")
    return str(answer["id"])
