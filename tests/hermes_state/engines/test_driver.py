"""The driver of PostgreSQL is an extra: whoever keeps a file never loads it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["hermes_state", "hermes_state.store.writer", "gateway.daemon", "gateway.cli"])
def test_a_gateway_that_keeps_a_file_does_not_load_the_driver(module: str) -> None:
    code = f"import sys, {module}; sys.exit('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
