"""CPU time of processes, as counted by the kernel."""

import os
from pathlib import Path

_OWN = slice(11, 13)  # index of user and system time in /proc/PID/stat, after the process name
_ALL = slice(11, 15)  # the same, with the time of children that have ended
_IDLE = (3, 4)  # index of idle time and disk wait in the first line of /proc/stat
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    return _seconds(pid, _OWN)


def family_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process and its children have used so far. Children that have ended count too."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _seconds(pid, _ALL) + sum(_seconds_if_alive(int(child)) for child in children)


def parent_of(pid: int) -> int:
    """Return the process that started another process."""
    return int(_fields(pid)[1])


def _seconds_if_alive(pid: int) -> float:
    try:
        return _seconds(pid, _OWN)
    except FileNotFoundError:  # it has just ended, so its parent's figure will include its time
        return 0.0


def _seconds(pid: int, which: slice) -> float:
    return sum(map(int, _fields(pid)[which])) / _TICKS


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def machine_cpu_seconds() -> float:
    """Return the CPU seconds that all processes on this machine have used so far."""
    used = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(ticks) for number, ticks in enumerate(used[:8]) if number not in _IDLE) / _TICKS
