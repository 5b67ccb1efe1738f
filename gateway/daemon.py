"""The daemon: owns every task, every signal, and the order in which things start and stop.

Start: database, access, commands left undone, deliveries left undone, turns left open, then the adapters.
Stop: no new turn is claimed (what arrives is still stored, and waits for the next start), running turns drain,
what is owed goes out, then the adapters, the models and, last, the database close.
"""

import asyncio
import gc
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from agent.model.protocols.offline import MODEL_SETUP_HINT
from agent.tools.registry import Tool
from gateway.access.permissions import AccessControl
from gateway.assembly import agent_inputs, make_adapters, make_agents
from gateway.commands.registry import CommandContext
from gateway.commands.runner import CommandRunner
from gateway.commands.table import REGISTRY
from gateway.config import ConfigRejected, LoadedConfig, load_config, merge_for_reload, reload_differences
from gateway.config.context_settings import NoticeConfig
from gateway.config.files import prepare_home
from gateway.config.settings import Config
from gateway.inbound.intake import GatewayIntake
from gateway.logs import update_logging
from gateway.models.agents import Agents
from gateway.models.pricing import Pricing, unpriced_models, unpriced_sentence
from gateway.models.runtime import Runtime
from gateway.models.selection import ClientRegistry, caching_of
from gateway.notify import notify
from gateway.operator.handlers import OperatorHandler
from gateway.operator.socket import serve_control
from gateway.outbound.adapters import AdapterRegistry
from gateway.outbound.delivery import Delivery
from gateway.outbound.gates import GateRegistry
from gateway.outbound.notices import NoticeListener, WaitNotice
from gateway.schedules import Schedules
from gateway.turns.attachments import AttachmentPreparer
from gateway.turns.lanes import LaneDispatcher, LaneParts
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.transcription import Transcriber, transcription_line
from gateway.vitals import Heartbeat
from hermes_state.aio import run_until
from hermes_state.errors import ConfigError, HermesError
from hermes_state.redaction import Redactor
from hermes_state.store.lock import FileLock
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, Clock, SystemClock
from platforms.local.adapter import LocalAdapter

log = structlog.get_logger()

OFFLINE_HINT = f"the built-in offline model answers; for a real one, {MODEL_SETUP_HINT}"

FLUSH_SECONDS = 10.0
"""For deliveries after the last turn; what is left goes out at the next start."""


async def run_daemon(
    loaded: LoadedConfig,
    *,
    environ: Mapping[str, str] = os.environ,
    extra_tools: Sequence[Tool] = (),
    clock: Clock | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code.

    Raises `LockUnavailable` when another process holds the database or a token, `DatabaseRejected` and `SchemaTooNew`
    for a database that is not ours to open, `StoreUnavailable` when it cannot be opened.
    """
    prepare_home(loaded.home)
    with ExitStack() as held:
        for what, token in _tokens(loaded):
            held.enter_context(_token_lock(what, token))
        store = await Store.open(
            loaded.database,
            synchronous="NORMAL" if loaded.config.store.synchronous == "normal" else "FULL",
            readers=loaded.config.store.readers,
            busy_seconds=loaded.config.store.busy_seconds,
        )
        try:
            await _Daemon(loaded, store, environ, extra_tools, clock or SystemClock()).run()
        finally:
            await store.close()
    return 0


def _tokens(loaded: LoadedConfig) -> list[tuple[str, str]]:
    config = loaded.config
    found = [("the Telegram token", config.telegram.token), ("the Discord token", config.discord.token)]
    return [(what, token.get_secret_value()) for what, token in found if token is not None]


def _token_lock(what: str, token: str) -> FileLock:
    """One process per bot token on this machine, whatever state directory it uses."""
    folder = Path(tempfile.gettempdir()) / f"hermes-gateway-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
        raise ConfigError(f"{folder} belongs to somebody else: have it removed, or set TMPDIR to a folder of your own")
    digest = hashlib.sha256(token.encode()).hexdigest()[:16]
    return FileLock.acquire(folder / f"token-{digest}.lock", what=what)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What runs, once it is put together."""

    adapters: AdapterRegistry
    access: AccessControl
    delivery: Delivery
    lanes: LaneDispatcher
    commands: CommandRunner
    intake: GatewayIntake
    heartbeat: Heartbeat
    schedules: Schedules
    operator: OperatorHandler


class _Daemon:
    """One run: what starts, what a signal does, what ends."""

    def __init__(
        self, loaded: LoadedConfig, store: Store, environ: Mapping[str, str], extra_tools: Sequence[Tool], clock: Clock
    ) -> None:
        self._loaded = loaded
        self._store = store
        self._environ = environ
        self._extra_tools = tuple(extra_tools)
        self._clock = clock
        self._costs = Pricing(store, clock)
        self._lines: list[ClientRegistry] = []
        self._agents: list[Agents] = []
        self._delivery: Delivery | None = None
        self._live = Runtime(config=loaded.config, agents=self._new_agents(loaded))
        make_line = partial(transcription_line, costs=self._costs)
        self._ears = Transcriber(store=store, live=self._live, clock=clock, make_line=make_line)
        self._titles = TitleWriter(
            store=store, live=self._live, clock=clock, redactor=lambda: Redactor(self._loaded.secrets())
        )
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._reloaded = asyncio.Event()
        self._started_at = clock.now()

    async def run(self) -> None:
        """Serve until told to stop."""
        try:
            async with asyncio.TaskGroup() as group, self._signals():
                await self._serve(group)
        except ExceptionGroup as failed:
            if isinstance(failed.exceptions[0], HermesError):  # a sentence for the operator, the group only hides it
                raise failed.exceptions[0] from failed
            raise
        finally:
            await self._titles.close()
            for agents in self._agents:
                await agents.close()
            for lines in self._lines:
                await lines.close()
            await self._ears.close()

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        parts = self._put_together(group)
        if await run_until(self._stopping, _take_up(parts)):
            await self._serve_until_stopped(parts, group)
        else:  # a database that another process locks can hold up a start for as long as it likes
            notify(self._environ, "STOPPING=1")
            await _drain(parts.lanes, parts.delivery, 0.0)
            await parts.commands.close()
        log.info("daemon.stopped")

    async def _serve_until_stopped(self, parts: _Parts, group: asyncio.TaskGroup) -> None:
        tasks = parts.adapters.start(parts.intake, group)
        tasks.append(group.create_task(parts.heartbeat.run(), name="heartbeat"))
        tasks.append(group.create_task(parts.access.follow(self._reloaded), name="access"))
        parts.schedules.start()
        async with serve_control(self._loaded.control_socket, parts.operator.handlers()):
            _settle_memory()
            notify(self._environ, "READY=1")
            model = self._live.config.model
            log.info("daemon.started", adapters=sorted(parts.adapters.supervised), model=model.name or "offline")
            if model.protocol == "offline":
                log.warning("model.offline", hint=OFFLINE_HINT)
            _warn_of_unpriced(self._live.config)
            _log_caching(self._live.config)
            await self._stopping.wait()
            notify(self._environ, "STOPPING=1")
            await self._wind_down(parts.lanes, parts.delivery)
        parts.schedules.close()
        await parts.commands.close()
        for task in tasks:
            task.cancel()

    def _put_together(self, group: asyncio.TaskGroup) -> _Parts:
        """Every part with what it works with; nothing runs yet."""
        store, live, clock, loaded = self._store, self._live, self._clock, self._loaded
        adapters = AdapterRegistry(make_adapters(loaded, store, REGISTRY.menu(), clock, _announce))
        access = AccessControl(store, live)
        gates = GateRegistry()
        delivery = self._delivery = Delivery(store=store, adapters=adapters, gates=gates, clock=clock, group=group)
        lanes = LaneDispatcher(group)
        desk = CommandContext(
            store=store,
            live=live,
            access=access,
            lanes=lanes,
            clock=clock,
            health=adapters.health,
            registry=REGISTRY,
            deliver=delivery.wake,
        )
        commands = CommandRunner(desk, delivery, group)
        lanes.staff(self._lane_parts(access, adapters, gates, delivery, commands))
        heartbeat = Heartbeat(store, adapters, self._environ)
        return _Parts(
            adapters=adapters,
            access=access,
            delivery=delivery,
            lanes=lanes,
            commands=commands,
            intake=GatewayIntake(
                store=store,
                live=live,
                access=access,
                registry=REGISTRY,
                lanes=lanes,
                commands=commands,
                delivery=delivery,
                clock=clock,
            ),
            heartbeat=heartbeat,
            schedules=Schedules(store=store, live=live, clock=clock, attachments_folder=loaded.attachments),
            operator=OperatorHandler(
                loaded=lambda: self._loaded,
                live=live,
                store=store,
                access=access,
                adapters=adapters,
                lanes=lanes,
                delivery=delivery,
                heartbeat=heartbeat,
                clock=clock,
                started_at=self._started_at,
                local_url=lambda: _local_url(adapters),
            ),
        )

    def _lane_parts(
        self,
        access: AccessControl,
        adapters: AdapterRegistry,
        gates: GateRegistry,
        delivery: Delivery,
        commands: CommandRunner,
    ) -> LaneParts:
        store, live, clock, loaded = self._store, self._live, self._clock, self._loaded
        return LaneParts(
            store=store,
            live=live,
            access=access,
            turns=TurnRunner(
                store=store,
                live=live,
                adapters=adapters,
                gates=gates,
                delivery=delivery,
                titles=self._titles,
                clock=clock,
            ),
            commands=commands,
            attachments=AttachmentPreparer(
                store=store,
                live=live,
                adapters=adapters,
                delivery=delivery,
                ears=self._ears,
                clock=clock,
                folder=loaded.attachments,
            ),
            clock=clock,
            slots=asyncio.Semaphore(loaded.config.sessions.max_turns),
        )

    async def _wind_down(self, lanes: LaneDispatcher, delivery: Delivery) -> None:
        """Let turns finish and answers go out, within bounds; a second signal cuts it short."""
        self._titles.stop()
        seconds = self._live.config.lifecycle.drain_seconds
        log.info("daemon.draining", turns=lanes.running_count, seconds=seconds, hint="a second signal ends it at once")
        if not await run_until(self._hurrying, _drain(lanes, delivery, seconds)):
            await _drain(lanes, delivery, 0.0)

    # ---- signals, reload ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _signals(self) -> AsyncIterator[None]:
        """The one owner of signals."""
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGTERM: self._stop, signal.SIGINT: self._stop, signal.SIGHUP: self._reload}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    def _reload(self) -> None:
        """Take over what a reload may change, from the next turn on; a bad file changes nothing."""
        try:
            new = load_config(self._environ)
        except ConfigError as error:
            _warn(error.warnings if isinstance(error, ConfigRejected) else ())
            log.error("config.rejected", error=str(error), kept="the last good configuration")
            return
        _warn(new.warnings)
        plan = reload_differences(self._loaded, new)
        merged = merge_for_reload(self._loaded, new)
        if agent_inputs(merged.config) != agent_inputs(self._loaded.config):
            try:
                agents = self._new_agents(merged)
            except ConfigError as error:
                log.error("config.rejected", error=str(error), kept="the last good configuration")
                return
            agents.follow(self._live.agents)
            self._live.agents = agents
        self._loaded = merged
        self._live.config = merged.config
        self._reloaded.set()
        update_logging(merged.config.logging.level, merged.secrets())
        log.info("config.reloaded", applied=plan.applied, needs_restart=plan.needs_restart)
        _warn_of_unpriced(merged.config)
        _log_caching(merged.config)

    def _new_agents(self, loaded: LoadedConfig) -> Agents:
        lines = ClientRegistry(loaded.config, self._costs)
        # A running turn may still use older ones: all are closed at the end.
        self._lines.append(lines)
        agents = make_agents(
            loaded,
            lines,
            store=self._store,
            extra_tools=self._extra_tools,
            listeners=[NoticeListener(self._notice_settings)],
            on_wait=WaitNotice(
                store=self._store, settings=self._notice_settings, deliver=self._deliver, clock=self._clock
            ),
            clock=self._clock,
        )
        self._agents.append(agents)
        return agents

    def _notice_settings(self) -> NoticeConfig:
        return self._loaded.config.notices

    def _deliver(self, chat_id: ChatId) -> None:
        """Something is owed to a chat. The first agent is made before there is a delivery."""
        if self._delivery is not None:
            self._delivery.wake(chat_id)


async def _take_up(parts: _Parts) -> None:
    """Go on with what was left undone when the last process ended."""
    await parts.access.load()
    await parts.commands.start()
    await parts.delivery.start()
    await parts.lanes.start()


def _log_caching(config: Config) -> None:
    model = config.model
    state = caching_of(model.route, model.cache_ttl)
    log.info("prompt_cache.configured", is_on=state.is_on, route=state.route, ttl=state.ttl, model=model.label)


def _warn_of_unpriced(config: Config) -> None:
    names = unpriced_models(config)
    if names:
        log.warning("model.unpriced", models=names, hint=unpriced_sentence(names))


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        log.warning("config.warned", reason=warning)


async def _drain(lanes: LaneDispatcher, delivery: Delivery, seconds: float) -> None:
    cut = await lanes.drain(seconds)
    if cut:
        log.warning("daemon.turns_cut", count=cut)
    await delivery.flush(min(FLUSH_SECONDS, seconds))


def _settle_memory() -> None:
    """Let go of what starting left behind, and never look at what stays for the whole run again.

    The SDKs bring some hundred thousand objects; without this every full collection walks over all of them, in
    the event loop.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # tells the collector how little is left to walk: it waits for a quarter more than that


def _announce(url: str) -> None:
    """The web chat is up: people read this line to open it."""
    print(f"\n  Open {url}\n" if sys.stdout.isatty() else f"Open {url}", flush=True)


def _local_url(adapters: AdapterRegistry) -> str | None:
    local = adapters.supervised.get("local")
    return local.adapter.mint_url() if local is not None and isinstance(local.adapter, LocalAdapter) else None
