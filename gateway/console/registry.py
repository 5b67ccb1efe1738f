"""Types that the pages of the console share."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import msgspec

from agent.tools.mcp.servers import ServerRegistry
from gateway.access.permissions import AccessControl
from gateway.config import LiveConfig, LoadedConfig, ReloadPlan
from gateway.models.selection import Runtime
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from hermes_state.admin import audit
from hermes_state.errors import CommandError
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Millis
from platforms.console import ConsolePage, SentCommand, Values, WebPerson


class ConsoleContext(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of the daemon that pages and their actions use."""

    store: Store
    live: LiveConfig
    runtime: Runtime
    access: AccessControl
    adapters: AdapterRegistry
    servers: ServerRegistry
    delivery: Delivery
    preview_settings: Callable[[Mapping[str, str]], Awaitable[LoadedConfig]]
    """Returns the configuration that new values of variables would produce. Raises `ConfigError` if it is invalid."""
    save_settings: Callable[[Mapping[str, str]], Awaitable[ReloadPlan]]
    """Writes values of variables to the files and reloads the files. Raises `ConfigError` if this fails."""
    remove_deleted: Callable[[], None] = lambda: None
    """Starts the removal of deleted chats."""
    clock: Clock
    started_at: Millis

    async def record(self, person: WebPerson, action: str, subject: str) -> None:
        """Add an entry to the audit list."""
        await self.store.write(audit.record, self.clock.now(), person.ref, action, subject)

    def pauses(self) -> list[str]:
        """Return a sentence for each model that is paused because it failed several times."""
        circuits = ((one.name, circuit) for one in self.runtime.clients_in_use() if (circuit := one.breaker.open))
        return [f"{name} {one.why}; it is paused for {max(1, round(one.seconds))} s." for name, one in circuits]


def field_of(form: Mapping[str, str], name: str) -> str:
    """Return a field that the page always sends. Raises `CommandError` if it is missing."""
    if not (value := form.get(name, "")):
        raise CommandError("This form is not complete. Reload the page and try again.")
    return value


Load: TypeAlias = Callable[[ConsoleContext, WebPerson, Mapping[str, str]], Awaitable[Values]]
"""Loads the values for a page's template. The mapping is the URL's query. Raises `CommandError` if it is not valid."""

Action: TypeAlias = Callable[[ConsoleContext, WebPerson, Mapping[str, str]], Awaitable[str | SentCommand]]
"""Carries out an action with the fields of its form. Returns a sentence that says what happened, or a command."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Page of the console: its description, the function that loads its values, and its actions by name."""

    about: ConsolePage
    load: Load
    actions: Mapping[str, Action] = msgspec.field(default_factory=dict)
