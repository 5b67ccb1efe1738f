"""Servers as child processes: started with nothing of the gateway's environment, ended with all that they have started.

One JSON message a line goes in and out; what a server writes to standard error goes to the log.
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
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from agent.settings import ServerSettings
from agent.tools.mcp.bounds import TOO_LARGE, LineReader, find_id
from hermes_state.aio import cancel_all
from hermes_state.errors import ToolError
from hermes_state.kinds import plain_texts

log = structlog.get_logger()

Reading: TypeAlias = MemoryObjectReceiveStream[SessionMessage | Exception]
Writing: TypeAlias = MemoryObjectSendStream[SessionMessage]

END_SECONDS: Final = 2.0
"""Time that a server has to end once its input has, and again after SIGTERM, in seconds."""
LAST_WORDS_SECONDS: Final = 0.5
"""Longest wait for the rest of standard error of a server that has ended, in seconds."""
INVALID_ANSWER: Final = "the answer of the server does not follow the protocol"
MAX_LOGGED: Final = 60
"""Lines of standard error that are logged in a minute."""
_LOGGED_WEIGHT: Final = 4_000
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PIECE_BYTES = 1 << 16
_ANSWER = re.compile(rb'"(?:result|error)"\s*:')

_GUARD: Final = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[3:])"
)
"""Python that has the kernel end this process together with the gateway, and becomes the server."""


@asynccontextmanager
async def stdio_streams(settings: ServerSettings, ended: asyncio.Event) -> AsyncIterator[tuple[Reading, Writing]]:
    """A running server's messages, and where to write to it. `ended` is set when it says nothing more."""
    process, errors = await _start(settings), _ErrorLog(settings.name)
    to_us, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, to_server = anyio.create_memory_object_stream[SessionMessage](0)
    has_ended = False
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_read(process, to_us, settings.name, ended)),
                group.create_task(_write(process, to_server)),
                written := group.create_task(errors.read(process)),
            ]
            try:
                yield reading, writing
            finally:
                has_ended = ended.is_set()
                try:
                    if has_ended:
                        await asyncio.wait({written}, timeout=LAST_WORDS_SECONDS)
                    await _end(process)
                finally:
                    await cancel_all(tasks)
    except Exception:
        if not has_ended:
            raise
    finally:
        for stream in (to_us, reading, writing, to_server):
            stream.close()
    if has_ended:
        raise ToolError(_how_ended(process, errors))


def _how_ended(process: Process, errors: "_ErrorLog") -> str:
    code = process.returncode or 0
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    words = f": {errors.last}" if errors.last else ", and wrote nothing to standard error"
    return f"the program ended with {how}{words}"


async def _start(settings: ServerSettings) -> Process:
    environ = server_environ(os.environ, plain_texts(settings.env))
    words = _words(settings, environ.get("PATH"))
    try:
        return await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ, cwd=settings.cwd, start_new_session=True
        )
    except OSError as error:
        raise ToolError(f"{settings.command} cannot be started: {error.strerror or error}") from error


def _words(settings: ServerSettings, path: str | None) -> list[str]:
    """Words by which the server is started. Raises `ToolError` where its program is not there."""
    found = shutil.which(settings.command or "", path=path)
    if found is None:
        raise ToolError(f"there is no program {settings.command} on the PATH")
    program = os.path.abspath(found)
    guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), program] if sys.platform == "linux" else []
    return [*guard, program, *settings.args]


def server_environ(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Environment of a server: of the gateway's own only what holds no keys."""
    return {name: own[name] for name in _KEPT_VARIABLES if name in own} | dict(given)


async def _end(process: Process) -> None:
    """End the server and its process group: first by the end of its input, as the protocol has it."""
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
        _signal(process, signal.SIGKILL)  # what it has started
        # Nothing public closes pipes whose other end somebody keeps, or which nobody reads any more.
        process._transport.close()  # type: ignore[attr-defined]  # of asyncio and uvloop alike


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
                        "mcp.line_ignored", server=name, bytes=len(line), hint="standard output is for messages"
                    )
                await asyncio.sleep(0)  # a piece has thousands of such lines
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # nobody listens any more: we are ending it
    finally:
        to_us.close()
        ended.set()


def _parsed(line: bytes) -> JSONRPCMessage | None:
    """Return the message of a line. An answer that cannot be read becomes an error of its request alone."""
    with suppress(ValueError, RecursionError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    if _ANSWER.search(line) is None:
        return None
    with suppress(ValueError, RecursionError):  # this parser accepts deeper values, lone surrogates and invalid UTF-8
        message = json.loads(line.decode("utf-8", "replace"))
        if isinstance(message, dict) and isinstance(message.get("result"), dict) and not message.get("error"):
            return jsonrpc_message_adapter.validate_python(
                {"jsonrpc": "2.0", "id": message.get("id"), "result": message["result"]}
            )
    return _error_for(line, INVALID_ANSWER)


def _error_for(line: bytes, reason: str) -> JSONRPCError | None:
    """Return the error that replaces an answer; None for a line that answers no request."""
    number = find_id(line)
    error = ErrorData(code=INTERNAL_ERROR, message=reason)
    return JSONRPCError(jsonrpc="2.0", id=number, error=error) if number is not None else None


async def _write(process: Process, to_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which reading tells
        async for sent in to_server:
            process.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await process.stdin.drain()


class _ErrorLog:
    """Logs what the server writes to standard error, line by line; of floods only the beginning of each minute."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.last = ""
        """Last line that is not empty."""

    async def read(self, process: Process) -> None:
        assert process.stderr is not None
        lines, began, count, data = LineReader(_LOGGED_WEIGHT), 0.0, 0, b"\n"
        while data:
            data = await process.stderr.read(_PIECE_BYTES)
            for line, _ in lines.feed(data or b"\n"):
                if time.monotonic() > began + 60:
                    began, count = time.monotonic(), 0
                count += 1
                words = line.decode(errors="replace").rstrip()
                self.last = words or self.last
                if count <= MAX_LOGGED and words:
                    log.info("mcp.server_wrote", server=self._name, line=words)
