"""Servers and DNS lookups for tests of the web tools, all on loopback."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult


class Names(AbstractResolver):
    """Resolver with a table of names, where lists give one answer per lookup. Accepts addresses in any notation."""

    def __init__(self, table: dict[str, str | list[str]] | None = None) -> None:
        self.table = table or {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answer = self.table.get(host.rstrip("."))
        if isinstance(answer, list):
            answer = answer.pop(0)
        flags = socket.AI_NUMERICHOST
        rows = socket.getaddrinfo(answer or host, port, type=socket.SOCK_STREAM, flags=flags)
        return [
            ResolveResult(hostname=host, host=str(row[4][0]), port=port, family=row[0], proto=row[2], flags=flags)
            for row in rows
        ]

    async def close(self) -> None:
        pass


class Site:
    """Server on every address of this machine, whose answers come from `handle`."""

    def __init__(self) -> None:
        self.port = 0
        self.asked: list[tuple[str, str]] = []
        self.answers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.transport.get_extra_info("sockname")[0], request.path_qs))
        return await self.answers[request.path](request)

    def redirects(self, path: str, target: str, status: int = 302) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(status=status, headers={"Location": target})

        self.answers[path] = answer

    def gives(self, path: str, **options: Any) -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(**options)

        self.answers[path] = answer

    def at(self, host: str, path: str) -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(handle), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    place = web.TCPSite(runner, "0.0.0.0", 0)
    await place.start()
    assert runner.addresses
    yield runner.addresses[0][1]
    await runner.cleanup()
