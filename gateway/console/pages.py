"""All pages of the console, in the order of the menu."""

from gateway.console import (
    chats,
    compressions,
    costs,
    deletion,
    lineage,
    live,
    meter,
    overview,
    people,
    search,
    setup,
    start,
    why,
)
from gateway.console.registry import Page

PAGES: tuple[Page, ...] = (
    search.SEARCH,
    overview.PAGE,
    chats.CHATS,
    people.PAGE,
    live.PAGE,
    costs.PAGE,
    compressions.PAGE,
    setup.PAGE,
    start.PAGE,
    why.PAGE,
    chats.TRANSCRIPT,
    chats.AUDIT,
    meter.PAGE,
    lineage.PAGE,
    search.MESSAGE,
    deletion.PAGE,
)
