"""Parts that all routes share: responses, and the person who sent a request."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import web

from platforms.console import Console, WebPerson
from platforms.local.access import KEY_HEADER, BrowserAccessControl, Credentials
from platforms.local.uploads import FormError

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
PersonHandler: TypeAlias = Callable[[web.Request, WebPerson], Awaitable[web.StreamResponse]]

MAX_FORM_CHARACTERS = 20_000
"""Maximum total length of the fields of an action."""


class SignedIn:
    """Checks which person a request comes from."""

    def __init__(self, access: BrowserAccessControl, console: Console) -> None:
        self._access = access
        self._console = console

    async def find(self, request: web.Request) -> WebPerson | None:
        """Return the person who is signed in with this browser, or None if nobody is or their access was revoked."""
        cookie, key = request.cookies.get(cookie_name(request), ""), request.headers.get(KEY_HEADER, "")
        return await self.find_by(Credentials(cookie, key))

    async def find_by(self, given: Credentials) -> WebPerson | None:
        """Return the person who is signed in with a cookie and a key, or None."""
        browser = await self._access.find_browser(given)
        return None if browser is None else self._console.find_person(browser.person, browser.person_name)

    def only(self, handler: PersonHandler, *, is_for_admins: bool = False) -> Handler:
        """Restrict a handler to signed-in people (status 401 for others), or to admins (status 404 for others)."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            person = await self.find(request)
            if person is None:
                return html("", status=401)
            if is_for_admins and not person.is_admin:
                raise web.HTTPNotFound
            return await handler(request, person)

        return guarded


def received_at(request: web.Request) -> tuple[str, int]:
    """Return the address and port of a request. Raises `ConnectionResetError` if the browser disconnected."""
    socket = None if request.transport is None else request.transport.get_extra_info("sockname")
    if socket is None:
        raise ConnectionResetError("the browser is gone")
    return socket[0], socket[1]


def cookie_name(request: web.Request) -> str:
    return f"hermes_local_{received_at(request)[1]}"  # browsers share cookies between the ports of a host


async def form_of(request: web.Request) -> Mapping[str, str]:
    """Return the fields of an action's form."""
    fields = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
    if sum(map(len, fields.values())) > MAX_FORM_CHARACTERS:
        raise FormError(413, f"This form is too long. Send at most {MAX_FORM_CHARACTERS:,} characters.")
    return fields


def html(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers={"Cache-Control": "no-store"})
