"""Health of the daemon: a heartbeat of the event loop and the database writer, for operators and systemd's watchdog.

The watchdog is notified as long as the loop and the writer make progress. If a platform is unreachable, the daemon is
not ready, but the watchdog does not kill it.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gateway.outbound.adapters import AdapterRegistry
from hermes_state.disk import Room
from hermes_state.store.writer import Store
from platforms.base import STATE_WORDS

log = structlog.get_logger()

STUCK_SECONDS = 60.0
"""Wait of a write that means that the writer is stuck: twice as long as it waits for a locked file by default."""


@dataclass(eq=False, repr=False, slots=True)
class Heartbeat:
    """Measures the delays of the event loop and the database writer, checks the database files and notifies systemd."""

    store: Store
    adapters: AdapterRegistry
    environ: Mapping[str, str]
    on_loss: Callable[[], None] = lambda: None
    """Called when the database files have been deleted or replaced."""
    home: Path = Path()
    """Folder on the disk whose free space is checked."""
    _lag: float = field(default=0.0, init=False)
    _lag_total: float = field(default=0.0, init=False)
    _status: str = field(default="", init=False)
    _trouble: str | None = field(default=None, init=False)

    def vitals(self) -> Mapping[str, bool | float | str]:
        """Return health values for operators: the delay of the event loop and the load of the database connections."""
        pulse, readers = self.store.pulse, self.store.readers
        return {
            "is_ready": not self.faults(),
            "database": self.store.trouble or "",
            "disk": "full" if Room.is_used_up(self.home) else "",
            "loop_lag_seconds": round(self._lag, 4),
            "loop_lag_seconds_total": round(self._lag_total, 4),
            "writer_waiting_seconds": round(pulse.oldest_wait_seconds, 4),
            "last_commit_seconds": round(pulse.last_commit_seconds, 4),
            "since_commit_seconds": round(pulse.since_commit_seconds, 1),
            "writers": pulse.writers,
            "writers_busy": pulse.busy,
            "writes_waiting": pulse.waiting,
            "writes": pulse.writes,
            "batches": pulse.batches,
            "readers": readers.readers,
            "readers_busy": readers.busy,
            "reads_waiting": readers.waiting,
        }

    def faults(self) -> list[str]:
        """Return a sentence for each reason why the gateway cannot answer every message now."""
        faults = [] if self.store.trouble is None else [self.store.trouble]
        if not self.adapters.is_certain():
            faults.append("This node has lost contact with the cluster.")
        if Room.is_used_up(self.home):
            faults.append("The disk is full, so messages cannot be stored.")
        for one in self.adapters.supervised.values():
            if not (health := one.health()).is_ready:
                faults.append(f"{one.label}: {STATE_WORDS[health.state].lower()}. {health.detail}".rstrip())
        return faults

    @property
    def is_stuck(self) -> bool:
        """True if the database writer makes no progress, so a restart may help."""
        return self.store.pulse.oldest_wait_seconds >= STUCK_SECONDS

    async def run(self) -> None:
        watchdog = watchdog_seconds(self.environ)
        interval = min(1.0, watchdog / 3) if watchdog else 1.0
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)  # any delay beyond this is the lag of the loop
            self._lag = max(0.0, time.monotonic() - before - interval)
            if self._lag > 0.5:
                log.warning("loop.lagged", seconds=round(self._lag, 3))
            self._lag_total += self._lag
            if not self.is_stuck:
                notify(self.environ, "WATCHDOG=1")
            self._check_database()
            states = ", ".join(f"{one.label} {one.health().state.value}" for one in self.adapters.supervised.values())
            if self._trouble is not None:
                states += f"; {self._trouble}"
            if Room.is_used_up(self.home):
                states += "; the disk is full"
            if states != self._status:
                self._status = states
                notify(self.environ, f"STATUS={states}")
                log.info("adapters.changed", states=states)

    def _check_database(self) -> None:
        self.store.check_files()
        before, self._trouble = self._trouble, self.store.trouble
        if self._trouble == before:
            return
        if self._trouble is None:
            log.warning("store.recovered")
            return
        log.error("store.broken", reason=self._trouble)
        if self.store.loss is not None:
            self.on_loss()


# ---- systemd


def notify(environ: Mapping[str, str], *lines: str) -> bool:
    """Send lines such as `READY=1` to systemd (`sd_notify`). Return False if systemd does not listen.

    Socket errors are ignored, because systemd has its own timeouts for missing notifications.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # a name in Linux's abstract namespace begins with NUL
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.setblocking(False)
            speaker.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """Return systemd's watchdog interval in seconds, or None if systemd does not watch this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    micros = environ.get("WATCHDOG_USEC", "")
    return int(micros) / 1_000_000 if micros.isdecimal() and int(micros) > 0 else None
