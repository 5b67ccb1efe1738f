"""Handlers for the requests that the command line sends to the running daemon through the control socket."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
from yarl import URL

from agent.engines.loader import BUILT_IN
from agent.model.caps import SpendingCapSettings, day_start
from agent.tools.mcp.servers import ServerRegistry
from gateway import installed_version
from gateway.access.clients import add_client
from gateway.access.pairing import COMMAND_LINE, approve_pairing, load_pairing_rows, pairing_row, revoke_pairing
from gateway.access.permissions import AccessControl, AccessResult
from gateway.access.web_links import make_link, page_address
from gateway.config import LoadedConfig
from gateway.health import Heartbeat
from gateway.logs import PROBLEMS
from gateway.models.pricing import limits_in
from gateway.models.selection import Runtime, route_of
from gateway.operator import checks
from gateway.operator.browsers import browser_rows, served_elsewhere
from gateway.operator.checks import CheckResult, CheckStatus, failed, fine, warning
from gateway.operator.effective import comparable_settings
from gateway.operator.forgetting import Forgetter
from gateway.operator.lookups import LOOKUP_SECONDS, LOOKUPS, Row, look_up, tool_row
from gateway.operator.socket import Handler
from gateway.operator.spending import load_daily_caps, money, report, spent_row
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.scripts import send_to_chat
from gateway.times import format_time
from gateway.turns.lanes import LaneRegistry
from hermes_state.admin import browsers
from hermes_state.admin.overview import load_queues
from hermes_state.admin.pairings import UserRole
from hermes_state.agents import load_state
from hermes_state.chats import find_chat
from hermes_state.engines.postgres.nodes import ClusterStatus, load_cluster
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import CommandError, StoreUnavailable
from hermes_state.models import ledger
from hermes_state.redaction import Redactor
from hermes_state.search.index import load_progress
from hermes_state.sessions import load_open
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.tools import schedules
from hermes_state.values import LOCAL_OWNER, ChatKind, Clock, Millis, UserRef

log = structlog.get_logger()


class OperatorHandler(msgspec.Struct, frozen=True, kw_only=True):
    """Handles the requests that `hermes-gateway` commands send to the daemon."""

    loaded: Callable[[], LoadedConfig]
    runtime: Runtime
    store: Store
    access: AccessControl
    adapters: AdapterRegistry
    lanes: LaneRegistry
    servers: ServerRegistry
    delivery: Delivery
    heartbeat: Heartbeat
    clock: Clock
    started_at: Millis
    forgetter: Forgetter
    peer_row: Callable[[], Mapping[str, Any]] = dict
    """Returns this process's health in a cluster, or an empty mapping for an SQLite database."""

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "status": self.status,
            "config.values": self.list_settings,
            "pair.list": lambda _: self.store.read(load_pairing_rows, self.clock.now()),
            "pair.approve": self.approve,
            "pair.revoke": self.revoke,
            "client.add": self.add_client,
            "api.session": self.open_session,
            "send": self.send,
            "local.url": self.mint_local_url,
            "local.browsers": lambda _: self.store.read(browser_rows, self.clock.now()),
            "local.revoke": self.revoke_browsers,
            "cluster.status": self.look_at_cluster,
            "doctor": self.examine,
            "backup": self.back_up,
            "forget": self.forgetter.handle,
            "tools": self.list_tools,
            **{name: partial(self.look_up, name) for name in LOOKUPS},
            **{name: partial(self.look_at_spending, name) for name in ("usage", "insights")},
        }

    async def status(self, _args: Mapping[str, Any]) -> Mapping[str, Any]:
        model, counts = self.loaded().config.model, self.access.counts.items()
        local = self.adapters.supervised.get("local")
        return {
            "version": installed_version(),
            "process": os.getpid(),
            "home": str(self.loaded().home),
            "address": page_address(local.adapter) if local is not None else None,
            "running_seconds": max(0, self.clock.now() - self.started_at) // 1000,
            "model": model.name or "offline",
            "protocol": model.protocol,
            **({"agents": named} if (named := self._agents()) else {}),
            "routes": self._routes(),
            "turns_running": len(self.lanes.active),
            **await self._work(),
            "last_hour": PROBLEMS.since(3_600, Redactor(self.loaded().secrets())),
            "vitals": self.heartbeat.vitals(),
            **self.peer_row(),
            "platforms": self._platforms(),
            "mcp": {one.name: {"state": one.state.value, "error": one.error} for one in self.servers.statuses()},
            "not_stored": {result.value: count for result, count in counts if result is not AccessResult.ADMITTED},
        }

    async def list_settings(self, _args: Mapping[str, Any]) -> Mapping[str, Any]:
        return comparable_settings(self.loaded().config)

    async def _work(self) -> Mapping[str, Any]:
        """Return what waits, and today's spending. Return nothing while the database does not answer."""

        def load(db: Connection, now: Millis, limits: SpendingCapSettings) -> Mapping[str, Any]:
            today = ledger.load_since(db, day_start(now, limits.zone))
            return {
                "work": msgspec.structs.asdict(load_queues(db, now)),
                "search_index_percent": load_progress(db),
                "today": {"cost": money(today), **spent_row(today)},
                "caps_reached": [cap.key for cap in load_daily_caps(db, limits, now) if cap.is_reached],
            }

        with suppress(StoreUnavailable):
            return await self.store.read_within(2.0, load, self.clock.now(), limits_in(self.loaded(), None))
        return {}

    def _agents(self) -> Mapping[str, str]:
        """Return the model of each named agent."""
        return {name: agent.config.model.label for name, agent in self.loaded().named_agents.items()}

    def _routes(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for client in self.runtime.clients_in_use():
            row: dict[str, Any] = {"model": client.name, "route": client.route}
            if (circuit := client.breaker.open) is not None:
                row |= {"paused_seconds": round(circuit.seconds), "reason": circuit.why}
            found.append(row)
        return found

    def _platforms(self) -> Mapping[str, Mapping[str, Any]]:
        rows = {}
        for name, health in self.adapters.health().items():
            at = health.last_progress_at
            progress = format_time(at) if at is not None else None
            rows[name] = {"state": health.state.value, "detail": health.detail, "last_progress": progress}
        return rows

    async def approve(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Approve the pairing `code`, with `role` (user by default)."""
        try:
            role = UserRole(str(args.get("role", UserRole.USER)))
        except ValueError:
            raise CommandError("The role must be user or admin.") from None
        code, now = str(args.get("code", "")), self.clock.now()
        pairing, chat_id = await self.store.write(approve_pairing, code, role, COMMAND_LINE, now)
        await self.access.load()
        if chat_id is not None:
            self.delivery.wake(chat_id)
        return pairing_row(pairing)

    async def revoke(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Revoke the access of `user`, a stable id such as `telegram:42`."""
        person = UserRef(str(args.get("user", "")))
        pairing = await self.store.write(revoke_pairing, person, COMMAND_LINE, self.clock.now())
        await self.access.load()
        return pairing_row(pairing)

    async def add_client(self, args: Mapping[str, Any]) -> None:
        """Give the client `name` access with the token whose SHA-256 is `token_hash`."""
        given = str(args.get("name")), UserRole(args["role"]), str(args["token_hash"])
        await self.store.write(add_client, *given, self.clock.now())
        await self.access.load()

    async def open_session(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the API's address, a token of the owner that is valid until the gateway stops, and the model.

        The model is that of the owner's conversation `name`.
        """
        from platforms.local import LocalAdapter  # only a gateway with a web chat imports it
        from platforms.local.api_routes import conversation_name
        from platforms.local.pages import chat_key

        def load(db: Connection) -> tuple[str, str | None]:
            chat, routed = find_chat(db, key), self.lanes.routed_agent(key, ChatKind.LOCAL, None, LOCAL_OWNER)
            session = None if chat is None else load_open(db, chat.id)
            agent = routed.name if chat is None else load_state(db, chat.id, routed).next_agent
            return agent, None if session is None else session.chosen_model

        key = chat_key(conversation_name(str(args.get("name"))))
        served = self.adapters.supervised.get("local")
        match None if served is None else served.adapter:
            case LocalAdapter(own_url=URL() as url) as local:
                agent, choice = await self.store.read(load)
                model = route_of(used := self.runtime.of(agent).config.model, choice) or used
                token = local.access.mint_terminal()
                return {"host": url.host, "port": url.port, "token": token, "model": model.shown_label}
        raise CommandError("This gateway does not serve the web chat, which `chat` needs. `status` shows why.")

    async def send(self, args: Mapping[str, Any]) -> None:
        """Send `text` to `chat` as the bot, or let the agent answer it there if `asks` is set."""
        given = str(args.get("chat")), str(args.get("text")), bool(args.get("asks"))
        accounts = [*self.loaded().config.bots, "local"]
        chat_id = await self.store.write(send_to_chat, *given, self.clock.now(), accounts)
        self.delivery.wake(chat_id)
        self.lanes.wake(chat_id, is_new=True)

    async def examine(self, _args: Mapping[str, Any]) -> list[CheckResult]:
        """Run the checks that need the running daemon, such as checks of its database, models and systemd sandbox."""
        circuits = [
            warning("route", f"{one.name} ({one.route}) {circuit.why}; it is paused for {circuit.seconds:.0f} s.")
            for one in self.runtime.clients_in_use()
            if (circuit := one.breaker.open) is not None
        ]
        config, served = self.runtime.config, ", ".join(self.adapters.health())
        return [
            *await self._examine_database(),
            *[await self._examine_context(name) for name in self.loaded().agent_names],
            *circuits,
            *await asyncio.to_thread(lambda: list(checks.check_terminal(config))),
            *([fine("platforms", f"The running gateway serves {served}.")] if served else []),
            *checks.check_servers(config, self.servers.statuses()),
            *(warning("reactions", text) for text in await self.delivery.reactions.faults()),
            *checks.check_schedules(await self.store.read(schedules.load_stranded)),
        ]

    async def _examine_context(self, agent: str) -> CheckResult:
        runtime, settings = self.runtime.of(agent), self.loaded().agent(agent)
        model, engine = runtime.models.configured, runtime.agent.context.engine
        plugin = engine.name if engine.name != BUILT_IN else None
        return checks.check_context(settings, await model.load_limits(), model.window_from, engine=plugin)

    async def _examine_database(self) -> list[CheckResult]:
        if (trouble := self.store.trouble) is not None:
            return [failed("database", trouble)]
        try:
            checked, config = await self.store.read(checks.check_database), self.runtime.config
            work = await self.store.read(checks.check_admins, self.loaded())
            work += await self.store.read(checks.check_removed, self.loaded())
            if not isinstance(self.store, SqliteStore):
                return [checked, *work, *await self.store.read(checks.check_cluster, config, self.store.id)]
            index = await asyncio.to_thread(checks.check_index, self.store.path, await self.store.read(load_progress))
        except StoreUnavailable as error:
            return [failed("database", str(error))]
        if index.verdict is not CheckStatus.FINE:
            self.store.index_failed.set()  # repair a damaged index before a search or a message fails because of it
        return [checked, *work, index]

    async def back_up(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Copy the database to the new file `file`, an absolute path. Return the size of the copy."""
        target = Path(str(args.get("file", "")))
        if not target.is_absolute():
            raise CommandError("A backup needs the absolute path of a new file.")
        size = await self.store.back_up(target)
        log.info("store.backed_up", bytes=size)
        return {"bytes": size}

    async def look_up(self, name: str, args: Mapping[str, Any]) -> list[Any]:
        """Run a request that is defined in `gateway.operator.lookups`."""
        return await look_up(self.store, name, args, Redactor(self.loaded().secrets()))

    async def list_tools(self, _args: Mapping[str, Any]) -> list[Row]:
        tools, redact = self.runtime.agent.offers.registry.by_name.values(), Redactor(self.loaded().secrets())
        return await asyncio.to_thread(lambda: [tool_row(tool.schema, redact) for tool in tools])

    async def look_at_spending(self, name: str, args: Mapping[str, Any]) -> Row:
        limits_of = partial(limits_in, self.loaded())
        return await self.store.read_within(LOOKUP_SECONDS, report, name, limits_of, self.clock.now(), args)

    async def mint_local_url(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a link that signs in one browser as the owner, or as the person called `for`.

        A new person gets `role`. The link is None while the web chat is not running.
        """
        local = self.adapters.supervised.get("local")
        role, name = UserRole(args["role"]) if args.get("role") else None, str(args.get("for", ""))
        if local is not None:
            made = make_link(
                self.store, self.access, local.adapter, self.clock, name=name, role=role, decided_by=COMMAND_LINE
            )
            if (url := await made) is not None:
                return {"url": url}
        is_shared = not isinstance(self.store, SqliteStore)
        if is_shared and (elsewhere := await self.store.read(served_elsewhere, self.store.id)) is not None:
            raise CommandError(elsewhere)
        if local is None:
            raise CommandError("The web chat is disabled (local.enabled).")
        return {"url": None}

    async def look_at_cluster(self, _args: Mapping[str, Any]) -> ClusterStatus | None:
        """Return all processes that share the database, or None for an SQLite database."""
        return None if isinstance(self.store, SqliteStore) else await self.store.read(load_cluster)

    async def revoke_browsers(self, args: Mapping[str, Any]) -> Mapping[str, int]:
        """Sign out the browser `id`, or all browsers if no id is given."""
        return {"signed_out": await self.store.write(browsers.remove, args.get("id"), self.clock.now())}
