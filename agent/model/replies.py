"""Reads providers' responses within limits on size and time, and builds a reply from their events.

The text of a reply can always be stored. Response bodies are decompressed in small pieces, both for our code and for
the SDKs. A server can answer any request with a stream of events or with one JSON value, and might never finish its
answer.
"""

import asyncio
import json
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import aclosing, suppress
from io import StringIO
from itertools import islice
from typing import Any, Final

import httpx2
import msgspec
import orjson

from agent.model.base import FinishReason, ModelReply, ModelRequest
from agent.model.reply_text import ThinkTagParser, find_calls, first_doubt
from hermes_state.errors import ModelNotFound, ReplyMalformed, ReplyUnfinished
from hermes_state.text import ends_in_half, well_formed
from hermes_state.values import CanonicalUsage, MicroUsd, Reasoning, ToolCall

MAX_BODY_BYTES: Final = 3_000_000
"""Maximum size of an event, and of a reply that is not streamed. This is several times the longest reply of any model.
The decoded value can use ten times as much memory.
"""
MAX_FILE_BYTES: Final = 12_000_000
"""Maximum size of a file, such as two minutes of speech that a server does not compress."""
MAX_VALUES: Final = 200_000
"""Maximum number of JSON values in one event, because an empty list uses twenty times the memory of its text."""
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
        await response.aread()  # an SDK that is cancelled while it reads would leave the response open


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


async def read_bytes(response: httpx2.Response) -> bytes:
    """Return a response body that is not text. Raises `ReplyMalformed` if it is too long."""
    try:
        return bytes(await _rest_of(response.aiter_bytes(), bytearray(), MAX_FILE_BYTES))
    finally:
        await response.aclose()


async def _rest_of(pieces: AsyncIterator[bytes], body: bytearray, most: int = MAX_BODY_BYTES) -> bytearray:
    async for piece in pieces:
        _add(body, piece, most)
    return body


def _add(body: bytearray, piece: bytes | bytearray, most: int = MAX_BODY_BYTES) -> None:
    body += piece
    if len(body) > most:
        body.clear()  # otherwise, the error's traceback would keep the text in memory
        raise ReplyMalformed(f"the reply, or an event in it, has more than {most:,} bytes")


_VALUE: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[,\[{]', re.DOTALL)
"""Pattern for strings, commas and opening brackets, for counting the values in JSON text."""


def _value(text: bytearray) -> object:
    """Return the value of JSON text. Raises `ReplyMalformed` if the text is not JSON or has too many values."""
    most = text.count(b'"') // 2 + sum(map(text.count, (b",", b"[", b"{")))  # an upper bound, ten times as fast
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


# ---- assembly

MAX_CHARACTERS: Final = 800_000
"""Maximum length of a reply, including its tool calls. No model writes more, so this stops an endless stream."""
MAX_CALLS: Final = 128
"""Maximum number of tool calls in a reply."""
MAX_ITEMS: Final = 5_000
"""Maximum number of other parts in a reply, such as reasoning blocks."""


class _PartialCall(msgspec.Struct):
    index: int
    """The call's index in our reply. The server's index can be different."""
    id: str
    name: str = ""
    arguments: StringIO = msgspec.field(default_factory=StringIO)  # a list of characters is eighty times as large
    length: int = 0
    """Number of characters in the arguments."""
    last: str = ""
    """Last piece of the arguments that was not empty."""
    looks: int = 0
    """Number of attempts to parse the arguments, which is limited because each attempt parses them from the beginning.
    """

    def add(self, name: str, arguments: str) -> None:
        """Add a piece of the call. `name` can repeat or extend the name so far, or contain only its next part."""
        self.name = name if name.startswith(self.name) else self.name + name
        if not self._is_repeated(arguments):
            self.arguments.write(arguments)
            self.length += len(arguments)
            self.last = arguments or self.last

    def is_followed(self, call_id: str, name: str, arguments: str) -> bool:
        """Return True if a piece begins a new call although it has the same index.

        Some servers send no index, or always the same one.
        """
        if not name:  # some servers send a new id with every piece
            return False
        if call_id and self.id and call_id != self.id:
            return name != self.name or not self.length or self._is_whole()
        is_more = bool(arguments.strip()) and not (call_id and self._is_repeated(arguments))
        return (is_more or name != self.name) and self._is_whole()

    def _is_repeated(self, arguments: str) -> bool:
        """Return True if the piece repeats all arguments. Some servers send the complete call again at the end."""
        return 2 < len(arguments) == self.length and arguments == self.arguments.getvalue() and self._is_whole()

    def _is_whole(self) -> bool:
        """Return True if the arguments are complete JSON."""
        if not self.last.rstrip().endswith("}") or self.looks >= 64:
            return False
        self.looks += 1
        try:
            orjson.loads(self.arguments.getvalue())
        except orjson.JSONDecodeError:
            return False
        return True


class ReplyBuilder(ABC):
    """Builds a reply from a provider's events. Each protocol has a subclass that reads its events."""

    usage: CanonicalUsage | None = None
    cost: MicroUsd | None = None
    """Cost as reported by the provider."""
    is_stream = True
    """True if the reply arrives in pieces and can therefore break off."""

    def __init__(self, on_text: Callable[[str], None], made_by: str, request: ModelRequest | None = None) -> None:
        """Create a builder. `on_text` receives the whole text each time it grows. `made_by`: see `Reasoning`."""
        self.request = request
        self._on_text = on_text
        self._made_by = made_by
        self._is_begun = False
        self._shown = ""
        self._clear = 0
        """Length of the initial text that is known to contain no tool call."""
        self._unshown = StringIO()
        self._unshown_length = 0
        self.length = 0
        """Number of characters received, including reasoning and calls."""
        self._tags = ThinkTagParser()
        self._calls: list[_PartialCall] = []
        self._calls_at: dict[Hashable, list[_PartialCall]] = {}

    def add(self, event: object) -> None:
        """Add an event of a stream, or the complete reply of a server that does not stream.

        Raises `ModelError`: an error sent by the provider, or `ReplyMalformed` for an unknown shape.
        """
        self._is_begun = True
        try:
            self.read_event(event)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
            raise ReplyMalformed("an event of the provider's reply has an unknown shape") from error

    def broken_off(self, how: str) -> ReplyMalformed:
        """Return the error for a reply that ended too early or never began."""
        return (ReplyUnfinished if self.is_stream and self._is_begun else ReplyMalformed)(how)

    @abstractmethod
    def read_event(self, event: Any) -> None:
        """Add an event, given as the provider's JSON."""

    @abstractmethod
    def finished(self) -> ModelReply:
        """Return the complete reply.

        Raises `ReplyMalformed` if the reply broke off, and `ContentRejected` if it was filtered.
        """

    def add_text(self, text: object) -> None:
        """Add a piece of text. Raises `TypeError` for a non-string, `ReplyMalformed` if the reply gets too long."""
        self._add_shown(self._tags.feed(self.counted(text)))

    def _add_shown(self, added: str) -> None:
        if not added:
            return
        self._unshown.write(added)
        self._unshown_length += len(added)
        # Up to 65,536 characters, show every piece at once. Copying a longer text each time would take quadratic time.
        if self._unshown_length * 64 >= len(self._shown) - 65_536 and not ends_in_half(added):
            self._show()

    def add_call(self, index: Hashable, *, call_id: object = "", name: object = "", arguments: object = "") -> int:
        """Add a piece of the call at `index`, or start a new call. Return the call's index in our reply.

        Raises the same errors as `add_text`.
        """
        if isinstance(arguments, Mapping):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call_id, name, arguments = (self.counted(part) for part in (call_id, name, arguments))
        calls = self._calls_at.setdefault(index, [])
        call = next((call for call in reversed(calls) if call_id and call.id == call_id), calls[-1] if calls else None)
        if call is None or call.is_followed(call_id, name, arguments):
            if len(self._calls) >= MAX_CALLS:
                raise ReplyMalformed(f"the reply has more than {MAX_CALLS} tool calls")
            self._add_shown(self._tags.restart())
            call = _PartialCall(len(self._calls), call_id)
            calls.append(call)
            self._calls.append(call)
        call.id = call.id or call_id
        call.add(name, arguments)
        return call.index

    def counted(self, text: object) -> str:
        """Add a piece's length to the reply's length, and return the piece. Raises the same errors as `add_text`."""
        if not isinstance(text, str):
            raise TypeError("expected text")
        self.length += len(text)
        if self.length > MAX_CHARACTERS:
            raise ReplyMalformed(f"the reply has more than {MAX_CHARACTERS:,} characters")
        return text

    def built(self, *, is_cut_off: bool, reasoning: Callable[[str], Reasoning | None]) -> ModelReply:
        """Return the reply, with its calls in the order in which they began.

        `is_cut_off`: the reply reached the output limit. `reasoning` returns the reasoning to store, given the text
        between think tags. It is only called if there are calls. Raises `ReplyMalformed` for a call without a name.
        """
        self._show()
        text, thought = self._tags.finish(self._shown)
        calls = _whole_calls(self._calls)
        if (request := self.request) is not None and request.tools:
            schemas = {tool.name: tool.parameters for tool in request.tools}
            if (found := find_calls(text, schemas, lambda source: _is_said(source, request))) is not None:
                text = text[: found[0]].rstrip()
                left = enumerate(found[1])
                calls = calls or tuple(
                    ToolCall(id=f"call_{at}", name=name, arguments=rest) for at, (name, rest) in left
                )
                if not calls:
                    raise ReplyMalformed("the text contains a tool call that cannot be used")
        if text != self._shown:
            self._shown = well_formed(text)
            self._on_text(self._shown)
        finish = FinishReason.LENGTH if is_cut_off else FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return ModelReply(
            text=self._shown,
            calls=calls,
            finish=finish,
            usage=self.usage,
            reasoning=reasoning(thought) if calls else None,
            cost=self.cost,
        )

    def _show(self) -> None:
        if self._unshown_length:
            self._shown += well_formed(self._unshown.getvalue())
            self._unshown = StringIO()
            self._unshown_length = 0
            end = len(self._shown)
            if self.request is not None and self.request.tools:
                end = first_doubt(self._shown, self._clear)
                self._clear = end if end < len(self._shown) else max(0, end - 128)
            if shown := self._shown[:end].rstrip() if end < len(self._shown) else self._shown:
                self._on_text(shown)


def _is_said(source: str, request: ModelRequest) -> bool:
    """Return True if the conversation already contains the call's text, so the model is probably quoting it."""
    said = [request.system, *(row.text or "" for row in request.transcript)]
    said += [row.body.quote.text for row in request.transcript if row.body.quote is not None]
    said += [document.text for row in request.transcript for document in row.body.documents]
    whole, part = (re.sub(r"[\s\\\"'`]+", "", text) for text in ("\0".join(said), source))
    return part in whole


def padded_json(value: object) -> str:
    """Return a value's JSON, with ten spaces added for each object and list, so that its length reflects memory use.

    >>> len(padded_json({"a": []}))
    29
    """
    text = json.dumps(value)
    return text + " " * (10 * (text.count("{") + text.count("[")))


def serialized_reasoning(made_by: str, blocks: object) -> Reasoning:
    """Return the reasoning to store. Raises `ReplyMalformed` for blocks that would make every later call fail."""
    try:
        text = well_formed(json.dumps(blocks, ensure_ascii=False, allow_nan=False))
        orjson.dumps([[[[[[[[orjson.loads(text)]]]]]]]])  # nested as deeply as in a request
    except (ValueError, TypeError, RecursionError) as error:
        raise ReplyMalformed("the reply has reasoning that cannot be sent back") from error
    return Reasoning(made_by=made_by, blocks=text)


def _whole_calls(partial: list[_PartialCall]) -> tuple[ToolCall, ...]:
    """Return the complete calls. Each gets a unique id, because some servers send no ids or repeat them."""
    calls: list[ToolCall] = []
    for index, call in enumerate(partial):
        if not (name := well_formed(call.name.partition("<|")[0])):  # gpt-oss can leave markup after the name
            raise ReplyMalformed("the reply has a tool call without a name")
        call_id = well_formed(call.id) or f"call_{index}"
        while any(earlier.id == call_id for earlier in calls):
            call_id = f"{call_id}_{index}"
        arguments = well_formed(call.arguments.getvalue())
        more = arguments.removeprefix("{}")  # some servers first send empty arguments
        calls.append(ToolCall(id=call_id, name=name, arguments=more if more.strip() else arguments))
    return tuple(calls)
