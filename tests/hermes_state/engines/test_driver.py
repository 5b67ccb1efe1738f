"""PostgreSQL's driver and the object store client are optional: a gateway with a database file never imports them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_state.engines.opening import missing_driver, open_offline, open_store
from hermes_state.errors import ConfigError

_COMMANDS = ("answers", "daemon", "database", "pair")


@pytest.mark.parametrize(
    "module",
    ["hermes_state", "hermes_state.store.writer", "gateway.daemon.run", *(f"gateway.cli.{name}" for name in _COMMANDS)],
)
def test_a_gateway_with_a_file_does_not_import_optional_drivers(module: str) -> None:
    code = f"import sys, {module}; sys.exit(not sys.modules.keys().isdisjoint(('psycopg', 'obstore')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


async def test_a_missing_driver_is_refused_with_install_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_driver(None) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"`make cluster`.*hermes-gateway\[cluster\]"):
        async with open_store(tmp_path / "state.db", "postgresql://db/hermes"):
            pass
    with (
        pytest.raises(ConfigError, match="make cluster"),
        open_offline(tmp_path / "state.db", "postgresql://db/hermes"),
    ):
        pass
    assert os.listdir(tmp_path) == []
