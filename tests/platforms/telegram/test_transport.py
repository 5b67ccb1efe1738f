"""Transport to the Bot API: proxies from the environment, and sent requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp.client
import pytest
import telegram

from platforms.telegram.transport import BotApiRequest

TOKEN = "1:LABTOKEN"
ROOT = "http://api.example.test"
TYPED = '{"chat_id":1,"action":"a & b"}'
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def listening(asked: list[str]) -> AsyncIterator[str]:
    """Run a server that keeps the first line and the body of each request, and yield its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split()[1]) for line in head.splitlines() if line.lower().startswith("content-length"))
        asked.append(f"{head.splitlines()[0]} {(await reader.readexactly(length)).decode()}")
        body = b'{"ok":true,"result":true}'
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def opened() -> AsyncIterator[BotApiRequest]:
    request = BotApiRequest(connections=2, connect_seconds=5, request_seconds=5)
    await request.initialize()
    try:
        yield request
    finally:
        await request.shutdown()


async def type_in(request: BotApiRequest, root: str = ROOT) -> bool:
    """Show the typing indicator in a chat: an SDK call with two parameters, sent as JSON."""
    bot = telegram.Bot(TOKEN, base_url=f"{root}/bot", request=request, get_updates_request=request)
    return await bot.send_chat_action(1, "a & b")


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked: list[str] = []
    async with listening(asked) as proxy:
        monkeypatch.setenv(name, proxy)
        async with opened() as request:
            assert await type_in(request) is True
    assert asked == [f"POST {ROOT}/bot{TOKEN}/sendChatAction HTTP/1.1 {TYPED}"]


async def test_a_proxy_set_later_is_used_by_new_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    async with listening(asked) as proxy, opened() as request:
        monkeypatch.setenv("http_proxy", proxy)
        await request.renew()
        assert await type_in(request) is True
    assert len(asked) == 1


async def test_without_a_proxy_the_environment_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object) -> None:
        raise AssertionError("a look at the environment and ~/.netrc, in a thread, for every request")

    monkeypatch.setattr(aiohttp.client, "get_env_proxy_for_url", look_up)
    asked: list[str] = []
    async with listening(asked) as server, opened() as request:
        assert await type_in(request, server) is True
    assert asked == [f"POST /bot{TOKEN}/sendChatAction HTTP/1.1 {TYPED}"]
