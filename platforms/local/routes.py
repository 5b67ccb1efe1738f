"""Web server of the local pages: routes, checks that apply to every request, sign-in, and the console."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import structlog
from aiohttp import web

from hermes_state.admin.browsers import LIFETIME_MS
from hermes_state.errors import StateError
from platforms.console import ConsolePage, SentCommand, WebPerson
from platforms.local.access import HEADERS, TOKEN_HEADER, host_names, refusal
from platforms.local.api_routes import ApiRoutes
from platforms.local.chat_routes import ChatRoutes
from platforms.local.list_routes import ListRoutes
from platforms.local.requests import Handler, Parts, cookie_name, form_of, html, received_at
from platforms.local.uploads import FormError
from platforms.local.webhooks import HookRoutes

log = structlog.get_logger()


_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
}

_STYLES = (
    *("tokens", "base", "sidebar", "stage", "meter", "entries", "condensed", "kinds", "prose", "code", "composer"),
    *("actions", "console", "lineage", "start", "plain", "phone"),
)
"""Style sheets in the order in which `app.css` contains them. Later rules win, so `phone` is last."""


class Site:
    """Web application of one adapter run: the routes, and the checks that apply to every request."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._assets = load_assets()
        self._told: set[str] = set()
        """Refusals that were logged, at most 20, so that strangers cannot fill the log."""

    def application(self) -> web.Application:
        """Return the aiohttp application with every route. `_guard` checks all requests of browsers."""
        app, chats = web.Application(middlewares=[self._guard]), ChatRoutes(self.parts)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get("/", self._enter),
                web.get("/offline", self._offline),
                web.post("/sign-in", self._sign_in),
                web.get("/static/{file}", self._static_file),
                *chats.table(),
                web.get("/console/{page}", self._console_page),
                web.get("/console/{page}/content", self.parts.only(self._console_content)),
                web.post("/console/{page}/{action}", self.parts.only(self._console_act)),
                *ListRoutes(self.parts).table(),
                *ApiRoutes(chats).table(),
                web.post("/hooks/{name}", HookRoutes(self.parts).receive),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests from other origins, and return errors as sentences."""
        if request.path.startswith(("/v1/", "/hooks/")):  # programs send secrets that browsers do not add by themselves
            return await handler(request)
        address, port = received_at(request)
        # Accept this machine's IP address, because only a domain name can mislead a browser.
        hosts = [*host_names(self.parts.settings.host, port), *host_names(address, port)]
        if (public := self.parts.public) is not None:
            hosts += public.raw_authority, public.raw_host or ""  # some proxies leave out the port
        if (reason := refusal(request.headers, request.method, hosts, str(public or ""))) is not None:
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
            return html(self.parts.pages.fragment("complaint", sentence), status=status)
        return html(self.parts.pages.plain("Something went wrong", sentence), status=status)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        """Show the page whose script exchanges the token and opens the next page.

        Without a token, open the chat instead, unless the gateway has a page to show first.
        """
        if "token" not in request.query and await self.parts.console.start_page() is None:
            raise web.HTTPSeeOther("/chat/main")
        return html(self.parts.pages.plain("Signing in", "One moment …", "enter.js"))

    async def _offline(self, request: web.Request) -> web.StreamResponse:
        """Return the page that browsers store in advance and show while the gateway cannot be reached."""
        line = "This page reloads automatically as soon as the gateway answers. Nothing that you sent is lost."
        return html(self.parts.pages.plain("The gateway cannot be reached", line, "offline.js"))

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        """Exchange a token for the cookie and for the page's key, unless the browser is signed in.

        The header `Hermes-Start` names the page that an admin should see first, if there is one.
        """
        start_page = await self.parts.console.start_page()
        if (person := await self.parts.find_person(request)) is not None:
            return web.Response(status=204, headers=_start(start_page, person))
        token, agent = request.headers.get(TOKEN_HEADER, ""), request.headers.get("User-Agent", "")
        made = await self.parts.access.exchange(token, agent)
        if made is None:
            raise web.HTTPUnauthorized
        headers = _start(start_page, await self.parts.find_person_by(made))
        origin = str(self.parts.public or "")
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

    # ---- the console: a page is sent empty, and its script requests the content with the key of the browser

    async def _console_page(self, request: web.Request) -> web.StreamResponse:
        return html(self.parts.pages.page("console", page=self._console(request), query=request.query_string))

    async def _console_content(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        page, console = self._console(request, person), self.parts.console
        values = await console.load(page.name, person, request.query)
        return html(self.parts.pages.console_content(page, person, values, person.menu(console.pages)))

    async def _console_act(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Carry out an action, and show what happened in a sentence. The page then loads its content again."""
        page, form = self._console(request, person), await form_of(request)
        said = await self.parts.console.act(page.name, request.match_info["action"], person, form)
        if isinstance(said, SentCommand):
            await self.parts.intake.accept(self.parts.command(person, said.chat, said.text, kind=said.kind))
            said = said.said
        return self.parts.said(said, "console-changed")

    def _console(self, request: web.Request, person: WebPerson | None = None) -> ConsolePage:
        """Return the requested page. Other people get "not found" for pages that are only for admins."""
        name = request.match_info["page"]
        for page in self.parts.console.pages:
            if page.name == name and (person is None or person.may_see(page)):
                return page
        raise web.HTTPNotFound


def _start(page: str | None, person: WebPerson | None) -> dict[str, str]:
    is_shown = page is not None and person is not None and person.is_admin
    return {"Hermes-Start": f"/console/{page}"} if is_shown else {}


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


@dataclass(frozen=True)
class StaticFile:
    """Static file with the headers that a browser needs to cache it."""

    content: bytes
    mime: str

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'

    @property
    def charset(self) -> str | None:
        return None if self.mime == "image/png" else "utf-8"


def load_assets() -> Mapping[str, StaticFile]:
    """Load all static files by name, so that a request path never becomes a path on disk. `app.css` has all styles."""
    folders = (_FOLDER / name for name in ("app", "vendor", "scripts"))
    files = {path.name: path.read_bytes() for one in folders for path in one.iterdir() if path.suffix in _TYPES}
    files["app.css"] = b"\n".join((_FOLDER / "styles" / f"{name}.css").read_bytes() for name in _STYLES)
    return {name: StaticFile(content, _TYPES[Path(name).suffix]) for name, content in files.items()}
