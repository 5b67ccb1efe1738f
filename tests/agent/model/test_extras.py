"""What is not installed with the gateway: told with the command that helps, and never loaded unasked."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.protocols import EXTRAS, missing_extra

ROOT = Path(__file__).parents[3]


def test_nothing_is_missing_where_it_is_installed_or_not_needed() -> None:
    for protocol in ("anthropic", "chat_completions", "responses", "offline"):
        assert missing_extra(protocol) is None


def test_what_is_missing_is_told_with_commands_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    said = missing_extra("anthropic") or ""
    assert "`make anthropic`" in said
    assert "`pip install 'hermes-gateway[anthropic]'`" in said
    assert missing_extra("chat_completions") is None
    assert "\nanthropic: " in (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("module", ["gateway.daemon.run", "gateway.operator.doctor", "gateway.cli"])
def test_a_gateway_that_does_not_use_it_does_not_load_it(module: str) -> None:
    """It takes a second and 30 MB."""
    names = sorted(EXTRAS.values())
    code = f"import sys, {module}; sys.exit(' '.join(name for name in {names} if name in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
