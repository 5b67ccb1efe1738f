"""Cluster membership: some settings must be the same on all nodes, and the nodes' clocks must agree.

If settings or clocks differ, a node does not start. A running node compares both every minute and after a reload. It
only logs a warning about a difference, because a change on another node must not stop this node.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog
from pydantic import SecretStr

from gateway import installed_version
from gateway.config import LoadedConfig
from gateway.config.agents import AgentRoute
from gateway.config.fields import dotted, values_of
from gateway.config.settings import Config
from gateway.schedules import server_zone
from hermes_state.aio import wait_until
from hermes_state.engines.opening import check_place, open_seat
from hermes_state.engines.postgres.nodes import end_left_transactions, find_differences, forget_node, save_settings
from hermes_state.errors import ConfigError, StateError
from hermes_state.redaction import redact
from hermes_state.store.seats import NodeInfo, OnHint, Seat
from hermes_state.store.writer import Store
from hermes_state.values import Clock, SystemClock

log = structlog.get_logger()

AGREED = (
    "agent.time_zone",
    "agents",
    "attachments.url",
    "costs.chat_daily_cap",
    "costs.conversation_cap",
    "costs.daily_cap",
    "discord.accounts",
    "discord.token",
    "routes",
    "sessions.groups",
    "telegram.accounts",
    "telegram.token",
)
"""Settings that must be the same on all nodes that share a database."""


def agreed_settings(config: Config) -> str:
    """Return, as JSON, the settings on which nodes must agree. Secrets are hashed.

    A node without a platform's tokens leaves this platform to other nodes, so its accounts are left out.
    """
    values = {dotted(key): value for key, value in values_of(config)}
    values["agent.time_zone"] = values["agent.time_zone"] or server_zone()
    for platform, bots in (("telegram", config.telegram.bots), ("discord", config.discord.bots)):
        del values[f"{platform}.token"], values[f"{platform}.accounts"]
        named = [f"{bot.account} with {_shown(bot.token)}" for bot in bots if bot.account != platform]
        values |= {f"{platform}.accounts": ", ".join(named) or None} if bots else {}
        values |= {f"{platform}.token": bot.token for bot in bots if bot.account == platform}
    compared = [key for key in AGREED if key in values]
    return msgspec.json.encode({key: _shown(values[key]) for key in compared}).decode()


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return f"a value with digest {hashlib.sha256(value.get_secret_value().encode()).hexdigest()[:8]}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in sorted(value.items())) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, AgentRoute):
        return f"{value.agent} ({value.text})"
    if value is None:
        return "not set"
    return f"{value:g}" if isinstance(value, float) else redact(str(value))


def node_info(config: Config, node_id: str = "") -> NodeInfo:
    """Return a description of this node for other nodes."""
    cluster, settings = config.cluster, agreed_settings(config)
    return NodeInfo(id=node_id, name=cluster.name, version=installed_version(), role=cluster.role, settings=settings)


def refuse_early(loaded: LoadedConfig, url: str, *, is_fresh: bool) -> None:
    """Check the database at `url` without changing it. Raises the error that would prevent a start. Blocks."""
    check_place(loaded.database, url, node_info(loaded.config), SystemClock().now(), is_fresh=is_fresh)


class Membership:
    """Takes this node's seat (see `node.py`). Compares its settings with other nodes, and its clock with the server."""

    def __init__(self, store: Store, clock: Clock, config: Callable[[], Config]) -> None:
        self.changed = asyncio.Event()
        """Set after a change to the configuration."""
        self._store, self._clock, self._config = store, clock, config
        self._known: set[str] = set()
        self._is_admitted = False

    @property
    def node(self) -> NodeInfo:
        return node_info(self._config(), self._store.id)

    async def open_seat(self, on_hint: OnHint) -> Seat:
        """Take the seat.

        The first call also compares settings with other nodes, and the clock with the database server's. Later calls
        must be fast, because turns wait for the seat. Raises the errors of `engines.opening.open_seat`, or
        `ConfigError` if the settings or the clocks differ.
        """
        seconds = self._config().cluster.seat_seconds
        seat = await open_seat(self._store, seconds, lambda: self.node, on_hint, self._clock.now())
        if seat.is_shared and not self._is_admitted:
            try:
                if found := await self._find_differences():
                    await self._store.write(forget_node, self.node)
                    raise ConfigError("\n".join(found))
                self._is_admitted = True
            except BaseException:
                await seat.close()
                raise
        return seat

    async def run(self) -> None:
        """Compare settings and clock every minute and after each change, until cancelled. Log each new difference."""
        while True:
            try:
                if await wait_until(self.changed, 60.0):
                    self.changed.clear()
                    await self._store.write(save_settings, self.node)
                found = await self._find_differences()
            except StateError as error:
                log.debug("node.comparison_failed", error=str(error))  # the heartbeat reports store problems
                continue
            for difference in found:
                if difference not in self._known:
                    log.warning("node.settings_differ", reason=difference)
            self._known = set(found)

    async def end_left_transactions(self) -> None:
        """End transactions that disconnected nodes left open, because they block other nodes. Runs until cancelled."""
        while True:
            try:
                if count := await self._store.read(end_left_transactions):
                    log.warning("node.ended_transactions", transactions=count)
            except StateError as error:
                log.debug("node.check_failed", error=str(error))
            await asyncio.sleep(2.0)  # the server does not report lost connections

    async def _find_differences(self) -> list[str]:
        return await self._store.read(find_differences, self.node, self._clock.now())
