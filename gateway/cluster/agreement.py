"""Agreement of the nodes: settings that must be the same on all of them, and clocks that must not differ.

A start is refused where they do not agree. While the gateway runs they are looked at again each minute and after a
reload, and what differs is a warning: nobody may stop answering because another node was configured.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr

from gateway.config.fields import dotted, values_of
from gateway.config.settings import Config
from gateway.schedules.runner import server_zone
from hermes_state.aio import wait_until
from hermes_state.engines.postgres.nodes import find_differences, forget_node, save_settings
from hermes_state.errors import ConfigError, StateError
from hermes_state.redaction import redact
from hermes_state.store.seats import NodeInfo
from hermes_state.store.writer import Store
from hermes_state.values import Clock

log = structlog.get_logger()

LOOK_SECONDS = 60.0

AGREED = (
    "agent.time_zone",
    "attachments.url",
    "costs.chat_daily_cap",
    "costs.conversation_cap",
    "costs.daily_cap",
    "discord.token",
    "sessions.groups",
    "telegram.token",
)
"""Settings that must be the same on all nodes of a database."""


def agreed_settings(config: Config) -> str:
    """Values of the settings that nodes must agree on, as JSON; a secret is a digest, and one that is not set nothing.

    A node without a bot's token leaves that bot to others, which is no difference.
    """
    values = {dotted(key): value for key, value in values_of(config)}
    values["agent.time_zone"] = values["agent.time_zone"] or server_zone()
    return msgspec.json.encode({key: _shown(values[key]) for key in AGREED if _is_compared(key, values)}).decode()


def _is_compared(key: str, values: dict[str, Any]) -> bool:
    return key in values and not (key.endswith("token") and values[key] is None)


def _shown(value: Any) -> str:
    match value:
        case SecretStr():
            return f"the one with digest {hashlib.sha256(value.get_secret_value().encode()).hexdigest()[:8]}"
        case float():
            return f"{value:g}"
        case None:
            return "not set"
        case _:
            return redact(str(value))


class AgreementCheck:
    """Looks whether this node agrees with the others, and with the server about the time."""

    def __init__(self, store: Store, clock: Clock, node: Callable[[], NodeInfo]) -> None:
        """`node`: this one, with the settings of now."""
        self.changed = asyncio.Event()
        """Set when the configuration has changed."""
        self._store, self._clock, self._node = store, clock, node
        self._known: set[str] = set()
        self._is_admitted = False

    async def require(self) -> None:
        """Raise `ConfigError` where this node may not be beside those that run; of one that comes back nothing."""
        if self._is_admitted:
            return
        if found := await self._store.read(find_differences, self._node(), self._clock.now()):
            await self._store.write(forget_node, self._node())
            raise ConfigError("\n".join(found))
        self._is_admitted = True

    async def run(self) -> None:
        """Look each minute and after each change until cancelled; what is new is a warning in the log."""
        while True:
            try:
                if await wait_until(self.changed, LOOK_SECONDS):
                    self.changed.clear()
                    await self._store.write(save_settings, self._node())
                await self.look()
            except StateError as error:
                log.debug("cluster.not_looked_at", error=str(error))  # the heartbeat says what is wrong with the store

    async def look(self) -> None:
        """Warn of differences that were not there at the last look."""
        found = await self._store.read(find_differences, self._node(), self._clock.now())
        for difference in found:
            if difference not in self._known:
                log.warning("cluster.differs", reason=difference)
        self._known = set(found)
