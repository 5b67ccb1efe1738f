"""Signed webhooks: requests of other services become messages, and events are sent to other services.

Signatures follow Standard Webhooks (https://www.standardwebhooks.com). Signatures of GitHub are also accepted.
"""

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import aiohttp
import structlog
from aiohttp import web

from hermes_state.chats import find_chats_named
from hermes_state.connector import connector_for
from hermes_state.errors import MessageRejected, PlatformUnavailable, StateError
from hermes_state.inbox import is_stored
from hermes_state.network import NetworkSettings
from hermes_state.setting_types import plain
from hermes_state.text import both_ends, whole_number
from hermes_state.values import InboundMessage, InputKind, Millis, Sender
from platforms.base import SendRequest
from platforms.local.requests import Parts
from platforms.settings import HookSettings
from platforms.text import UNREADABLE, parsed_json

log = structlog.get_logger()

TOLERANCE_MS = 300_000
"""Maximum difference between the time in a request and the clock of this machine."""
GIVE_UP_MS = 24 * 3_600_000
"""Milliseconds after which the gateway gives up an event that the address does not accept."""


def signature(secret: str, ident: str, seconds: str, body: bytes) -> str:
    """Return the signature of Standard Webhooks."""
    key = secret.encode()
    if secret.startswith("whsec_"):
        with suppress(binascii.Error):  # a secret of another kind
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    digest = hmac.new(key, f"{ident}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def checked_id(secret: str, headers: Mapping[str, str], body: bytes, now: Millis) -> str | None:
    """Return what identifies a signed request, or None if its signature or its time is wrong.

    GitHub signs a JSON object, and Standard Webhooks signs an id, a time and a body. An id that begins with a brace is
    refused, so a recorded request of one kind is never a request of the other kind.
    """
    names = ("X-Hub-Signature-256", "webhook-id", "webhook-timestamp", "webhook-signature")
    given, ident, at, signed = (headers.get(name, "") for name in names)
    if not f"{given}{ident}{at}{signed}".isascii():
        return None
    if given:
        right = f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
        return right if hmac.compare_digest(given, right) and body.lstrip().startswith(b"{") else None
    own = signature(secret, ident, at, body).encode()
    is_signed = any(hmac.compare_digest(one.encode(), own) for one in signed.split())
    is_timely = abs(now - 1_000 * (whole_number(at) or 0)) <= TOLERANCE_MS
    return ident if ident and not ident.lstrip().startswith("{") and is_signed and is_timely else None


@dataclass(eq=False, slots=True)
class HookRoutes:
    """Handler for POST requests to `/hooks/<name>`."""

    parts: Parts
    _told_at: float = field(default=-60.0, init=False)

    async def receive(self, request: web.Request) -> web.Response:
        """Store a message, then answer with 202. A request without a valid signature leaves no trace in a chat."""
        name, body, now = request.match_info["name"], await request.read(), self.parts.clock.now()
        hook = self.parts.hooks().get(name)
        ident = None if hook is None else checked_id(str(plain(hook.secret)), request.headers, body, now)
        if hook is None or not hook.chat or ident is None:
            if time.monotonic() - self._told_at >= 60.0:  # anyone who finds the address could fill the log
                self._told_at = time.monotonic()
                log.warning("webhook.refused", name=name[:32])
            return _said(401, "The signature or the time of this request is not valid.")
        try:
            return await self._accept(name, hook, hashlib.sha256(ident.encode()).hexdigest(), body, now)
        except StateError:
            return _said(503, "The gateway cannot use its database right now. Send the request again.")

    async def _accept(self, name: str, hook: HookSettings, ident: str, body: bytes, now: Millis) -> web.Response:
        chats = await self.parts.store.read(find_chats_named, hook.chat)
        if len(chats) != 1:
            log.warning("webhook.no_chat", name=name, chat=hook.chat)
            return _said(503, f"The bot knows no chat {hook.chat}. Write to the bot there once.")
        message = InboundMessage(
            event_ref=f"hook:{name}:{ident}",
            chat=chats[0].key,
            chat_kind=chats[0].kind,
            sender=Sender(platform="hook", id=name, name=name),
            text=filled(hook.template, body),
            message_ref="",
            sent_at=now,
            is_addressed=True,
            via=InputKind.CLIENT,
            words_by=f"the webhook {name}",
        )
        if not message.text.strip():
            return _said(422, "The template of this webhook gives no text for this body.")
        if await self.parts.store.read_short(is_stored, message):
            return _said(409, "This request was received before.")
        await self.parts.intake.accept(message)
        if not await self.parts.store.read_short(is_stored, message):
            return _said(429, "There are too many messages. Send the request again in a minute.", {"Retry-After": "60"})
        return _said(202, "Accepted.")


def filled(template: str, body: bytes) -> str:
    """Return a template with the fields of a JSON body. Without a template, return the whole body."""
    try:
        value = parsed_json(body)
    except UNREADABLE:
        value = None

    def field_named(match: re.Match[str]) -> str:
        found = value
        for key in match[1].split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return "" if found is None else str(found)

    text = re.sub(r"\{([\w.-]+)\}", field_named, template) if template else body.decode("utf-8", "replace")
    return both_ends(text.replace("\x00", ""), 20_000)


def _said(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"message": sentence}, status=status, headers=headers)


async def send_event(
    request: SendRequest, hooks: Callable[[], Mapping[str, HookSettings]], network: NetworkSettings, now: Millis
) -> str:
    """Send an event to the webhook whose name is the thread of the chat. Raises the errors of an adapter."""
    hook = hooks().get(request.chat.thread_ref)
    if hook is None or hook.url is None:
        raise MessageRejected("this webhook is no longer configured")
    ident, seconds, body = f"msg_{request.key}", str(now // 1_000), request.part.plain.encode()
    stored_at = datetime.fromisoformat(parsed_json(body)["timestamp"])
    if now - 1_000 * stored_at.timestamp() > GIVE_UP_MS:
        raise MessageRejected("the address did not accept this event within 24 hours")
    signed = signature(str(plain(hook.secret)), ident, seconds, body)
    headers = {"webhook-id": ident, "webhook-timestamp": seconds, "webhook-signature": signed}
    session = aiohttp.ClientSession(
        connector=connector_for(network, "webhooks"),
        timeout=aiohttp.ClientTimeout(total=15),
        headers={"Content-Type": "application/json", **headers},
    )
    try:
        async with session, session.post(hook.url, data=body, allow_redirects=False) as answer:
            if answer.status == 410:
                raise MessageRejected("the webhook's address no longer exists (status 410)")
            if answer.status >= 300:
                raise PlatformUnavailable(f"the webhook's address answered with status {answer.status}")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise PlatformUnavailable(f"the webhook's address cannot be reached: {type(error).__name__}") from error
    return ident
