"""A running shell command: its output, its resource limits, and the end of all processes that it started."""

import asyncio
import ctypes
import os
import re
import signal
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from operator import mul
from pathlib import Path
from typing import Final, Self, TextIO

from agent.settings import TerminalSettings
from agent.tools.terminal.sandbox import (
    ENVIRON,
    ControlGroup,
    Usage,
    bound_process,
    command_words,
    socket_filter,
    total,
)
from hermes_state.aio import Backoff, cancel_all
from hermes_state.disk import MIN_ROOM, Room
from hermes_state.errors import ToolError
from hermes_state.text import printable, well_formed

_OWN_PROCESSES = 4
_CREDENTIALS = struct.Struct("iii")
"""Format of the process, user and group ids of a process that wrote to a socket, as seen outside the sandbox."""


class OutputReader:
    """Reads a command's output. Keeps its beginning and its end, and the length of the part between them."""

    def __init__(self, max_chars: int) -> None:
        self._half = max(1, max_chars // 2)
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        self._fd: int | None = None
        self.ended = asyncio.Event()

    def open(self, fd: int) -> None:
        """Read from a pipe. The reader closes the pipe."""
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read, fd)
        self._fd = fd

    def close(self) -> None:
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        self.ended.set()

    def _read(self, fd: int) -> None:
        with suppress(BlockingIOError):
            self.add(os.read(fd, 1 << 16))

    def add(self, data: bytes) -> None:
        """Add a piece of output. An empty piece marks the end."""
        if not data:
            return self.close()
        self._total += len(data)
        room = self._half * 4 - len(self._head)  # a character has at most four bytes
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._half * 16:  # trim occasionally, not after each piece
            self._cut_tail()

    def take(self) -> str:
        """Return the output since the last call. If it is long, a note on the omitted length replaces the middle."""
        self._cut_tail()
        if len(self._head) + len(self._tail) == self._total:
            text = readable((self._head + self._tail).decode(errors="replace"))
            head, tail = text[: self._half], text[self._half :][-self._half :]
            left_out, unit = len(text) - len(head) - len(tail), "characters"
        else:
            head = readable(self._head.decode(errors="replace"))[: self._half]
            tail = readable(self._tail.decode(errors="replace"))[-self._half :]
            left_out, unit = max(0, self._total - len(head.encode()) - len(tail.encode())), "bytes"
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        return f"{head}\n[… {left_out:,} {unit} left out …]\n{tail}" if left_out else head + tail

    def _cut_tail(self) -> None:
        del self._tail[: -self._half * 4]


_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


def readable(text: str) -> str:
    r"""Return output without colours and cursor movements. Only the last version of an overwritten line is kept.

    >>> readable("\x1b[32mdone\x1b[0m\r\n10 %\r100 %\nbell\x07")
    'done\n100 %\nbell\\u0007'
    """
    text = _ESCAPE.sub("", text.replace("\r\n", "\n"))
    return printable(well_formed("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))))


class RunningCommand:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: OutputReader,
        folder: Path,
        settings: TerminalSettings,
        group: ControlGroup,
    ) -> None:
        self._process, self._output = process, output
        self._folder, self._settings, self._group = folder, settings, group
        self._memory: SandboxMemory | None = None
        """Measures the sandbox's memory if the command has no control group."""
        room = Room.on(folder)
        self._min_room = Room(min(MIN_ROOM.bytes, room.bytes // 2), min(MIN_ROOM.files, room.files // 2))
        self._max_file_bytes = room.bytes - self._min_room.bytes
        self.usage = Usage()
        self._started_at = time.monotonic()
        self._seconds: float | None = None
        """Duration of the command in seconds; None while it runs."""
        self.stopped_for: str | None = None
        """Reason why the gateway ended the command, or None if it is running or ended by itself."""

    @classmethod
    async def start(cls, command: str, folder: Path, settings: TerminalSettings, *, has_end: bool = True) -> Self:
        """Start a command in `folder`. Raises `ToolError` if it cannot be started."""
        most = total().half()
        memory, processes = min(settings.memory_mb << 20, most.memory), min(settings.max_processes, most.processes)
        settings = replace(settings, memory_mb=memory >> 20, max_processes=processes)
        gate, their_gate = socket.socketpair()
        gate.setblocking(False)
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with gate, their_gate, socket_filter() as kept:
            words, output = command_words(command, folder, settings, kept), OutputReader(settings.output_chars)
            group = ControlGroup(folder.name, Usage(memory, processes + _OWN_PROCESSES))
            async with AsyncExitStack() as undo:
                undo.callback(group.remove)
                read_fd, write_fd = os.pipe()
                output.open(read_fd)
                undo.callback(output.close)
                try:
                    process = await asyncio.create_subprocess_exec(
                        *group.words(),
                        *words,
                        stdin=their_gate.fileno(),
                        stdout=write_fd,
                        stderr=write_fd,
                        env=ENVIRON,
                        cwd=folder,
                        start_new_session=True,  # so that Ctrl-C in a terminal reaches only the gateway
                        pass_fds=kept,
                    )
                except OSError as error:
                    raise ToolError(f"the command could not be started: {error.strerror or error}") from error
                finally:
                    os.close(write_fd)
                their_gate.close()
                made = cls(process, output, folder, settings, group)
                _RUNNING.add(made)
                undo.push_async_callback(made._end)
                await made._begin(gate, has_end=has_end)
                undo.pop_all()
            return made

    async def _begin(self, gate: socket.socket, *, has_end: bool) -> None:
        """Limit the command's resources while it waits at the `GATE`, then let it start."""
        loop, is_there = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(gate, is_there.set)
        try:
            async with asyncio.timeout(30):
                await is_there.wait()
            line, credentials, _, _ = gate.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
            if not line or not credentials:
                return  # the sandbox failed, and the command's output says why
            pid, _, _ = _CREDENTIALS.unpack(credentials[0][2])
            bound_process(pid, self._settings, max_file_bytes=self._max_file_bytes, has_end=has_end)
            if not self._settings.unsafe and not self._group:
                self._memory = SandboxMemory(pid)
            gate.send(b"\n")
        except TimeoutError as error:
            raise ToolError("the command could not be started: its sandbox took too long to set up") from error
        except OSError as error:
            raise ToolError(f"the command could not be started: {error}") from error
        finally:
            loop.remove_reader(gate)

    async def finish(self, seconds: float | None) -> None:
        """Wait at most `seconds` for the command to end, then kill all its processes."""
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self.stopped_for = self.stopped_for or f"it took longer than {seconds:g} s"
        finally:
            self._kill()
            await cancel_all([watch])
            await self._end()

    async def _end(self) -> None:
        self._kill()
        try:
            await self._process.wait()
            with suppress(TimeoutError):  # without a sandbox, a process that was not killed can keep the pipe open
                async with asyncio.timeout(2):
                    await self._output.ended.wait()
        finally:
            self._seconds = time.monotonic() - self._started_at
            self._output.close()
            if self._group.look()[1]:
                self.stopped_for = self.stopped_for or self._too_much_memory
            self._group.remove()
            if self._memory is not None:
                self._memory.close()
            _RUNNING.discard(self)

    def stop(self, reason: str) -> None:
        """End the command, so that `finish` returns. `reason` completes the sentence "stopped: …"."""
        if self.is_running:
            self.stopped_for = self.stopped_for or reason
            self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        return self._seconds is None

    @property
    def outcome(self) -> str:
        if self.stopped_for is not None:
            return f"stopped: {self.stopped_for}"
        code = self._process.returncode or 0
        number = -code if code < 0 else code - 128
        return f"ended by {signal.Signals(number).name}" if number in frozenset(signal.Signals) else f"exit code {code}"

    def report(self) -> str:
        """Return the command's state and the output since the last report, as text for the model."""
        seconds = time.monotonic() - self._started_at if self._seconds is None else self._seconds
        state = "still running" if self.is_running else self.outcome
        return f"[{state}; {seconds:.1f} s]\n{self._output.take() or '(no output)'}"

    async def _watch(self) -> None:
        """End the command when its processes together exceed a limit."""
        for pause in Backoff(0.02, 0.2):  # frequent at first, because programs can start many processes quickly
            await asyncio.sleep(pause)  # poll, because the kernel sends no notification
            try:
                excess = await asyncio.to_thread(self._find_excess)
            except RuntimeError:  # no thread can be started because there are too many processes
                excess = self._find_excess()
            if excess is not None:
                return self.stop(excess)

    @property
    def _too_much_memory(self) -> str:
        return f"it used more than {self._settings.memory_mb} MB of memory"

    def _find_excess(self) -> str | None:
        with suppress(OSError):  # the folder was removed
            if Room.on(self._folder).is_short(*self._min_room):
                return "the disk is almost full"
        max_bytes, is_over = self._settings.memory_mb << 20, False
        if self._group:
            self.usage, is_over = self._group.look()
        elif self._memory is not None:
            self.usage = self._memory.look(max_bytes)
            is_over = self.usage.memory > max_bytes
            if self.usage.processes > self._settings.max_processes + _OWN_PROCESSES:
                return f"it had more than {self._settings.max_processes} processes"
        return self._too_much_memory if is_over else self._find_crowd()

    def _find_crowd(self) -> str | None:
        """Return a reason to end this command if all commands together use too much memory or too many processes.

        Only the largest command of the chat that uses the most is ended.
        """
        chats = defaultdict[Path, list[RunningCommand]](list)
        for one in tuple(_RUNNING):
            chats[one._folder].append(one)
        largest = max(chats.values(), key=_part)
        if _part(largest) > 1 - _part(_RUNNING) and self is max(largest, key=lambda one: _part([one])):
            return "the commands of this chat together used too much memory or too many processes"
        return None


_RUNNING: Final[set[RunningCommand]] = set()


def _part(commands: Iterable[RunningCommand]) -> float:
    """Return the commands' share of the memory limit or of the process limit, whichever share is larger."""
    used = [one.usage for one in tuple(commands)]
    memory, processes = sum(one.memory for one in used), sum(one.processes for one in used)
    return max(memory / total().memory, processes / total().processes)


class SandboxMemory:
    """Measures a sandbox from the outside: its processes and their memory, and memory that no process has mapped."""

    def __init__(self, pid: int) -> None:
        """Open the lists of System V objects: descriptors 3, 4 and 5 of the process `pid`, which waits at the gate."""
        self._root, self._lists = Path(f"/proc/{pid}/root"), list[TextIO]()
        with suppress(OSError), open(os.pidfd_open(pid)) as process:
            taken = [ctypes.CDLL(None).syscall(_PIDFD_GETFD, process.fileno(), number, 0) for number in (3, 4, 5)]
            self._lists += [open(one) for one in taken if one >= 0]  # noqa: SIM115

    def close(self) -> None:
        for one in self._lists:
            one.close()

    def look(self, max_bytes: int) -> Usage:
        """Return the current usage.

        Counting shared pages exactly is slow, so it is only done above half of `max_bytes`.
        """
        processes, own, mapped, inside, files = 0, 0, 0, list[Path](), dict[tuple[int, int], int]()
        with suppress(OSError):
            inside += [path for path in (self._root / "proc").iterdir() if path.name.isdecimal()]
        for path in inside:
            with suppress(OSError):  # the process has ended in the meantime
                processes += len(os.listdir(path / "task"))
                own += int((path / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                for link in (path / "fd").iterdir():
                    if os.readlink(link).startswith("/memfd:"):
                        status = link.stat()
                        files[status.st_dev, status.st_ino] = status.st_blocks * 512
        if own > max_bytes // 2:
            own, mapped = map(sum, zip(*map(_mapped, inside), strict=True))
        return Usage(own + max(mapped, sum(files.values()) + self._shared_bytes()), processes)

    def _shared_bytes(self) -> int:
        """Return the memory of files in `/tmp` and `/dev/shm`, and of System V segments, messages and semaphores."""
        used = 0
        for name in ("tmp", "dev/shm"):
            with suppress(OSError):
                disk = os.statvfs(self._root / name)
                used += (disk.f_blocks - disk.f_bfree) * disk.f_frsize + (disk.f_files - disk.f_ffree) * 1024
        for file in self._lists:
            file.seek(0)
            kind, *rows = (line.split() for line in file)
            sizes = [_LISTED.get(name, 0) for name in kind]
            used += sum(1024 + sum(map(mul, sizes, map(int, row))) for row in rows)
        return used


_PIDFD_GETFD = 438
_LISTED = {"rss": 1, "swap": 1, "cbytes": 1, "qnum": 64, "nsems": 64}
"""Columns that state sizes in the kernel's lists of System V objects, and the bytes per unit of each column."""


def _mapped(path: Path) -> tuple[int, int]:
    """Return the private and the shared memory of a process. A page shared by N processes counts as 1/N."""
    with suppress(OSError):
        text = (path / "smaps_rollup").read_bytes()
        all_, shared = (int(one) << 10 for one in re.findall(rb"^Pss(?:_Shmem)?:\s+(\d+) kB", text, re.MULTILINE))
        return all_ - shared, shared
    return 0, 0
