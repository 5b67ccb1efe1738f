"""Routes of a chat: its page, messages, files and stream of changes."""

import asyncio
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import structlog
from aiohttp import web

from hermes_state.errors import StateError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.reading import load_read_until, mark_read
from hermes_state.store.writer import Store
from hermes_state.values import ChatKind, Clock, InboundMessage, InputKind, Sender, SentFile
from hermes_state.web_chats import ListedChat, load_listed
from platforms.base import Intake
from platforms.console import Console, WebPerson
from platforms.local.chats import ChatRegistry, LiveChat, encode
from platforms.local.entries import Entry, EntryKind
from platforms.local.history import PAGE_ROWS, first_unread, load_editable, load_file_of, load_history
from platforms.local.list_routes import PAGE_CHATS
from platforms.local.pages import ChatView, PageWriter, is_name, named_after
from platforms.local.progress import show_progress
from platforms.local.requests import SignedIn, html
from platforms.local.uploads import FormError, SubmittedMessage, UploadStore, read_form

log = structlog.get_logger()

_NOT_EDITABLE = (
    "This message can no longer be edited, because it is being answered, was compressed, or is not your newest message."
)

SETTLE_SECONDS = (0.4, 3.0)
"""Seconds without an event after which a stream compares the page with the store. A delivery is recorded after it."""
PING_SECONDS = 15.0
"""Seconds after which a silent stream sends a ping, which also detects closed pages."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ChatRoutes:
    """Request handlers for the chats of the person who is signed in."""

    intake: Intake
    store: Store
    clock: Clock
    chats: ChatRegistry
    pages: PageWriter
    uploads: UploadStore
    files: AttachmentFolder
    """Stored files."""
    max_characters: int
    console: Console
    signed_in: SignedIn

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/open", self._open),
            web.get("/chat/{name}", self._page),
            web.get("/chat/{name}/earlier", self.signed_in.only(self._earlier)),
            web.get("/chat/{name}/stream", self.signed_in.only(self._stream)),
            web.get("/chat/{name}/files/{number:[0-9]{1,18}}", self.signed_in.only(self._file)),
            web.get("/chat/{name}/editable", self.signed_in.only(self._editable)),
            web.get("/chat/{name}/models", self.signed_in.only(self._models)),
            web.post("/chat/{name}/messages", self.signed_in.only(self._post)),
            web.post("/chat/{name}/read", self.signed_in.only(self._read)),
        ]

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """Open a new chat, or the chat with the given name."""
        name = named_after(request.query.get("name", "")) or f"chat-{secrets.token_hex(4)}"
        raise web.HTTPSeeOther(f"/chat/{quote(name)}")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """Show the page without content, so no sign-in is needed. The stream sends the content."""
        return html(self.pages.chat(_chat_name(request)))

    async def _earlier(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        before = request.query.get("before", "")
        if not re.fullmatch("[0-9]{1,18}", before):
            raise web.HTTPNotFound
        view = await self._view(self._chat(request, person), person, int(before))
        return html(await asyncio.to_thread(self.pages.fragment, "log", view))

    async def _view(self, chat: LiveChat, person: WebPerson, before: int | None = None) -> ChatView:
        """Load the current content of the chat, and the event id from which the stream continues."""
        position = chat.stream.newest_id
        read_until = None if before is not None else await self.store.read(load_read_until, chat.key)
        recent = chat.shown if before is None else chat.recent
        version = chat.version
        entries, earlier_than = await self.store.read(load_history, chat.key, PAGE_ROWS, before, recent)
        if before is None and version == chat.version:
            entries = chat.show_loaded(entries)
        return ChatView(
            name=chat.name,
            unread_ref=first_unread(entries, read_until),
            menu=person.menu(self.console.pages),
            entries=entries,
            earlier_than=earlier_than,
            position=position,
        )

    async def _listed(self, chat: LiveChat) -> Sequence[ListedChat]:
        """Load the beginning of the list, to find out whether an open page must load it again."""
        return await self.store.read(load_listed, chat.key, PAGE_CHATS)

    async def _read(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Record the newest entry that the page has shown to the person."""
        ref = (await request.post()).get("ref")
        if isinstance(ref, str):
            await self.store.write(mark_read, self._chat(request, person).key, ref[:100])
        return web.Response(status=204)

    async def _post(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Accept a message or a pressed button. Store it before responding, and show it on every open page."""
        chat = self._chat(request, person)
        try:
            submitted = await read_form(request, self.uploads, max_characters=self.max_characters)
        except ConnectionError as error:
            raise web.HTTPBadRequest from error  # the page was closed while it was sending
        except OSError as error:
            log.warning("local.upload_failed", error=type(error).__name__)
            raise FormError(507, "The file could not be stored. The disk may be full.") from error
        entry = await self._accept(chat, person, submitted)
        return html(self.pages.fragment("upsert", chat.name, [entry], None) + self.pages.fragment("complaint", ""))

    async def _editable(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Send the text and files of the person's newest message."""
        found = await self.store.read(load_editable, self._chat(request, person).key)
        if found is None:
            raise FormError(409, _NOT_EDITABLE)
        files = [{"number": file.attachment_id, "name": file.name, "mime": file.mime} for file in found.files]
        values = {"ref": found.ref, "text": found.text, "files": files}
        return web.json_response(values, headers={"Cache-Control": "no-store"})

    async def _undo(self, chat: LiveChat, person: WebPerson, submitted: SubmittedMessage) -> None:
        """Undo the message that the submitted message replaces, unless an earlier attempt did."""
        undo = self._message(chat, person, f"{submitted.client_id}-undo", "/undo")
        if chat.find(undo.message_ref) is not None:
            return
        editable = await self.store.read(load_editable, chat.key)
        if editable is None or editable.ref != submitted.edits:
            raise FormError(409, _NOT_EDITABLE)
        await self.intake.accept(undo)
        chat.add(Entry(ref=undo.message_ref, kind=EntryKind.PERSON, at=undo.sent_at, text=undo.text))

    async def _models(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Send the names of the models that the person can choose in this chat."""
        question = self._message(self._chat(request, person), person, "models", "/model x")
        names = [name for name in self.intake.suggestions(question) if name != "default"]
        return web.json_response(names, headers={"Cache-Control": "no-store"})

    def _message(self, chat: LiveChat, person: WebPerson, client_id: str, text: str) -> InboundMessage:
        """Return a command, as if the person had pressed a button."""
        return InboundMessage(
            event_ref=f"{chat.key.name}:{client_id}",
            chat=chat.key,
            chat_kind=ChatKind.LOCAL,
            sender=Sender(platform="local", id=person.id, name=person.name),
            text=text,
            message_ref=f"c-{client_id}",
            sent_at=self.clock.now(),
            is_addressed=True,
            via=InputKind.BUTTON,
        )

    async def _accept(self, chat: LiveChat, person: WebPerson, submitted: SubmittedMessage) -> Entry:
        message = self._message(chat, person, submitted.client_id, submitted.text)
        if not submitted.is_press:
            message = replace(message, via=InputKind.TYPED, attachments=submitted.files)
        ref = message.message_ref
        try:
            if submitted.edits and chat.find(ref) is None:
                await self._undo(chat, person, submitted)
            await self.intake.accept(message)
        except (StateError, FormError):
            self.uploads.drop(submitted.files)
            raise
        if known := chat.find(ref):
            return known
        entry = Entry(
            ref=ref,
            kind=EntryKind.PERSON,
            at=message.sent_at,
            text=submitted.text,
            files=tuple(file.name for file in submitted.files),
        )
        with suppress(StateError):  # the message is already stored
            entries, _ = await self.store.read(load_history, chat.key, PAGE_ROWS, None, [*chat.shown, entry])
            entry = next((loaded for loaded in entries if loaded.ref == ref), entry)
        if known := chat.find(ref):
            return known
        chat.add(entry)
        return entry

    def _chat(self, request: web.Request, person: WebPerson) -> LiveChat:
        return self.chats[person.chat_key(_chat_name(request))]

    async def _file(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Send a file of the chat, uploaded by its person or sent by the agent."""
        key, number = self._chat(request, person).key, int(request.match_info["number"])
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

    async def _stream(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        chat = self._chat(request, person)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        # End the stream if the page is closed or the chat cannot be read. The page catches up when it reconnects.
        with chat.watched(), suppress(ConnectionError, StateError):
            await response.prepare(request)
            await self._send_events(chat, request, response)
        return response

    async def _send_events(self, chat: LiveChat, request: web.Request, response: web.StreamResponse) -> None:
        stream = chat.stream
        seen = request.headers.get("Last-Event-ID", "")
        listed = await self._listed(chat)
        waits = iter(SETTLE_SECONDS)
        await response.write(b": hello\n\n")
        while not stream.is_closed and (person := await self.signed_in.find(request)) is not None:
            missed = stream.after(seen)
            if missed is None:
                view = await self._view(chat, person)
                log_html = await asyncio.to_thread(self.pages.fragment, "whole_log", view)
                seen = view.position
                await response.write(await encode(log_html, seen))
                continue
            seen = stream.newest_id
            if missed:
                waits = iter(SETTLE_SECONDS)
                await response.write(await encode("\n".join(missed), seen))
            wait = next(waits, None)
            try:
                async with asyncio.timeout(wait or PING_SECONDS):
                    await stream.changed(seen)
            except TimeoutError:
                if wait is not None:
                    await show_progress(self.store, chat)
                    continue
                before, listed = listed, await self._listed(chat)
                is_new = before != listed  # a conversation got its title, or a chat was opened elsewhere
                refresh = self.pages.listing("refresh", chat.name)
                await response.write(await encode(refresh, seen) if is_new else b": ping\n\n")


def _chat_name(request: web.Request) -> str:
    name = request.match_info["name"]
    if not is_name(name):
        raise web.HTTPNotFound
    return name
