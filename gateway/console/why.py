"""Why did this happen? The history of one message, from its arrival to its delivery."""

from collections.abc import Mapping

from gateway.console.registry import ConsoleContext, Page
from gateway.models.routes import zone_of
from gateway.operator.why import load_explained, why_lines
from hermes_state.admin.why import Why
from hermes_state.store.sql import Connection
from platforms.console import ConsolePage, Values, WebPerson


async def load(context: ConsoleContext, person: WebPerson, query: Mapping[str, str]) -> Values:
    name = query.get("message", "").strip()[:40]
    if not name:
        return {"name": "", "lines": [], "chat": ""}

    def read(db: Connection) -> Why:
        return load_explained(db, name)

    found = await context.store.read(read)
    await context.record(person, "explain", f"{name} in {found.turn.chat.name}")
    lines = [line.removeprefix("- ") for line in why_lines(found, zone_of(context.live.config))[1:]]
    return {"name": name, "lines": [context.live.redactor()(line) for line in lines], "chat": found.turn.chat.name}


PAGE = Page(about=ConsolePage(name="why", title="Explain a message"), load=load)
