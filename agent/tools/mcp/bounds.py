"""Bounds of what a server may send: long lines and bodies are given up before they take memory."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Final

import httpx2

MAX_WEIGHT: Final = 32 << 20
"""Memory that one message may take, roughly, in bytes: 8 MB of text, less of what stands for many small values."""
GOODBYE_SECONDS: Final = 2.0
TOO_LARGE: Final = "the answer was larger than a message may be (8 MB, less where it has many small values)"

_KEPT_BYTES = 256
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')


def weight(data: bytes) -> int:
    """Memory that JSON takes once it was read, roughly, in bytes."""
    return 4 * len(data) + 64 * (data.count(b"[") + data.count(b"{")) + 32 * data.count(b",")


class LineReader:
    """Cuts a stream into lines; of one that is too heavy only both ends are kept."""

    def __init__(self, max_weight: int = MAX_WEIGHT) -> None:
        self._max_weight, self._weight = max_weight, 0
        self._line, self._tail = bytearray(), b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """The lines that end in `data`, and of each whether it is whole."""
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
    """Id of the request that a cut answer belongs to: servers write it first or last."""
    found = _ID.search(line[:_KEPT_BYTES]) or next(reversed(list(_ID.finditer(line[-_KEPT_BYTES:]))), None)
    return int(found[1]) if found is not None else None


class OversizedAnswerError(httpx2.SSEError, httpx2.StreamError):
    """An answer was given up. The SDK makes an error of the call out of either, of the one or the other form."""


class BoundedTransport(httpx2.AsyncBaseTransport):
    """HTTP transport whose answers are bounded and unpacked: what is packed may stand for any size.

    `ended` is set when the server does not know the session any more, as behind a restart of it.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, ended: asyncio.Event) -> None:
        self._inner, self._ended = inner, ended

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":  # the goodbye, which a server that hangs may not hold up
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(GOODBYE_SECONDS).as_dict()}
        response = await self._inner.handle_async_request(request)
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            self._ended.set()
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is packed, although that was not asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "").lower()
        response.stream = _BoundedStream(response.stream, has_events=kind.startswith("text/event-stream"))
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """Body of an answer; among events a blank line, which ends one, begins the count anew."""

    def __init__(self, inner: httpx2.AsyncByteStream, *, has_events: bool) -> None:
        self._inner, self._has_events = inner, has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for data in self._inner:
            _, blank, rest = data.replace(b"\r", b"").rpartition(b"\n\n") if self._has_events else (b"", b"", data)
            taken = weight(rest) if blank else taken + weight(data)
            if taken > MAX_WEIGHT:
                raise OversizedAnswerError(TOO_LARGE)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()
