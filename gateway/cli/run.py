"""`hermes-gateway run`: the daemon in the foreground."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import structlog
import typer

from gateway.config import LoadedConfig, load_config, process_environment
from gateway.config.home import prepare_home
from gateway.logs import configure_logging


def run() -> None:
    """Run the gateway in the foreground until SIGTERM or Ctrl-C.

    With nothing configured it serves the web chat on 127.0.0.1 with the offline model. SIGHUP reloads the
    configuration. Exit codes: 0 clean, 75 token or database held by another process, 78 configuration.
    """
    raise typer.Exit(serve(process_environment()))


def serve(environ: Mapping[str, str], **options: Any) -> int:
    """Load, prepare the process and run the daemon; returns its exit code. `options` go to `run_daemon`.

    Raises `ConfigError` and `OwnedElsewhere` before anything was started.
    """
    loaded = load_config(environ)
    prepare_process(loaded)
    # The SDKs take half a second to import; `--help`, `status` and a configuration error need none of them.
    from gateway.daemon import run_daemon

    return asyncio.run(run_daemon(loaded, environ=environ, **options))


def prepare_process(loaded: LoadedConfig) -> None:
    """Private files from here on, the state directory, logs, and a line for each warning."""
    os.umask(0o077)
    prepare_home(loaded.home)
    configure_logging(loaded.config.logging, secrets=loaded.secrets(), directory=loaded.logs)
    log = structlog.get_logger("gateway.config")
    for warning in loaded.warnings:
        log.warning("config.warned", reason=warning)
