"""Control groups: the kernel bounds the memory and the processes of each command, each chat and all chats together.

It counts what no process shows as its own, too: shared memory, files in memory, buffers of pipes and sockets. Version 2
of control groups needs a group that belongs to the gateway (`Delegate=` of its unit), version 1 needs root.
"""

import os
import re
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple, Self

_ROOT: Final = Path("/sys/fs/cgroup")
_JOIN: Final = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"'
_COMMANDS: Final = count()
_FIGURES: Final = re.compile(r"^(?:(\w+) )?(\d+)$", re.MULTILINE)


class Usage(NamedTuple):
    """Memory in bytes and processes: what something uses, or may use."""

    memory: int = 0
    processes: int = 0

    def share_of(self, total: "Usage") -> float:
        return max(self.memory / total.memory, self.processes / total.processes)


class ControlGroup:
    """Group of one command. `folders`: one in version 2 of control groups, two (memory, processes) in version 1."""

    _left: Final[set[Path]] = set()
    """Groups in which something still ended when they were to be removed."""

    def __init__(self, chat: str, limit: Usage) -> None:
        """Make one below the groups of its chat and of all chats. Raises `OSError`."""
        self._folders = []
        for folder in _parents():
            for name, most in ((_name(), total()), (f"chat-{chat}", of_chat()), (str(next(_COMMANDS)), limit)):
                if (control := folder / "cgroup.subtree_control").exists():
                    control.write_text("+memory +pids")
                folder /= name
                folder.mkdir(exist_ok=True)
                for file in ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max"):
                    if (folder / file).exists():
                        (folder / file).write_text(str(most.processes if file == "pids.max" else most.memory))
            self._folders.append(folder)

    @classmethod
    def make(cls, chat: str, limit: Usage) -> Self | None:
        """A new group; None where this process may make none."""
        with suppress(OSError):
            return cls(chat, limit)
        return None

    def words(self) -> tuple[str, ...]:
        """Words before those of a program that begins in this group."""
        return ("sh", "-c", _JOIN, "join", *map(str, self._folders), "--")

    def look(self) -> tuple[Usage, bool]:
        """Usage that the kernel cannot take back, and True once it has ended a process for lack of memory."""
        names = "memory.current memory.usage_in_bytes memory.stat memory.events memory.oom_control pids.current"
        found = _figures(self._folders, names)
        used = found.get("memory.current", found.get("memory.usage_in_bytes", 0))
        on_disk = found.get("file", found.get("cache", 0)) - found.get("shmem", 0) + found.get("slab_reclaimable", 0)
        return Usage(max(0, used - on_disk), found.get("pids.current", 0)), found.get("oom_kill", 0) > 0

    def remove(self) -> None:
        """Remove it, and those above it that are empty now; one in which something still ends is removed later."""
        self._left.update(self._folders)
        for folder in tuple(self._left):
            with suppress(OSError):
                folder.rmdir()
                self._left.discard(folder)
                folder.parent.rmdir()
                folder.parent.parent.rmdir()


def has_groups() -> bool:
    """True where this process may make control groups."""
    with suppress(OSError):
        return all(os.access(folder, os.W_OK) for folder in _parents())
    return False


@cache
def total() -> Usage:
    """Most that the commands of all chats may use together: half of what the gateway has."""
    found = _figures(_own(), "memory.max memory.limit_in_bytes pids.max")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    processes = int(Path("/proc/sys/kernel/threads-max").read_text())
    most = min(memory, *(found.get(name, memory) for name in ("memory.max", "memory.limit_in_bytes")))
    return Usage(most // 2, min(processes, found.get("pids.max", processes)) // 2)


def of_chat() -> Usage:
    """Most that the commands of one chat may use together."""
    return Usage(total().memory // 2, total().processes // 2)


def _name() -> str:
    return f"hermes-gateway-{os.getpid()}"


def _own() -> list[Path]:
    """Folders of the groups that this process is in."""
    lines = [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT / path.lstrip("/") for names, path in lines if not names]
    found = [(_ROOT / names, path.lstrip("/")) for names, path in lines if names in ("memory", "pids")]
    return [root / path if (root / path).is_dir() else root for root, path in found]


@cache
def _parents() -> list[Path]:
    """Folders in which this process may make groups; those that a killed gateway has left are removed."""
    total()  # the limits of the groups that this process is in now
    folders = _own()
    if len(folders) == 1:
        if "NOTIFY_SOCKET" in os.environ and os.access(folders[0] / "cgroup.subtree_control", os.W_OK):
            (folders[0] / "gateway").mkdir(exist_ok=True)  # a group of groups can have no processes of its own
            for pid in (folders[0] / "cgroup.procs").read_text().split():  # of our unit
                (folders[0] / "gateway" / "cgroup.procs").write_text(pid)
            return folders
        folders = [_ROOT]
    if os.geteuid() != 0 or not folders:
        raise PermissionError
    for left in (left for folder in folders for left in folder.glob("hermes-gateway-*")):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            for folder in (*left.glob("*/*/"), *left.glob("*/"), left):
                with suppress(OSError):
                    folder.rmdir()
    return folders


def _figures(folders: list[Path], names: str) -> dict[str, int]:
    """Numbers in files of groups, by the word before them or by the file's name; "max" is none."""
    found: dict[str, int] = {}
    for file in (folder / name for folder in folders for name in names.split()):
        with suppress(OSError):
            found |= {key or file.name: int(value) for key, value in _FIGURES.findall(file.read_text())}
    return found
