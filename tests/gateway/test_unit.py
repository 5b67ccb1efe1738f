"""The systemd unit: what it promises is what the daemon needs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway import daemon
from gateway.config.fields import FIELDS, variable_name
from gateway.config.settings import Config
from gateway.operator.doctor import STOP_MARGIN_SECONDS, stop_timeout_seconds
from gateway.outbound import delivery
from gateway.turns import previews
from platforms.discord import adapter as discord
from platforms.telegram import transport as telegram

UNIT = Path(__file__).parents[2] / "systemd" / "hermes-gateway.service"


@pytest.fixture(scope="module")
def text() -> str:
    return UNIT.read_text(encoding="utf-8")


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def test_the_margin_holds_everything_that_stopping_may_wait_for_after_the_drain() -> None:
    last_answers = previews.REQUEST_SECONDS + daemon.FLUSH_SECONDS + delivery.LAST_REQUEST_SECONDS
    goodbyes = max(discord.CLOSE_SECONDS + discord.STOP_SECONDS, telegram.CLOSE_SECONDS)
    assert last_answers + goodbyes < STOP_MARGIN_SECONDS


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
    assert settings(text, "Restart") == ["on-failure"]
    assert settings(text, "RestartPreventExitStatus") == ["75 78"]


def test_readiness_and_watchdog_come_from_the_daemon_itself(text: str) -> None:
    assert settings(text, "Type") == ["notify"]
    assert settings(text, "NotifyAccess") == ["main"]
    (watchdog,) = settings(text, "WatchdogSec")
    assert int(watchdog) > Config().store.busy_seconds * 2, "a locked database file is waited for, not killed for"


def test_its_variables_are_settings_and_its_state_is_private(text: str) -> None:
    known = {variable_name(key) for key in FIELDS} | {"HERMES_HOME"}
    for line in re.findall(r"^#?Environment=(\w+)=", text, re.MULTILINE):
        assert line in known
    for credential in re.findall(r"^#?LoadCredential=([^:]+):", text, re.MULTILINE):
        assert tuple(credential.split(".")) in FIELDS
    assert settings(text, "StateDirectoryMode") == ["0700"]
    assert settings(text, "UMask") == ["0077"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_finds_nothing_to_complain_about(text: str, tmp_path: Path) -> None:
    """The command is not installed where the unit expects it; everything else is verified as it is."""
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE), encoding="utf-8")
    result = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
