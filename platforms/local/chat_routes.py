"""Routes of a chat: its page, messages, files and stream of changes."""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import structlog
from aiohttp import web
from msgspec.structs import replace

from hermes_state.errors import StateError
from hermes_state.inbox import is_stored
from hermes_state.ratings import load_rating
from hermes_state.text import whole_number
from hermes_state.values import ChatKey, ReactionEvent, SentFile
from hermes_state.web_chats import ListedChat, load_listed, load_read_until, mark_read
from platforms.console import Values, WebPerson
from platforms.local.chats import LiveChat, encode, show_progress
from platforms.local.entries import Entry, EntryKind
from platforms.local.history import PAGE_ROWS, first_unread, load_editable, load_file_of, load_history, load_known_refs
from platforms.local.list_routes import PAGE_CHATS
from platforms.local.pages import named_after
from platforms.local.requests import Parts, form_of, html, name_in
from platforms.local.uploads import FormError, SubmittedMessage, read_form

log = structlog.get_logger()

_NOT_STORED = "The message was not accepted, because you have sent too many. Try again in a minute."
_NOT_EDITABLE = (
    "This message can no longer be edited, because it is being answered, was compressed, or is not your newest message."
)

THUMB_NAMES = {"up": 1, "down": -1}
NOT_RATED = "This answer cannot be rated. If reactions are off in this chat, send /reactions on."

SETTLE_SECONDS = (0.4, 3.0)
"""Seconds without an event after which a stream compares the page with the store for the first and the second time.

The second comparison finds data that is stored some time after its event, such as the record of a delivery.
"""
PING_SECONDS = 15.0
"""Seconds after which a silent stream sends a ping, which also detects closed pages."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ChatRoutes:
    """Request handlers for the chats of the person who is signed in."""

    parts: Parts

    def table(self) -> list[web.RouteDef]:
        only = self.parts.only
        return [
            web.get("/open", self._open),
            web.get("/chat/{name}", self._page),
            web.get("/chat/{name}/earlier", only(self._earlier)),
            web.get("/chat/{name}/stream", only(self._stream)),
            web.get("/chat/{name}/files/{number:[0-9]{1,18}}", only(self._file)),
            web.get("/chat/{name}/editable", only(self._editable)),
            web.get("/chat/{name}/models", only(self._models)),
            web.post("/chat/{name}/messages", only(self._post)),
            web.post("/chat/{name}/read", only(self._read)),
            web.post("/chat/{name}/rate", only(self._rate)),
        ]

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """Open a new chat, or the chat with the given name."""
        name = named_after(request.query.get("name", "")) or f"chat-{secrets.token_hex(4)}"
        raise web.HTTPSeeOther(f"/chat/{quote(name)}")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """Show the page without content, so no sign-in is needed. The stream sends the content."""
        return html(self.parts.pages.page("chat", name=name_in(request)))

    async def _earlier(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        if (before := whole_number(request.query.get("before", ""))) is None:
            raise web.HTTPNotFound
        view = await self._view(self._chat(request, person), person, before)
        return html(await asyncio.to_thread(self.parts.pages.fragment, "log", view))

    async def _view(self, chat: LiveChat, person: WebPerson, before: int | None = None) -> Values:
        """Load the current content of the chat, and the event id from which the stream continues."""
        position = chat.stream.newest_id
        read_until = None if before is not None else await self.parts.store.read(load_read_until, chat.key)
        recent = chat.shown if before is None else chat.recent
        version = chat.version
        entries, earlier_than = await self.parts.store.read(load_history, chat.key, PAGE_ROWS, before, recent)
        if before is None and version == chat.version:
            entries = chat.show_loaded(entries)
        return {
            "name": chat.name,
            "menu": person.menu(self.parts.console.pages),
            "unread_ref": first_unread(entries, read_until),
            "entries": entries,
            "earlier_than": earlier_than,
            "position": position,
        }

    async def _listed(self, chat: LiveChat) -> Sequence[ListedChat]:
        """Load the first chats of the list, to find out whether an open page must load the list again."""
        return await self.parts.store.read(load_listed, chat.key, PAGE_CHATS)

    async def _read(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Record the newest entry that the page has shown to the person."""
        ref = (await request.post()).get("ref")
        if isinstance(ref, str):
            await self.parts.store.write(mark_read, self._chat(request, person).key, ref[:100])
        return web.Response(status=204)

    async def _rate(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Store or remove a thumb on an answer, and show it on every open page."""
        form, chat = await form_of(request), self._chat(request, person)
        if (value := THUMB_NAMES.get(form.get("thumb", ""))) is None:
            raise web.HTTPBadRequest
        press = self.parts.command(person, chat.key, "")
        reaction = ReactionEvent(
            event_ref=press.event_ref,
            chat=chat.key,
            sender=press.sender,
            message_ref=form.get("ref", "")[:100],
            sent_at=press.sent_at,
            value=value,
            is_removed="is_removed" in form,
        )
        # The chats of two people can have the same name, and a reaction does not tell them apart.
        is_own = await self.parts.store.read(load_known_refs, chat.key, [reaction.message_ref])
        if is_own:
            await self.parts.intake.accept(reaction)
        if not is_own or await self.parts.store.read(load_rating, reaction) != (0 if reaction.is_removed else value):
            raise FormError(409, NOT_RATED)
        await show_progress(self.parts.store, chat)
        return web.Response(status=204)

    async def _post(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Accept a message or a pressed button. Store it before responding, and show it on every open page."""
        chat = self._chat(request, person)
        try:
            submitted = await read_form(request, self.parts.uploads, max_characters=self.parts.settings.max_characters)
        except ConnectionError as error:
            raise web.HTTPBadRequest from error  # the page was closed while it sent the form
        except OSError as error:
            log.warning("local.upload_failed", error=type(error).__name__)
            raise FormError(507, "The file could not be stored. The disk may be full.") from error
        entry = await self.accept(chat.key, person, submitted)
        fragment = self.parts.pages.fragment
        return html(fragment("upsert", chat.name, [entry], None) + fragment("complaint", ""))

    async def _editable(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        found = await self.parts.store.read(load_editable, self._chat(request, person).key)
        if found is None:
            raise FormError(409, _NOT_EDITABLE)
        files = [{"number": file.attachment_id, "name": file.name, "mime": file.mime} for file in found.stored]
        values = {"ref": found.ref, "text": found.text, "files": files}
        return web.json_response(values, headers={"Cache-Control": "no-store"})

    async def _undo(self, chat: LiveChat, person: WebPerson, submitted: SubmittedMessage) -> None:
        """Undo the message that the submitted message replaces, unless an earlier attempt has already done so."""
        undo = self.parts.command(person, chat.key, "/undo", f"{submitted.client_id}-undo")
        if chat.find(undo.message_ref) is not None:
            return
        editable = await self.parts.store.read(load_editable, chat.key)
        if editable is None or editable.ref != submitted.edits:
            raise FormError(409, _NOT_EDITABLE)
        await self.parts.intake.accept(undo)
        chat.add(Entry(ref=undo.message_ref, kind=EntryKind.PERSON, at=undo.sent_at, text=undo.text))

    async def _models(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        question = self.parts.command(person, self._chat(request, person).key, "/model x", "models")
        names = [name for name in self.parts.intake.suggestions(question) if name != "default"]
        return web.json_response(names, headers={"Cache-Control": "no-store"})

    async def accept(self, key: ChatKey, person: WebPerson, submitted: SubmittedMessage) -> Entry:
        """Store a message before it is shown on every open page. Return its entry."""
        message = self.parts.command(person, key, submitted.text, submitted.client_id)
        event_ref = submitted.event_ref or message.event_ref
        message = replace(message, via=submitted.via, attachments=submitted.files, event_ref=event_ref)
        ref = message.message_ref
        try:
            if submitted.edits and (edited := self.parts.chats[key]).find(ref) is None:
                await self._undo(edited, person, submitted)
            await self.parts.intake.accept(message)
            if submitted.event_ref and not await self.parts.store.read_short(is_stored, message):
                raise FormError(429, _NOT_STORED)
        except (StateError, FormError):
            self.parts.uploads.drop(submitted.files)
            raise
        chat = self.parts.chats[key]
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
            entries, _ = await self.parts.store.read(load_history, chat.key, PAGE_ROWS, None, [*chat.shown, entry])
            entry = next((loaded for loaded in entries if loaded.ref == ref), entry)
        if known := chat.find(ref):
            return known
        chat.add(entry)
        return entry

    def _chat(self, request: web.Request, person: WebPerson) -> LiveChat:
        return self.parts.chats[person.chat_key(name_in(request))]

    async def _file(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Send a file of the chat, which the person uploaded or the agent sent."""
        key, number = self._chat(request, person).key, int(request.match_info["number"])
        file = await self.parts.store.read(load_file_of, key, number)
        path = None if file is None else await asyncio.to_thread(self._find, file)
        if file is None or path is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": file.mime, "Content-Disposition": "attachment", "Cache-Control": "no-store"}
        return web.FileResponse(path, headers=headers)

    def _find(self, file: SentFile) -> Path | None:
        try:
            path = self.parts.files.local(file.path)
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
        while not stream.is_closed and (person := await self.parts.find_person(request)) is not None:
            missed = stream.after(seen)
            if missed is None:
                view = await self._view(chat, person)
                log_html = await asyncio.to_thread(self.parts.pages.fragment, "whole_log", view)
                seen = view["position"]
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
                    await show_progress(self.parts.store, chat)
                    continue
                before, listed = listed, await self._listed(chat)
                is_new = before != listed  # a conversation got its title, or a chat was opened elsewhere
                refresh = self.parts.pages.fragment("refresh", chat.name)
                await response.write(await encode(refresh, seen) if is_new else b": ping\n\n")
