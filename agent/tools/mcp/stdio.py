"""MCP servers that run as child processes.

They do not inherit the gateway's secrets. When a server ends, its own child processes are killed.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from agent.settings import ServerSettings
from hermes_state.aio import cancel_all
from hermes_state.errors import ToolError
from hermes_state.setting_types import plain_texts

log = structlog.get_logger()

Reading: TypeAlias = MemoryObjectReceiveStream[SessionMessage | Exception]
Writing: TypeAlias = MemoryObjectSendStream[SessionMessage]

MAX_WEIGHT: Final = 32 << 20
"""Maximum estimated memory use of a message, in bytes. It allows 8 MB of text, or less if it has many small values."""
END_SECONDS: Final = 2.0
"""Seconds to wait for a server to end after its input is closed, and again after SIGTERM."""
INVALID_ANSWER: Final = "the server's answer does not follow the protocol"
TOO_LARGE: Final = "the answer is larger than the limit for a message (8 MB, or less if it has many small values)"
_KEPT_BYTES = 256
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')
_PIECE_BYTES = 1 << 16

_GUARD: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[3:])"
)
"""Python code that makes the kernel kill this process when the gateway ends, and then starts the server."""


@asynccontextmanager
async def stdio_streams(settings: ServerSettings, ended: asyncio.Event) -> AsyncIterator[tuple[Reading, Writing]]:
    """Run a server, and yield streams for reading and writing. Set `ended` when the server closes its output."""
    process, last_words = await _start(settings), deque([""], 1)
    to_us, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, to_server = anyio.create_memory_object_stream[SessionMessage](0)
    has_ended = False
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_read(process, to_us, settings.name, ended)),
                group.create_task(_write(process, to_server)),
                logged := group.create_task(_log_errors(process, settings.name, last_words)),
            ]
            try:
                yield reading, writing
            finally:
                has_ended = ended.is_set()
                try:
                    if has_ended:
                        await asyncio.wait({logged}, timeout=0.5)
                    await _end(process)
                finally:
                    await cancel_all(tasks)
    except ExceptionGroup:  # if the server has ended, the error raised below explains more
        if not has_ended:
            raise
    finally:
        for stream in (to_us, reading, writing, to_server):
            stream.close()
    if has_ended:
        code = process.returncode or 0
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        words = f": {last_words[0]}" if last_words[0] else " and wrote nothing to standard error"
        raise ToolError(f"the program ended with {how}{words}")


async def _start(settings: ServerSettings) -> Process:
    environ = server_environ(os.environ, plain_texts(settings.env))
    found = shutil.which(settings.command or "", path=environ.get("PATH"))
    if found is None:
        raise ToolError(f"the program {settings.command} is not on the PATH")
    program = os.path.abspath(found)  # noqa: ASYNC240 - does not read the disk
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), program] if sys.platform == "linux" else []
    words = [*guard, program, *settings.args]
    try:
        return await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ, cwd=settings.cwd, start_new_session=True
        )
    except OSError as error:
        raise ToolError(f"{settings.command} cannot be started: {error.strerror or error}") from error


def server_environ(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a server's environment variables: those given for it, and gateway variables that hold no secrets."""
    kept = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
    return {name: own[name] for name in kept if name in own} | dict(given)


async def _end(process: Process) -> None:
    """End the server and its process group. The protocol requires closing its input first."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await process.wait()
                    break
            _signal(process, number)
    finally:
        _signal(process, signal.SIGKILL)  # processes that the server started
        # asyncio has no public way to close pipes that another process keeps open, or that have no reader.
        process._transport.close()  # type: ignore[attr-defined]  # the same in asyncio and uvloop


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _read(
    process: Process, to_us: MemoryObjectSendStream[SessionMessage | Exception], name: str, ended: asyncio.Event
) -> None:
    assert process.stdout is not None
    lines, has_warned = LineReader(), False
    try:
        while data := await process.stdout.read(_PIECE_BYTES):
            for line, is_whole in lines.feed(data):
                message = _parsed(line.removeprefix(BOM_UTF8)) if is_whole else _error_for(line, TOO_LARGE)
                if message is not None:
                    await to_us.send(SessionMessage(message))
                    continue
                if line.strip() and not has_warned:
                    has_warned = True
                    log.warning(
                        "mcp.line_ignored", server=name, bytes=len(line), hint="standard output is for MCP messages"
                    )
                await asyncio.sleep(0)  # a piece of output can have thousands of these lines
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # the connection is being closed
    finally:
        to_us.close()
        ended.set()


def _parsed(line: bytes) -> JSONRPCMessage | None:
    """Return the message in a line. An unreadable response becomes an error, so that only its own request fails."""
    with suppress(ValueError, RecursionError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    if re.search(rb'"(?:result|error)"\s*:', line) is None:
        return None
    with suppress(ValueError, RecursionError):  # also accepts deep nesting, lone surrogates, invalid UTF-8
        message = json.loads(line.decode("utf-8", "replace"))
        if isinstance(message, dict) and isinstance(message.get("result"), dict) and not message.get("error"):
            return jsonrpc_message_adapter.validate_python(
                {"jsonrpc": "2.0", "id": message.get("id"), "result": message["result"]}
            )
    return _error_for(line, INVALID_ANSWER)


def _error_for(line: bytes, reason: str) -> JSONRPCError | None:
    """Return the error that replaces an unreadable response, or None if the line is not a response."""
    number = find_id(line)
    error = ErrorData(code=INTERNAL_ERROR, message=reason)
    return JSONRPCError(jsonrpc="2.0", id=number, error=error) if number is not None else None


async def _write(process: Process, to_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # the server has ended, which `_read` notices
        async for sent in to_server:
            process.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()


async def _log_errors(process: Process, name: str, last: deque[str]) -> None:
    """Log up to 60 lines per minute from the server's standard error. Put the latest non-empty line into `last`."""
    assert process.stderr is not None
    lines, began, count, data = LineReader(4_000), 0.0, 0, b"\n"
    while data:
        data = await process.stderr.read(_PIECE_BYTES)
        for line, _ in lines.feed(data or b"\n"):
            if time.monotonic() > began + 60:
                began, count = time.monotonic(), 0
            count += 1
            if words := line.decode(errors="replace").rstrip():
                last.append(words)
                if count <= 60:
                    log.info("mcp.server_stderr", server=name, line=words)


# ---- bounded lines


def weight(data: bytes) -> int:
    """Return the estimated memory use of JSON text after parsing, in bytes."""
    return 4 * len(data) + 64 * (data.count(b"[") + data.count(b"{")) + 32 * data.count(b",")


class LineReader:
    """Splits a stream into lines. Keeps only the beginning and the end of a line that is too long."""

    def __init__(self, max_weight: int = MAX_WEIGHT) -> None:
        self._max_weight, self._weight = max_weight, 0
        self._line, self._tail = bytearray(), b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield each line that ends in `data`, and True if the whole line was kept."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            is_whole = self._weight <= self._max_weight
            yield bytes(self._line) if is_whole else bytes(self._line + self._tail), is_whole
            self._line, self._tail, self._weight = bytearray(), b"", 0
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._weight += weight(part)
        if self._weight <= self._max_weight:
            self._line += part
            return
        rest = bytes(self._line[_KEPT_BYTES:][-_KEPT_BYTES:])
        del self._line[_KEPT_BYTES:]
        room = _KEPT_BYTES - len(self._line)
        self._line += part[:room]
        self._tail = (rest + self._tail + part[room:])[-_KEPT_BYTES:]


def find_id(line: bytes) -> int | None:
    """Return the request id found in an incomplete response. Servers write the id at the beginning or the end."""
    found = _ID.search(line[:_KEPT_BYTES]) or next(reversed(list(_ID.finditer(line[-_KEPT_BYTES:]))), None)
    return int(found[1]) if found is not None else None
