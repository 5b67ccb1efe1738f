"""Examples in docstrings do what they show."""

import doctest
from importlib import import_module

import pytest
from structlog.testing import capture_logs

MODULES = (
    "agent.context",
    "agent.context.carried",
    "agent.engines",
    "agent.handoff",
    "agent.model",
    "agent.model.catalog",
    "agent.model.errors",
    "agent.model.usage",
    "agent.model.wire",
    "agent.title_prompt",
    "agent.tools",
    "agent.tools.registry",
    "gateway.config",
    "gateway.times",
    "gateway.cluster.lanes",
    "hermes_state",
    "hermes_state.admin",
    "hermes_state.aio",
    "hermes_state.redaction",
    "hermes_state.settings",
    "hermes_state.store.locks",
    "hermes_state.store.sql",
    "hermes_state.text",
    "hermes_state.values",
    "platforms.text",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str) -> None:
    module = import_module(name)
    names: dict[str, object] = {}
    exec(f"from {name} import *", names)  # as a reader would; it imports the modules that a face names
    with capture_logs():  # a log line on the console would count as output
        result = doctest.testmod(module, extraglobs=names)
    assert result.attempted > 0, "a module without an example does not belong into this list"
    assert result.failed == 0
