"""Routes of the web chat: addresses and their request handlers."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import structlog
from aiohttp import web
from yarl import URL

from hermes_state.admin.browsers import LIFETIME_MS
from hermes_state.chats import load_recent_chats
from hermes_state.errors import StateError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import ChatKind, Clock, InboundMessage, InputKind, Sender, SentFile
from platforms.base import Intake
from platforms.local.access import (
    HEADERS,
    KEY_HEADER,
    TOKEN_HEADER,
    BrowserAccessControl,
    Credentials,
    host_names,
    refusal,
)
from platforms.local.chats import ChatRegistry, LiveChat, encode
from platforms.local.entries import Entry, EntryKind
from platforms.local.history import chat_key, load_file_of, load_history, load_progress
from platforms.local.pages import ChatView, PageWriter, is_name, named_after
from platforms.local.uploads import FormError, SubmittedMessage, UploadStore, read_form

log = structlog.get_logger()

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

PAGE_ROWS = 120
"""Number of transcript rows that a page shows at first, and loads with each “Show earlier messages”."""

PING_SECONDS = 15.0
"""Seconds after which a silent stream sends a ping, which also detects closed pages."""

_TYPES = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}
_STATIC = {path.name: path.read_bytes() for path in Path(__file__).parent.glob("static/*") if path.suffix in _TYPES}
"""Static files by name. They are kept in memory, so that a request path never becomes a file path."""


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class RouteHandler:
    """Request handlers for a run of the adapter."""

    intake: Intake
    store: Store
    clock: Clock
    access: BrowserAccessControl
    chats: ChatRegistry
    pages: PageWriter
    uploads: UploadStore
    files: AttachmentFolder
    """Stored files."""
    max_characters: int
    host: str
    """Host name or address on which the web chat listens, from the settings."""
    public: URL | None
    """Public address of the page, if a reverse proxy serves it."""
    _told: set[str] = field(default_factory=set, init=False)
    """Refusals that were logged, at most 20, so that strangers cannot fill the log."""

    def application(self) -> web.Application:
        """Return the aiohttp application with every route. `_guard` checks all requests."""
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get("/", self._enter),
                web.post("/sign-in", self._sign_in),
                web.get("/open", self._open),
                web.get("/chat/{name}", self._page),
                web.get("/chat/{name}/earlier", self._for_owner(self._earlier)),
                web.get("/chat/{name}/stream", self._for_owner(self._stream)),
                web.get("/chat/{name}/files/{number:[0-9]{1,18}}", self._for_owner(self._file)),
                web.post("/chat/{name}/messages", self._for_owner(self._post)),
                web.get("/static/{file}", self._static_file),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests from other origins, and return errors as sentences."""
        address, port = _received_at(request)
        # Accept this machine's IP address, because only a domain name can mislead a browser.
        hosts = [*host_names(self.host, port), *host_names(address, port)]
        if self.public is not None:
            hosts += self.public.raw_authority, self.public.raw_host or ""  # some proxies leave out the port
        if (reason := refusal(request.headers, request.method, hosts, str(self.public or ""))) is not None:
            if reason not in self._told and len(self._told) < 20:
                self._told.add(reason)
                log.warning("local.request_refused", reason=reason)
            return self._complain(request, 403, reason)
        try:
            return await handler(request)
        except FormError as refused:
            return self._complain(request, refused.status, refused.sentence)
        except StateError:
            trouble = "The gateway cannot use its database right now. Try again in a moment."
            if request.method == "POST":
                trouble = "The gateway cannot save anything right now. Your text is still here; try again in a moment."
            return self._complain(request, 503, trouble)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            sentences = {404: "This page does not exist.", 413: "This message is too large. Send less at a time."}
            return self._complain(request, error.status, sentences.get(error.status, "The request is not valid."))

    def _for_owner(self, handler: Handler) -> Handler:
        """Restrict a handler to signed-in browsers."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            return await handler(request) if await self._is_signed_in(request) else _html("", status=401)

        return guarded

    async def _is_signed_in(self, request: web.Request) -> bool:
        cookie, key = request.cookies.get(_cookie_name(request), ""), request.headers.get(KEY_HEADER, "")
        return await self.access.admits(Credentials(cookie, key))

    def _complain(self, request: web.Request, status: int, sentence: str) -> web.Response:
        if request.headers.get("HX-Request") == "true":
            return _html(self.pages.fragment("complaint", sentence), status=status)
        return _html(self.pages.plain("Something went wrong", sentence), status=status)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Show the page whose script exchanges the token. Without a token, redirect to the chat."""
        if "token" not in request.query:
            raise web.HTTPSeeOther("/chat/main")
        return _html(self.pages.plain("Signing in", "One moment …", "enter.js"))

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange a token for the cookie and for the page's key, unless the browser is signed in."""
        if await self._is_signed_in(request):
            return web.Response(status=204)
        made = await self.access.exchange(request.headers.get(TOKEN_HEADER, ""), request.headers.get("User-Agent", ""))
        if made is None:
            raise web.HTTPUnauthorized
        origin = str(self.public or "")
        response = web.Response(text=made.key, headers={"Cache-Control": "no-store"})
        response.set_cookie(
            _cookie_name(request),
            made.cookie,
            max_age=LIFETIME_MS // 1000,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=origin.startswith("https:") and request.headers.get("Origin") == origin,
        )
        return response

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """Open the chat with the typed name, or a new chat without a name."""
        name = named_after(request.query.get("name", "")) or f"chat-{secrets.token_hex(4)}"
        raise web.HTTPSeeOther(f"/chat/{quote(name)}")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """Show the page without content, so no sign-in is needed. The stream sends the content."""
        return _html(self.pages.chat(_chat_name(request)))

    async def _earlier(self, request: web.Request) -> web.StreamResponse:
        before = request.query.get("before", "")
        if not re.fullmatch("[0-9]{1,18}", before):
            raise web.HTTPNotFound
        view = await self._view(_chat_name(request), int(before))
        return _html(await asyncio.to_thread(self.pages.fragment, "log", view))

    async def _view(self, name: str, before: int | None = None) -> ChatView:
        """Load the current content of the chat, and the event id from which the stream continues."""
        chat = self.chats[name]
        position = chat.stream.newest_id
        chats = await self._listed(name) if before is None else {}
        recent = chat.shown if before is None else chat.recent
        entries, earlier_than = await self.store.read(load_history, chat_key(name), PAGE_ROWS, before, recent)
        return ChatView(name=name, chats=chats, entries=entries, earlier_than=earlier_than, position=position)

    async def _listed(self, name: str) -> Mapping[str, str | None]:
        """Load names and titles of the listed chats for the page of chat `name`."""
        key = chat_key(name)
        known = dict(await self.store.read(load_recent_chats, key.platform, key.account, 50))
        return {wanted: None for wanted in (name, "main") if wanted not in known} | known

    async def _post(self, request: web.Request) -> web.StreamResponse:
        """Accept a message or a pressed button. Store it before responding, and show it on every open page."""
        name = _chat_name(request)
        try:
            submitted = await read_form(request, self.uploads, max_characters=self.max_characters)
        except ConnectionError as error:
            raise web.HTTPBadRequest from error  # the page was closed while it was sending
        except OSError as error:
            log.warning("local.upload_failed", error=type(error).__name__)
            raise FormError(507, "The file could not be stored. The disk may be full.") from error
        entry = await self._accept(name, submitted)
        return _html(self.pages.fragment("upsert", name, [entry], None) + self.pages.fragment("complaint", ""))

    async def _accept(self, name: str, submitted: SubmittedMessage) -> Entry:
        now = self.clock.now()
        ref = f"c-{submitted.client_id}"
        message = InboundMessage(
            event_ref=f"local:{name}:{submitted.client_id}",
            chat=chat_key(name),
            chat_kind=ChatKind.LOCAL,
            sender=Sender(platform="local", id="owner", name="Owner"),
            text=submitted.text,
            message_ref=ref,
            sent_at=now,
            is_addressed=True,
            via=InputKind.BUTTON if submitted.is_press else InputKind.TYPED,
            attachments=submitted.files,
        )
        try:
            await self.intake.accept(message)
        except StateError:
            self.uploads.drop(submitted.files)
            raise
        chat = self.chats[name]
        if known := chat.find(ref):
            return known
        waiting: frozenset[str] = frozenset()
        with suppress(StateError):  # the message is already stored
            _, waiting = await self.store.read(load_progress, message.chat)
        entry = Entry(
            ref=ref,
            kind=EntryKind.PERSON,
            at=now,
            text=submitted.text,
            files=tuple(file.name for file in submitted.files),
            is_waiting=ref in waiting,
        )
        chat.add(entry)
        return entry

    async def _file(self, request: web.Request) -> web.StreamResponse:
        """Send a file that the agent gave to the chat."""
        key, number = chat_key(_chat_name(request)), int(request.match_info["number"])
        file = await self.store.read(load_file_of, key, number)
        path = None if file is None else await asyncio.to_thread(self._find, file)
        if file is None or path is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": file.mime, "Content-Disposition": "attachment", "Cache-Control": "no-store"}
        return web.FileResponse(path, headers=headers)

    def _find(self, file: SentFile) -> Path | None:
        try:
            path = self.files.local(file.path)
            return path if path.is_file() else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FormError(503, "The file cannot be read right now. Try again in a moment.") from error

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        name = _chat_name(request)
        chat = self.chats[name]
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        # End the stream if the page is closed or the chat cannot be read. The page catches up when it reconnects.
        with chat.stream.watched(), suppress(ConnectionError, StateError):
            await response.prepare(request)
            await self._send_events(chat, request, response)
        return response

    async def _send_events(self, chat: LiveChat, request: web.Request, response: web.StreamResponse) -> None:
        stream = chat.stream
        seen = request.headers.get("Last-Event-ID", "")
        listed: Mapping[str, str | None] = {}
        await response.write(b": hello\n\n")
        while not stream.is_closed and await self._is_signed_in(request):
            missed = stream.after(seen)
            if missed is None:
                view = await self._view(chat.name)
                log_html = await asyncio.to_thread(self.pages.fragment, "whole_log", view)
                seen, listed = view.position, view.chats
                await response.write(await encode(log_html, seen))
                continue
            seen = stream.newest_id
            if missed:
                await response.write(await encode("\n".join(missed), seen))
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await stream.changed(seen)
            except TimeoutError:
                before, listed = listed, await self._listed(chat.name)
                is_new = before != listed  # a conversation got its title, or a chat was opened elsewhere
                chats = self.pages.fragment("chat_list", chat.name, listed)
                await response.write(await encode(chats, seen) if is_new else b": ping\n\n")

    async def _static_file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        if (content := _STATIC.get(name)) is None:
            raise web.HTTPNotFound
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, content_type=_TYPES[Path(name).suffix], charset="utf-8", headers=headers)


def _chat_name(request: web.Request) -> str:
    name = request.match_info["name"]
    if not is_name(name):
        raise web.HTTPNotFound
    return name


def _received_at(request: web.Request) -> tuple[str, int]:
    """Return the address and port of a request. Raises `ConnectionResetError` if the browser disconnected."""
    socket = None if request.transport is None else request.transport.get_extra_info("sockname")
    if socket is None:
        raise ConnectionResetError("the browser is gone")
    return socket[0], socket[1]


def _cookie_name(request: web.Request) -> str:
    return f"hermes_local_{_received_at(request)[1]}"  # browsers share cookies between the ports of a host


def _html(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
