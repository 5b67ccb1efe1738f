"""`hermes-gateway service`: units and commands. `make test-image` installs the service on a real systemd."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from gateway.cli import service
from hermes_state.errors import CommandError
from tests.gateway.helpers import Run

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemctl") is None or shutil.which("useradd") is None,
    reason="needs root, systemd and useradd",
)


@pytest.fixture(autouse=True)
def prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installation at a place that every service can see."""
    monkeypatch.setattr(sys, "prefix", "/opt/50%/.venv")


def test_a_dry_run_shows_the_unit_and_the_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_has_user", lambda: False)
    shown = run("service", "install", "--system", "--dry-run").output
    assert "ExecStart=/opt/50%%/.venv/bin/hermes-gateway run\n" in shown
    assert [line for line in shown.splitlines() if line.startswith("$")] == [
        "$ useradd --system --home-dir /var/lib/hermes-gateway --shell /usr/sbin/nologin hermes-gateway",
        "$ systemctl daemon-reload",
        "$ systemctl enable --now hermes-gateway",
    ]


def test_the_service_of_a_user_keeps_its_state_directory(run: Run, tmp_path: Path) -> None:
    shown = run("service", "install", "--user", "--dry-run", HERMES_HOME="/srv/bot", HOME=str(tmp_path)).output
    assert f"# {tmp_path}/.config/systemd/user/hermes-gateway.service" in shown
    assert "Environment=HERMES_HOME=/srv/bot\n" in shown
    assert "$ systemctl --user enable --now hermes-gateway\n$ loginctl enable-linger\n" in shown


@needs_root
def test_an_image_gets_the_service_and_loses_it_again(run: Run, tmp_path: Path) -> None:
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "etc" / name).touch()
    unit = tmp_path / "etc/systemd/system/hermes-gateway.service"
    wanted = tmp_path / "etc/systemd/system/multi-user.target.wants/hermes-gateway.service"
    assert run("service", "install", "--root", tmp_path).exit_code == 0
    assert "hermes-gateway:" in (tmp_path / "etc/passwd").read_text()
    assert wanted.is_symlink()
    assert unit.exists()
    assert "state directory was not changed" in run("service", "uninstall", "--root", tmp_path).output
    assert not wanted.is_symlink()
    assert f"There is no {unit}" in str(run("service", "uninstall", "--root", tmp_path).exception)


def test_what_cannot_work_is_refused_in_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(*words: str) -> str:
        error = run("service", "install", *words).exception
        assert isinstance(error, CommandError)
        return str(error)

    assert "--root is for the machine's service only" in refusal("--user", "--root", "/srv/image")
    monkeypatch.setattr(sys, "prefix", "/home/ann/hermes-gateway/.venv")
    assert "is in a home directory" in refusal("--system", "--dry-run")
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert "Only root can change the machine's service" in refusal("--system")
