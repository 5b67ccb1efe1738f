"""`hermes-gateway service`: units and commands. `make test-image` installs the service on a real systemd."""

import os
import shutil
import subprocess
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
    monkeypatch.setattr(sys, "prefix", "/opt/my 50%/.venv")


def test_a_dry_run_shows_the_unit_and_the_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_has_user", lambda root: False)
    shown = run("service", "install", "--system", "--dry-run").output
    assert 'ExecStart="/opt/my 50%%/.venv/bin/hermes-gateway" run\n' in shown
    assert [line for line in shown.splitlines() if line.startswith("$")] == [
        "$ useradd --system --home-dir /var/lib/hermes-gateway --shell /usr/sbin/nologin hermes-gateway",
        "$ systemctl daemon-reload",
        "$ systemctl enable hermes-gateway",
        "$ systemctl restart hermes-gateway",
    ]


def test_the_service_of_a_user_keeps_its_state_directory(run: Run, tmp_path: Path) -> None:
    shown = run("service", "install", "--user", "--dry-run", HERMES_HOME='~/my "bot" 1%', HOME=str(tmp_path)).output
    assert f"# {tmp_path}/.config/systemd/user/hermes-gateway.service" in shown
    assert f'Environment="HERMES_HOME={tmp_path}/my \\"bot\\" 1%%"\n' in shown
    assert "$ systemctl --user restart hermes-gateway\n$ loginctl enable-linger\n" in shown


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_reads_paths_with_spaces_and_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my 50%" / "bin" / "hermes-gateway"
    program.parent.mkdir(parents=True)
    program.symlink_to("/bin/true")
    monkeypatch.setattr(sys, "prefix", str(program.parents[1]))
    unit = tmp_path / "hermes-gateway.service"
    unit.write_text(service.unit_text(is_user=True, environ={"HERMES_HOME": 'my "bot"'}))
    command = ["systemd-analyze", "--user", "verify", unit]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


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
    assert run("service", "install", "--root", tmp_path).exit_code == 0, "the user exists already"
    assert "state directory was not changed" in run("service", "uninstall", "--root", tmp_path).output
    assert not wanted.is_symlink()
    assert f"There is no {unit}" in str(run("service", "uninstall", "--root", tmp_path).exception)


def test_an_edited_unit_is_kept_and_a_failing_systemctl_does_not_prevent_removal(
    run: Run, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    environ["PATH"] = str(tmp_path)
    programs = {name: tmp_path / name for name in ("systemctl", "useradd")}
    for program in programs.values():
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    unit = tmp_path / "etc/systemd/system/hermes-gateway.service"
    assert run("service", "install", "--root", tmp_path).exit_code == 0
    assert run("service", "install", "--root", tmp_path).exit_code == 0, "the unit is the same"
    edited = unit.read_text().replace("#LoadCredential=telegram", "LoadCredential=telegram")
    unit.write_text(edited)
    error = str(run("service", "install", "--root", tmp_path).exception)
    assert "systemctl edit hermes-gateway`" in error
    assert "--force" in error
    assert unit.read_text() == edited
    assert "was kept as" in run("service", "install", "--force", "--root", tmp_path).output
    assert "#LoadCredential=telegram" in unit.read_text()
    assert unit.with_name("hermes-gateway.service.bak").read_text() == edited

    programs["systemctl"].write_text("#!/bin/sh\nexit 1\n")
    removed = run("service", "uninstall", "--root", tmp_path)
    assert f"Removed {unit}" in removed.output
    assert "ended with exit code 1" in str(removed.exception)
    assert not unit.exists()


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
