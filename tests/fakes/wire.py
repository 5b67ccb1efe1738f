"""TCP proxy whose connections a test can interrupt, which a fake server cannot do itself.

async with Wire(server.port) as wire:
    client = Client(f"http://127.0.0.1:{wire.port}")
    wire.freeze()    # sockets stay open, but no data passes, even on new connections
    wire.thaw()      # new connections work; frozen ones never work again
    wire.cut()       # every connection is reset, and new ones are refused until `mend`
"""

import asyncio
import contextlib
from typing import Self

CHUNK_BYTES = 64 * 1024


class Wire:
    """Forwards a free local port to `target_port` on this machine."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._is_frozen = False
        self._frozen: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        self._is_frozen = True
        self._frozen |= self._writers

    def thaw(self) -> None:
        self._is_frozen = False

    def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, near_reader: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        for writer in (near_writer, far_writer):
            self._writers.add(writer)
            if self._is_frozen:
                self._frozen.add(writer)
        for reader, writer, other in ((near_reader, far_writer, near_writer), (far_reader, near_writer, far_writer)):
            task = asyncio.create_task(self._pump(reader, writer, other))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, other: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if writer not in self._frozen:
                    writer.write(data)
                    await writer.drain()
        for end in (writer, other):
            end.close()
            self._writers.discard(end)
