"""The driver of PostgreSQL, and the client for object stores, are an extra: whoever keeps files never loads them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_state.engines.opening import missing_driver, open_resting, open_store
from hermes_state.errors import ConfigError

_COMMANDS = ("answers", "daemon", "database", "pair")


@pytest.mark.parametrize(
    "module",
    ["hermes_state", "hermes_state.store.writer", "gateway.daemon.run", *(f"gateway.cli.{name}" for name in _COMMANDS)],
)
def test_a_gateway_that_keeps_files_does_not_load_what_others_need(module: str) -> None:
    code = f"import sys, {module}; sys.exit(not sys.modules.keys().isdisjoint(('psycopg', 'obstore')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


async def test_where_it_is_missing_an_address_is_refused_with_the_ways_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_driver(None) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"`make cluster`.*hermes-gateway\[cluster\]"):
        async with open_store(tmp_path / "state.db", "postgresql://db/hermes"):
            pass
    with (
        pytest.raises(ConfigError, match="make cluster"),
        open_resting(tmp_path / "state.db", "postgresql://db/hermes"),
    ):
        pass
    assert os.listdir(tmp_path) == []
