"""Platform adapter for a Telegram bot."""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import structlog
import telegram
from telegram import BotCommand, BotCommandScope, BotCommandScopeChat, CallbackQuery
from telegram.constants import BotCommandLimit, CallbackQueryLimit, FileSizeLimit
from telegram.error import BadRequest, InvalidToken, TelegramError

from hermes_state import errors
from hermes_state.aio import cancel_all, track
from hermes_state.errors import MessageRejected, PlatformError, PlatformUnavailable, TokenRejected
from hermes_state.ratings import SignedMessage
from hermes_state.setting_types import plain
from hermes_state.store.sql import load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, Clock, IncomingAttachment, OutboundPart
from platforms.base import AdapterHealth, AdapterState, Capabilities, Intake, MenuCommand, Preview, SendRequest
from platforms.buttons import ButtonCommandStore
from platforms.files import CHUNK_BYTES, copy_file, save_stream
from platforms.settings import TelegramSettings
from platforms.telegram.inbound import MESSAGE_UNITS, PLATFORM, UpdateReader
from platforms.telegram.outbound import TelegramSender, is_refused, translated
from platforms.telegram.transport import BotApiRequest
from platforms.telegram.updates import HealthState, Poller, UpdateHandler

RETRY_SECONDS = 3_600.0
"""Seconds to wait after a failure before trying to set the menus again."""

log = structlog.get_logger(__name__)

# At DEBUG the SDK logs message texts and the address of the Bot API, which contains the token.
logging.getLogger("telegram").setLevel(logging.WARNING)


class TelegramAdapter:
    """Receives updates by long polling, or through a webhook if one is configured. Sends messages while it runs."""

    capabilities = Capabilities(
        max_part_units=MESSAGE_UNITS,
        preview_interval_seconds=1.0,  # Telegram advises about one message a second per chat
        shared_preview_interval_seconds=3.5,  # groups allow 20 messages a minute, including edits
        has_buttons=True,
        shows_steps=True,
        typing_seconds=5.0,
        has_files=True,
        max_file_bytes=int(FileSizeLimit.FILESIZE_UPLOAD),
        preview_seconds=30.0,  # apps hide a draft after this time
    )

    def __init__(
        self, settings: TelegramSettings, *, store: Store, menu: Sequence[MenuCommand] = (), clock: Clock
    ) -> None:
        self._settings = settings
        self._secret: str = plain(settings.webhook.secret) or secrets.token_urlsafe(32)
        self._menu = menu
        self._clock = clock
        self._store = store
        self.name = settings.account
        self._buttons = ButtonCommandStore(store=store, platform=PLATFORM, hash_mark="h:", max_bytes=64)
        self._health = HealthState(clock, settings.stall_seconds)
        self._client: _BotClient | None = None
        self._sender: TelegramSender | None = None

    def health(self) -> AdapterHealth:
        return self._health.current()

    async def run(self, intake: Intake) -> None:
        """Receive updates until cancelled. Each run opens new connections. See `PlatformAdapter.run`."""
        if self._client is not None:
            raise RuntimeError("this adapter is already running; two pollers would interrupt each other")
        self._health.change(AdapterState.STARTING)
        try:
            async with _BotClient(self._settings) as client:
                self._client = client
                async with _at_start(self._settings):
                    await client.sdk.initialize()
                reader = UpdateReader(bot_id=client.sdk.id, username=client.sdk.username, account=self.name)
                self._sender = TelegramSender(client.sdk, self._buttons, self._settings.tables)
                self._health.hears_groups = client.sdk.can_read_all_group_messages
                log.info("telegram.signed_in", bot=reader.username)
                client.spawn(_keep_menus(client.sdk, self._menu, intake, self._store), "telegram.menu")
                try:
                    await self._receive(client, reader, intake)
                finally:
                    self._sender = None  # before the connections close, so that no send is interrupted
        except TokenRejected as error:
            self._health.change(AdapterState.FAILED, str(error))
            raise
        except PlatformError as error:
            self._health.change(AdapterState.BACKING_OFF, str(error))
            raise
        finally:
            self._client = self._sender = None
            self._health.stopped()

    def render(self, text: str) -> Sequence[OutboundPart]:
        from platforms.telegram.rendering import render  # after the first poll, because it takes 30 ms

        return render(text, self._settings.tables)

    async def send(self, request: SendRequest) -> str:
        return await self._running_sender().send(request)

    async def show(self, preview: Preview) -> str | None:
        return await self._running_sender().show(preview)

    async def show_typing(self, chat: ChatKey, *, is_recording: bool = False) -> None:
        await self._running_sender().show_typing(chat, is_recording=is_recording)

    async def react(self, chat: ChatKey, signed: SignedMessage) -> bool:
        return await self._running_sender().react(chat, signed)

    async def sees_reactions(self, group: ChatKey) -> bool:
        return self._sender is None or await self._sender.is_admin(group)

    async def download(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        if self._client is None:
            raise PlatformUnavailable("the Telegram adapter is not running")
        return await _fetch(self._client.sdk, self._client.request, attachment, target, max_bytes)

    async def _receive(self, client: "_BotClient", reader: UpdateReader, intake: Intake) -> None:
        updates = UpdateHandler(
            intake=intake,
            reader=reader,
            sdk=client.sdk,
            buttons=self._buttons,
            clock=self._clock,
            answer_press=client.answer_press,
        )
        webhook = self._settings.webhook
        if webhook.url is not None:
            from platforms.telegram.webhook import keep_webhook, webhook_server

            async with webhook_server(webhook, self._secret, updates, self._health):
                await keep_webhook(client.sdk, self._settings, webhook.url, self._secret, self._health)
            return
        async with _at_start(self._settings):  # the webhook of an earlier configuration would block getUpdates forever
            await client.sdk.delete_webhook(drop_pending_updates=False)
        url, polling = client.sdk.base_url, client.polling
        poller = Poller(base_url=url, request=polling, updates=updates, health=self._health, settings=self._settings)
        await poller.run()

    def _running_sender(self) -> TelegramSender:
        if self._sender is None:
            raise PlatformUnavailable("the Telegram adapter is not running")
        return self._sender


class _BotClient(AbstractAsyncContextManager["_BotClient"]):
    """Client for one run of the adapter: the SDK's bot, two connection pools, and tasks that run alongside polling."""

    def __init__(self, settings: TelegramSettings) -> None:
        root = settings.base_url.rstrip("/")
        pool = partial(
            BotApiRequest,
            connect_seconds=settings.connect_seconds,
            request_seconds=settings.request_seconds,
            network=settings.network,
        )
        # Polling has its own pool, so that a burst of sends cannot take its connection.
        self.request, self.polling = pool(connections=settings.connections), pool(connections=1)
        self.sdk = telegram.Bot(
            plain(settings.token),
            base_url=f"{root}/bot",
            base_file_url=f"{root}/file/bot",
            request=self.request,
            get_updates_request=self.polling,
        )
        self._side_tasks: set[asyncio.Task[None]] = set()

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._side_tasks)
        await self.sdk.shutdown()

    def spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run `work`, which must handle its own errors, in a task that ends when the client closes."""
        track(self._side_tasks, asyncio.create_task(work, name=name))

    def answer_press(self, query: CallbackQuery, text: str | None) -> None:
        """Stop a button's spinner, and show the person an optional text. Does not wait for Telegram's response."""

        async def answer() -> None:
            with suppress(TelegramError):  # the app stops the spinner after a while
                await query.answer(text and text[: CallbackQueryLimit.ANSWER_CALLBACK_QUERY_TEXT_LENGTH])

        self.spawn(answer(), "telegram.answer_press")


@asynccontextmanager
async def _at_start(settings: TelegramSettings) -> AsyncIterator[None]:
    """Translate errors of the first requests into our own. Retries are safe: no message has been sent yet."""
    try:
        yield
    except InvalidToken:
        # No `from error`, because the text of `error` contains the token.
        raise TokenRejected(f"Telegram rejected the bot token; check {settings.token_key}") from None
    except TelegramError as error:
        raise PlatformUnavailable(f"Telegram cannot be reached: {translated(error)}") from error


# Command menus, by kind of chat and by role


def _menus(items: Sequence[MenuCommand], admins: frozenset[str]) -> dict[str, tuple[BotCommandScope, list[BotCommand]]]:
    """Return all menus by name. In a direct chat, an admin's menu lists all commands.

    Administrators of a Telegram group get no menu of their own, because this role gives them no rights in the gateway.
    """
    direct = [item for item in items if item.place != "groups"]
    everybody = [item for item in direct if not item.is_admin_only]
    groups = [item for item in items if item.place != "direct" and not item.is_admin_only]
    return {
        "direct": (telegram.BotCommandScopeAllPrivateChats(), commands(everybody)),
        "groups": (telegram.BotCommandScopeAllGroupChats(), commands(groups)),
        **{one: (BotCommandScopeChat(int(one)), commands(direct)) for one in sorted(admins)},
    }


async def _keep_menus(sdk: telegram.Bot, items: Sequence[MenuCommand], intake: Intake, store: Store) -> None:
    """Keep the menus up to date until cancelled."""
    if not items:
        return  # no commands; keep a menu that the operator created
    admins, is_done = None, True
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if is_done else RETRY_SECONDS):
                admins = await intake.next_admins(PLATFORM, admins)
        try:
            is_done = await _publish_menus(sdk, _menus(items, admins or frozenset()), store)
        except errors.StoreUnavailable as error:
            is_done = False
            log.warning("telegram.menu_failed", error=type(error).__name__)


async def _publish_menus(
    sdk: telegram.Bot, wanted: dict[str, tuple[BotCommandScope, list[BotCommand]]], store: Store
) -> bool:
    """Set the menus that have changed, and delete those that are no longer wanted. Return True if none was refused."""
    key = f"{PLATFORM}.menu.{sdk.id}"
    before = dict(one.partition("=")[::2] for one in (await store.read(load_note, key) or "").split())
    now = {
        name: hashlib.sha256(repr([one.to_dict() for one in menu]).encode()).hexdigest()[:16]
        for name, (_, menu) in wanted.items()
    }
    for name, (scope, menu) in wanted.items():
        if before.get(name) == now[name]:
            continue
        try:
            await sdk.set_my_commands(menu, scope)
            log.info("telegram.menu_published", menu=scope.type, commands=len(menu))
        except TelegramError as error:  # an admin who has never written to the bot cannot have a menu yet
            log.warning("telegram.menu_failed", menu=scope.type, error=type(error).__name__)
            now[name] = ""
    for name in before.keys() - wanted.keys():
        try:
            await sdk.delete_my_commands(BotCommandScopeChat(int(name)))
        except TelegramError as error:  # a later attempt deletes the menu; until then, it grants no rights
            now |= {} if isinstance(error, BadRequest) else {name: ""}
    if now != before:
        await store.write(save_note, key, " ".join("=".join(one) for one in now.items()))
    return all(now.values())


def commands(items: Sequence[MenuCommand]) -> list[BotCommand]:
    """Return the commands whose names Telegram accepts. Each description starts with the command's argument."""
    return [
        BotCommand(
            item.name, " ".join(filter(None, (item.argument, item.description)))[: BotCommandLimit.MAX_DESCRIPTION]
        )
        for item in items
        if re.fullmatch(r"[a-z0-9_]{1,32}", item.name)
    ]


# Files that people sent


async def _fetch(
    sdk: telegram.Bot, request: BotApiRequest, attachment: IncomingAttachment, target: Path, max_bytes: int
) -> int:
    """Write the file to `target` in chunks; a failed download leaves no file. See `PlatformAdapter.download`."""
    if (attachment.size_bytes or 0) > max_bytes:
        raise errors.FileSizeExceeded(max_bytes)
    try:
        address = (await sdk.get_file(attachment.file_ref)).file_path
        if not address:
            raise MessageRejected("Telegram returned no address for the file")
        path = local_path(address, sdk.base_url)
        if path is not None:
            return await asyncio.to_thread(copy_file, path, target, max_bytes)
        async with request.stream(address) as response:
            if response.status >= 500:
                raise PlatformUnavailable(f"the file server answered {response.status}")
            if response.status != 200:
                raise MessageRejected(f"the file server answered {response.status}")
            return await save_stream(response.content.iter_chunked(CHUNK_BYTES), target, max_bytes)
    except BadRequest as error:
        if is_refused(error, ("file is too big",)):
            raise errors.FileSizeExceeded(min(FileSizeLimit.FILESIZE_DOWNLOAD, max_bytes)) from error
        raise MessageRejected(error.message) from error
    except TelegramError as error:  # downloading again does no harm, so every error can be retried
        raise PlatformUnavailable(f"the file could not be fetched ({type(error).__name__})") from error


def local_path(address: str, base_url: str) -> Path | None:
    """Return the path of a file on a Bot API server that runs with `--local`, or None for a URL.

    Paths from Telegram's own servers are never used, because they could name any file on this machine.
    """
    return Path(address) if address.startswith("/") and not base_url.startswith(TelegramSettings.base_url) else None
