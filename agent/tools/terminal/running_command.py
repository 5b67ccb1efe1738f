"""A shell command that runs: its output, of which the beginning and the end are kept, its bounds, and its end.

Whoever stops waiting for a command ends it, and with the sandbox's first process everything ends that was started in
it, however it was started. The same happens when the gateway's own process ends, whatever ends it.
"""

import asyncio
import os
import re
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from agent.tools.terminal.sandbox import (
    ENVIRON,
    TerminalSettings,
    bound_process,
    bound_processes,
    command_words,
    remove_group,
)
from hermes_state.aio import Backoff, cancel_all
from hermes_state.errors import ToolError
from hermes_state.text import printable, well_formed

_LOOKS: Final = Backoff(0.02, 0.2)
"""Pauses between looks at a command's processes, memory and disk: the first are short, for programs that multiply."""
_BEGIN_SECONDS = 30.0
"""Longest wait for a sandbox to stand, in seconds."""
_CLOSE_SECONDS = 2.0
"""Longest wait, in seconds, for the rest of the output once everything was killed."""
_MIN_FREE_BYTES = 200_000_000
"""Room on the workspace's disk at which commands are ended: the database needs it more."""
_OWN_PROCESSES = 4
"""Processes of a sandbox that are its own."""
_PIECE_BYTES = 1 << 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CREDENTIALS = struct.Struct("iii")
"""Process, user and group id of who writes to a socket, in our terms and not in the sandbox's."""


class OutputReader:
    """Reads the output of a command: keeps its beginning and end, and counts the rest."""

    def __init__(self, max_chars: int) -> None:
        self._half = max(1, max_chars // 2)
        self._head, self._tail, self._total = bytearray(), bytearray(), 0
        self._fd: int | None = None
        self.ended = asyncio.Event()

    def open(self, fd: int) -> None:
        """Read from a pipe, which is ours from now on, as soon as there is something."""
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read, fd)
        self._fd = fd

    def close(self) -> None:
        """Read no more."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
        self.ended.set()

    def _read(self, fd: int) -> None:
        with suppress(BlockingIOError):
            self.add(os.read(fd, _PIECE_BYTES))

    def add(self, data: bytes) -> None:
        """Take a piece; an empty one is the end."""
        if not data:
            return self.close()
        self._total += len(data)
        room = self._half * 4 - len(self._head)  # a character has at most four bytes
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > self._half * 16:  # now and then, not at each piece
            self._cut_tail()

    def take(self) -> str:
        """Output since the last call, fit to be read; the middle of a long output is only counted."""
        self._cut_tail()
        if len(self._head) + len(self._tail) == self._total:
            text = readable((self._head + self._tail).decode(errors="replace"))
            head, tail = text[: self._half], text[self._half :][-self._half :]
            left_out = len(text) - len(head) - len(tail)
            unit = "characters"
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
    r"""Output without the colours and cursor moves of a terminal, and of a line that was written over what it became.

    >>> readable("\x1b[32mdone\x1b[0m\r\n10 %\r100 %\nbell\x07")
    'done\n100 %\nbell\\u0007'
    """
    text = _ESCAPE.sub("", text.replace("\r\n", "\n"))
    return printable(well_formed("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))))


class RunningCommand:
    """A command that was started. Its `stopped_for` tells which bound has ended it, if one did."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: OutputReader, folder: Path, settings: TerminalSettings
    ) -> None:
        self._process, self._output = process, output
        self._folder, self._settings = folder, settings
        self._proc: Path | None = None
        """`/proc` as it is inside, None without a sandbox."""
        self._group: Path | None = None
        self._min_free = min(_MIN_FREE_BYTES, _free_bytes(folder) // 2)
        self._started_at = time.monotonic()
        self._seconds: float | None = None
        """Time that it took, None while it runs."""
        self.stopped_for: str | None = None

    @classmethod
    async def start(cls, command: str, folder: Path, settings: TerminalSettings, *, has_end: bool = True) -> Self:
        """Start a command in `folder`. Raises `ToolError` with the reason why it could not be."""
        words, output = command_words(command, folder, settings), OutputReader(settings.output_chars)
        gate, their_gate = socket.socketpair()
        gate.setblocking(False)
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        read_fd, write_fd = os.pipe()
        output.open(read_fd)
        with gate:
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=their_gate.fileno(),
                    stdout=write_fd,
                    stderr=write_fd,
                    env=ENVIRON,
                    cwd=folder,
                    start_new_session=True,  # a terminal's Ctrl-C is the gateway's
                )
            except BaseException as error:
                output.close()
                if isinstance(error, OSError):
                    raise ToolError(f"the command could not be started: {error.strerror}") from error
                raise
            finally:
                their_gate.close()
                os.close(write_fd)
            made = cls(process, output, folder, settings)
            try:
                await made._begin(gate, has_end=has_end)
            except BaseException:
                await made._end()
                raise
            return made

    async def _begin(self, gate: socket.socket, *, has_end: bool) -> None:
        """Let the command begin, once it waits at the gate; there it says who it is."""
        loop, is_there = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(gate, is_there.set)
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                await is_there.wait()
            line, credentials, _, _ = gate.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
            if not line:
                return  # there is no sandbox, and the output says why
            pid, _, _ = _CREDENTIALS.unpack(credentials[0][2])
            bound_process(pid, self._settings, has_end=has_end)
            self._group = bound_processes(pid, self._settings.max_processes)
            if not self._settings.is_unsafe:
                self._proc = Path(f"/proc/{pid}/root/proc")
            gate.send(b"\n")
        except (OSError, TimeoutError) as error:
            raise ToolError(f"the command could not be started: {error or 'it took too long'}") from error
        finally:
            loop.remove_reader(gate)

    async def finish(self, seconds: float | None) -> None:
        """Wait for the end, for at most `seconds`; whatever ends the wait, nothing of the command runs on."""
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self.stopped_for = self.stopped_for or f"having taken longer than {seconds:g} s"
        finally:
            self._kill()
            await cancel_all([watch])
            await self._end()

    async def _end(self) -> None:
        self._kill()
        try:
            await self._process.wait()
            with suppress(TimeoutError):  # without a sandbox, somebody may have left with the other end of the pipe
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._output.ended.wait()
        finally:
            self._seconds = time.monotonic() - self._started_at
            self._output.close()
            if self._group is not None:
                remove_group(self._group)

    def stop(self, reason: str) -> None:
        """End it; `finish` returns then."""
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
        """How it ended, in a few words."""
        if self.stopped_for is not None:
            return f"stopped, for {self.stopped_for}"
        code = self._process.returncode or 0
        number = -code if code < 0 else code - 128
        return f"ended by {signal.Signals(number).name}" if number in _SIGNALS else f"exit code {code}"

    def report(self) -> str:
        """State, and the output since the last report, for the model."""
        seconds = time.monotonic() - self._started_at if self._seconds is None else self._seconds
        state = "still running" if self.is_running else self.outcome
        return f"[{state}; {seconds:.1f} s]\n{self._output.take() or '(no output)'}"

    async def _watch(self) -> None:
        """End the command when all its processes together take more than they may."""
        for pause in _LOOKS:
            await asyncio.sleep(pause)  # nothing tells of a process that takes too much
            excess = await asyncio.to_thread(self._find_excess)
            if excess is not None:
                return self.stop(excess)

    def _find_excess(self) -> str | None:
        if _free_bytes(self._folder) < self._min_free:
            return "want of room on the disk"
        return find_excess(self._proc, self._settings) if self._proc is not None else None


_SIGNALS = frozenset(signal.Signals)


def find_excess(proc: Path, settings: TerminalSettings) -> str | None:
    """The bound that the processes below a sandbox's own `/proc` exceed together; None also where it cannot be read."""
    max_bytes, processes, resident = settings.memory_mb << 20, 0, 0
    with suppress(OSError):
        inside = [path for path in proc.iterdir() if path.name.isdecimal()]
        for path in inside:
            with suppress(OSError):  # it has ended meanwhile
                processes += len(os.listdir(path / "task"))
                resident += int((path / "statm").read_bytes().split()[1]) * _PAGE_BYTES
            if processes > settings.max_processes + _OWN_PROCESSES:
                return f"having had more than {settings.max_processes} processes"
        if resident > max_bytes and sum(map(_own_bytes, inside)) > max_bytes:
            return f"having used more than {settings.memory_mb} MB of memory"
    return None


def _own_bytes(path: Path) -> int:
    """Memory of a process, with its share of what several have; slow to find out, so only in case of doubt."""
    with suppress(OSError):
        found = re.search(rb"^Pss:\s+(\d+) kB", (path / "smaps_rollup").read_bytes(), re.MULTILINE)
        return int(found[1]) << 10 if found is not None else 0
    return 0


def _free_bytes(folder: Path) -> int:
    """Room on the disk of a folder; none is known of one that is gone."""
    with suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize
    return sys.maxsize
