"""Web server of the local pages: routes, checks that apply to every request, and sign-in."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog
from aiohttp import web
from yarl import URL

from hermes_state.admin.browsers import LIFETIME_MS
from hermes_state.errors import StateError
from platforms.console import WebPerson
from platforms.local.access import HEADERS, TOKEN_HEADER, BrowserAccessControl, host_names, refusal
from platforms.local.assets import Asset, load_assets
from platforms.local.chat_routes import ChatRoutes
from platforms.local.console_routes import ConsoleRoutes
from platforms.local.list_routes import ListRoutes
from platforms.local.pages import PageWriter
from platforms.local.requests import Handler, SignedIn, cookie_name, html, received_at
from platforms.local.uploads import FormError

log = structlog.get_logger()


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Site:
    """All pages of one run of the adapter."""

    chat: ChatRoutes
    console: ConsoleRoutes
    listing: ListRoutes
    access: BrowserAccessControl
    signed_in: SignedIn
    pages: PageWriter
    host: str
    """Host name or address on which the web chat listens, from the settings."""
    public: URL | None
    """Public address of the page, if a reverse proxy serves it."""
    _assets: Mapping[str, Asset] = field(default_factory=load_assets, init=False)
    _told: set[str] = field(default_factory=set, init=False)
    """Refusals that were logged, at most 20, so that strangers cannot fill the log."""

    def application(self) -> web.Application:
        """Return the aiohttp application with every route. `_guard` checks all requests."""
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get("/", self._enter),
                web.get("/offline", self._offline),
                web.post("/sign-in", self._sign_in),
                web.get("/static/{file}", self._static_file),
                *self.chat.table(),
                *self.console.table(),
                *self.listing.table(),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests from other origins, and return errors as sentences."""
        address, port = received_at(request)
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

    def _complain(self, request: web.Request, status: int, sentence: str) -> web.Response:
        if request.headers.get("HX-Request") == "true":
            return html(self.pages.fragment("complaint", sentence), status=status)
        return html(self.pages.plain("Something went wrong", sentence), status=status)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Show the page whose script exchanges the token and opens the next page. Without both, open the chat."""
        if "token" not in request.query and await self.console.console.start_page() is None:
            raise web.HTTPSeeOther("/chat/main")
        return html(self.pages.plain("Signing in", "One moment …", "enter.js"))

    async def _offline(self, request: web.Request) -> web.StreamResponse:
        """Show the page that browsers keep, and show instead of ours while the gateway cannot be reached."""
        line = "This page opens again by itself as soon as the gateway answers. Nothing that you sent is lost."
        return html(self.pages.plain("The gateway cannot be reached", line, "offline.js"))

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange a token for the cookie and for the page's key, unless the browser is signed in.

        The header `Hermes-Start` names the page that an admin should see first, if there is one.
        """
        start_page = await self.console.console.start_page()
        if (person := await self.signed_in.find(request)) is not None:
            return web.Response(status=204, headers=_start(start_page, person))
        made = await self.access.exchange(request.headers.get(TOKEN_HEADER, ""), request.headers.get("User-Agent", ""))
        if made is None:
            raise web.HTTPUnauthorized
        headers = _start(start_page, await self.signed_in.find_by(made))
        origin = str(self.public or "")
        response = web.Response(text=made.key, headers={"Cache-Control": "no-store", **headers})
        response.set_cookie(
            cookie_name(request),
            made.cookie,
            max_age=LIFETIME_MS // 1000,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=origin.startswith("https:") and request.headers.get("Origin") == origin,
        )
        return response

    async def _static_file(self, request: web.Request) -> web.StreamResponse:
        if (asset := self._assets.get(request.match_info["file"])) is None:
            raise web.HTTPNotFound
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache", "Service-Worker-Allowed": "/"}
        if request.headers.get("If-None-Match") == asset.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=asset.content, content_type=asset.mime, charset=asset.charset, headers=headers)


def _start(page: str | None, person: WebPerson | None) -> dict[str, str]:
    is_shown = page is not None and person is not None and person.is_admin
    return {"Hermes-Start": f"/console/{page}"} if is_shown else {}


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
