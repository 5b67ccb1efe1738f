"""Console of a running gateway. Implements `platforms.console.Console`."""

from collections.abc import Mapping, Sequence

from gateway.console import activity, chats, lineage, people, settings
from gateway.console.registry import ConsoleContext, Page
from hermes_state.agents import shown_name
from hermes_state.errors import CommandError
from hermes_state.values import UserRef
from platforms.console import ConsolePage, SentCommand, Values, WebPerson

PAGES: tuple[Page, ...] = (
    *(chats.SEARCH, activity.OVERVIEW, chats.CHATS, people.PEOPLE, activity.LIVE, activity.COSTS),
    *(activity.COMPRESSIONS, settings.SETTINGS, settings.START, chats.WHY),
    *(chats.TRANSCRIPT, chats.AUDIT, chats.MESSAGE, chats.DELETION, chats.FORGETTING, lineage.METER, lineage.LINEAGE),
)
"""All pages, in the order of the menu."""


class ConsoleHandler:
    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self._pages = {page.about.name: page for page in PAGES}

    @property
    def pages(self) -> Sequence[ConsolePage]:
        return [page.about for page in PAGES]

    def find_person(self, ref: UserRef, name: str) -> WebPerson | None:
        access = self._context.access
        return WebPerson(ref=ref, name=name, is_admin=access.is_admin(ref)) if access.has_access(ref) else None

    async def start_page(self) -> str | None:
        return settings.START.about.name if await settings.is_new(self._context) else None

    async def load(self, page: str, person: WebPerson, query: Mapping[str, str]) -> Values:
        values = await self._pages[page].load(self._context, person, query)
        names = [shown_name(name) for name in self._context.live.loaded.agent_names] if person.is_admin else []
        return {"agents": names if len(names) > 1 else [], "agent": query.get("agent", ""), **values}

    async def act(self, page: str, action: str, person: WebPerson, form: Mapping[str, str]) -> str | SentCommand:
        if (act := self._pages[page].actions.get(action)) is None:
            raise CommandError(f"This page has no action “{action[:40]}”. Reload the page and try again.")
        return await act(self._context, person, form)
