"""Bounded reading of provider responses, so that no reply uses too much memory or time.

Bodies are decompressed in small pieces, both for our code and for the SDKs. A server can answer any request with a
stream of events or with one JSON value, and might never finish its answer.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any, Final

import httpx2
import orjson

from hermes_state.errors import ModelNotFound, ReplyMalformed

MAX_BODY_BYTES: Final = 3_000_000
"""Maximum size of an event, and of a reply that is not streamed. This is several times the longest reply of any model.
The decoded value can use ten times as much memory.
"""
MAX_VALUES: Final = 200_000
"""Maximum number of JSON values in one event. A size limit alone is not enough: an empty list uses twenty times the
memory of its text.
"""
PIECE_BYTES: Final = 65_536
"""Maximum size of a decompressed piece. Pieces from the network usually have this size."""


def guards(base_url: str) -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """Return event hooks that keep an HTTP client on one provider's host and limit the size of responses."""
    home = httpx2.URL(base_url)

    async def stay(request: httpx2.Request) -> None:
        url = request.url
        if (url.scheme, url.host, url.port) != (home.scheme, home.host, home.port):
            raise ModelNotFound("the provider's address redirects to another host")
        request.headers["Accept-Encoding"] = "gzip, deflate"  # other encodings buffer megabytes first

    return {"request": [stay], "response": [_bound]}


async def _bound(response: httpx2.Response) -> None:
    coding = response.headers.get("content-encoding", "").strip().lower()
    if response.is_success and coding in ("", "identity"):
        return  # pieces are small, and `read_json` and `read_events` count their bytes
    is_readable = coding in ("", "identity", "gzip", "deflate")
    if response.is_success and not is_readable:
        raise ReplyMalformed("the reply has a content encoding that was not requested")
    packed = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
    most = sys.maxsize if response.is_success else 64_000 * is_readable  # an error states its reason at the beginning
    response.stream = _BoundedStream(packed, most)
    response.headers.pop("content-encoding", None)
    response.encoding = "utf-8"  # some charset names make Python decompress again
    if response.is_error:
        await response.aread()  # if the SDKs read it and were cancelled, they would leave it open


class _BoundedStream(httpx2.AsyncByteStream):
    """Decompressed response body, truncated at a size limit."""

    def __init__(self, packed: httpx2.Response, max_bytes: int) -> None:
        self._packed = packed
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left, slice_end = self._max_bytes, time.perf_counter()
        is_packed = "content-encoding" in self._packed.headers
        async with aclosing(self._packed.aiter_bytes() if is_packed else self._packed.aiter_raw()) as unpacked:
            async for piece in unpacked:
                for start in range(0, len(piece), PIECE_BYTES):
                    if left <= 0:
                        return
                    if start:
                        slice_end = await checkpoint(slice_end)
                    part = piece[start : start + min(PIECE_BYTES, left)]
                    left -= len(part)
                    yield part

    async def aclose(self) -> None:
        await self._packed.aclose()


async def read_json(response: httpx2.Response) -> object:
    """Return the JSON value of a response body. Raises `ReplyMalformed` if the body is too long or not JSON."""
    try:
        return _value(await _rest_of(response.aiter_bytes(), bytearray()))
    finally:
        await response.aclose()


async def _rest_of(pieces: AsyncIterator[bytes], body: bytearray) -> bytearray:
    async for piece in pieces:
        _add(body, piece)
    return body


def _add(body: bytearray, piece: bytes | bytearray) -> None:
    body += piece
    if len(body) > MAX_BODY_BYTES:
        body.clear()  # otherwise, the error's traceback would keep the text in memory
        raise ReplyMalformed(f"the reply, or an event in it, has more than {MAX_BODY_BYTES:,} bytes")


_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[,\[{]', re.DOTALL)
"""Pattern for strings, commas and opening brackets, for counting the values in a JSON text."""


def _value(text: bytearray) -> object:
    """Return the value of a JSON text. Raises `ReplyMalformed` if the text is not JSON or has too many values."""
    most = text.count(b'"') // 2 + sum(map(text.count, (b",", b"[", b"{")))  # ten times faster than the pattern
    if most > MAX_VALUES and next(islice(_VALUE.finditer(text), MAX_VALUES, None), None) is not None:
        raise ReplyMalformed(f"the reply, or an event in it, has more than {MAX_VALUES:,} JSON values")
    with suppress(ValueError):
        known: object = orjson.loads(text)
        return known
    # The standard library also accepts lone surrogates and NaN.
    with suppress(ValueError, RecursionError):  # our own error must not refer to this one, which holds the text
        value: object = json.loads(text)
        return value
    raise ReplyMalformed("the provider's answer is not JSON")


async def read_events(pieces: AsyncIterator[bytes], advance: Callable[[], None]) -> AsyncIterator[object]:
    """Yield the events of a stream, or the only value of a JSON body. If the body is JSON, call `advance` at its start.

    Raises `ReplyMalformed` for an event that is too long or not JSON.
    """
    body = bytearray()
    while not body:
        if (piece := await anext(pieces, None)) is None:
            return
        body += piece.lstrip(b" \t\r\n\xef\xbb\xbf")  # keep-alive blanks, byte order mark
    if body.startswith((b"{", b"[")):
        advance()
        yield _value(await _rest_of(pieces, body))
        return
    event = bytearray()
    async for lines in _lines(pieces, body):
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()):
                _add(event, data + b"\n")
            elif not line and event:
                if event.startswith(b"[DONE]"):
                    return
                yield _value(event)
                event = bytearray()
    if event:
        with suppress(ReplyMalformed):  # an incomplete event, because the stream broke off
            yield _value(event)


async def _lines(pieces: AsyncIterator[bytes], buffer: bytearray) -> AsyncIterator[Sequence[bytearray]]:
    """Yield the complete lines of an event stream as they arrive. `buffer` holds the bytes already read."""
    piece: bytes | None = bytes(buffer)
    while piece is not None:
        if b"\n" in piece or b"\r" in piece:
            lines = buffer.splitlines(keepends=True)
            # A carriage return at the end may be the first half of a CRLF.
            buffer = bytearray() if lines[-1].endswith(b"\n") else lines.pop()
            yield [line.rstrip(b"\r\n") for line in lines]
        if (piece := await anext(pieces, None)) is not None:
            _add(buffer, piece)
    yield buffer.splitlines()


SLICE_SECONDS: Final = 0.0002
"""Longest time, in seconds, that one stream may keep the event loop busy: about ten events. With twenty streams, other
tasks wait up to ten milliseconds. Pausing after every event would use a fifth more CPU time.
"""


async def checkpoint(slice_end: float) -> float:
    """Let other tasks run if a stream has used up its time slice. Return the time at which its current slice ends.

    Without these pauses, a stream would process tens of kilobytes without interruption, and twenty streams would
    repeatedly block all other tasks for a tenth of a second.
    """
    if time.perf_counter() < slice_end:
        return slice_end
    await asyncio.sleep(0)
    return time.perf_counter() + SLICE_SECONDS
