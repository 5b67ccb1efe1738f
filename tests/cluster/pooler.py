"""A connection pooler as a client sees it: sessions have other process ids than on the server."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

KEY_DATA = re.compile(rb"(K\x00\x00\x00\x0c)....", re.DOTALL)
"""Message in which the server tells a client its process id and its secret key."""


@asynccontextmanager
async def pooler_before(url: str) -> AsyncIterator[str]:
    """Start a pooler in front of the server at `url`, and yield its address."""
    port = urlsplit(url).port

    async def relay(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, there = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(_copy(client, there), _copy(server, back))
        finally:
            there.close()

    pooler = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield url.replace(f":{port}/", f":{pooler.sockets[0].getsockname()[1]}/")
    finally:
        pooler.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(KEY_DATA.sub(lambda found: found[1] + b"\0\0\0\x07", data))
            await target.drain()
    target.close()
