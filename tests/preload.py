"""Modules and data that every gateway loads at its start. The fork server loads them once, before it forks.

A start then takes a tenth of the processor time.
"""

import gc
import importlib

IMPORTED_LATE = (
    "agent.model.protocols.anthropic",
    "agent.model.protocols.chat_completions",
    "agent.model.protocols.responses",
    "agent.model.audio",
    "anyio._backends._asyncio",
    "apscheduler.executors.asyncio",
    "apscheduler.schedulers.asyncio",
    "gateway.cli.daemon",
    "gateway.daemon.process",
    "gateway.daemon.run",
    "httpcore2",
    "platforms.discord",
    "platforms.local",
    "platforms.telegram",
)
"""Modules that are otherwise imported only when a gateway starts or a client is created."""


def load() -> None:
    """Import the modules, and fill the caches."""
    gc.disable()  # imports create no garbage
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    from agent.model.catalog import known_model, price_of
    from hermes_state.imports import ssl_context
    from hermes_state.redaction import redact

    redact("a password or api_key=token")  # compiles the patterns
    ssl_context()
    known_model("lab-128k")
    price_of("lab-128k", {})
    gc.enable()


load()
