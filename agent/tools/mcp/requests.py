"""Bound of a server's own requests: the SDK starts a task for each, which lasts until its answer is out."""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

MAX_OPEN: Final = 100
"""Requests of one server that may wait for their answers; no more is read of it until one is out."""


@dataclass(slots=True)
class RequestGate:
    """Gate through which the messages of one server pass; it is closed while too many of its requests are open."""

    _open: int = 0
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    async def admit(self, item: object) -> None:
        """Wait until there is room for a message that was read."""
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._leave()  # what the server takes back is not answered
        if not isinstance(message, JSONRPCRequest):
            return
        while self._open >= MAX_OPEN:
            self._room.clear()
            await self._room.wait()
        self._open += 1

    def sent(self, item: SessionMessage) -> None:
        """Count an answer that is out."""
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._leave()

    def _leave(self) -> None:
        self._open = max(0, self._open - 1)
        self._room.set()


class _GatedStream:
    """Stream of the SDK with a gate; it is opened and closed as without."""

    def __init__(self, stream: Any, gate: RequestGate) -> None:  # the SDK's types of streams are private
        self._stream, self._gate = stream, gate

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(kind, error, trace)
        return ended


class GatedReadStream(_GatedStream):
    """Stream of what a server says."""

    async def receive(self) -> Any:
        item = await self._stream.receive()
        await self._gate.admit(item)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await self._stream.__anext__()
        await self._gate.admit(item)
        return item


class GatedWriteStream(_GatedStream):
    """Stream to a server."""

    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        self._gate.sent(item)
