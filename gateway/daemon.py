"""The daemon: owns every task, every signal, and the order in which things start and stop.

Start: database, access, commands left undone, deliveries left undone, turns left open, then the adapters.
Stop: no new turn is claimed (what arrives is still stored, and waits for the next start), running turns drain,
what is owed goes out, then the adapters, the models and, last, the database close.
"""

import asyncio
import gc
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from agent.context.commit import CompressionRegistry
from agent.images.scaling import ImageScaler
from agent.model.protocols.caching import marks_prompts
from agent.model.protocols.offline import MODEL_SETUP_HINT
from agent.tools.registry import Tool
from agent.tools.terminal.sandbox import terminal_fault
from agent.turn import Agent
from gateway.access.permissions import AccessControl
from gateway.access.tools import find_admin_chats
from gateway.assembly import agent_inputs, make_adapters, make_agent, make_models, zone_of
from gateway.cluster.membership import Membership
from gateway.cluster.node import Node
from gateway.cluster.previews import RemotePreview, RemotePreviews, StoredPreview
from gateway.commands.registry import CommandContext
from gateway.commands.runner import CommandRunner
from gateway.commands.table import REGISTRY
from gateway.config import ConfigRejected, LoadedConfig, load_config, merge_for_reload, reload_differences
from gateway.config.files import prepare_home
from gateway.config.settings import Config
from gateway.duties import DutyRoster
from gateway.health import Heartbeat
from gateway.inbound.intake import GatewayIntake
from gateway.logs import update_logging
from gateway.models.clients import ClientRegistry, preload
from gateway.models.pricing import SpendingControl, unpriced_models, unpriced_sentence
from gateway.models.selection import ModelRegistry, Runtime
from gateway.notify import notify
from gateway.operator.handlers import OperatorHandler
from gateway.operator.socket import serve_control
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.gates import GateRegistry
from gateway.outbound.notices import NoticeWriter
from gateway.schedules.jobs import JobRunner
from gateway.schedules.runner import ScheduleRunner, schedule_zone
from gateway.signals import SignalHandler
from gateway.timers import LOOK_SECONDS, Timer
from gateway.tools import ToolBuilder
from gateway.turns.approvals import MAX_SLEEP_SECONDS, ApprovalRunner
from gateway.turns.attachments import AttachmentHandler
from gateway.turns.fetching import AttachmentFetcher
from gateway.turns.lanes import LaneRegistry
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.transcription import TranscriptionHandler, transcription_client
from hermes_state.aio import run_until
from hermes_state.disk import take_reserve
from hermes_state.engines.opening import open_store
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.errors import ConfigError, HermesError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.redaction import Redactor
from hermes_state.search.upkeep import keep_index
from hermes_state.store.writer import Store
from hermes_state.values import Clock, SystemClock

log = structlog.get_logger()

OFFLINE_HINT = f"the built-in offline model answers; for a real one, {MODEL_SETUP_HINT}"

FLUSH_SECONDS = 10.0
"""Seconds for deliveries after the last turn; what is left goes out at the next start."""


LISTENING_SECONDS = 5.0
"""Longest wait for the platforms before what the first answer needs is loaded, in seconds."""


async def run_daemon(
    loaded: LoadedConfig,
    files: AttachmentFolder,
    *,
    environ: Mapping[str, str],
    extra_tools: Sequence[Tool] = (),
    is_fresh: bool = False,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `is_fresh`: without the database that there was before.

    Raises `LockUnavailable` when another process holds the database, `DatabaseRejected` for one that is not
    ours to open, `StoreUnavailable` when it cannot be opened.
    """
    prepare_home(loaded.home)
    wanted = loaded.config.store
    async with open_store(loaded.database, wanted.url, wanted, is_fresh=is_fresh) as store:
        daemon = _Daemon(loaded, store, files, environ, extra_tools, SystemClock())
        _freeze_memory()
        await daemon.run()
    return 0


class _Daemon:
    """One run of the daemon: every part, the signals, the drain at its end."""

    def __init__(
        self,
        loaded: LoadedConfig,
        store: Store,
        files: AttachmentFolder,
        environ: Mapping[str, str],
        extra_tools: Sequence[Tool],
        clock: Clock,
    ) -> None:
        """Put every part together with what it works with; nothing runs yet."""
        self._loaded = loaded
        self._store = store
        self._files = files
        self._environ = environ
        self._extra_tools = tuple(extra_tools)
        self._clock = clock
        self._signals = SignalHandler(environ)
        self._reloaded = asyncio.Event()
        self._spending = SpendingControl(store, clock)
        self._pending = CompressionRegistry()
        self._scaler = ImageScaler(files)
        self._clients: list[ClientRegistry] = []
        self._agents: list[Agent] = []
        self._group = asyncio.TaskGroup()
        announce = partial(_announce, environ)
        self._adapters = AdapterRegistry(make_adapters(loaded, store, REGISTRY.menu(), files, clock, announce))
        self._adapters.is_shared = not isinstance(store, SqliteStore)
        gates = GateRegistry()
        self._delivery = Delivery(
            store=store,
            adapters=self._adapters,
            gates=gates,
            clock=clock,
            group=self._group,
            files=files,
            zone=lambda: zone_of(self._loaded.config),
        )
        self._tools = self._make_tools()
        self._notices = NoticeWriter(
            store=store,
            settings=lambda: self._loaded.config.notices,
            deliver=self._delivery.wake,
            clock=clock,
            is_admin=self._tools.is_admin,
        )
        self._asked = Timer("approvals", MAX_SLEEP_SECONDS)
        agent, models = self._assemble(loaded)
        self._runtime = Runtime(config=loaded.config, agent=agent, models=models)
        self._access: AccessControl = AccessControl(store, self._runtime)
        make_client = partial(transcription_client, spending=self._spending)
        self._transcriber = TranscriptionHandler(
            store=store, runtime=self._runtime, clock=clock, make_client=make_client
        )
        self._titles = TitleWriter(
            store=store, runtime=self._runtime, clock=clock, redactor=lambda: Redactor(self._loaded.secrets())
        )
        self._lanes = self._make_lanes(gates)
        make_preview = partial(self._lanes.turns.live_preview, kind=RemotePreview)
        self._previews = RemotePreviews(store=store, adapters=self._adapters, make=make_preview)
        if self._adapters.is_shared:
            self._delivery.close_remote = self._previews.close
        self._delivery.on_unreachable = self._asked.wake
        self._approvals = ApprovalRunner(
            store=store,
            lanes=self._lanes,
            role_of=self._access.role_of,
            load_admin_chats=lambda db: find_admin_chats(self._loaded.config, db),
            clock=clock,
            timer=self._asked,
        )
        self._access.on_loaded = self._end_revoked
        self._schedules = self._make_schedules()
        self._commands = self._make_commands()
        self._intake = GatewayIntake(
            store=store,
            runtime=self._runtime,
            access=self._access,
            registry=REGISTRY,
            lanes=self._lanes,
            commands=self._commands,
            delivery=self._delivery,
            clock=clock,
        )
        self._heartbeat = Heartbeat(store, self._adapters, environ, self._lanes.tell_all_broken, loaded.home)
        self._jobs = JobRunner(store=store, runtime=self._runtime, clock=clock, files=files)
        self._membership = Membership(store, clock, lambda: self._runtime.config)
        self._node = self._make_node()
        if self._adapters.is_shared:
            self._adapters.is_certain = lambda: self._node.is_certain
        self._operator = self._make_operator()

    def _make_lanes(self, gates: GateRegistry) -> LaneRegistry:
        """Make the lanes, with what runs their turns and reads their files."""
        store, runtime, clock = self._store, self._runtime, self._clock
        return LaneRegistry(
            store=store,
            runtime=runtime,
            access=self._access,
            turns=TurnRunner(
                store=store,
                runtime=runtime,
                adapters=self._adapters,
                gates=gates,
                delivery=self._delivery,
                titles=self._titles,
                clock=clock,
                on_question=self._asked.wake,
                preview_elsewhere=partial(StoredPreview, store=store, clock=clock)
                if self._adapters.is_shared
                else None,
            ),
            attachments=AttachmentHandler(
                store=store,
                runtime=runtime,
                delivery=self._delivery,
                transcriber=self._transcriber,
                fetcher=AttachmentFetcher(adapters=self._adapters, files=self._files),
                scaler=self._scaler,
                clock=clock,
                files=self._files,
                workspaces=self._tools.workspaces,
            ),
            clock=clock,
            group=self._group,
            slots=asyncio.Semaphore(self._loaded.config.sessions.max_turns),
        )

    def _make_tools(self) -> ToolBuilder:
        return ToolBuilder(
            loaded=lambda: self._loaded,
            access=lambda: self._access,
            store=self._store,
            adapters=self._adapters,
            files=self._files,
            scaler=self._scaler,
            deliver=self._delivery.wake,
            clock=self._clock,
            rescheduled=Timer("schedules", LOOK_SECONDS),
        )

    def _make_schedules(self) -> ScheduleRunner:
        return ScheduleRunner(
            store=self._store,
            runtime=self._runtime,
            access=self._access,
            lanes=self._lanes,
            deliver=self._delivery.wake,
            clock=self._clock,
            timer=self._tools.rescheduled,
        )

    def _make_commands(self) -> CommandRunner:
        context = CommandContext(
            store=self._store,
            runtime=self._runtime,
            access=self._access,
            lanes=self._lanes,
            clock=self._clock,
            health=self._adapters.health,
            registry=REGISTRY,
            deliver=self._delivery.wake,
            servers=self._tools.servers,
            reschedule=self._tools.rescheduled.wake,
            peer_line=lambda: self._node.status_line(self._membership.node),
        )
        return CommandRunner(context, self._delivery, self._group)

    def _make_node(self) -> Node:
        duties = DutyRoster(
            adapters=self._adapters,
            intake=self._intake,
            commands=self._commands,
            delivery=self._delivery,
            previews=self._previews,
            approvals=self._approvals,
            schedules=self._schedules,
            jobs=self._jobs,
            access_changed=self._reloaded,
            expire_learned=self._expire_learned,
        )
        return Node(
            open_seat=self._membership.open_seat,
            duties=duties.of(self._loaded.config.cluster.role),
            lanes=self._lanes,
            run_command=self._commands.run_queued,
            on_hint=duties.on_hint(),
            abandon=duties.abandon,
        )

    def _make_operator(self) -> OperatorHandler:
        return OperatorHandler(
            loaded=lambda: self._loaded,
            runtime=self._runtime,
            store=self._store,
            access=self._access,
            adapters=self._adapters,
            lanes=self._lanes,
            servers=self._tools.servers,
            delivery=self._delivery,
            heartbeat=self._heartbeat,
            peer_row=lambda: self._node.health(self._membership.node),
            clock=self._clock,
            started_at=self._clock.now(),
        )

    async def run(self) -> None:
        """Serve until told to stop."""
        try:
            async with self._group, self._signals.handled():
                await self._serve()
        except ExceptionGroup as failed:
            if isinstance(failed.exceptions[0], HermesError):  # a sentence for the operator, the group only hides it
                raise failed.exceptions[0] from failed
            raise
        finally:
            await self._node.close()
            await self._titles.close()
            for agent in self._agents:
                await agent.close()
            for clients in self._clients:
                await clients.close()
            await self._transcriber.close()

    async def _serve(self) -> None:
        left = None
        if not isinstance(self._store, SqliteStore):  # before anything that may wait for what was left
            left = self._group.create_task(self._membership.end_left_transactions(), name="left")
        if await run_until(self._signals.stopping, self._take_up()):
            await self._serve_until_stopped()
        else:  # a database that another process locks can hold up a start for as long as it likes
            notify(self._environ, "STOPPING=1")
            await self._drain_within(0.0)
            await self._commands.close()
        if left is not None:
            left.cancel()
        log.info("daemon.stopped")

    async def _take_up(self) -> None:
        """Resume what was left undone when the last process ended."""
        await self._access.load()
        await self._node.start()

    async def _serve_until_stopped(self) -> None:
        tasks = [self._group.create_task(self._node.run(), name="node")]
        tasks.append(self._group.create_task(self._heartbeat.run(), name="heartbeat"))
        tasks.append(self._group.create_task(keep_index(self._store), name="search"))
        if not isinstance(self._store, SqliteStore):
            tasks.append(self._group.create_task(self._membership.run(), name="membership"))
            tasks.append(self._group.create_task(self._previews.run(), name="previews"))
        tasks.append(self._group.create_task(self._access.follow(self._reloaded), name="access"))
        tasks.append(self._group.create_task(self._reload_when_asked(), name="reload"))
        tasks.append(self._group.create_task(self._load_late(), name="late"))
        async with serve_control(self._loaded.control_socket, self._operator.handlers()):
            notify(self._environ, "READY=1")
            await asyncio.to_thread(take_reserve, self._loaded.home)
            model = self._runtime.config.model
            log.info("daemon.started", adapters=sorted(self._adapters.supervised), model=model.name or "offline")
            if model.protocol == "offline":
                log.warning("model.offline", hint=OFFLINE_HINT)
            _log_prices_and_caching(self._runtime.config)
            await self._signals.stopping.wait()
            notify(self._environ, "STOPPING=1")
            await self._drain()
        await self._tools.background.stop("the gateway's own end")
        await self._tools.servers.close()
        await self._commands.close()
        for task in tasks:
            task.cancel()

    async def _load_late(self) -> None:
        """Load what the first answer needs once the platforms are being listened to, and before it is asked for."""
        await self._adapters.listening(LISTENING_SECONDS)
        config = self._runtime.config
        try:
            await asyncio.to_thread(preload, config)
            await asyncio.to_thread(schedule_zone, config)  # reads the time zone of the machine
            await asyncio.to_thread(terminal_fault, config.terminal)
        except OSError as error:  # such as no file descriptor: the first answer loads it, only later
            log.warning("daemon.load_delayed", error=str(error))
        _freeze_memory()
        self._tools.connect(self._group)

    async def _end_revoked(self) -> None:
        """End what people without access have left open: questions and background commands."""
        self._asked.wake()
        await self._tools.end_revoked()

    async def _drain(self) -> None:
        """Drain: let turns finish and answers go out, within bounds; a second signal cuts it short."""
        self._titles.stop()
        seconds = self._runtime.config.lifecycle.drain_seconds
        turns = len(self._lanes.active)
        log.info("daemon.draining", turns=turns, seconds=seconds, hint="a second signal ends it at once")
        if not await run_until(self._signals.stopping_now, self._drain_within(seconds)):
            await self._drain_within(0.0)

    async def _drain_within(self, seconds: float) -> None:
        cut = await self._lanes.drain(seconds)
        if cut:
            log.warning("daemon.turns_cut", count=cut)
        await self._delivery.flush(min(FLUSH_SECONDS, seconds))

    # ---- reload ------------------------------------------------------------------------------------------------

    async def _reload_when_asked(self) -> None:
        while True:
            await self._signals.reload_asked.wait()
            self._signals.reload_asked.clear()
            await self._reload()

    async def _reload(self) -> None:
        """Reload the configuration: what may change does from the next turn on; a bad file changes nothing."""
        try:
            new = await asyncio.to_thread(load_config, self._environ)
            await asyncio.to_thread(preload, new.config)
        except ConfigError as error:
            _warn(error.warnings if isinstance(error, ConfigRejected) else ())
            log.error("config.rejected", error=str(error), kept="the last good configuration")
            return
        _warn(new.warnings)
        plan = reload_differences(self._loaded, new)
        merged = merge_for_reload(self._loaded, new)
        if agent_inputs(merged.config) != agent_inputs(self._loaded.config):
            try:
                self._runtime.agent, self._runtime.models = self._assemble(merged)
            except ConfigError as error:
                log.error("config.rejected", error=str(error), kept="the last good configuration")
                return
        self._loaded = merged
        self._runtime.config = merged.config
        await self._tools.reload(self._runtime.agent.offers.registry.by_name, self._group)
        update_logging(merged.config.logging.level, merged.secrets())
        self._reloaded.set()
        self._membership.changed.set()
        log.info("config.reloaded", applied=plan.applied, needs_restart=plan.needs_restart)
        _log_prices_and_caching(merged.config)

    def _assemble(self, loaded: LoadedConfig) -> tuple[Agent, ModelRegistry]:
        """Agent and models of a configuration. A running turn may still use older ones: all are closed at the end."""
        clients = ClientRegistry(loaded.config, self._spending)
        self._clients.append(clients)
        agent = make_agent(
            loaded,
            store=self._store,
            pending=self._pending,
            extra_tools=(*self._tools.build(loaded), *self._extra_tools),
            tool_source=self._tools.servers,
            tool_access=self._tools.permissions,
            listeners=[self._notices.write],
            on_wait=self._notices.write_waiting,
            clock=self._clock,
        )
        self._agents.append(agent)
        return agent, make_models(loaded, clients, store=self._store, scaler=self._scaler, clock=self._clock)

    def _expire_learned(self) -> None:
        """Let what is known of models be read again when they are used: another node may have learned more."""
        self._runtime.models.expire_learned()
        for clients in self._clients:
            clients.expire_learned()


def _log_prices_and_caching(config: Config) -> None:
    if names := unpriced_models(config):
        log.warning("model.unpriced", models=names, hint=unpriced_sentence(names))
    model = config.model
    route = f"{model.protocol}:{model.route.host}" if model.route.host else model.protocol
    is_on = marks_prompts(model.route.name or "", route)
    log.info("prompt_cache.configured", is_on=is_on, route=route, ttl=model.cache_ttl, model=model.label)


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        log.warning("config.warned", reason=warning)


def _freeze_memory() -> None:
    """Never let the garbage collection look at what stays for the whole run.

    The SDKs bring some hundred thousand objects, next to none of them garbage; without this every full collection walks
    over all of them, in the event loop.
    """
    gc.freeze()
    gc.enable()
    gc.collect()  # tells the collector how little is left to walk: it waits for a quarter more than that


def _announce(environ: Mapping[str, str], url: str) -> None:
    """The web chat is up: people read this line to open it. A journal keeps what is printed, so no token goes there."""
    is_terminal = sys.stdout.isatty()
    if not is_terminal and "INVOCATION_ID" in environ:  # systemd started us
        print("The web chat is up: `hermes-gateway url` prints its address.", flush=True)
    else:
        print(f"\n  Open {url}\n" if is_terminal else f"Open {url}", flush=True)
