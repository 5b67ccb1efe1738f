"""HTTP server of an adapter, with limits on the number of connections and on the time that a request takes to arrive.

An idle connection is closed for a new one: holding connections open locks no one out.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

MAX_CONNECTIONS_OF_ADDRESS = 64
"""Most connections from one address: a browser opens six, and a proxy in front of us is one address, too."""
IDLE_SECONDS = 15.0
"""Seconds in which the headers of a request must arrive, and after which a connection between two is closed."""


@asynccontextmanager
async def http_server(
    app: web.Application, host: str, port: int, *, stop_seconds: float, body_seconds: float = 30.0
) -> AsyncIterator[int]:
    """Serve `app` within the block; yields the port, which the system chooses if 0 is given.

    Raises `OSError` on entering when the port cannot be opened. Requests under way get `stop_seconds` to end. The body
    of a request must grow within `body_seconds`, again and again until it is whole.
    """
    limiter = _ConnectionLimiter(body_seconds)
    app.middlewares.insert(0, limiter.hold)
    app.on_response_prepare.append(_drop_server_header)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=stop_seconds)
    await runner.setup()
    try:
        manager = runner.server
        assert manager is not None, "made by the set-up"
        listener = await asyncio.get_running_loop().create_server(
            lambda: _ConnectionHandler(manager, limiter), host, port, backlog=1
        )
        try:
            for bound in listener.sockets:
                with bound.dup() as same:
                    same.listen(128)  # asyncio itself accepts `backlog` times in a row, also when that fails
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()


class _ConnectionLimiter:
    """Limits of a server: the number of its connections, and the time in which the body of a request arrives."""

    def __init__(self, body_seconds: float) -> None:
        self._body_seconds = body_seconds
        self._busy: set[asyncio.BaseTransport | None] = set()

    @web.middleware
    async def hold(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        transport = request.transport
        self._busy.add(transport)
        watch = asyncio.create_task(self._watch_body(request)) if not request.content.is_eof() else None
        try:
            return await handler(request)
        finally:
            self._busy.discard(transport)
            if watch is not None:
                watch.cancel()

    async def _watch_body(self, request: web.Request) -> None:
        """End the connection of a body that grows by less than 10 kB a second and would hold it for hours.

        Its reader gets the error of a client that went away.
        """
        received = 0
        while not request.content.is_eof():
            await asyncio.sleep(self._body_seconds)
            before, received = received, request.content.total_bytes
            if received - before < self._body_seconds * 10_000 and not request.content.is_eof():
                if request.transport is not None:
                    request.transport.abort()
                return

    def admits(self, transport: asyncio.BaseTransport, manager: web.Server) -> bool:
        """Tell whether a new connection may stay; if there are too many, the oldest idle one is closed for it."""
        held = [one for one in manager.connections if one.transport is not None]
        neighbours = [one for one in held if _address_of(one.transport) == _address_of(transport)]
        is_crowded = len(neighbours) >= MAX_CONNECTIONS_OF_ADDRESS
        if not is_crowded and len(held) < 128:
            return True
        idle = next((one for one in (neighbours if is_crowded else held) if one.transport not in self._busy), None)
        if idle is not None:
            idle.force_close()
        return idle is not None


class _ConnectionHandler(web.RequestHandler):
    def __init__(self, manager: web.Server, limiter: _ConnectionLimiter) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), keepalive_timeout=IDLE_SECONDS)
        self._server, self._limiter = manager, limiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._limiter.admits(transport, self._server):
            super().connection_made(transport)
        else:
            transport.close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is no HTTP without a traceback, with which anyone could fill the log."""
        if status < 500 and self.transport is not None:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        if status < 500 or isinstance(exc, ConnectionError):
            raise ConnectionError("the client is gone")
        return super().handle_error(request, status, exc, message)


def _address_of(transport: asyncio.BaseTransport | None) -> object:
    peer = None if transport is None else transport.get_extra_info("peername")
    return peer[0] if peer else None


async def _drop_server_header(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)
