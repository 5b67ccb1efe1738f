"""Process of the daemon: its set-up, its locks and its exit code."""

import asyncio
import gc
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
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

The loop waits that long at every step while a long conversation is compressed. Python's own 5 ms add up.
"""


def serve(environ: Mapping[str, str], *, is_fresh: bool = False, **options: Any) -> int:
    """Load, prepare the process and run the daemon; returns its exit code. `is_fresh` and `options` go to `run_daemon`.

    Raises `ConfigError`, `DatabaseRejected` and `LockUnavailable` before anything is made, `StoreUnavailable` if the
    database cannot be used. Any other error is a bug: it is logged without secrets, and the exit code is 1.
    """
    loaded = load_config(environ)
    url = loaded.config.store.url
    if url is not None:
        from gateway.cluster.membership import refuse_early  # which a file needs as little as most errors do

        refuse_early(loaded, url, is_fresh=is_fresh)
    gc.disable()  # until all is made: nothing of it is garbage, and walking over it takes a tenth of a start
    # The SDKs take half a second to import; a configuration error needs none of them.
    from gateway.daemon.run import run_daemon
    from gateway.turns.attachments import open_attachments

    files = open_attachments(loaded)
    prepare_process(loaded)
    try:
        with ExitStack() as held:
            # Nodes that share a database have the same tokens; one of them serves an account at a time.
            for what, path in token_locks(loaded, lock_folder(environ)) if url is None else ():
                held.enter_context(FileLock.acquire(path, what=what, is_shared=True))
            runner = held.enter_context(asyncio.Runner(loop_factory=loop_factory(environ)))
            return runner.run(run_daemon(loaded, files, environ=environ, is_fresh=is_fresh, **options))
    except HermesError:
        raise
    except Exception:  # Python's own traceback would not reach the log file, nor pass the redaction
        log.exception("daemon.crashed")
        return 1


def loop_factory(environ: Mapping[str, str]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops; None, for Python's own, without it or if the environment says so."""
    if environ.get("HERMES_EVENT_LOOP") != "asyncio":
        with suppress(ImportError):
            import uvloop

            return uvloop.new_event_loop
    return None


def prepare_process(loaded: LoadedConfig) -> None:
    """Set up private files, the state directory, logs, and signals without a meaning; log each warning."""
    os.umask(0o077)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # they end a process that does not ignore them
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
    """Return the folder in which all processes of this machine meet: of every user, in or outside a systemd sandbox.

    If users cannot write to `/run/lock`, only the processes of one user meet. A temporary folder comes last: it may be
    private to a service, and old files in it are removed.
    """
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    folders = map(Path, ("/run/lock", runtime, "/tmp"))
    usable = (folder for folder in folders if os.access(folder, os.W_OK | os.X_OK))
    return next(usable, Path(tempfile.gettempdir()))


def token_locks(loaded: LoadedConfig, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and the lock file of each configured bot token. A token counts together with its server."""
    telegram, discord = loaded.config.telegram, loaded.config.discord
    bots = (
        ("the Telegram token", telegram.base_url, telegram.token),
        ("the Discord token", discord.api_url, discord.token),
    )
    for what, server, token in bots:
        if token is not None:
            digest = hashlib.sha256(f"{server}\n{token.get_secret_value()}".encode()).hexdigest()[:16]
            yield what, folder / f"hermes-gateway-{digest}.lock"
