"""Routes of the console: its pages, their content and their actions.

A page is sent empty, so it needs no sign-in. Its script then requests the content with the browser's key.
"""

import secrets
from dataclasses import dataclass

from aiohttp import web

from hermes_state.errors import CommandError
from hermes_state.values import Clock, InboundMessage, InputKind, Sender
from platforms.base import Intake
from platforms.console import Console, ConsolePage, SentCommand, WebPerson
from platforms.local.pages import PageWriter
from platforms.local.requests import SignedIn, form_of, html


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ConsoleRoutes:
    """Request handlers for the pages of the console."""

    intake: Intake
    console: Console
    clock: Clock
    pages: PageWriter
    signed_in: SignedIn

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/console/{page}", self._page),
            web.get("/console/{page}/content", self.signed_in.only(self._content)),
            web.post("/console/{page}/{action}", self.signed_in.only(self._act)),
        ]

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return html(self.pages.console(self._find(request), request.query_string))

    async def _content(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        page = self._find(request, person)
        try:
            values = await self.console.load(page.name, person, request.query)
        except CommandError as error:
            return html(self.pages.fragment("complaint", str(error)), status=409)
        return html(self.pages.console_content(page, person, values, person.menu(self.console.pages)))

    async def _act(self, request: web.Request, person: WebPerson) -> web.StreamResponse:
        """Carry out an action, and show what happened in a sentence. The page then loads its content again."""
        page, form = self._find(request, person), await form_of(request)
        try:
            said = await self.console.act(page.name, request.match_info["action"], person, form)
        except CommandError as error:
            return html(self.pages.fragment("complaint", str(error)), status=409)
        if isinstance(said, SentCommand):
            await self.intake.accept(
                InboundMessage(
                    event_ref=f"console:{secrets.token_hex(16)}",
                    chat=said.chat,
                    chat_kind=said.kind,
                    sender=Sender(platform="local", id=person.id, name=person.name),
                    text=said.text,
                    message_ref="",
                    sent_at=self.clock.now(),
                    is_addressed=True,
                    via=InputKind.BUTTON,
                )
            )
            said = said.said
        response = html(self.pages.fragment("said", said))
        response.headers["HX-Trigger"] = "console-changed"
        return response

    def _find(self, request: web.Request, person: WebPerson | None = None) -> ConsolePage:
        """Return the requested page. Pages for admins do not exist for other people."""
        name = request.match_info["page"]
        for page in self.console.pages:
            if page.name == name and (person is None or person.may_see(page)):
                return page
        raise web.HTTPNotFound
