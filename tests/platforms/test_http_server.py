"""Limits on connections: their duration, and access for others while connections are held open."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp import web

from platforms import http_server
from platforms.http_server import MAX_CONNECTIONS_OF_ADDRESS
from tests.platforms.contract import eventually

HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "


class Site:
    """A server with one page that is slow on request."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = 0
        self.port = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        await self.may_answer.wait()
        return web.Response(text="here")

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, address: str = "127.0.0.1") -> tuple[int, Mapping[str, str]]:
        timeout = aiohttp.ClientTimeout(total=5)
        connector = aiohttp.TCPConnector(local_addr=(address, 0))
        async with (
            aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
            session.get(f"http://127.0.0.1:{self.port}/") as got,
        ):
            assert await got.text() == "here"
            return got.status, got.headers


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    app = web.Application()
    app.router.add_get("/", made.answer)
    async with http_server.http_server(app, "127.0.0.1", 0, stop_seconds=1) as made.port:
        yield made


async def test_running_requests_are_not_cut_off_for_new_connections(site: Site) -> None:
    site.may_answer.clear()
    asking = [asyncio.create_task(site.ask()) for _ in range(MAX_CONNECTIONS_OF_ADDRESS)]
    await eventually(lambda: site.asked == MAX_CONNECTIONS_OF_ADDRESS, "all are being answered")
    with pytest.raises(aiohttp.ClientError):
        await site.ask()
    site.may_answer.set()
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}
    assert (await site.ask())[0] == 200


async def test_four_addresses_can_hold_all_their_connections(site: Site) -> None:
    site.may_answer.clear()
    addresses = [f"127.0.0.{number}" for number in (1, 2, 3, 4)] * MAX_CONNECTIONS_OF_ADDRESS
    asking = [asyncio.create_task(site.ask(address)) for address in addresses]
    await eventually(lambda: site.asked == len(addresses), "all are being answered")
    site.may_answer.set()
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}


@pytest.mark.parametrize(
    "sent", [b"", HALF, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + HALF]
)
async def test_a_connection_without_a_complete_request_is_closed_soon(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.3)
    made, app = Site(), web.Application()
    app.router.add_get("/", made.answer)
    async with http_server.http_server(app, "127.0.0.1", 0, stop_seconds=1) as made.port:
        reader, writer = await made.connect()
        writer.write(sent)
        assert (await asyncio.wait_for(reader.read(), 20)).count(b"here") == sent.count(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize(
    "junk", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000]
)
async def test_invalid_http_is_answered_without_a_log_line(
    site: Site, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await site.connect()
    writer.write(junk + b"\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Server" not in answer
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_responses_do_not_name_the_software(site: Site) -> None:
    assert "Server" not in (await site.ask())[1]


async def test_a_port_in_use_is_an_error_at_once(site: Site) -> None:
    with pytest.raises(OSError, match="in use"):
        async with http_server.http_server(web.Application(), "127.0.0.1", site.port, stop_seconds=1):
            raise AssertionError("it cannot be had")


async def test_a_stopped_server_releases_its_port(site: Site) -> None:
    async with http_server.http_server(web.Application(), "127.0.0.1", 0, stop_seconds=1) as port:
        pass
    with socket.create_server(("127.0.0.1", port)):
        pass
