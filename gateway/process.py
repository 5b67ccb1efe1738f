"""Process of the daemon: what is set up before anything starts, and its exit code."""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

import structlog

from gateway.config import LoadedConfig, load_config
from gateway.config.files import prepare_home
from gateway.logs import configure_logging
from hermes_state.errors import HermesError

log = structlog.get_logger()

SWITCH_SECONDS = 0.001
"""Seconds that a thread computes before the event loop may go on.

It has to wait at every step while a long conversation is being compressed, and Python's own five milliseconds add up.
"""


def serve(environ: Mapping[str, str], **options: Any) -> int:
    """Load, prepare the process and run the daemon; returns its exit code. `options` go to `run_daemon`.

    Raises `ConfigError` and `LockUnavailable` before anything was started, `StoreUnavailable` when the database cannot
    be used. Any other error is ours: it is logged, without secrets, and ends the process with exit code 1.
    """
    loaded = load_config(environ)
    prepare_process(loaded)
    # The SDKs take half a second to import; a configuration error needs none of them.
    from gateway.daemon import run_daemon

    try:
        return asyncio.run(run_daemon(loaded, environ=environ, **options))
    except HermesError:
        raise
    except Exception:  # Python's own traceback would not reach the log file, nor pass the redaction
        log.exception("daemon.crashed")
        return 1


def prepare_process(loaded: LoadedConfig) -> None:
    """Set up private files, the state directory and logs; write a line for each warning."""
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_SECONDS)
    prepare_home(loaded.home)
    configure_logging(loaded.config.logging, secrets=loaded.secrets(), directory=loaded.logs)
    for warning in loaded.warnings:
        log.warning("config.warned", reason=warning)
