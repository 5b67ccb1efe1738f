"""Everything that a gateway loads while it starts, and what it makes once: for the fork server, before it forks any.

A start then takes a tenth of the processor time that it takes where each gateway does all of it again.
"""

import gc
import importlib

IMPORTED_LATE = (
    "agent.model.protocols.anthropic",
    "agent.model.protocols.chat_completions",
    "agent.model.protocols.responses",
    "agent.model.transcription",
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
"""Modules that nothing imports before a gateway starts, or a client is made."""


def load() -> None:
    """Import, read and make all of it."""
    gc.disable()  # nothing of it is garbage
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    from agent.model.catalog import known_model, price_of
    from agent.model.connections import ssl_context

    ssl_context()
    known_model("lab-128k")
    price_of("lab-128k", {})
    gc.enable()


load()
