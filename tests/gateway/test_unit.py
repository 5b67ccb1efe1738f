"""The systemd units: what they promise is what the daemon needs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.settings import TerminalSettings
from agent.tools.mcp import stdio
from agent.tools.terminal import terminal_tool
from agent.tools.terminal.sandbox import ENVIRON, probe_sandbox, sandboxed
from gateway.config.fields import FIELDS, variable_name
from gateway.config.settings import Config
from gateway.daemon import run as daemon
from gateway.operator.doctor import STOP_MARGIN_SECONDS, stop_timeout_seconds
from gateway.outbound import delivery
from gateway.turns import previews
from platforms.discord import adapter as discord
from platforms.discord import client as discord_client
from platforms.telegram import transport as telegram
from tests.sandboxes import needs_sandbox

FOLDER = Path(__file__).parents[2] / "systemd"
UNITS = {"machine": FOLDER / "hermes-gateway.service", "user": FOLDER / "user" / "hermes-gateway.service"}
NODES = FOLDER / "hermes-gateway@.service"
TERMINAL = FOLDER / "terminal.conf"
MAX_TERMINAL_EXPOSURE = 2.8
"""Highest score of the machine's unit with the drop-in that commands of the agent need."""
MAX_EXPOSURE = 1.3
"""Highest score of the machine's unit: 10 is a service that may do whatever its user may."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")


@pytest.fixture(scope="module", params=list(UNITS))
def unit(request: pytest.FixtureRequest) -> Path:
    return UNITS[request.param]


@pytest.fixture(scope="module")
def text(unit: Path) -> str:
    return unit.read_text(encoding="utf-8")


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_margin_holds_everything_that_stopping_may_wait_for_after_the_drain() -> None:
    last_answers = previews.REQUEST_SECONDS + daemon.FLUSH_SECONDS + delivery.LAST_REQUEST_SECONDS
    goodbyes = max(discord_client.CLOSE_SECONDS + discord.STOP_SECONDS, telegram.CLOSE_SECONDS)
    assert last_answers + (terminal_tool.STOP_SECONDS + 2 * stdio.END_SECONDS) + goodbyes < STOP_MARGIN_SECONDS


def test_stopping_leaves_room_for_the_drain(text: str) -> None:
    timeout = stop_timeout_seconds(text)
    assert timeout is not None
    assert timeout > Config().lifecycle.drain_seconds + STOP_MARGIN_SECONDS


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("TimeoutStopSec=60", 60),
        ("TimeoutStopSec=90s", 90),
        ("TimeoutStopSec = 2min", 120),
        ("TimeoutStopSec=1.5 min", 90),
        ("TimeoutStopSec=60\nTimeoutStopSec=90", 90),
        ("TimeoutStopSec=infinity", None),
        ("#TimeoutStopSec=5", None),
        ("", None),
    ],
)
def test_a_stop_timeout_is_read_as_systemd_reads_it(line: str, seconds: float | None) -> None:
    assert stop_timeout_seconds(f"[Service]\n{line}\n") == seconds


def test_a_failure_restarts_but_not_what_a_restart_cannot_help(text: str) -> None:
    assert (settings(text, "Restart"), settings(text, "RestartPreventExitStatus")) == (["on-failure"], ["75 78"])
    assert settings(text, "StartLimitIntervalSec") == ["0"], "a database server may be away for hours"


def test_readiness_and_watchdog_come_from_the_daemon_itself(text: str) -> None:
    assert (settings(text, "Type"), settings(text, "NotifyAccess")) == (["notify"], ["main"])
    (watchdog,) = settings(text, "WatchdogSec")
    assert int(watchdog) > Config().store.busy_seconds * 2, "a locked database file is waited for, not killed for"


def test_its_variables_are_settings_and_its_files_are_private(text: str) -> None:
    known = {variable_name(key) for key in FIELDS} | {"HERMES_HOME"}
    for line in re.findall(r"^#?Environment=(\w+)=", text, re.MULTILINE):
        assert line in known
    for credential in re.findall(r"^#?LoadCredential=([^:]+):", text, re.MULTILINE):
        assert tuple(credential.split(".")) in FIELDS
    assert settings(text, "UMask") == ["0077"]
    assert settings(text, "LimitCORE") == ["0"], "memory holds secrets"


def test_the_bounds_leave_room_for_an_image_worker(text: str) -> None:
    """And one that the kernel ends is not taken for the end of the service."""
    assert settings(text, "MemoryMax") == ["2G"], "twice what a worker may take"
    assert settings(text, "OOMPolicy") == ["continue"]
    assert settings(text, "TasksMax")
    assert settings(text, "LimitNOFILE")


def test_both_units_restart_and_bound_alike() -> None:
    common = "Restart RestartPreventExitStatus TimeoutStopSec WatchdogSec MemoryMax TasksMax KillMode LimitNOFILE"
    common += " SystemCallFilter RestrictAddressFamilies RestrictNamespaces"
    machine, user = (path.read_text(encoding="utf-8") for path in UNITS.values())
    for name in common.split():
        assert settings(machine, name) == settings(user, name) != [], name


def test_each_is_started_by_a_target_that_its_systemd_has() -> None:
    machine, user = (path.read_text(encoding="utf-8") for path in UNITS.values())
    assert settings(machine, "WantedBy") == ["multi-user.target"]
    assert settings(user, "WantedBy") == ["default.target"]
    assert settings(user, "User") == settings(user, "StateDirectory") == []


def test_the_machine_s_unit_may_write_to_its_state_and_to_the_locks_alone() -> None:
    machine = UNITS["machine"].read_text(encoding="utf-8")
    assert settings(machine, "ProtectSystem") == ["strict"]
    assert settings(machine, "StateDirectory") == ["hermes-gateway"]
    assert settings(machine, "StateDirectoryMode") == ["0700"]
    assert settings(machine, "ReadWritePaths") == ["-/run/lock"], "where processes of one bot token meet"
    assert settings(machine, "PrivateTmp") == ["yes"]


def test_the_unit_of_nodes_is_the_machine_s_but_for_names() -> None:
    machine, node = (set(path.read_text("utf-8").splitlines()) for path in (UNITS["machine"], NODES))
    own = {line for line in node - machine if not line.startswith("#")}
    assert own == {
        "Description=hermes-gateway, node %i: an LLM agent in Telegram, Discord and a local web chat",
        "StateDirectory=hermes-gateway/%i",
        "Environment=HERMES_HOME=%S/hermes-gateway/%i",
        "Environment=HERMES_CLUSTER__NAME=%H-%i",
    }
    assert len(machine - node) == 3 + 3, "three settings and the comment at the top"


def copied(name: str, folder: Path) -> Path:
    """A unit with a command that exists here. After a plus sign, the terminal's drop-in is in the same file."""
    name, _, drop_in = name.partition("+")
    source = {**UNITS, "node": NODES}[name]
    text = source.read_text(encoding="utf-8") + (TERMINAL.read_text(encoding="utf-8") if drop_in else "")
    copy = folder / source.name.replace("@", "@one")
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE), encoding="utf-8")
    return copy


@needs_systemd
@pytest.mark.parametrize("name", ["machine", "user", "node", "machine+terminal", "user+terminal"])
def test_systemd_finds_nothing_to_complain_about(name: str, tmp_path: Path) -> None:
    manager = "--user" if name.startswith("user") else "--system"
    assert analyzed("verify", manager, str(copied(name, tmp_path)), runtime=tmp_path) == (0, "")


@needs_systemd
@pytest.mark.parametrize(
    ("name", "most"), [("machine", MAX_EXPOSURE), ("node", MAX_EXPOSURE), ("machine+terminal", MAX_TERMINAL_EXPOSURE)]
)
def test_the_machine_s_unit_opens_no_further_than_it_must(name: str, most: float, tmp_path: Path) -> None:
    words = ("security", "--offline=true", "--no-pager", f"--threshold={most * 10:.0f}")
    code, said = analyzed(*words, str(copied(name, tmp_path)), runtime=tmp_path)
    assert code == 0, said


@needs_sandbox
@needs_systemd
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not on this machine")
def test_the_drop_in_allows_every_system_call_that_a_sandbox_is_made_with(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    words = sandboxed("true", tmp_path, TerminalSettings(enabled=True), probe_sandbox().options)
    subprocess.run(["strace", "-f", "-o", trace, *words], check=True, timeout=60, env=ENVIRON)
    used = set(re.findall(r"^\d+ +([a-z0-9_]+)\(", trace.read_text(errors="replace"), re.MULTILINE))
    lines = settings(UNITS["machine"].read_text("utf-8") + TERMINAL.read_text("utf-8"), "SystemCallFilter")
    allowed = calls_of("@default", tmp_path)
    for line in lines:
        named = set().union(*(calls_of(word, tmp_path) for word in line.lstrip("~").split()))
        allowed = allowed - named if line.startswith("~") else allowed | named
    assert used - allowed == set()
    assert "pivot_root" in used


def calls_of(word: str, runtime: Path) -> set[str]:
    """System calls that a word of a filter stands for."""
    if not word.startswith("@"):
        return {word}
    lines = [line.strip() for line in analyzed("syscall-filter", word, runtime=runtime)[1].splitlines()[1:]]
    return set().union(*(calls_of(line, runtime) for line in lines if line and not line.startswith("#")))


def analyzed(*words: str, runtime: Path) -> tuple[int, str]:
    """Exit code and output of `systemd-analyze`."""
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime)}
    command = ["systemd-analyze", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    return done.returncode, done.stdout + done.stderr
