"""List of chats, grouped by day in the reader's time zone, and the actions that a person can take on a chat."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

import msgspec
from aiohttp import web

from hermes_state import web_chats
from hermes_state.text import whole_number
from hermes_state.values import ChatKey, Millis
from hermes_state.web_chats import START, ListedChat, Position, load_listed
from platforms.console import WebPerson
from platforms.local.chats import save_recent
from platforms.local.export import FORMATS, messages
from platforms.local.pages import is_name
from platforms.local.requests import Parts, form_of, html, name_in

PAGE_CHATS = 50


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ListRoutes:
    """Request handlers for the chat list of the person who is signed in."""

    parts: Parts

    def table(self) -> Sequence[web.RouteDef]:
        only = self.parts.only
        return [
            web.get("/chats", only(self._list)),
            web.get("/chats/{name}/menu", only(self._menu)),
            web.get("/chats/{name}/export/{kind}", only(self._export)),
            web.get("/chats/{name}/delete", only(self._ask)),
            web.post("/chats/{name}/delete", only(self._delete)),
            web.post("/chats/{name}/{action}", only(self._act)),
        ]

    async def _list(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        query, store = request.query, self.parts.store
        shown = name if is_name(name := query.get("shown", "")) else ""
        after, is_archived = position_in(query.get("after", "")), query.get("archived") == "1"
        # A page that shows more is refreshed from the top.
        limit = max(PAGE_CHATS, min(whole_number(query.get("count", "")) or 0, 5_000))
        like = person.chat_key(shown)
        found = await store.read(load_listed, like, limit + 1, after=after or START, is_archived=is_archived)
        zone, heading = zone_named(request.headers.get("Hermes-Zone", "")), query.get("heading", "")[:40]
        view = {
            "entries": list(grouped(found[:limit], zone, self.parts.clock.now(), heading if after else "")),
            "shown": shown,  # chat of the page, or an empty string on other pages
            "is_archived": is_archived,
            "is_start": after is None,  # this part replaces the whole list
            "next": found[limit - 1].position if len(found) > limit else None,
        }
        current = await store.read(web_chats.find_listed, like) if shown and after is None else None
        return html(self.parts.pages.fragment("chat_list", view, current))

    async def _menu(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        chat, pages = await self.parts.store.read(web_chats.find_listed, _key(request, person)), self.parts.pages
        if chat is None:
            return html(pages.fragment("list_said", "This chat no longer exists. Reload the page."), status=409)
        return html(pages.fragment("menu", chat))

    async def _export(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        key, form = _key(request, person), FORMATS.get(request.match_info["kind"])
        chat = await self.parts.store.read(web_chats.find_listed, key)
        if form is None or chat is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": f"{form.mime}; charset=utf-8", "Content-Disposition": "attachment"}
        response = web.StreamResponse(headers={**headers, "Cache-Control": "no-store"})
        with suppress(ConnectionError):  # the page was closed
            await response.prepare(request)
            await response.write(form.start(chat.shown_name).encode())
            async for message in messages(self.parts.store, self.parts.files, key):
                await response.write((await asyncio.to_thread(form.message, message)).encode("utf-8", "replace"))
            await response.write_eof(form.end.encode())
        return response

    async def _ask(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        name = name_in(request)
        values = await self.parts.console.load("deletion", person, {"chat": name})
        return html(self.parts.pages.fragment("deletion", name, values))

    async def _delete(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Delete a chat, and remove it from memory and from the saved recent entries."""
        key, chats = _key(request, person), self.parts.chats
        said = await self.parts.console.act("deletion", "delete", person, {"chat": key.chat_ref})
        if (live := chats.pop(key, None)) is not None:
            live.stream.close()
        await self.parts.store.write(save_recent, {one: chat.recent for one, chat in chats.items()})
        response = self.parts.said(str(said), "chats-changed", "list_said")
        if unquote(urlsplit(request.headers.get("HX-Current-URL", "")).path) == f"/chat/{key.chat_ref}":
            response.headers["HX-Redirect"] = "/open"
        return response

    async def _act(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        key, form = _key(request, person), await form_of(request)
        store, now = self.parts.store, self.parts.clock.now()
        match request.match_info["action"]:
            case "rename":
                await store.write(web_chats.rename, key, form.get("name", ""))
                said = "The chat has been renamed."
            case "pin" | "unpin" as action:
                await store.write(web_chats.pin, key, now if action == "pin" else None)
                said = "The chat is pinned." if action == "pin" else "The chat is no longer pinned."
            case "archive" | "restore" as action:
                await store.write(web_chats.archive, key, now if action == "archive" else None)
                said = "The chat is archived." if action == "archive" else "The chat is in the list again."
            case _:
                raise web.HTTPNotFound
        return self.parts.said(said, "chats-changed", "list_said")


def _key(request: web.Request, person: WebPerson) -> ChatKey:
    return person.chat_key(name_in(request))


# ---- entries of the list


class ListEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Chat in the list, with the `heading` under which it is listed."""

    chat: ListedChat
    heading: str
    is_first: bool
    """True if the heading is shown above this entry."""
    clock: str


def zone_named(name: str) -> tzinfo:
    """Return the time zone that the browser reported, or UTC if this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # an unknown name is a KeyError
        return UTC


def grouped(chats: Sequence[ListedChat], zone: tzinfo, now: Millis, heading: str = "") -> Iterator[ListEntry]:
    """Yield the entries of the list. `heading` is the last heading that the page already shows above them."""
    today = datetime.fromtimestamp(now / 1000, zone).date()
    for chat in chats:
        at = datetime.fromtimestamp(chat.used_at / 1000, zone)
        own = "Pinned" if chat.is_pinned else heading_of(at.date(), today)
        yield ListEntry(chat=chat, heading=own, is_first=own != heading, clock=f"{at:%H:%M}")
        heading = own


def heading_of(day: date, today: date) -> str:
    """Return the heading of a day: a word or a weekday in the last week, else the date.

    >>> [heading_of(date(2026, *day), date(2026, 11, 29)) for day in ((11, 29), (11, 28), (11, 24), (11, 2))]
    ['Today', 'Yesterday', 'Tuesday', '2 November']
    >>> heading_of(date(2025, 12, 31), date(2026, 1, 20))
    '31 December 2025'
    """
    days = (today - day).days
    if days < 2:
        return "Yesterday" if days == 1 else "Today"
    if days < 7:
        return f"{day:%A}"
    return f"{day.day} {day:%B}" + ("" if day.year == today.year else f" {day.year}")


def position_in(text: str) -> Position | None:
    """Return the list position in a link to older chats, or None if the text is not a position."""
    match [whole_number(part) for part in text.split("-")]:
        case [int(pinned), int(used_at), int(chat_id)]:
            return pinned, used_at, chat_id
    return None
