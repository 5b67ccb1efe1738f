"""Bodies of providers' answers, read within bounds, so that no reply takes too much memory or time.

A body is unpacked in small pieces, for our code and for an SDK. It is a stream of events or one JSON value, whatever
the request asked for, and neither must have an end.
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
"""Longest event, and longest whole reply, in bytes: several times the longest that any model writes. Decoded, it may
take ten times as much memory."""
MAX_VALUES: Final = 200_000
"""Most values of one event: an empty list takes twenty times its text."""
PIECE_BYTES: Final = 65_536
"""Largest piece of a body at once, as the network brings it; unpacking makes larger ones."""


def guards(base_url: str) -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
    """Return hooks of an HTTP client that speaks to one provider only, and reads within bounds."""
    home = httpx2.URL(base_url)

    async def stay(request: httpx2.Request) -> None:
        url = request.url
        if (url.scheme, url.host, url.port) != (home.scheme, home.host, home.port):
            raise ModelNotFound("the provider's address redirects to another one")
        request.headers["Accept-Encoding"] = "gzip, deflate"  # others need megabytes before they give anything

    return {"request": [stay], "response": [_bound]}


async def _bound(response: httpx2.Response) -> None:
    coding = response.headers.get("content-encoding", "").strip().lower()
    if response.is_success and coding in ("", "identity"):
        return  # its pieces are small, and the reader counts them
    is_readable = coding in ("", "identity", "gzip", "deflate")
    if response.is_success and not is_readable:
        raise ReplyMalformed("a reply in a coding that was not asked for")
    packed = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
    most = sys.maxsize if response.is_success else 64_000 * is_readable  # an error tells its reason at the beginning
    response.stream = _BoundedStream(packed, most)
    response.headers.pop("content-encoding", None)
    response.encoding = "utf-8"  # some names of encodings unpack once more
    if response.is_error:
        await response.aread()  # here, because the SDKs would leave it open if this was cancelled


class _BoundedStream(httpx2.AsyncByteStream):
    """Body of an answer, unpacked, up to a limit."""

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
    """Return a body that is one JSON value. Raises `ReplyMalformed` if it is too long, or no JSON."""
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
        body.clear()  # an error's traceback holds it
        raise ReplyMalformed(f"a reply with more than {MAX_BODY_BYTES:,} bytes at once")


_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[,\[{]', re.DOTALL)
"""Strings, and beginnings of other values: at least as many as there are values."""


def _value(text: bytearray) -> object:
    """Return the value of a JSON text. Raises `ReplyMalformed` if it is no JSON, or has too many values."""
    most = text.count(b'"') // 2 + sum(map(text.count, (b",", b"[", b"{")))  # a tenth of the time, for long replies
    if most > MAX_VALUES and next(islice(_VALUE.finditer(text), MAX_VALUES, None), None) is not None:
        raise ReplyMalformed(f"a reply with more than {MAX_VALUES:,} values at once")
    with suppress(ValueError):
        known: object = orjson.loads(text)
        return known
    # The standard library also accepts halves of characters, and NaN.
    with suppress(ValueError, RecursionError):  # its error holds the text, so it must not be the context of ours
        value: object = json.loads(text)
        return value
    raise ReplyMalformed("the provider's answer is not JSON")


async def read_events(pieces: AsyncIterator[bytes], advance: Callable[[], None]) -> AsyncIterator[object]:
    """Yield the events of a stream, or the one JSON value of a body. `advance` is called when such a body begins.

    Raises `ReplyMalformed` for an event that is too long, or no JSON.
    """
    body = bytearray()
    while not body:
        if (piece := await anext(pieces, None)) is None:
            return
        body += piece.lstrip(b" \t\r\n\xef\xbb\xbf")  # blanks keep the line open; a byte order mark
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
        with suppress(ReplyMalformed):  # half an event: the reply broke off
            yield _value(event)


async def _lines(pieces: AsyncIterator[bytes], buffer: bytearray) -> AsyncIterator[Sequence[bytearray]]:
    """Yield the lines of an event stream that have come. The buffer holds its beginning."""
    piece: bytes | None = bytes(buffer)
    while piece is not None:
        if b"\n" in piece or b"\r" in piece:
            lines = buffer.splitlines(keepends=True)
            # The line feed of a carriage return at the end may still come.
            buffer = bytearray() if lines[-1].endswith(b"\n") else lines.pop()
            yield [line.rstrip(b"\r\n") for line in lines]
        if (piece := await anext(pieces, None)) is not None:
            _add(buffer, piece)
    yield buffer.splitlines()


SLICE_SECONDS: Final = 0.0002
"""Longest time that one stream keeps the event loop, in seconds: some ten events.

With twenty streams everything else waits for ten milliseconds. A pause after every event would take a fifth more
processor time.
"""


async def checkpoint(slice_end: float) -> float:
    """Let other tasks run if a stream's slice of the event loop is over. Returns the end of its slice.

    Bytes that have arrived already are read without a pause, tens of kilobytes at a time; twenty such streams would
    hold up everything else for a tenth of a second, again and again.
    """
    if time.perf_counter() < slice_end:
        return slice_end
    await asyncio.sleep(0)
    return time.perf_counter() + SLICE_SECONDS
