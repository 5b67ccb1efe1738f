"""Webhook: Telegram sends each update as a POST request, and retries until it gets a 200 response."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import structlog
import telegram
from aiohttp import web
from telegram.error import BadRequest, InvalidToken, NetworkError, TelegramError

from hermes_state.errors import PlatformUnavailable, TokenRejected
from platforms.base import AdapterState
from platforms.http_server import http_server
from platforms.settings import TelegramSettings, WebhookSettings
from platforms.telegram.inbound import ALLOWED_UPDATES
from platforms.telegram.updates import HealthState, UpdateHandler
from platforms.text import UNREADABLE, parsed_json

log = structlog.get_logger(__name__)


@asynccontextmanager
async def webhook_server(
    webhook: WebhookSettings, secret: str, updates: UpdateHandler, health: HealthState
) -> AsyncIterator[None]:
    """Serve the webhook's address. Raises `PlatformUnavailable` on entering if the port cannot be opened."""
    app = web.Application(client_max_size=1_000_000)  # an update is much smaller
    handler = WebhookHandler(secret.encode(), updates, health)
    app.router.add_post(urlsplit(webhook.url or "").path or "/", handler.receive)
    async with AsyncExitStack() as stack:
        # At shutdown, requests have two seconds to finish. Telegram repeats those that are not stored.
        server = http_server(app, webhook.host, webhook.port, stop_seconds=2)
        try:
            await stack.enter_async_context(server)
        except OSError as error:
            where = f"{webhook.host}:{webhook.port}"
            raise PlatformUnavailable(f"The webhook cannot listen on {where}: {error.strerror or error}") from error
        yield


class WebhookHandler:
    """Handles POST requests to the webhook's address. Anyone can send such requests, so the secret is checked."""

    def __init__(self, secret: bytes, updates: UpdateHandler, health: HealthState) -> None:
        self._secret = secret
        self._updates = updates
        self._health = health
        self._refused = 0
        self._quiet_until = 0.0

    async def receive(self, request: web.Request) -> web.Response:
        """Store an update, then respond with 200. After any other response, Telegram retries."""
        given = request.headers.get("X-Telegram-Bot-Api-Secret-Token", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._secret):
            self._refused += 1
            # Log one line a minute, because anyone who finds the address could fill the log.
            if time.monotonic() >= self._quiet_until:
                log.warning("webhook.refused", count=self._refused)
                self._refused, self._quiet_until = 0, time.monotonic() + 60.0
            return web.Response(status=403)
        try:
            raw = parsed_json(await request.read())
        except UNREADABLE:
            raw = None
        if not isinstance(raw, dict):
            return web.Response(status=400)
        try:
            await self._updates.store([self._updates.read(raw)])
        except NetworkError as error:
            log.warning("webhook.update_not_stored", detail=error.message)
            self._health.change(AdapterState.BACKING_OFF, error.message)
            return web.Response(status=503)
        self._health.progressed()
        return web.Response()


async def keep_webhook(
    sdk: telegram.Bot, settings: TelegramSettings, url: str, secret: str, health: HealthState
) -> None:
    """Set the webhook, then check it until cancelled.

    Raises `TokenRejected` if Telegram no longer accepts the token.
    """
    failures = 0
    is_set = False
    while True:
        try:
            async with asyncio.timeout(settings.request_seconds):
                # Set it at every start, even if the URL is unchanged, because Telegram does not return the secret.
                if not is_set or (await sdk.get_webhook_info()).url != url:
                    await sdk.set_webhook(
                        url=url,
                        secret_token=secret,
                        max_connections=settings.webhook.max_connections,
                        allowed_updates=list(ALLOWED_UPDATES),
                        drop_pending_updates=False,
                    )
            is_set = True
            failures = 0
            health.progressed()
            pause = settings.webhook_check_seconds
        except InvalidToken:
            raise TokenRejected(f"Telegram no longer accepts the bot token; check {settings.token_key}") from None
        except (TelegramError, TimeoutError) as error:
            failures += 1
            log.warning("telegram.webhook_check_failed", error=type(error).__name__, failures=failures)
            reason = f": {error.message}" if isinstance(error, BadRequest) else ""
            problem = f"The webhook could not be set or checked ({type(error).__name__}{reason})"
            health.change(AdapterState.BACKING_OFF, problem)
            pause = settings.backoff.after(failures)
        await asyncio.sleep(pause)
