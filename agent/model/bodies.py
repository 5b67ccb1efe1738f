"""Bodies of providers' answers, read within bounds: no reply takes more memory than they leave it, whatever it is.

A body is unpacked and looked at in small pieces, whoever reads it, our code or an SDK. It comes as a stream of events
or as one JSON value, whatever was asked for; neither has to have an end.
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
"""Longest event, and longest reply that comes as a whole, in bytes: several times the longest that any model writes.

Decoded and read it may take ten times as much.
"""
MAX_VALUES: Final = 200_000
"""Most values of one event: an empty list takes twenty times its text."""
MAX_ERROR_BYTES: Final = 64_000
"""Most bytes that are read of an answer that is no reply: what it says stands at its beginning."""
MAX_REDIRECTS: Final = 3
"""Most redirects of one request, all of them to where it was sent."""
PIECE_BYTES: Final = 65_536
"""Largest piece of a body at once, as the network brings it; what is unpacked comes in larger ones."""

_Hook = Callable[[Any], Awaitable[None]]  # takes a request or a response


def guards(base_url: str) -> dict[str, list[_Hook]]:
    """Hooks of an HTTP client that speaks to one provider: it goes nowhere else, and reads within bounds."""
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
        return  # its pieces are small, and whoever reads it counts them
    is_readable = coding in ("", "identity", "gzip", "deflate")
    if response.is_success and not is_readable:
        raise ReplyMalformed("a reply in a coding that was not asked for")
    packed = httpx2.Response(response.status_code, headers=response.headers, stream=response.stream)
    response.stream = _BoundedStream(packed, sys.maxsize if response.is_success else MAX_ERROR_BYTES * is_readable)
    response.headers.pop("content-encoding", None)
    response.encoding = "utf-8"  # some of the names that it may give itself unpack once more
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
    """A body that is one JSON value. Raises `ReplyMalformed` for what is too long, and for what is none."""
    try:
        return _value(await _rest_of(response.aiter_bytes(), bytearray()))
    finally:
        await response.aclose()


async def _rest_of(pieces: AsyncIterator[bytes], body: bytearray) -> bytearray:
    """The body with everything that is still to come."""
    async for piece in pieces:
        _add(body, piece)
    return body


def _add(body: bytearray, piece: bytes | bytearray) -> None:
    body += piece
    if len(body) > MAX_BODY_BYTES:
        body.clear()  # an error's traceback holds it
        raise ReplyMalformed(f"a reply with more than {MAX_BODY_BYTES:,} bytes at once")


_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[,\[{]', re.DOTALL)
"""Strings, and beginnings of other values: as many as there are values, or more."""


def _value(text: bytearray) -> object:
    """The value of a JSON text. Raises `ReplyMalformed` for what is none, and for one of too many values."""
    most = text.count(b'"') // 2 + sum(map(text.count, (b",", b"[", b"{")))  # a tenth of the time, for long replies
    if most > MAX_VALUES and next(islice(_VALUE.finditer(text), MAX_VALUES, None), None) is not None:
        raise ReplyMalformed(f"a reply with more than {MAX_VALUES:,} values at once")
    with suppress(ValueError):
        known: object = orjson.loads(text)
        return known
    # The standard library also takes halves of characters, and numbers that are none.
    with suppress(ValueError, RecursionError):  # the error holds the text, so ours must not be raised beside it
        value: object = json.loads(text)
        return value
    raise ReplyMalformed("the provider's answer is not JSON")


async def read_events(pieces: AsyncIterator[bytes], advance: Callable[[], None]) -> AsyncIterator[object]:
    """The events of a reply: those of a stream, or the one JSON value that comes as a body, whatever was asked for.

    `advance` is called when a body begins. Raises `ReplyMalformed` for what is too long, and for what is no JSON.
    """
    body = bytearray()
    while not body:
        if (piece := await anext(pieces, None)) is None:
            return
        body += piece.lstrip(_BLANKS)
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


_BLANKS: Final = b" \t\r\n\xef\xbb\xbf"
"""Bytes before a reply that are nothing of it: blanks that keep the line open, and a byte order mark."""


async def _lines(pieces: AsyncIterator[bytes], buffer: bytearray) -> AsyncIterator[Sequence[bytearray]]:
    """The lines of an event stream, whose beginning is in the buffer: all that have come, at once."""
    piece: bytes | None = bytes(buffer)
    while piece is not None:
        if b"\n" in piece or b"\r" in piece:
            lines = buffer.splitlines(keepends=True)
            # What ends in a carriage return may go on with the line feed that belongs to it.
            buffer = bytearray() if lines[-1].endswith(b"\n") else lines.pop()
            yield [line.rstrip(b"\r\n") for line in lines]
        if (piece := await anext(pieces, None)) is not None:
            _add(buffer, piece)
    yield buffer.splitlines()


SLICE_SECONDS: Final = 0.0002
"""Longest time that one stream keeps the event loop, in seconds: some ten events.

With twenty streams everything else waits for some ten milliseconds; letting go after every event would take a fifth
more processor time.
"""


async def checkpoint(slice_end: float) -> float:
    """Lets other tasks run if a stream's slice of the event loop is over; called after each event, returns its end.

    What has been received already is read without ever waiting, tens of kilobytes at a time; twenty such streams
    would hold up everything else for a tenth of a second, again and again.
    """
    if time.perf_counter() < slice_end:
        return slice_end
    await asyncio.sleep(0)
    return time.perf_counter() + SLICE_SECONDS
