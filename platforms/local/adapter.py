"""Platform adapter for the local web chat."""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog
from yarl import URL

from hermes_state.errors import PlatformUnavailable, StateError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.network import NetworkSettings
from hermes_state.ratings import SignedMessage
from hermes_state.store.writer import Store
from hermes_state.values import LOCAL_OWNER, ChatKey, Clock, IncomingAttachment, OutboundPart, UserRef
from platforms.base import AdapterHealth, AdapterState, Capabilities, Intake, MenuCommand, Preview, SendRequest
from platforms.http_server import http_server
from platforms.local.access import BrowserAccessControl, address
from platforms.local.chats import ChatRegistry, LiveChat, load_recent, render_ahead, save_recent, show_progress
from platforms.local.entries import Entry, EntryKind, ref_of_file
from platforms.local.markdown import split_parts
from platforms.local.pages import PageWriter
from platforms.local.requests import Parts
from platforms.local.routes import Site
from platforms.local.uploads import UploadStore
from platforms.local.webhooks import send_event
from platforms.settings import HookSettings, LocalSettings

log = structlog.get_logger()

_SHUTDOWN_SECONDS = 1.0
"""Time limit at shutdown for running requests and for saving recent entries, in seconds. Streams end immediately."""


class LocalAdapter:
    """Serves the page; implements `platforms.base.PlatformAdapter`.

    Uploaded files wait in `spool/local` below `state_dir`. `port_tries` is the maximum number of ports to try, starting
    at the configured one, until one is free. Each time the page becomes available, `on_ready` is called with a link
    that has a one-time token, or with the page's address if the token cannot be stored.
    """

    name = "local"

    def __init__(
        self,
        settings: LocalSettings,
        *,
        store: Store,
        files: AttachmentFolder,
        menu: Sequence[MenuCommand],
        clock: Clock,
        state_dir: Path,
        max_file_bytes: int = 20_000_000,
        port_tries: int = 1,
        on_ready: Callable[[str], None] | None = None,
        hooks: Callable[[], Mapping[str, HookSettings]] = dict,
        network: NetworkSettings | None = None,
    ) -> None:
        self.capabilities = Capabilities(
            max_part_units=settings.max_part_units,
            preview_interval_seconds=0.1,
            shared_preview_interval_seconds=0.1,
            has_buttons=True,
            typing_seconds=6.0,
            max_file_bytes=1 << 30,  # the browser loads the whole file into memory
        )
        self._settings = settings
        self._port_tries = port_tries
        self._store = store
        self._files = files
        self._clock = clock
        self._on_ready = on_ready
        self._hooks = hooks
        self._network = network or NetworkSettings()
        self.access = BrowserAccessControl(store, clock)
        self._pages = PageWriter(menu=menu, max_file_bytes=max_file_bytes)
        self._chats = ChatRegistry(self._pages)
        self._uploads = UploadStore(state_dir / "spool" / "local", max_file_bytes=max_file_bytes)
        self._public = None if settings.public_url is None else URL(settings.public_url).origin()
        self._port: int | None = None

    @property
    def url(self) -> str | None:
        """Address of the page without a token, or None while the page is not served."""
        if (own := self.own_url) is None:
            return None
        return str(own if self._public is None else self._public / "")

    @property
    def own_url(self) -> URL | None:
        """Address of the page on this machine, even if a reverse proxy serves it, or None."""
        return None if self._port is None else address(self._settings.host, self._port)

    async def mint_url(self, person: UserRef = LOCAL_OWNER, name: str = "Owner") -> str | None:
        """Return a link with a new token that signs in one browser of a person, or None if the server is down."""
        if (url := self.url) is None:
            return None
        return str(URL(url).with_query(token=await self.access.mint(person, name)))

    def health(self) -> AdapterHealth:
        if self._port is None:
            return AdapterHealth(state=AdapterState.STARTING, last_progress_at=None)
        # the adapter depends on no remote server
        return AdapterHealth(state=AdapterState.RUNNING, last_progress_at=self._clock.now())

    async def run(self, intake: Intake) -> None:
        """Serve until cancelled. Raises `PlatformUnavailable` if the port is in use or the store does not answer."""
        try:
            await asyncio.to_thread(self._uploads.open)
            self._chats.open(await self._store.read(load_recent))
        except (OSError, StateError) as error:
            raise PlatformUnavailable(f"The web chat cannot start: {error}") from error
        try:
            query = {"token": await self.access.mint()}
        except StateError as error:
            log.warning("local.link_not_stored", error=str(error))
            query = {}
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._save_recent)
            self._port = await self._listen(stack, Site(self._parts(intake)))
            stack.callback(self._chats.close)
            if self._on_ready is not None and self.url is not None:
                self._on_ready(str(URL(self.url).with_query(query)))
            log.info("local.served", host=self._settings.host, port=self._port)
            try:
                await asyncio.Event().wait()  # until cancelled
            finally:
                self._port = None

    def _parts(self, intake: Intake) -> Parts:
        return Parts(
            intake=intake,
            store=self._store,
            files=self._files,
            uploads=self._uploads,
            clock=self._clock,
            chats=self._chats,
            pages=self._pages,
            access=self.access,
            settings=self._settings,
            hooks=self._hooks,
            public=self._public,
        )

    async def _listen(self, stack: AsyncExitStack, site: Site) -> int:
        """Open the configured port, or the next free port, and return it."""
        settings = self._settings
        host, last = settings.host.strip("[]"), settings.port + self._port_tries - 1
        for port in range(settings.port, last + 1):
            server = http_server(site.application(), host, port, stop_seconds=_SHUTDOWN_SECONDS)
            try:
                opened = await stack.enter_async_context(server)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port < last:
                    continue
                reason = (error.strerror or str(error)).rpartition(": ")[2]  # without the address in asyncio's message
                problem = f"Port {port} on {settings.host} cannot be opened ({reason}); set local.port to a free port"
                raise PlatformUnavailable(problem) from error
            if port != settings.port:
                log.warning(
                    "local.port_taken", port=settings.port, instead=port, hint="set local.port to choose another port"
                )
            return opened
        raise AssertionError("the last port was opened or raised an error")

    async def _save_recent(self) -> None:
        try:
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                await self._store.write(save_recent, {key: chat.recent for key, chat in self._chats.items()})
        except (StateError, TimeoutError) as error:
            log.info("local.recent_not_saved", error=type(error).__name__)

    def render(self, text: str) -> Sequence[OutboundPart]:
        """Split Markdown into parts. The parts stay Markdown, and are converted to HTML when a page shows them."""
        shown = text if text.strip() else "(empty)"
        return [OutboundPart(text=part, plain=part) for part in split_parts(shown, self._settings.max_part_units)]

    async def send(self, request: SendRequest) -> str:
        """Show a part on every open page. Pages that open later load it from the transcript."""
        if request.chat.platform == "webhook":
            return await send_event(request, self._hooks, self._network, self._clock.now())
        chat, sent = self._live_chat(request.chat), None if request.file is None else request.part.attached
        ref = request.replaces or f"k-{request.key}" if sent is None else ref_of_file(sent)
        known = chat.find(ref)
        if known is None and request.only_edits:
            return ref
        entry = Entry(
            ref=ref,
            kind=EntryKind(request.text_kind),
            at=self._clock.now() if known is None else known.at,
            text=request.part.plain if request.is_plain else request.part.text,
            is_plain=request.is_plain,
            sent=sent,
            buttons=request.part.buttons,
        )
        await render_ahead(chat, entry)
        chat.add(entry)
        await show_progress(self._store, chat)
        return ref

    async def show(self, preview: Preview) -> str | None:
        chat = self._live_chat(preview.chat)
        await show_progress(self._store, chat)
        ref = preview.ref or f"t-{preview.number}"
        text = (await asyncio.to_thread(split_parts, preview.text, self._settings.max_part_units))[0]
        entry = Entry(ref=ref, kind=EntryKind.PREVIEW, at=self._clock.now(), text=text)
        await render_ahead(chat, entry)
        chat.show_preview(entry)
        return ref

    async def show_typing(self, chat: ChatKey, *, is_recording: bool = False) -> None:
        shown = self._live_chat(chat)
        await show_progress(self._store, shown)
        shown.show_typing()

    async def react(self, chat: ChatKey, signed: SignedMessage) -> bool:
        return False

    async def sees_reactions(self, group: ChatKey) -> bool:
        return True

    def _live_chat(self, key: ChatKey) -> LiveChat:
        """Return the chat with this key. Raises `PlatformUnavailable` if the web server is not running."""
        if self._port is None:
            raise PlatformUnavailable("the web chat is not running")
        return self._chats[key]

    async def download(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        return await asyncio.to_thread(self._uploads.copy, attachment, target, max_bytes)
