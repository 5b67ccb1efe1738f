"""HTTP server of an adapter, with limits on connections and on the time that a request takes to arrive.

When there are too many connections, each new connection replaces an idle one, so clients cannot block the server by
holding connections open.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

MAX_CONNECTIONS_OF_ADDRESS = 64
"""Maximum number of connections from one IP address. A browser opens six, but all clients of a proxy share one."""
IDLE_SECONDS = 15.0
"""Time limit in seconds for receiving the headers of a request, and for an idle connection."""


@asynccontextmanager
async def http_server(
    app: web.Application, host: str, port: int, *, stop_seconds: float, body_seconds: float = 30.0
) -> AsyncIterator[int]:
    """Serve `app` within the block, and yield the port. The system chooses the port if 0 is given.

    Raises `OSError` on entering if the port cannot be opened. At the end, running requests have `stop_seconds` to
    finish. A request's connection is closed if the body grows too slowly over a period of `body_seconds`.
    """
    limiter = _ConnectionLimiter(body_seconds)
    app.middlewares.insert(0, limiter.hold)
    app.on_response_prepare.append(_drop_server_header)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=stop_seconds)
    await runner.setup()
    try:
        manager = runner.server
        assert manager is not None, "`setup` creates it"
        listener = await asyncio.get_running_loop().create_server(
            lambda: _ConnectionHandler(manager, limiter), host, port, backlog=1
        )
        try:
            for bound in listener.sockets:
                with bound.dup() as same:
                    same.listen(128)  # with `backlog=128`, asyncio would accept 128 times in a row, even after an error
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
    finally:
        await runner.cleanup()


class _ConnectionLimiter:
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
        """Close the connection if the body grows by less than 10 kB a second, because a slow upload could take hours.

        The handler gets the same error as for a disconnected client.
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
        """Return True if a new connection can stay. If there are too many, close the oldest idle connection first."""
        held = [one for one in manager.connections if one.transport is not None]
        neighbours = [one for one in held if _address_of(one.transport) == _address_of(transport)]
        is_crowded = len(neighbours) >= MAX_CONNECTIONS_OF_ADDRESS
        if not is_crowded and len(held) < 4 * MAX_CONNECTIONS_OF_ADDRESS:  # every open page holds one connection
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
        """Answer an invalid HTTP request without logging a traceback, so that strangers cannot fill the log."""
        if status < 500 and self.transport is not None:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        if status < 500 or isinstance(exc, ConnectionError):
            raise ConnectionError("the client disconnected")
        return super().handle_error(request, status, exc, message)


def _address_of(transport: asyncio.BaseTransport | None) -> object:
    peer = None if transport is None else transport.get_extra_info("peername")
    return peer[0] if peer else None


async def _drop_server_header(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)
