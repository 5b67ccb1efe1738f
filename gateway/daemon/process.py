"""The daemon's process: set-up, locks and exit code."""

import asyncio
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import structlog

from gateway.config import LoadedConfig, load_config
from gateway.config.files import prepare_home
from gateway.logs import configure_logging
from hermes_state.disk import Room, release_reserve
from hermes_state.errors import HermesError
from hermes_state.imports import ssl_context
from hermes_state.setting_types import plain
from hermes_state.store.lock import FileLock

log = structlog.get_logger()

SWITCH_SECONDS = 0.001
"""Maximum seconds that the event loop waits for another thread. Python's default, 5 ms, delays the loop too much."""


def serve(environ: Mapping[str, str], *, is_fresh: bool = False, **options: Any) -> int:
    """Load the configuration, prepare the process and run the daemon. Return the exit code.

    `is_fresh` and `options` are passed to `run_daemon`. Raises `ConfigError`, `DatabaseRejected` or `LockUnavailable`
    before it changes anything, or `StoreUnavailable` if the database cannot be used. Any other error is a bug, which is
    logged without secrets and gives exit code 1.
    """
    loaded = load_config(environ)
    url = loaded.config.store.url
    if url is not None:
        from gateway.cluster.membership import refuse_early  # not needed with SQLite

        refuse_early(loaded, url, is_fresh=is_fresh)
    Thread(target=ssl_context).start()  # OpenSSL reads the certificates without Python's lock
    # Import this late, because the SDKs take half a second to import and a configuration error must be reported fast.
    from gateway.daemon.run import run_daemon
    from gateway.turns.attachments import open_attachments

    files = open_attachments(loaded)
    prepare_process(loaded)
    try:
        with ExitStack() as held:
            # Cluster nodes do not lock tokens: they share the tokens, and seats decide which node serves an account.
            for what, path in token_locks(loaded, lock_folder(environ)) if url is None else ():
                held.enter_context(FileLock.acquire(path, what=what, is_shared=True))
            runner = held.enter_context(asyncio.Runner(loop_factory=loop_factory(environ)))
            return runner.run(run_daemon(loaded, files, environ=environ, is_fresh=is_fresh, **options))
    except HermesError:
        raise
    except Exception:  # Python's own traceback would bypass the log file and the redaction
        log.exception("daemon.crashed")
        return 1


def loop_factory(environ: Mapping[str, str]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory, or None if uvloop is not installed or `HERMES_EVENT_LOOP` is `asyncio`."""
    if environ.get("HERMES_EVENT_LOOP") != "asyncio":
        with suppress(ImportError):
            import uvloop

            return uvloop.new_event_loop
    return None


def prepare_process(loaded: LoadedConfig) -> None:
    """Set up file permissions, the state directory, logging and signals. Log each warning about the configuration."""
    os.umask(0o077)
    for number in (signal.SIGUSR1, signal.SIGUSR2):  # by default, these signals would end the process
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    prepare_home(loaded.home)
    configure_logging(loaded.config.logging, secrets=loaded.secrets(), directory=loaded.logs)
    for warning in loaded.warnings:
        log.warning("config.warned", reason=warning)
    if Room.is_used_up(loaded.home):
        log.error("disk.full", directory=str(loaded.home), hint="nothing can be stored until you free some space")
        release_reserve(loaded.home)  # the start needs this space, and later reserves it again


def lock_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for lock files that all processes of this machine can see, inside or outside a systemd sandbox.

    If users cannot write to `/run/lock`, use a folder that only processes of the same user share. A temporary folder is
    the last choice, because it can be private to a service, and old files in it are removed.
    """
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    folders = map(Path, ("/run/lock", runtime, "/tmp"))
    usable = (folder for folder in folders if os.access(folder, os.W_OK | os.X_OK))
    return next(usable, Path(tempfile.gettempdir()))


def token_locks(loaded: LoadedConfig, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and lock file of each configured bot token. The file name depends on the token and its server."""
    for bot in loaded.config.bots.values():
        what = bot.label if "/" in bot.label else bot.label.title()
        digest = hashlib.sha256(f"{bot.server}\n{plain(bot.token)}".encode()).hexdigest()[:16]
        yield f"the {what} token", folder / f"hermes-gateway-{digest}.lock"
