"""Control groups: the kernel limits the memory and the processes of each command, each chat and all chats together.

The kernel also counts memory that no process owns: shared memory, files in memory, buffers of pipes and sockets.
Version 2 of control groups needs a group that belongs to the gateway (`Delegate=` of its unit), version 1 needs root.
"""

import os
import re
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path("/sys/fs/cgroup")
_JOIN: Final = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"'
_COMMANDS: Final = count()
_FIGURES: Final = re.compile(r"^(?:(\w+) )?(\d+)$", re.MULTILINE)
_MEMORY_LIMITS: Final = ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
_LEFT: Final[set[Path]] = set()
"""Groups that could not be removed yet, because a process in them was still ending."""


class Usage(NamedTuple):
    """Memory in bytes and number of processes, as used or as a limit."""

    memory: int = 0
    processes: int = 0

    def half(self) -> "Usage":
        return Usage(self.memory // 2, self.processes // 2)


class ControlGroup:
    """Group of one command, below those of its chat and of all chats. False when this process cannot create groups."""

    def __init__(self, chat: str, limit: Usage) -> None:
        self._folders: list[Path] = []
        names = f"hermes-gateway-{os.getpid()}", f"chat-{chat}", str(next(_COMMANDS))
        with suppress(OSError):
            for folder in group_parents():
                for name, most in zip(names, (total(), total().half(), limit), strict=True):
                    if (control := folder / "cgroup.subtree_control").exists():
                        control.write_text("+memory +pids")
                    folder /= name
                    folder.mkdir(exist_ok=True)
                    memory = dict.fromkeys(_MEMORY_LIMITS, most.memory)
                    for file, limited in {**memory, "memory.swap.max": 0, "pids.max": most.processes}.items():
                        if (folder / file).exists():
                            (folder / file).write_text(str(limited))
                self._folders.append(folder)

    def __bool__(self) -> bool:
        return bool(self._folders)

    def words(self) -> tuple[str, ...]:
        """Return the words to put before a program's own words so that it starts in this group."""
        return ("sh", "-c", _JOIN, "join", *map(str, self._folders), "--")

    def look(self) -> tuple[Usage, bool]:
        """Return the usage without what the kernel can free, and True once it has killed a process for its memory."""
        names = "memory.current memory.usage_in_bytes memory.stat memory.events memory.oom_control pids.current"
        found = _figures(self._folders, names)
        used = found.get("memory.current", found.get("memory.usage_in_bytes", 0))
        on_disk = found.get("file", found.get("cache", 0)) - found.get("shmem", 0) + found.get("slab_reclaimable", 0)
        return Usage(max(0, used - on_disk), found.get("pids.current", 0)), found.get("oom_kill", 0) > 0

    def remove(self) -> None:
        """Remove the group and its empty parents. A group with a process that is still ending is removed later."""
        _LEFT.update(self._folders)
        for folder in tuple(_LEFT):
            with suppress(OSError):
                folder.rmdir()
                _LEFT.discard(folder)
                folder.parent.rmdir()
                folder.parent.parent.rmdir()


@cache
def total() -> Usage:
    """Return the most that the commands of all chats may use together: half of what the gateway may use."""
    found = _figures(_own_groups(), "memory.max memory.limit_in_bytes pids.max")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    processes = _figures([Path("/proc/sys/kernel")], "threads-max").get("threads-max", 10_000)
    most = min(memory, *(found.get(name, memory) for name in ("memory.max", "memory.limit_in_bytes")))
    return Usage(most, min(processes, found.get("pids.max", processes))).half()


@cache
def group_parents() -> list[Path]:
    """Return the folders in which this process can create groups. Remove groups that a killed gateway has left."""
    total()  # the limits of the groups that this process is in now
    folders = _own_groups()
    if len(folders) == 1:
        if "NOTIFY_SOCKET" in os.environ and os.access(folders[0] / "cgroup.subtree_control", os.W_OK):
            with suppress(OSError):
                (folders[0] / "gateway").mkdir(exist_ok=True)  # a group of groups can have no processes of its own
                for pid in (folders[0] / "cgroup.procs").read_text().split():  # of our unit
                    (folders[0] / "gateway" / "cgroup.procs").write_text(pid)
                (folders[0] / "cgroup.subtree_control").write_text("+memory +pids")
                return folders
        folders = [_ROOT]
    if os.geteuid() != 0:
        return []
    for left in (left for folder in folders for left in folder.glob("hermes-gateway-*")):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            for folder in (*left.glob("*/*/"), *left.glob("*/"), left):
                with suppress(OSError):
                    folder.rmdir()
    return folders


def _own_groups() -> list[Path]:
    """Return the folders of this process's own groups: one in version 2, two (memory, processes) in version 1."""
    lines: list[list[str]] = []
    with suppress(OSError):  # a kernel without any
        lines += [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT / path.lstrip("/") for names, path in lines if not names]
    found = [(_ROOT / names, path.lstrip("/")) for names, path in lines if names in ("memory", "pids")]
    return [root / path if (root / path).is_dir() else root for root, path in found]


def _figures(folders: list[Path], names: str) -> dict[str, int]:
    """Return the numbers in files of groups, by the word before each or by the file's name; "max" is left out."""
    found: dict[str, int] = {}
    for file in (folder / name for folder in folders for name in names.split()):
        with suppress(OSError):
            found |= {key or file.name: int(value) for key, value in _FIGURES.findall(file.read_text())}
    return found
