"""What systemd hears."""

import os
import socket
from pathlib import Path

from gateway.health import notify, watchdog_seconds


def listening(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(address)
    listener.settimeout(20)
    return listener


def test_lines_reach_a_socket_with_a_path(tmp_path: Path) -> None:
    with listening(str(tmp_path / "n")) as listener:
        assert notify({"NOTIFY_SOCKET": str(tmp_path / "n")}, "READY=1", "STATUS=Serving telegram")
        assert listener.recv(1000) == b"READY=1\nSTATUS=Serving telegram"


def test_lines_reach_an_abstract_socket() -> None:
    name = f"hermes-gateway-test-{os.getpid()}"
    with listening("\0" + name) as listener:
        assert notify({"NOTIFY_SOCKET": "@" + name}, "WATCHDOG=1")
        assert listener.recv(1000) == b"WATCHDOG=1"


def test_without_systemd_nothing_happens(tmp_path: Path) -> None:
    assert not notify({}, "READY=1")
    assert not notify({"NOTIFY_SOCKET": ""}, "READY=1")
    assert not notify({"NOTIFY_SOCKET": str(tmp_path / "gone")}, "READY=1")


def test_the_watchdog_interval_is_read_only_if_it_is_meant_for_this_process() -> None:
    assert watchdog_seconds({"WATCHDOG_USEC": "30000000"}) == 30
    assert watchdog_seconds({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}) == 30
    assert watchdog_seconds({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) is None
    assert watchdog_seconds({}) is None
    assert watchdog_seconds({"WATCHDOG_USEC": "soon"}) is None
    assert watchdog_seconds({"WATCHDOG_USEC": "0"}) is None
