"""Connections through a proxy: checked addresses, odd proxies, and sentences about their faults."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from agent.settings import WebSettings
from agent.tools.web.fetching import FetchSettings, fetch_page
from hermes_state.connector import connector_for, proxy_fault
from hermes_state.errors import ToolError
from hermes_state.network import NetworkSettings
from tests.fakes.labkit import Server
from tests.fakes.outgoing_proxy import OutgoingProxy

PUBLIC, PRIVATE = "93.184.215.14", "10.0.0.7"
SCHEMES = ("http", "socks5")


class Names(AbstractResolver):
    """Resolver that knows every name, and gives its addresses one after the other."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=one, port=port, family=2, proto=0, flags=0) for one in self._addresses
        ]

    async def close(self) -> None:
        pass


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{request.host} {request.path_qs}")

    app.router.add_get("/{path:.*}", answer)
    async with Server(app) as server:
        yield int(server.url.rpartition(":")[2])


def settings(proxy: OutgoingProxy, scheme: str, *addresses: str, **hosts: object) -> FetchSettings:
    network = NetworkSettings(proxy=proxy.url(scheme))
    return FetchSettings(network=network, resolver=Names(*addresses), hosts=WebSettings(**hosts))  # type: ignore[arg-type]


async def get(network: NetworkSettings, url: str) -> str:
    connector = connector_for(network, "model")
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
        return await response.text()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_page_is_asked_for_at_its_checked_address_with_its_own_name(scheme: str, port: int) -> None:
    async with OutgoingProxy() as proxy:
        page = await fetch_page(f"http://boats.example:{port}/a?b=c", settings(proxy, scheme, PUBLIC))
    assert page.data.decode() == f"boats.example:{port} /a?b=c"
    assert [entry.split()[1] for entry in proxy.asked] == [f"{PUBLIC}:{port}"]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_private_address_is_never_asked_for_even_through_a_proxy(scheme: str, port: int) -> None:
    async with OutgoingProxy(status=403) as proxy:
        for host, addresses in (("boats.example", [PRIVATE]), ("boats.example", [PUBLIC, PRIVATE]), (PRIVATE, [])):
            with pytest.raises(ToolError, match="private address"):
                await fetch_page(f"http://{host}:{port}/", settings(proxy, scheme, *addresses))
    assert [entry.split()[1] for entry in proxy.asked] == [f"{PUBLIC}:{port}"]


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_name_of_this_machine_is_reached_directly(scheme: str, port: int) -> None:
    async with OutgoingProxy() as proxy:
        found = settings(proxy, scheme, "127.0.0.1", private_hosts=("wiki.example",))
        assert (await fetch_page(f"http://wiki.example:{port}/", found)).data.startswith(b"wiki.example")
    assert proxy.asked == []


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_name_that_is_also_of_this_machine_does_not_bypass_the_proxy(scheme: str, port: int) -> None:
    async with OutgoingProxy() as proxy:
        await fetch_page(f"http://boats.example:{port}/", settings(proxy, scheme, "127.0.0.1", PUBLIC))
    assert [entry.split()[1] for entry in proxy.asked] == [f"{PUBLIC}:{port}"]


async def test_the_answer_of_a_proxy_may_arrive_in_pieces(port: int) -> None:
    async with OutgoingProxy(pieces=9) as proxy:
        assert (await fetch_page(f"http://boats.example:{port}/", settings(proxy, "http", PUBLIC))).data


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_connections_through_a_proxy_are_used_again(scheme: str, port: int) -> None:
    async with OutgoingProxy(login="me:p@ss") as proxy:
        network = NetworkSettings(proxy=proxy.url(scheme, "me:p%40ss"))
        async with aiohttp.ClientSession(connector=connector_for(network, "model")) as session:
            for number in range(3):
                async with session.get(f"http://boats.example:{port}/{number}") as response:
                    assert (await response.text()).endswith(f"/{number}")
    assert len(proxy.asked) == 1


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk) -> AsyncIterator[int]:
    """Run a server that is no proxy, and yield its port. Every connection is closed at the end."""
    group = asyncio.TaskGroup()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(lambda *streams: group.create_task(serve(*streams)), "127.0.0.1")
    async with server, group:
        yield server.sockets[0].getsockname()[1]


async def _closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write_eof()


async def _chatting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.org ESMTP ready\r\n\r\n")
    await reader.read()


@pytest.mark.parametrize("peer", [_closed, _chatting])
@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
async def test_a_server_that_is_no_proxy_is_named(scheme: str, peer: Talk) -> None:
    async with listening(peer) as port:
        network = NetworkSettings(proxy=f"{scheme}://me:secret-pass@127.0.0.1:{port}")
        with pytest.raises(ToolError) as caught:
            await fetch_page("https://boats.example/", FetchSettings(network=network, resolver=Names(PUBLIC)))
    assert re.fullmatch(
        r"boats\.example cannot be reached: the proxy did not open a connection \(.+\); check network\.proxy",
        str(caught.value),
    )
    assert "secret-pass" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "proxy", "words"),
    [
        ("http", OutgoingProxy(login="me:right"), "requires a user name and a password"),
        ("http", OutgoingProxy(status=403), "HTTP status 403"),
        ("socks5", OutgoingProxy(login="me:right"), "authentication"),
        ("socks5", OutgoingProxy(status=403), "not allowed"),
    ],
    ids=["http login", "http refusal", "socks login", "socks refusal"],
)
async def test_refusals_are_told_with_the_name_of_the_setting(scheme: str, proxy: OutgoingProxy, words: str) -> None:
    async with proxy:
        network = NetworkSettings(proxy=proxy.url(scheme, "me:wrong-pass"))
        with pytest.raises(aiohttp.ClientError) as caught:
            await get(network, "https://boats.example/")
    fault = proxy_fault(caught.value)
    assert fault is not None
    assert words in fault.lower() or words in fault
    assert fault.endswith("check network.proxy")
    assert "wrong-pass" not in fault + str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_proxy_that_stays_silent_ends_with_a_sentence(scheme: str) -> None:
    ended = asyncio.Event()

    async def silent(*_: object) -> None:
        await ended.wait()

    async with listening(silent) as port:
        network = NetworkSettings(proxy=f"{scheme}://127.0.0.1:{port}")
        connector = connector_for(network, "web", check=lambda _: None, resolver=Names(PUBLIC))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=0.2)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            with pytest.raises(aiohttp.ClientConnectorError) as caught:
                await session.get("http://boats.example/")
        ended.set()
    assert proxy_fault(caught.value) is not None
    assert "did not answer in time" in str(proxy_fault(caught.value))
