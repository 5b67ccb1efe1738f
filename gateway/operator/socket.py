"""Control socket between the command line and the running daemon, in the state directory. Each line is a JSON object.

    → {"ask": "pair.approve", "args": {"code": "K7QM-4XPA"}}
    ← {"ok": true, "result": …}   or   {"ok": false, "kind": "CommandError", "error": "one sentence"}

The socket has mode 0600 inside a directory with mode 0700, because a process that can write to it controls the daemon.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import orjson

from hermes_state.aio import cancel_all
from hermes_state.errors import CommandError, HermesError

Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Handler of a request: accepts the arguments by name and returns a JSON value. The message of a `HermesError` is
sent as the error."""

MAX_LINE_BYTES = 4_194_304
"""Maximum size of a request, in bytes."""
_LOOK_SECONDS = 1.0
"""Seconds between checks that the socket file still exists."""


class DaemonNotRunningError(HermesError):
    """No daemon listens on the socket."""


@asynccontextmanager
async def serve_control(path: Path, handlers: Mapping[str, Handler]) -> AsyncIterator[None]:
    """Answer requests at `path` while the block runs. The caller holds the state directory's lock.

    Replaces a socket left by a dead process. Recreates a deleted socket and its folder, so that `backup` can ask the
    daemon for a database whose files were deleted. Open connections are closed at the end of the block.
    """
    connections: set[asyncio.Task[None]] = set()
    servers: list[asyncio.Server] = []
    ours: list[os.stat_result] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # asyncio runs this callback in its own task
        connections.add(task)
        try:
            await _converse(reader, writer, handlers)
        finally:
            connections.discard(task)
            writer.close()

    async def listen() -> None:
        bound = _bound(path)
        servers.append(await asyncio.start_unix_server(connected, sock=bound, limit=MAX_LINE_BYTES, backlog=1))
        bound.listen(100)  # asyncio calls `accept` `backlog` times, even after an error
        ours.append(os.stat(path))

    async def keep_listening() -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)  # asyncio does not notice that the file was deleted
            try:
                os.stat(path)
            except OSError:  # the socket file is missing, or a file has replaced its folder
                with suppress(OSError):  # the next round of this loop tries again
                    os.makedirs(path.parent, mode=0o700, exist_ok=True)
                    await listen()

    with suppress(FileNotFoundError):
        os.unlink(path)
    await listen()
    keeper = asyncio.create_task(keep_listening(), name="control")
    try:
        yield
    finally:
        for server in servers:
            server.close()
        await cancel_all([keeper, *connections])
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), ours[-1]):  # does not remove another daemon's socket
                os.unlink(path)


def ask(path: Path, request: str, args: Mapping[str, Any] | None = None, *, timeout_seconds: float = 10.0) -> Any:
    """Send a request to the daemon, and return its response (any JSON value).

    Raises `DaemonNotRunningError` if no daemon listens. Raises `CommandError` with the daemon's message if it refuses
    the request, or with a timeout message if it does not respond in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        try:
            with _short(path) as address:
                connection.connect(address)
        except OSError as error:
            raise DaemonNotRunningError(
                f"The gateway is not running: nothing answers at {path}. Start it with `hermes-gateway run`."
            ) from error
        try:
            connection.sendall(orjson.dumps({"ask": request, "args": dict(args or {})}) + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline(67_108_864)  # a page of history can contain a message of any length
        except TimeoutError as error:
            raise CommandError(
                f"The gateway did not answer within {timeout_seconds:g} s. Try again, or look at its log."
            ) from error
        except OSError as error:
            raise CommandError(f"The connection to the gateway broke: {error.strerror or error}.") from error
    if not line.endswith(b"\n"):
        raise CommandError("The gateway closed the connection without an answer. Its log says why.")
    answer = orjson.loads(line)
    if not answer["ok"] and answer["error"].startswith("Unknown request"):
        raise CommandError("The running gateway has a different version and lacks this command. Restart it.")
    if not answer["ok"]:
        raise CommandError(answer["error"])
    return answer["result"]


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, Handler]
) -> None:
    with suppress(ConnectionError, TimeoutError):  # the client disconnected
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), 60.0)
            except ValueError:  # the request is too long
                writer.write(_encoded(_refused(f"A request can have at most {MAX_LINE_BYTES} bytes.")))
                await writer.drain()
                return
            if not line.endswith(b"\n"):
                return
            writer.write(_encoded(await _answer(line, handlers)))
            await writer.drain()


async def _answer(line: bytes, handlers: Mapping[str, Handler]) -> Mapping[str, Any]:
    try:
        request = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _refused("A request must be one line of JSON.")
    if not isinstance(request, dict) or not isinstance(request.get("args", {}), dict):
        return _refused('A request must look like {"ask": "status", "args": {}}.')
    handler = handlers.get(str(request.get("ask")))
    if handler is None:
        return _refused(f"Unknown request. Known requests: {', '.join(sorted(handlers))}.")
    try:
        return {"ok": True, "result": await handler(request.get("args", {}))}
    except HermesError as error:
        return _refused(str(error), type(error).__name__)


def _refused(sentence: str, kind: str = "CommandError") -> Mapping[str, Any]:
    return {"ok": False, "kind": kind, "error": sentence}


def _encoded(answer: Mapping[str, Any]) -> bytes:
    return orjson.dumps(answer, default=msgspec.to_builtins, option=orjson.OPT_NON_STR_KEYS) + b"\n"


def _bound(path: Path) -> socket.socket:
    """Return a bound socket that only this user can ever connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _short(path) as address:
            listener.bind(address)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield `path` as a socket address. If it is too long, a file descriptor replaces the directory (Linux only)."""
    if len(os.fsencode(path)) <= 100:  # the limit is 108 bytes on Linux and 104 on other systems
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
