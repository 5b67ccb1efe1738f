"""Routes of the list of chats: its entries, and what a person can do with one of them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from aiohttp import web

from hermes_state import web_chats
from hermes_state.errors import CommandError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, Clock
from hermes_state.web_chats import START, load_listed
from platforms.console import Console, WebPerson
from platforms.local.chat_list import ListView, grouped, position_in, zone_named
from platforms.local.chats import ChatRegistry, save_recent
from platforms.local.export import FORMATS, messages
from platforms.local.pages import PageWriter, is_name
from platforms.local.requests import SignedIn, form_of, html

PAGE_CHATS = 50
MAX_CHATS = 5_000
"""Maximum number of chats in one response. A page that already shows more is refreshed from the top."""
ZONE_HEADER = "Hermes-Zone"
"""Request header with the reader's time zone."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ListRoutes:
    """Request handlers for the list of the person who is signed in."""

    store: Store
    files: AttachmentFolder
    clock: Clock
    pages: PageWriter
    chats: ChatRegistry
    console: Console
    signed_in: SignedIn

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/chats", self.signed_in.only(self._list)),
            web.get("/chats/{name}/menu", self.signed_in.only(self._menu)),
            web.get("/chats/{name}/export/{kind}", self.signed_in.only(self._export)),
            web.get("/chats/{name}/delete", self.signed_in.only(self._ask)),
            web.post("/chats/{name}/delete", self.signed_in.only(self._delete)),
            web.post("/chats/{name}/{action}", self.signed_in.only(self._act)),
        ]

    async def _list(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        query = request.query
        shown = query.get("shown", "") if is_name(query.get("shown", "")) else ""
        after, is_archived = position_in(query.get("after", "")), query.get("archived") == "1"
        limit = max(PAGE_CHATS, min(_number(query, "count"), MAX_CHATS))
        like = person.chat_key(shown)
        found = await self.store.read(
            load_listed, like, limit + 1, after=START if after is None else after, is_archived=is_archived
        )
        zone, heading = zone_named(request.headers.get(ZONE_HEADER, "")), query.get("heading", "")[:40]
        entries = list(grouped(found[:limit], zone, self.clock.now(), "" if after is None else heading))
        view = ListView(
            entries=entries,
            shown=shown,
            is_archived=is_archived,
            is_start=after is None,
            next=found[limit - 1].position if len(found) > limit else None,
        )
        current = await self.store.read(web_chats.find_listed, like) if shown and after is None else None
        return html(self.pages.listing("chat_list", view, current))

    async def _menu(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Show what the person can do with a chat."""
        chat = await self.store.read(web_chats.find_listed, _key(request, person))
        if chat is None:
            return html(self.pages.listing("list_said", "This chat no longer exists. Reload the page."), status=409)
        return html(self.pages.listing("menu", chat))

    async def _export(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Send the messages of a chat as a file."""
        key, form = _key(request, person), FORMATS.get(request.match_info["kind"])
        chat = await self.store.read(web_chats.find_listed, key)
        if form is None or chat is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": f"{form.mime}; charset=utf-8", "Content-Disposition": "attachment"}
        response = web.StreamResponse(headers={**headers, "Cache-Control": "no-store"})
        with suppress(ConnectionError):  # the page was closed
            await response.prepare(request)
            await response.write(form.start(chat.shown_name).encode())
            async for message in messages(self.store, self.files, key):
                await response.write((await asyncio.to_thread(form.message, message)).encode("utf-8", "replace"))
            await response.write_eof(form.end.encode())
        return response

    async def _ask(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Ask before a chat is deleted."""
        key = _key(request, person)
        try:
            values = await self.console.load("deletion", person, {"chat": key.chat_ref})
        except CommandError as error:
            return html(self.pages.listing("menu_complaint", str(error)), status=409)
        return html(self.pages.listing("deletion", key.chat_ref, values))

    async def _delete(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Delete a chat, also from the memory and the saved recent entries of the page."""
        key = _key(request, person)
        try:
            said = await self.console.act("deletion", "delete", person, {"chat": key.chat_ref})
        except CommandError as error:
            return html(self.pages.listing("menu_complaint", str(error)), status=409)
        if (live := self.chats.pop(key, None)) is not None:
            live.stream.close()
        await self.store.write(save_recent, {one: chat.recent for one, chat in self.chats.items()})
        response = html(self.pages.listing("list_said", str(said)))
        response.headers["HX-Trigger"] = "chats-changed"
        if unquote(urlsplit(request.headers.get("HX-Current-URL", "")).path) == f"/chat/{key.chat_ref}":
            response.headers["HX-Redirect"] = "/open"
        return response

    async def _act(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        action, key, form = request.match_info["action"], _key(request, person), await form_of(request)
        now = self.clock.now()
        try:
            match action:
                case "rename":
                    await self.store.write(web_chats.rename, key, form.get("name", ""))
                    said = "The chat has a new name."
                case "pin" | "unpin":
                    await self.store.write(web_chats.pin, key, now if action == "pin" else None)
                    said = "The chat is pinned." if action == "pin" else "The chat is no longer pinned."
                case "archive" | "restore":
                    await self.store.write(web_chats.archive, key, now if action == "archive" else None)
                    said = "The chat is archived." if action == "archive" else "The chat is in the list again."
                case _:
                    raise web.HTTPNotFound
        except CommandError as error:
            return html(self.pages.listing("menu_complaint", str(error)), status=409)
        response = html(self.pages.listing("list_said", said))
        response.headers["HX-Trigger"] = "chats-changed"
        return response


def _key(request: web.Request, person: WebPerson) -> ChatKey:
    if not is_name(name := request.match_info["name"]):
        raise web.HTTPNotFound
    return person.chat_key(name)


def _number(query: Mapping[str, str], name: str) -> int:
    value = query.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 9 else 0
