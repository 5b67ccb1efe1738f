"""One run of the daemon: start, stop and reload.

Start order: database, access, unfinished commands, unfinished deliveries, open turns, and finally the adapters.
Stop: no new turn starts (new messages are still stored), running turns finish, and replies are sent. Then the adapters,
the models and finally the database close.
"""

import asyncio
import gc
import importlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import structlog

from agent.model.protocols.offline import MODEL_SETUP_HINT
from agent.tools.registry import Tool
from agent.tools.terminal.sandbox import terminal_fault
from gateway.config import LoadedConfig
from gateway.config.settings import Config
from gateway.daemon.parts import Parts
from gateway.daemon.reload import log_prices_and_caching, warn_removed
from gateway.health import notify
from gateway.models.selection import preload
from gateway.operator.socket import serve_control
from gateway.schedules import schedule_zone
from hermes_state.aio import run_until
from hermes_state.chats import has_chats
from hermes_state.disk import take_reserve
from hermes_state.engines.opening import open_store
from hermes_state.errors import ConfigError, HermesError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.imports import import_aiohttp
from hermes_state.inbox import find_accounts
from hermes_state.search.index import keep_index

log = structlog.get_logger()

FLUSH_SECONDS = 10.0
"""Maximum seconds for deliveries after the last turn. Unsent messages are sent after the next start."""


async def run_daemon(
    loaded: LoadedConfig,
    files: AttachmentFolder,
    *,
    environ: Mapping[str, str],
    extra_tools: Sequence[Tool] = (),
    is_fresh: bool = False,
) -> int:
    """Run until SIGTERM or SIGINT and return the exit code. If `is_fresh` is set, start with an empty database.

    Raises `LockUnavailable` if another process holds the database, `DatabaseRejected` if it belongs to another program
    or version, or `StoreUnavailable` if it cannot be opened.
    """
    wanted = loaded.config.store
    platforms = asyncio.create_task(asyncio.to_thread(_load_platforms, loaded.config))  # while the database opens
    async with open_store(loaded.database, wanted.url, wanted, is_fresh=is_fresh) as store:
        await platforms
        group = asyncio.TaskGroup()
        parts = Parts(loaded, store, files, environ, extra_tools, group)
        _freeze_memory()
        try:
            async with group, parts.signals.handled(), _monitored(parts):
                await _serve(parts)
        except ExceptionGroup as failed:
            if isinstance(failed.exceptions[0], HermesError):  # raise the error itself, not the group
                raise failed.exceptions[0] from failed
            raise
        finally:
            await parts.close()
    return 0


def _load_platforms(config: Config) -> None:
    import_aiohttp()
    enabled = {"telegram": config.telegram.bots, "discord": config.discord.bots, "local": config.local.enabled}
    for name in filter(enabled.get, enabled):
        importlib.import_module(f"platforms.{name}")


@asynccontextmanager
async def _monitored(parts: Parts) -> AsyncIterator[None]:
    """Serve health checks and metrics within the block if `metrics.listen` is set."""
    if (listen := parts.live.config.metrics.listen) is None:
        yield
        return
    metrics = await asyncio.to_thread(importlib.import_module, "gateway.daemon.metrics")  # takes 80 ms
    async with metrics.serve_metrics(parts, listen):
        yield


async def _serve(parts: Parts) -> None:
    left = None
    if parts.is_shared:  # first, because transactions left open by lost nodes can block all other work
        left = parts.group.create_task(parts.membership.end_left_transactions(), name="left")

    async def take_up() -> None:
        await _check_accounts(parts)
        await parts.access.load()
        await parts.node.start()

    if await run_until(parts.signals.stopping, take_up()):
        await _serve_until_stopped(parts)
    else:  # stopped during the start; a locked database can delay the start indefinitely
        notify(parts.environ, "STOPPING=1")
        await _drain_within(parts, 0.0)
        await parts.commands.close()
    if left is not None:
        left.cancel()
    log.info("daemon.stopped")


async def _check_accounts(parts: Parts) -> None:
    """Raise `ConfigError` if a bot is configured as another account than before, so would get other bots' chats."""
    for bot in parts.live.config.bots.values():
        platform = bot.account.partition("/")[0]
        before = await parts.store.read(find_accounts, platform, bot.bot_id) if bot.bot_id else []
        if before and bot.account not in before:
            raise ConfigError(
                f"{bot.token_key} belongs to the bot of the account {before[0]}, but now stands at {bot.account}, so "
                f"the bot would answer in the wrong chats. Put it back in its place in {platform}.accounts"
            )
        if bot.label != bot.account and await parts.store.read(has_chats, bot.label):
            raise ConfigError(
                f"{bot.account}.accounts[1]: {bot.label} cannot become the first account, because it has chats of its "
                "own. Put the account that was first until now back in its place, without a token if it is not used"
            )


async def _serve_until_stopped(parts: Parts) -> None:
    works = {
        "node": parts.node.run(),
        "heartbeat": parts.heartbeat.run(),
        "search": keep_index(parts.store),
        "access": parts.access.follow(parts.access_changed),
        "reload": _reload_when_asked(parts),
        "late": _load_late(parts),
    }
    if parts.is_shared:
        works |= {"membership": parts.membership.run(), "previews": parts.previews.run()}
    tasks = [parts.group.create_task(work, name=name) for name, work in works.items()]
    loaded = parts.live.loaded
    async with serve_control(loaded.control_socket, parts.operator.handlers()):
        parts.started.set()
        notify(parts.environ, "READY=1")
        await asyncio.to_thread(take_reserve, loaded.home)
        model = loaded.config.model
        log.info("daemon.started", adapters=sorted(parts.adapters.supervised), model=model.name or "offline")
        if model.protocol == "offline":
            hint = f"the built-in offline model answers; to use a real one, {MODEL_SETUP_HINT}"
            log.warning("model.offline", hint=hint)
        log_prices_and_caching(loaded)
        await warn_removed(parts.store, loaded)
        await parts.signals.stopping.wait()
        notify(parts.environ, "STOPPING=1")
        await _drain(parts)
    await parts.background.stop("the gateway is stopping")
    await parts.tools.servers.close()
    await parts.commands.close()
    for task in tasks:
        task.cancel()


async def _load_late(parts: Parts) -> None:
    """Once the platforms have connected, or after 5 seconds, import the modules that the first answer needs."""
    await parts.adapters.listening(5.0)
    config = parts.live.config
    try:
        for one in parts.adapters.supervised.values():
            await asyncio.to_thread(one.adapter.render, "")  # imports the parser that previews use on the event loop
        await asyncio.to_thread(preload, parts.live.loaded)
        await asyncio.to_thread(schedule_zone, config)  # loads the time zone of the machine in advance
        await asyncio.to_thread(terminal_fault, config.terminal)
    except OSError as error:  # for example, if no file descriptor is free; the first answer then imports the modules
        log.warning("daemon.preload_failed", error=str(error))
    _freeze_memory()
    parts.tools.connect(parts.group)


async def _drain(parts: Parts) -> None:
    """Let running turns finish and send answers, within time limits. A second signal ends the wait."""
    parts.titles.stop()
    seconds = parts.live.config.lifecycle.drain_seconds
    turns = len(parts.lanes.active)
    log.info("daemon.draining", turns=turns, seconds=seconds, hint="a second signal ends it immediately")
    if not await run_until(parts.signals.stopping_now, _drain_within(parts, seconds)):
        await _drain_within(parts, 0.0)


async def _drain_within(parts: Parts, seconds: float) -> None:
    cut = await parts.lanes.drain(seconds)
    if cut:
        log.warning("daemon.turns_cancelled", count=cut)
    await parts.delivery.flush(min(FLUSH_SECONDS, seconds))


def _freeze_memory() -> None:
    """Exclude the SDKs' objects from garbage collection, because scanning all of them would block the event loop.

    For the same reason, collect rarely. A message leaves almost no reference cycles, but 200 answers that stream keep
    60,000 objects alive.
    """
    gc.freeze()
    gc.set_threshold(10_000, 50, 20)
    gc.enable()
    gc.collect()  # also resets the collector's threshold, which depends on the number of remaining objects


# ---- reload


async def _reload_when_asked(parts: Parts) -> None:
    while True:
        await parts.signals.reload_asked.wait()
        parts.signals.reload_asked.clear()
        with suppress(ConfigError):  # the error was logged, and the last valid configuration stays
            await parts.reloader.reload()
