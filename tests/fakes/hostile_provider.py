"""Hostile model provider: it answers every request with far more data than a client can store.

The first part of the request's path is the kind of the response. `kinds` lists the kinds of a protocol. Each response
has `MEGABYTES` unless the client disconnects.
"""

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count, islice, repeat
from typing import Any
from urllib.parse import quote, unquote

import brotli

MEGABYTES = 400
BLOCK = 65_536
STREAM, JSON, PAGE = "text/event-stream", "application/json", "text/html"
WIDE = "\N{GRINNING FACE}"
"""A character of four bytes in UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One endless response."""

    pieces: Callable[[], Iterator[bytes]]
    raised: str
    """Name of the error that the client must raise."""
    status: int = 200
    content_type: str = STREAM
    headers: Mapping[str, str] | None = None


def filled(beginning: str, more: str) -> Callable[[], Iterator[bytes]]:
    """Return a function that yields `beginning` once, and then `more` repeatedly."""
    block = more.encode() * (BLOCK // len(more.encode()) + 1)
    return lambda: chain([beginning.encode()], repeat(block, MEGABYTES * 1_000_000 // len(block)))


def packed(pieces: Callable[[], Iterator[bytes]], wbits: int = 31) -> Callable[[], Iterator[bytes]]:
    """Return the same data compressed about a thousand times: as gzip, or as deflate if `wbits` is 15."""

    def compressed() -> Iterator[bytes]:
        packer = zlib.compressobj(1, wbits=wbits)
        return filter(None, map(packer.compress, pieces()))

    return compressed


@cache
def _packed_with_brotli(beginning: bytes) -> bytes:
    return brotli.compress(beginning + b"a" * 100_000_000, quality=1)


def packed_with_brotli(beginning: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([_packed_with_brotli(beginning)])


def events(
    *first: Mapping[str, Any], then: Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
) -> Callable[[], Iterator[bytes]]:
    """Return a stream of events. `then` is the event that repeats, or a function of the event's number."""

    def numbered(make: Callable[[int], Mapping[str, Any]]) -> Iterator[bytes]:
        numbers = count()
        while True:
            yield _encoded(map(make, islice(numbers, 20)))

    def stream() -> Iterator[bytes]:
        if callable(then):
            return chain([_encoded(first)], numbered(then))
        event = _encoded([then])
        return chain([_encoded(first)], repeat(event * (BLOCK // len(event) + 1)))

    return stream


def _encoded(some: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in some)


ENDLESS_LINE = filled("data: ", "a")
ENDLESS_TEXT = filled('{"choices": [{"message": {"content": "', "a")
ANSWERS: Mapping[str, Answer] = {
    "a line without an end": Answer(pieces=ENDLESS_LINE, raised="ReplyMalformed"),
    "a line that is no event": Answer(pieces=filled("", "a"), raised="ReplyMalformed"),
    "an event of many lines": Answer(pieces=filled("", "data: xxxxxxxxxxxxxxxxxxxxxxxx\n"), raised="ReplyMalformed"),
    "an event of many values": Answer(pieces=filled("data: [", "{},"), raised="ReplyMalformed"),
    "one value": Answer(pieces=ENDLESS_TEXT, content_type=JSON, raised="ReplyMalformed"),
    "one value of wide characters": Answer(pieces=filled('{"a": "', WIDE), content_type=JSON, raised="ReplyMalformed"),
    "one value that is whole": Answer(
        pieces=lambda: iter([b'{"a": "', (WIDE * 740_000).encode(), b'"}']),
        content_type=JSON,
        raised="ReplyMalformed",
    ),
    "many small values": Answer(
        pieces=lambda: iter([b"[", b'{"":{}},' * 370_000, b"0]"]), content_type=JSON, raised="ReplyMalformed"
    ),
    "values in values": Answer(pieces=filled("", "["), content_type=JSON, raised="ReplyMalformed"),
    "a number without an end": Answer(
        pieces=lambda: iter([b'{"a": ' + b"1" * 50_000 + b"}"]), content_type=JSON, raised="ReplyMalformed"
    ),
    "a packed line": Answer(pieces=packed(ENDLESS_LINE), headers={"Content-Encoding": "gzip"}, raised="ReplyMalformed"),
    "a packed value": Answer(
        pieces=packed(ENDLESS_TEXT, 15),
        content_type=JSON,
        headers={"Content-Encoding": "deflate"},
        raised="ReplyMalformed",
    ),
    "packed comments": Answer(
        pieces=packed(filled("", ": \n")), headers={"Content-Encoding": "gzip"}, raised="ModelStallTimeout"
    ),
    "comments": Answer(pieces=filled("", ": \n"), raised="ModelStallTimeout"),
    "twice packed": Answer(
        pieces=packed(packed(ENDLESS_LINE)),
        headers={"Content-Encoding": "gzip, gzip"},
        raised="ReplyMalformed",
    ),
    "packed with brotli": Answer(
        pieces=packed_with_brotli(b"data: "), headers={"Content-Encoding": "br"}, raised="ReplyMalformed"
    ),
    "packed with zstd": Answer(pieces=filled("", "\0"), headers={"Content-Encoding": "zstd"}, raised="ReplyMalformed"),
    "an error page": Answer(pieces=filled("<html>", "a"), status=500, content_type=PAGE, raised="ModelUnavailable"),
    "an error value": Answer(
        pieces=filled('{"error": {"message": "no key", "more": "', "a"),
        status=401,
        content_type=JSON,
        raised="AuthRejected",
    ),
    "an error of many values": Answer(
        pieces=filled('{"error": [', "{},"), status=400, content_type=JSON, raised="ModelError"
    ),
    "a packed error": Answer(
        pieces=packed(filled("<html>", "a")),
        status=503,
        content_type=PAGE,
        headers={"Content-Encoding": "gzip"},
        raised="ModelUnavailable",
    ),
    "an error packed with brotli": Answer(
        pieces=packed_with_brotli(b"<html>"),
        status=429,
        headers={"Content-Encoding": "br"},
        raised="ModelRateLimited",
    ),
    "an error in a coding of its own": Answer(
        pieces=lambda: repeat(zlib.compress(b"a" * 10**7)),
        status=500,
        content_type="text/plain; charset=zlib",
        raised="ModelUnavailable",
    ),
    "a redirect": Answer(
        pieces=filled("", "a"), status=307, headers={"Location": "http://127.0.0.1:9/v1"}, raised="ModelNotFound"
    ),
    "a redirect to itself": Answer(
        pieces=filled("", "a"), status=307, headers={"Location": ""}, raised="ModelNotFound"
    ),
}


def _chat(**delta: object) -> Mapping[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def _piece(index: int, **delta: object) -> Mapping[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


FUNCTION = {"name": "look", "arguments": "{"}
STREAMS: Mapping[str, Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "chat_completions": {
        "text": events(then=_chat(content=[WIDE * 4] * 500)),
        "halves of characters": events(then=_chat(content=["a\ud83d"] * 500)),
        "reasoning": events(then=_chat(content=[{"type": "thinking", "thinking": [WIDE * 4] * 500}])),
        "nested details": events(then=_chat(reasoning_details=[{"a": [{"": {}}] * 1_000}])),
        "details": events(then=_chat(reasoning_details=[{"": {}}] * 10)),
        "thoughts in tags": events(_chat(content="<think>"), then=_chat(content=[WIDE * 4] * 500)),
        "tags": events(then=_chat(content="<think></think>" * 10_000)),
        "arguments": events(
            _chat(tool_calls=[{"index": 0, "id": "c", "function": FUNCTION}]),
            then=_chat(tool_calls=[{"index": 0, "function": {"arguments": WIDE * 4}}] * 500),
        ),
    },
    "responses": {
        "text": events(then={"type": "response.output_text.delta", "output_index": 0, "delta": WIDE * 20}),
        "messages": events(then=lambda n: {"type": "response.output_text.delta", "output_index": n, "delta": "a"}),
        "items": events(
            then=lambda n: {"type": "response.output_item.done", "output_index": n, "item": {"type": "other"}}
        ),
        "reasoning": events(
            then=lambda n: {
                "type": "response.output_item.done",
                "output_index": n,
                "item": {"type": "reasoning", "content": [{"": {}}] * 1_000},
            }
        ),
    },
    "anthropic": {
        "text": events(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            then=_piece(0, type="text_delta", text=WIDE * 20),
        ),
        "reasoning": events(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
            then=_piece(0, type="thinking_delta", thinking=WIDE * 20),
        ),
        "arguments at once": events(
            then=lambda n: {
                "type": "content_block_start",
                "index": n,
                "content_block": {
                    "type": "tool_use",
                    "id": f"c{n}",
                    "name": "look",
                    "input": {"a": [{"": {}}] * 9_000},
                },
            }
        ),
        "usage": events(
            then=lambda n: {"type": "message_delta", "delta": {}, "usage": {f"tokens_{n}": "a" * 1_000_000}}
        ),
    },
}
"""Streams of well-formed events, by protocol and kind. Each event adds a little data."""


def kinds(protocol: str) -> Mapping[str, Answer]:
    """Return every response for clients of the protocol, by its kind."""
    found = dict(ANSWERS)
    for kind, pieces in STREAMS.get(protocol, {}).items():
        raised = "ModelStallTimeout" if kind == "usage" else "ReplyMalformed"
        found[f"a stream of {kind}"] = Answer(pieces=pieces, raised=raised)
    if protocol == "transcription":  # its responses are not streams, so every byte counts
        for kind in ("comments", "packed comments"):
            found[kind] = replace(found[kind], raised="ReplyMalformed")
    return found


@asynccontextmanager
async def hostile_provider(protocol: str) -> AsyncIterator[str]:
    """Run the provider, and yield its address."""
    answers = kinds(protocol)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split(" ", 2)[1]
            if (length := re.search(r"content-length: (\d+)", head, re.IGNORECASE)) is not None:
                await reader.readexactly(int(length[1]))
            answer = answers[unquote(path.split("/")[1])]
            headers = {"Content-Type": answer.content_type, **(answer.headers or {}), "Connection": "close"}
            if headers.get("Location") == "":
                headers["Location"] = path
            lines = [f"HTTP/1.1 {answer.status} hostile", *(f"{name}: {value}" for name, value in headers.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            left = MEGABYTES * 1_000_000
            pieces = answer.pieces()
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:  # compression takes time
                writer.write(piece)
                await writer.drain()
                if (left := left - len(piece)) < 0:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def address(url: str, kind: str) -> str:
    """Return the base URL of an API that gives responses of this kind."""
    return f"{url}/{quote(kind)}"
