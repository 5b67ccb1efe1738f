"""Shared code of all routes: the parts of the adapter, the person who sent a request, and responses."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web
from yarl import URL

from hermes_state.errors import CommandError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, ChatKind, Clock, InboundMessage, InputKind, Sender
from platforms.base import Intake
from platforms.console import Console, WebPerson
from platforms.local.access import KEY_HEADER, BrowserAccessControl, Credentials
from platforms.local.chats import ChatRegistry
from platforms.local.pages import PageWriter, is_name
from platforms.local.uploads import FormError, UploadStore
from platforms.settings import HookSettings, LocalSettings

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
PersonHandler: TypeAlias = Callable[[web.Request, WebPerson], Awaitable[web.StreamResponse]]

MAX_FORM_CHARACTERS = 20_000
"""Maximum total length of the fields of an action."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Parts:
    """Parts of the adapter that the routes use."""

    intake: Intake
    store: Store
    files: AttachmentFolder
    uploads: UploadStore
    clock: Clock
    chats: ChatRegistry
    pages: PageWriter
    access: BrowserAccessControl
    settings: LocalSettings
    hooks: Callable[[], Mapping[str, HookSettings]]
    public: URL | None
    """Public address of the page, if a reverse proxy serves it."""

    @property
    def console(self) -> Console:
        return self.intake.console

    async def find_person(self, request: web.Request) -> WebPerson | None:
        """Return the person signed in with this browser, or None if there is none or their access was revoked."""
        cookie, key = request.cookies.get(cookie_name(request), ""), request.headers.get(KEY_HEADER, "")
        return await self.find_person_by(Credentials(cookie, key))

    async def find_person_by(self, given: Credentials) -> WebPerson | None:
        browser = await self.access.find_browser(given)
        return None if browser is None else self.console.find_person(browser.person, browser.person_name)

    async def find_client(self, token: str) -> WebPerson | None:
        """Return the person to whom the token of a program belongs. None if it is unknown or was revoked."""
        client = await self.access.find_client(token)
        return None if client is None else self.console.find_person(*client)

    def only(self, handler: PersonHandler) -> Handler:
        """Restrict a handler to signed-in people (status 401 for others). Show a `CommandError` on the page."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if (person := await self.find_person(request)) is None:
                return html("", status=401)
            try:
                return await handler(request, person)
            except CommandError as error:
                macro = "menu_complaint" if request.path.startswith("/chats/") else "complaint"
                return html(self.pages.fragment(macro, str(error)), status=409)

        return guarded

    def said(self, sentence: str, trigger: str, macro: str = "said") -> web.Response:
        """Return a response that shows what happened. The page reacts to the event `trigger` and loads the changes."""
        response = html(self.pages.fragment(macro, sentence))
        response.headers["HX-Trigger"] = trigger
        return response

    def command(
        self, person: WebPerson, chat: ChatKey, text: str, client_id: str = "", kind: ChatKind = ChatKind.LOCAL
    ) -> InboundMessage:
        """Return a command, as if the person had pressed a button in the chat."""
        return InboundMessage(
            event_ref=f"{chat.name}:{client_id}" if client_id else f"console:{secrets.token_hex(16)}",
            chat=chat,
            chat_kind=kind,
            sender=Sender(platform="local", id=person.id, name=person.name),
            text=text,
            message_ref=f"c-{client_id}" if client_id else "",
            sent_at=self.clock.now(),
            is_addressed=True,
            via=InputKind.BUTTON,
        )


def received_at(request: web.Request) -> tuple[str, int]:
    """Return the server's address and port for a request. Raises `ConnectionResetError` if the browser disconnected."""
    socket = None if request.transport is None else request.transport.get_extra_info("sockname")
    if socket is None:
        raise ConnectionResetError("the browser disconnected")
    return socket[0], socket[1]


def cookie_name(request: web.Request) -> str:
    return f"hermes_local_{received_at(request)[1]}"  # browsers share cookies between the ports of a host


def name_in(request: web.Request) -> str:
    """Return the name of the chat in the request's URL."""
    if not is_name(name := request.match_info["name"]):
        raise web.HTTPNotFound
    return name


async def form_of(request: web.Request) -> Mapping[str, str]:
    """Return the fields of an action's form."""
    fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
    if sum(map(len, fields.values())) > MAX_FORM_CHARACTERS:
        raise FormError(413, f"This form is too long. Send at most {MAX_FORM_CHARACTERS:,} characters.")
    return fields


def html(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})
