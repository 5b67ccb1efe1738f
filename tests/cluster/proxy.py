"""Proxy between a node and its database. A test can cut its connections or make them hang."""

import asyncio
import re
from collections.abc import Callable
from typing import Self


class Proxy:
    """Port that forwards connections to another port on this machine."""

    def __init__(self, target: int, rewrite: Callable[[bytes], bytes] = bytes) -> None:
        """`rewrite` changes the data of the server."""
        self._target, self._rewrite = target, rewrite
        self._writers: set[asyncio.StreamWriter] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self._is_cut = False
        self._part: Callable[[bytes], int | None] | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """Port to which nodes connect."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def address_of(self, url: str) -> str:
        """Return the address of a database through this proxy."""
        return url.replace(f":{self._target}/", f":{self.port}/")

    def cut(self) -> None:
        """Close every connection, and refuse new ones until `mend`."""
        self._is_cut = True
        self._passes.set()
        for writer in self._writers:
            writer.transport.abort()

    def hang(self) -> None:
        """Hold back all data in both directions until `mend` or `cut`. Nothing is lost."""
        self._passes.clear()

    def hang_within(self, part: Callable[[bytes], int | None]) -> None:
        """Hang at the first data from a node for which `part` returns a number. This many bytes still pass."""
        self._part = part

    def mend(self) -> None:
        """Pass all data on again, starting with the data that was held back."""
        self._is_cut, self._part = False, None
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._pass_on(reader, there[1], is_request=True), self._pass_on(there[0], writer))

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool = False
    ) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(65536):
                if is_request and self._part is not None and (size := self._part(data)) is not None:
                    self._part = None
                    self.hang()
                    writer.write(data[:size])
                    data = data[size:]
                await self._passes.wait()
                writer.write(data if is_request else self._rewrite(data))
                await writer.drain()
        except OSError:
            pass  # the connection was cut
        finally:
            self._writers.discard(writer)
            writer.close()


def first_message(data: bytes) -> int:
    """Return the length of the first PostgreSQL message in `data`, or all but one byte if it is the only message."""
    size = 1 + int.from_bytes(data[1:5])
    return size if size < len(data) else len(data) - 1


def all_but_the_end(data: bytes) -> int | None:
    """Return the length of a writing batch without its last message, or None if `data` is not such a batch."""
    is_write = b"BEGIN" in data and b"READ ONLY" not in data and data.endswith(_SYNC)
    return len(data) - len(_SYNC) if is_write else None


_SYNC = b"S\0\0\0\4"


def renumbered(data: bytes) -> bytes:
    """Change the process id in an answer, as a connection pooler does: its clients see other ids than the server."""
    return re.sub(rb"(K\x00\x00\x00\x0c)....", lambda found: found[1] + b"\0\0\0\x07", data, flags=re.DOTALL)
