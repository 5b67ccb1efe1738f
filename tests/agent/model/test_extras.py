"""Optional packages: advice for missing packages, and no unnecessary imports."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.protocols import EXTRAS, missing_extra

ROOT = Path(__file__).parents[3]


def test_no_advice_if_the_package_is_installed_or_not_needed() -> None:
    for protocol in ("anthropic", "chat_completions", "responses", "offline"):
        assert missing_extra(protocol) is None


def test_advice_for_a_missing_package_names_existing_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    said = missing_extra("anthropic") or ""
    assert "`make anthropic`" in said
    assert "`pip install 'hermes-gateway[anthropic]'`" in said
    assert missing_extra("chat_completions") is None
    assert "\nanthropic: " in (ROOT / "Makefile").read_text("utf-8")


@pytest.mark.parametrize("module", ["gateway.daemon.run", "gateway.operator.doctor", "gateway.cli"])
def test_an_unused_sdk_is_not_imported(module: str) -> None:
    """The SDK takes a second and 30 MB to import."""
    names = sorted(EXTRAS.values())
    code = f"import sys, {module}; sys.exit(' '.join(name for name in {names} if name in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
