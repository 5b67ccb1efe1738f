"""Process of the daemon: its locks, what is set up before anything starts, and its exit code."""

import asyncio
import gc
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from gateway.config import LoadedConfig, load_config
from gateway.config.files import prepare_home
from gateway.logs import configure_logging
from hermes_state.disk import Room, release_reserve
from hermes_state.errors import HermesError
from hermes_state.store.lock import FileLock

log = structlog.get_logger()

SWITCH_SECONDS = 0.001
"""Seconds that a thread computes before the event loop may go on.

It has to wait at every step while a long conversation is being compressed, and Python's own five milliseconds add up.
"""


def serve(environ: Mapping[str, str], *, is_fresh: bool = False, **options: Any) -> int:
    """Load, prepare the process and run the daemon; returns its exit code. `is_fresh` and `options` go to `run_daemon`.

    Raises `ConfigError`, `DatabaseRejected` and `LockUnavailable` before anything was started, `StoreUnavailable` when
    the database cannot be used. A place that cannot be used is told before anything was made. Any other error is ours:
    it is logged, without secrets, and ends the process with exit code 1.
    """
    loaded = load_config(environ)
    if loaded.config.store.url is not None:
        from gateway.cluster.membership import refuse_early  # which a file needs as little as most errors do

        refuse_early(loaded, loaded.config.store.url, is_fresh=is_fresh)
    gc.disable()  # until all is made: nothing of it is garbage, and walking over it takes a tenth of a start
    # The SDKs take half a second to import; a configuration error needs none of them.
    from gateway.assembly import open_attachments
    from gateway.daemon import run_daemon

    files = open_attachments(loaded)
    prepare_process(loaded)
    try:
        with _held_tokens(loaded, environ), asyncio.Runner(loop_factory=loop_factory(environ)) as runner:
            return runner.run(run_daemon(loaded, files, environ=environ, is_fresh=is_fresh, **options))
    except HermesError:
        raise
    except Exception:  # Python's own traceback would not reach the log file, nor pass the redaction
        log.exception("daemon.crashed")
        return 1


def loop_factory(environ: Mapping[str, str]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Factory of uvloop's event loops; None, for Python's own, without it or if `HERMES_EVENT_LOOP` is `asyncio`."""
    if environ.get("HERMES_EVENT_LOOP") != "asyncio":
        with suppress(ImportError):
            import uvloop

            return uvloop.new_event_loop
    return None


def prepare_process(loaded: LoadedConfig) -> None:
    """Set up private files, the state directory, logs, and signals that mean nothing here; log each warning."""
    os.umask(0o077)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # which end a process that says nothing about them
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    prepare_home(loaded.home)
    configure_logging(loaded.config.logging, secrets=loaded.secrets(), directory=loaded.logs)
    for warning in loaded.warnings:
        log.warning("config.warned", reason=warning)
    if Room.is_used_up(loaded.home):
        log.error("disk.full", directory=str(loaded.home), hint="nothing can be stored until you free some space")
        release_reserve(loaded.home)  # taken again once the gateway has started


def lock_folder(environ: Mapping[str, str]) -> Path:
    """Folder in which all processes of this machine meet: of every user, in or outside a sandbox of systemd.

    Where users cannot write to `/run/lock`, those of one user meet. A temporary folder comes last: it may be private
    to a service, and what lies in it is tidied away.
    """
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    folders = map(Path, ("/run/lock", runtime, "/tmp"))
    usable = (folder for folder in folders if os.access(folder, os.W_OK | os.X_OK))
    return next(usable, Path(tempfile.gettempdir()))


def token_locks(loaded: LoadedConfig, folder: Path) -> Iterator[tuple[str, Path]]:
    """Lock file of each configured bot token, with the token's name; a token counts together with its server."""
    telegram, discord = loaded.config.telegram, loaded.config.discord
    bots = (
        ("the Telegram token", telegram.base_url, telegram.token),
        ("the Discord token", discord.api_url, discord.token),
    )
    for what, server, token in bots:
        if token is not None:
            digest = hashlib.sha256(f"{server}\n{token.get_secret_value()}".encode()).hexdigest()[:16]
            yield what, folder / f"hermes-gateway-{digest}.lock"


@contextmanager
def _held_tokens(loaded: LoadedConfig, environ: Mapping[str, str]) -> Iterator[None]:
    """One process per bot token, whatever state directory and temporary folder it uses.

    Nodes that share a database have the same tokens; there one of them serves an account at a time.
    """
    with ExitStack() as held:
        if loaded.config.store.url is not None:
            yield
            return
        for what, path in token_locks(loaded, lock_folder(environ)):
            held.enter_context(FileLock.acquire(path, what=what, is_shared=True))
        yield
