"""Notifications to systemd (`sd_notify`): readiness, status, watchdog; nothing where systemd did not ask."""

import os
import socket
from collections.abc import Mapping


def notify(environ: Mapping[str, str], *lines: str) -> bool:
    """Send `lines` such as `READY=1` or `STATUS=…`; False when nobody listens.

    A socket that is gone or full is no reason to fail: systemd then acts on its own timeouts.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # Linux's abstract namespace: a name without a file, written with a leading NUL
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.setblocking(False)
            speaker.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Watchdog interval: seconds in which systemd wants a `WATCHDOG=1`; None when it does not watch this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    micros = environ.get("WATCHDOG_USEC", "")
    return int(micros) / 1_000_000 if micros.isdecimal() and int(micros) > 0 else None
