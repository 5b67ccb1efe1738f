"""Model provider that replays recorded answers: `python -m bench.replay FILE`.

All requests of the same kind get the same answer. It is fast, so that the client's own work dominates the measured
time. FILE is JSON with a `Recorded` for each kind. The provider prints its address when it is ready. `GET /last`
returns the body of the last request, `GET /count` the number of answers that were sent completely.
"""

import asyncio
import json
import math
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 20.0

_CHAT_COMPLETIONS = "/v1/chat/completions"
_COMPLETION = {"id": "replayed", "object": "chat.completion", "created": 0, "model": "replayed"}
_USAGE = {"prompt_tokens": 900, "completion_tokens": 17, "total_tokens": 917}
_STREAMS = re.compile(rb'"stream":\s*true')
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Answer as a provider sent it."""

    content_type: str
    frames: list[str]
    """Events of a stream, each of which is sent separately, or one complete body."""
    pause: float = 0.0
    """Seconds to wait before each frame except the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Running provider."""

    url: str
    pid: int


def kind_of(path: str, *, streams: bool) -> str:
    """Return the key under which an answer is stored."""
    return f"{path} {'streamed' if streams else 'whole'}"


@asynccontextmanager
async def replaying(folder: Path, replies: Mapping[str, Recorded]) -> AsyncIterator[Provider]:
    """Run the provider as a separate process."""
    file = folder / "replies.json"
    file.write_bytes(msgspec.json.encode(replies))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.replay", str(file)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
        yield Provider(url=json.loads(line)["url"], pid=process.pid)
    finally:
        process.terminate()
        await process.wait()


def chat_completions(text: str, *, pieces: int = 1, seconds: float = 0.0) -> dict[str, Recorded]:
    """Return an answer to all chat completions requests. A stream has `pieces` pieces, spread over `seconds`."""
    size = math.ceil(len(text) / pieces)
    deltas = [_chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
    ends = _chunk({}, "stop") + _event({"choices": [], "usage": _USAGE}) + "data: [DONE]\n\n"
    message = {"role": "assistant", "content": text}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": _USAGE}
    return {
        kind_of(_CHAT_COMPLETIONS, streams=True): Recorded(
            content_type="text/event-stream",
            frames=[*deltas[:-1], deltas[-1] + ends],
            pause=seconds / max(1, len(deltas) - 1),
        ),
        kind_of(_CHAT_COMPLETIONS, streams=False): Recorded(
            content_type="application/json", frames=[json.dumps(_COMPLETION | whole)]
        ),
    }


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    return _event({"choices": [{"index": 0, "delta": {"role": "assistant"} | delta, "finish_reason": finish}]})


def _event(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(_COMPLETION | chunk)}\n\n"


class _Provider:
    def __init__(self, replies: Mapping[str, Recorded]) -> None:
        self._replies = replies
        self._last = b""
        self._count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"GET "):
                    told = self._last if head.startswith(b"GET /last ") else str(self._count).encode()
                    writer.write(_head("application/json") + b"content-length: %d\r\n\r\n%b" % (len(told), told))
                else:
                    self._last = body
                    path = head.split(b" ", 2)[1].split(b"?")[0].decode()
                    await _say(writer, self._replies[kind_of(path, streams=bool(_STREAMS.search(body)))])
                    self._count += 1
                await writer.drain()
        writer.close()


async def _say(writer: asyncio.StreamWriter, reply: Recorded) -> None:
    writer.write(_head(reply.content_type) + b"transfer-encoding: chunked\r\n\r\n")
    for number, frame in enumerate(reply.frames):
        if number and reply.pause:
            await asyncio.sleep(reply.pause)
        data = frame.encode()
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def _head(content_type: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n".encode()


async def _serve(replies: Mapping[str, Recorded]) -> None:
    server = await asyncio.start_server(_Provider(replies).serve, "127.0.0.1", 0, limit=2**24)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=dict[str, Recorded])))
