"""The terminal's sandbox.

With bubblewrap, a command sees only one folder and, read-only, the machine's programs. It sees no other files,
processes or environment variables, and has no network unless the operator allows it. The sandbox needs no privileges.

bubblewrap's own `--die-with-parent` is not enough. If bubblewrap is killed while it starts other processes, those
processes run forever. So bubblewrap runs as the first process of a PID namespace, whose processes the kernel kills when
bubblewrap ends. The command waits (at the "gate") until the gateway has set its limits.

Control groups limit memory and the number of processes. They include memory that no process owns, such as shared
memory, files in memory and pipe buffers. Version 2 needs a group that belongs to the gateway (`Delegate=` in its
systemd unit). Version 1 needs root.

>>> words = sandboxed("ls", Path("/srv/chat"), TerminalSettings(), ("--proc", "/proc"))
>>> words[0], words[-4:]
('setpriv', ['--', 'bash', '-c', b'ls'])
"""

import errno
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agent.settings import TerminalSettings
from agent.tools.files.workspace import MOUNT
from hermes_state.errors import ToolError
from hermes_state.text import shortened

ENVIRON: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "HOME": "/tmp",  # not the workspace, where programs could read a file sent by a person as their startup file
    "LC_CTYPE": "C.UTF-8",
    "TERM": "dumb",
}
"""Complete environment of a command. The gateway's environment contains keys, so none of it is passed on."""
_NEEDED: Final = {"bwrap": "bubblewrap", "setpriv": "util-linux", "unshare": "util-linux"}
_MAX_COMMAND_BYTES: Final = 100_000
"""Maximum length of a command in bytes. Linux accepts at most 128 KiB per argument."""

_PROC = ("--proc", "/proc", "--remount-ro", "/proc")
"""Options that mount `/proc` with the sandbox's own processes. It is read-only, because commands could otherwise change
kernel settings if the gateway runs as root.
"""
_NO_MORE_USERS = ("--unshare-user", "--disable-userns")
"""Options that prevent programs from creating namespaces, in which they could mount file systems of any size."""
_READABLE = "/etc/alternatives /etc/ld.so.cache /etc/localtime /etc/mime.types"
_READABLE_ONLINE = (
    "/etc/resolv.conf /etc/hosts /etc/nsswitch.conf /etc/services /etc/ssl/certs /etc/ssl/openssl.cnf "
    "/etc/ca-certificates /etc/pki/tls/certs /etc/pki/ca-trust"
)
"""Files that a command with network access can read. `/etc/ssl` and `/etc/pki` are not included completely, because
they also hold private keys, which would be readable if the gateway runs as root.
"""
_USERS = Path(__file__).with_name("sandbox_users.txt")
"""The sandbox's `/etc/passwd`. It has a single user, so the machine's users stay hidden."""


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """bubblewrap options that work on this machine, or the reason why no sandbox is possible."""

    options: tuple[str, ...] = ()
    fault: str | None = None


@cache
def probe_sandbox() -> SandboxInfo:
    """Find out which sandbox options work on this machine. Takes about ten milliseconds, once per process."""
    path = os.environ.get("PATH")
    if missing := sorted({package for name, package in _NEEDED.items() if shutil.which(name, path=path) is None}):
        needed, packages = " and ".join(missing), " ".join(missing)
        return SandboxInfo(fault=f"{needed} must be installed; on Debian and Ubuntu: apt install {packages}")
    said = ""
    # Best first. Some machines and systemd units do not allow all options.
    for options in ((*_NO_MORE_USERS, *_PROC), _PROC, _NO_MORE_USERS, ()):
        if os.geteuid() == 0 and _PROC[0] not in options:
            continue  # if the gateway is root, the process limit relies on counting processes in /proc
        try:
            with socket_filter() as kept:
                words = sandboxed("true", Path("/usr"), TerminalSettings(), options, socket_filter=kept)
                run = partial(subprocess.run, timeout=10, check=True, env=ENVIRON, stdin=subprocess.DEVNULL)
                run(words, capture_output=True, pass_fds=kept)
        except (OSError, subprocess.SubprocessError) as error:
            said = said or (getattr(error, "stderr", None) or b"").decode(errors="replace") or str(error)
        else:
            return SandboxInfo(options=options)
    return SandboxInfo(
        fault=f"bubblewrap cannot create a sandbox here ({shortened(said, 200)}); see docs/reference/tools.md"
    )


def terminal_fault(settings: TerminalSettings) -> str | None:
    """Return the reason why no command can be run with these settings, or None if commands can be run."""
    if not settings.enabled:
        return "the terminal is off (terminal.enabled)"
    return None if settings.unsafe else probe_sandbox().fault


def command_words(
    command: str, folder: Path, settings: TerminalSettings, kept: Sequence[int] = ()
) -> Sequence[str | bytes]:
    """Return the program and arguments that wait at `GATE` and then run a shell command in `folder`.

    Raises `ToolError` if the command is empty or too long, or if the terminal cannot run commands.
    """
    if (fault := terminal_fault(settings)) is not None:
        raise ToolError(f"no command can run: {fault}")
    if "\0" in command or not command.strip():
        raise ToolError("the command is empty" if not command.strip() else "the command contains a NUL character")
    if len(command.encode()) > _MAX_COMMAND_BYTES:
        raise ToolError(f"the command is longer than {_MAX_COMMAND_BYTES:,} bytes: write it to a file and run the file")
    if settings.unsafe:
        return [*GATE, *_shell(command)]
    if folder.resolve().is_relative_to("/usr"):
        raise ToolError("no command can run: the state directory is below /usr, which every command can read")
    return sandboxed(command, folder, settings, probe_sandbox().options, GATE, kept)


_ENDED_TOGETHER: Final = "setpriv --pdeathsig KILL unshare --user --map-current-user --pid --mount-proc --kill-child --"
"""Command prefix that makes a program the first process of a PID namespace that ends when the gateway ends."""
_GATE: Final = """
test -r /proc/sysvipc && exec 3</proc/sysvipc/shm 4</proc/sysvipc/msg 5</proc/sysvipc/sem
echo >&0; read -r _ && exec "$@" </dev/null 3<&- 4<&- 5<&-
"""
GATE: Final = ("sh", "-c", _GATE, "gate")
"""Command prefix that delays a program until the gateway has set its limits. The shell writes a line to standard input,
which is a socket, and waits for a line in return. If the gateway closes the socket, the program does not start. While
the shell waits, it keeps the sandbox's lists of System V objects open, so that the gateway can measure their memory.
"""

_MACHINES: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198), "riscv64": (0xC00000F3, 198)}
"""For each architecture: its audit number and the number of its `socket` system call."""
_FAMILIES: Final = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Socket families that a network namespace isolates. Others can leave it: AF_VSOCK reaches a virtual machine's host."""


@contextmanager
def socket_filter() -> Iterator[Sequence[int]]:
    """Open a seccomp filter that only allows sockets of `_FAMILIES`.

    Yields no filter on an unknown architecture. System calls of other architectures and io_uring (425) could also
    create sockets, so the filter makes them fail as if they did not exist.
    """
    if (machine := _MACHINES.get(os.uname().machine)) is None:
        yield ()
        return
    (load, equal, above, end), (architecture, call), last = (0x20, 0x15, 0x35, 0x06), machine, len(_FAMILIES)
    program = (
        *((load, 0, 0, 4), (equal, 0, last + 6, architecture), (load, 0, 0, 0)),
        *((above, last + 4, 0, 1 << 30), (equal, last + 3, 0, 425), (equal, 0, last + 3, call), (load, 0, 0, 16)),
        *((equal, last - number + 1, 0, family) for number, family in enumerate(_FAMILIES)),
        *((end, 0, 0, 0x5_0000 | errno.EAFNOSUPPORT), (end, 0, 0, 0x5_0000 | errno.ENOSYS), (end, 0, 0, 0x7FFF_0000)),
    )
    with open(os.memfd_create("socket filter"), "r+b", buffering=0) as file:
        file.write(b"".join(struct.pack("=HBBI", *step) for step in program))
        file.seek(0)
        yield (file.fileno(),)


def sandboxed(
    command: str,
    folder: Path,
    settings: TerminalSettings,
    options: Sequence[str],
    gate: Sequence[str] = (),
    socket_filter: Sequence[int] = (),
) -> list[str | bytes]:
    """Return the program and arguments that run a command in a sandbox. `options`: see `probe_sandbox`."""
    tmp_bytes, is_whole = str(settings.memory_mb << 19), _PROC[0] in options
    readable = f"{_READABLE} {_READABLE_ONLINE}" if settings.network else _READABLE
    return [
        *(*(_ENDED_TOGETHER.split() if is_whole else ()), "bwrap", "--unshare-all", "--new-session"),
        *("--die-with-parent", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
        *(("--share-net",) if settings.network else ()),
        *(word for one in socket_filter for word in ("--seccomp", str(one))),
        *("--ro-bind", "/usr", "/usr", *_program_folders(), "--ro-bind", str(_USERS), "/etc/passwd"),
        *(word for path in readable.split() for word in ("--ro-bind-try", path, path)),
        *(*options, "--dev", "/dev", "--size", tmp_bytes, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--size", tmp_bytes, "--tmpfs", "/tmp"),
        *("--bind", str(folder), MOUNT, "--chdir", MOUNT, "--remount-ro", "/", "--", *gate),
        *_shell(command),
    ]


@cache
def _program_folders() -> tuple[str, ...]:
    """Return bubblewrap options for `/bin` and similar folders, which are links into `/usr` on most systems."""
    words: list[str] = []
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")):
        if path.is_symlink():
            words += ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            words += ("--ro-bind", str(path), str(path))
    return tuple(words)


def _shell(command: str) -> tuple[str | bytes, ...]:
    shell = "bash" if shutil.which("bash", path="/usr/bin:/bin") else "sh"
    return shell, "-c", command.encode()


def bound_process(pid: int, settings: TerminalSettings, *, max_file_bytes: int, has_end: bool) -> None:
    """Set the resource limits of a process that waits at the gate. Its later children inherit them.

    The process gets a low CPU priority, and is killed first if memory is scarce. The memory limit covers only writable
    memory. `has_end`: also limit the CPU time.
    """
    bounds = {
        resource.RLIMIT_DATA: settings.memory_mb << 20,
        resource.RLIMIT_FSIZE: min(1 << 30, max_file_bytes),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 1_024,
    }
    if has_end:
        bounds[resource.RLIMIT_CPU] = max(1, round(settings.seconds))
    if not settings.unsafe:  # without a sandbox, this limit would count all of the user's processes
        bounds[resource.RLIMIT_NPROC] = settings.max_processes
    for bound, most in bounds.items():
        hard = resource.prlimit(pid, bound)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, bound, (most, most))
    os.setpriority(os.PRIO_PROCESS, pid, 10)
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


# ---- control groups

_ROOT: Final = Path("/sys/fs/cgroup")
_JOIN: Final = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"'
_COMMANDS: Final = count()
_LEFT: Final[set[Path]] = set()
"""Control groups that could not be removed yet, because a process in them was still ending."""


class Usage(NamedTuple):
    """Memory in bytes and number of processes, either used or allowed."""

    memory: int = 0
    processes: int = 0

    def half(self) -> "Usage":
        return Usage(self.memory // 2, self.processes // 2)


class ControlGroup:
    """Control group of a command.

    This group is inside the chat's group, which is inside the group for all chats. The object is falsy if the gateway
    cannot create groups.
    """

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
                    memory = dict.fromkeys(
                        ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), most.memory
                    )
                    for file, limited in {**memory, "memory.swap.max": 0, "pids.max": most.processes}.items():
                        if (folder / file).exists():
                            (folder / file).write_text(str(limited))
                self._folders.append(folder)

    def __bool__(self) -> bool:
        return bool(self._folders)

    def words(self) -> tuple[str, ...]:
        """Return the command prefix that starts a program in this group."""
        return ("sh", "-c", _JOIN, "join", *map(str, self._folders), "--")

    def look(self) -> tuple[Usage, bool]:
        """Return the usage without reclaimable memory, and whether the kernel killed a process for using too much."""
        names = "memory.current memory.usage_in_bytes memory.stat memory.events memory.oom_control pids.current"
        found = _figures(self._folders, names)
        used = found.get("memory.current", found.get("memory.usage_in_bytes", 0))
        on_disk = found.get("file", found.get("cache", 0)) - found.get("shmem", 0) + found.get("slab_reclaimable", 0)
        return Usage(max(0, used - on_disk), found.get("pids.current", 0)), found.get("oom_kill", 0) > 0

    def remove(self) -> None:
        """Remove the group and its empty parents. A group whose processes are still ending is removed later."""
        _LEFT.update(self._folders)
        for folder in tuple(_LEFT):
            with suppress(OSError):
                with suppress(FileNotFoundError):
                    folder.rmdir()
                _LEFT.discard(folder)
                folder.parent.rmdir()
                folder.parent.parent.rmdir()


@cache
def total() -> Usage:
    """Return the limit for the commands of all chats together: half of the gateway's own limit."""
    found = _figures(_own_groups(), "memory.max memory.limit_in_bytes pids.max")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    processes = _figures([Path("/proc/sys/kernel")], "threads-max").get("threads-max", 10_000)
    most = min(memory, *(found.get(name, memory) for name in ("memory.max", "memory.limit_in_bytes")))
    return Usage(most, min(processes, found.get("pids.max", processes))).half()


@cache
def group_parents() -> list[Path]:
    """Return the folders in which the gateway can create groups. Remove groups that a killed gateway left behind."""
    total()  # cache the limit now, because the gateway moves to another group below
    folders = _own_groups()
    if len(folders) == 1:
        if "NOTIFY_SOCKET" in os.environ and os.access(folders[0] / "cgroup.subtree_control", os.W_OK):
            with suppress(OSError):
                (folders[0] / "gateway").mkdir(exist_ok=True)  # a group with subgroups must not contain processes
                for pid in (folders[0] / "cgroup.procs").read_text().split():  # processes of the systemd unit
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
    """Return the folders of the gateway's own groups: one with cgroups version 2, two (memory, pids) with version 1."""
    lines: list[list[str]] = []
    with suppress(OSError):  # the kernel has no control groups
        lines += [line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT / path.lstrip("/") for names, path in lines if not names]
    found = [(_ROOT / names, path.lstrip("/")) for names, path in lines if names in ("memory", "pids")]
    return [root / path if (root / path).is_dir() else root for root, path in found]


def _figures(folders: list[Path], names: str) -> dict[str, int]:
    """Return the numbers in control group files, by key, or by file name if a number has no key. Skips "max"."""
    found: dict[str, int] = {}
    for file in (folder / name for folder in folders for name in names.split()):
        with suppress(OSError):
            found |= {
                key or file.name: int(value)
                for key, value in re.findall(r"^(?:(\w+) )?(\d+)$", file.read_text(), re.MULTILINE)
            }
    return found
