"""Fetching of pages: limits, redirects, DNS rebinding, and unusual answers."""

import asyncio
import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.settings import WebSettings
from agent.tools.web.fetching import MAX_REDIRECTS, FetchSettings, fetch_page
from hermes_state.errors import ToolError
from tests.agent.tools.web.sites import Names, Site, serving

PUBLIC, INSIDE = "127.0.0.2", "127.0.0.1"
"""Two loopback addresses: the guard of these tests allows only the first."""


def settings(names: Mapping[str, str | list[str]] | None = None, **more: Any) -> FetchSettings:
    given = {"seconds": 10.0, **more}
    return FetchSettings(is_public=lambda address: address == PUBLIC, resolver=Names(dict(names or {})), **given)


async def fault(url: str, given: FetchSettings) -> str:
    with pytest.raises(ToolError) as raised:
        await fetch_page(url, given)
    return str(raised.value)


async def test_dns_rebinding_is_refused(site: Site) -> None:
    site.gives("/", text="hello")
    given = settings({"rebind.test": [PUBLIC, INSIDE]})
    assert (await fetch_page(site.at("rebind.test", "/"), given)).data == b"hello"
    assert "private" in await fault(site.at("rebind.test", "/"), given), "between lookups"
    assert site.asked == [(PUBLIC, "/")]
    site.redirects("/", "/secret")
    assert "private" in await fault(site.at("rebind.test", "/"), settings({"rebind.test": [PUBLIC, INSIDE]}))
    assert site.asked == [(PUBLIC, "/")] * 2, "between redirects"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost.test", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1"])
async def test_no_redirect_reaches_the_internal_network(site: Site, status: int, host: str) -> None:
    site.redirects("/", site.at(host, "/secret"), status)
    await fault(site.at(PUBLIC, "/"), settings({"localhost.test": INSIDE}))
    assert site.asked == [(PUBLIC, "/")]


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.2/", "http://a:b@127.0.0.2/", "gopher://127.0.0.2/", "http://["]
)
async def test_no_redirect_leaves_http(site: Site, target: str) -> None:
    site.redirects("/", target)
    await fault(site.at(PUBLIC, "/"), settings())
    assert len(site.asked) == 1


async def test_redirect_loops_end(site: Site) -> None:
    site.redirects("/", "/")
    assert "redirects more than" in await fault(site.at(PUBLIC, "/"), settings())
    assert len(site.asked) == MAX_REDIRECTS + 1


async def test_a_redirect_is_followed_and_the_final_url_is_reported(site: Site) -> None:
    site.redirects("/", "there?a=1")
    site.gives("/there", text="hello")
    assert (await fetch_page(site.at(PUBLIC, "/"), settings())).url == site.at(PUBLIC, "/there?a=1")


async def test_cookies_last_for_a_single_fetch(site: Site) -> None:
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(dict(request.cookies))
        if request.cookies:
            return web.Response(text="hello")
        again = web.HTTPFound("/")
        again.set_cookie("seen", "yes")
        raise again

    site.answers["/"] = answer
    for _ in range(2):
        await fetch_page(site.at("cookies.test", "/"), settings({"cookies.test": PUBLIC}))
    assert seen == [{}, {"seen": "yes"}] * 2


async def test_a_configured_private_host_is_allowed(site: Site) -> None:
    site.gives("/", text="hello")
    given = settings({"wiki.test": INSIDE, "other.test": INSIDE}, hosts=WebSettings(private_hosts=("wiki.test",)))
    assert (await fetch_page(site.at("wiki.test", "/"), given)).data == b"hello"
    assert "private" in await fault(site.at("other.test", "/"), given)
    assert "private" in await fault(site.at("sub.wiki.test", "/"), settings({"sub.wiki.test": INSIDE}))


async def test_host_lists_apply_to_redirects(site: Site) -> None:
    site.gives("/", text="hello")
    site.redirects("/away", site.at("other.test", "/"))
    names = dict.fromkeys(("docs.wiki.test", "other.test", "no.wiki.test"), PUBLIC)
    given = settings(names, hosts=WebSettings(allow_hosts=("wiki.test",), deny_hosts=("no.wiki.test",)))
    assert (await fetch_page(site.at("docs.wiki.test", "/"), given)).data == b"hello"
    for url in (site.at("docs.wiki.test", "/away"), site.at("no.wiki.test", "/"), site.at("notwiki.test", "/")):
        assert "operator" in await fault(url, given)


async def test_a_long_body_is_read_up_to_the_bound(site: Site) -> None:
    site.gives("/", body=b"x" * 300_000, content_type="text/plain")
    page = await fetch_page(site.at(PUBLIC, "/"), settings(max_bytes=100_000))
    assert (len(page.data), page.is_cut) == (100_000, True)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_decompression_bomb_uses_little_memory(site: Site, coding: str) -> None:
    packer = zlib.compressobj(1, wbits=31 if coding == "gzip" else 15)
    bomb = b"".join([*(packer.compress(b"\0" * 1_000_000) for _ in range(100)), packer.flush()])
    assert len(bomb) < 1_000_000
    headers = {"Content-Encoding": coding, "Content-Type": "text/html"}
    site.gives("/", body=bomb, headers=headers)
    before = peak_mb(is_reset=True)
    assert (await fetch_page(site.at(PUBLIC, "/"), settings(max_bytes=5_000_000))).is_cut
    assert peak_mb() - before < 40


def peak_mb(*, is_reset: bool = False) -> float:
    """Return the peak memory of this process since the last reset."""
    if is_reset:
        Path("/proc/self/clear_refs").write_text("5")
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) / 1_024 for row in rows if row.startswith("VmHWM:"))


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
async def test_unsupported_content_encodings_are_refused(site: Site, coding: str) -> None:
    headers = {"Content-Encoding": coding, "Content-Type": "text/html"}
    site.gives("/", body=gzip.compress(b"hello"), headers=headers)
    assert await fault(site.at(PUBLIC, "/"), settings())


async def test_pages_that_are_not_text_are_refused_before_reading(site: Site) -> None:
    site.gives("/", body=b"%PDF", content_type="application/pdf")
    assert "application/pdf" in await fault(site.at(PUBLIC, "/"), settings())


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (404, {}, "status 404"),
        (429, {"Retry-After": "17"}, "in 17 seconds"),
        (503, {"Retry-After": "tomorrow"}, "503"),
        (204, {}, "204"),
        (302, {}, "without naming a target"),
        (999, {}, "999"),
    ],
)
async def test_error_statuses_are_reported(site: Site, status: int, headers: dict[str, str], words: str) -> None:
    site.gives("/", status=status, headers=headers)
    assert words in await fault(site.at(PUBLIC, "/"), settings())


async def test_slow_servers_time_out(site: Site) -> None:
    async def drips(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)  # an endless body

    site.answers["/"] = drips
    assert "within 0.5 seconds" in await fault(site.at(PUBLIC, "/"), settings(seconds=0.5))


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"y" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nhalf",
        b"HTTP/1.1 302 Found\r\nLocation: http://\xff\xfe/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=range(7),
)
async def test_invalid_answers_are_reported(bytes_sent: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(bytes_sent)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, PUBLIC, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert PUBLIC in await fault(f"http://{PUBLIC}:{port}/", settings())


async def test_an_unreachable_address_is_reported() -> None:
    async with serving(_never) as port:
        pass
    assert "cannot be reached" in await fault(f"http://{PUBLIC}:{port}/", settings())
    assert "no server has this name" in await fault("http://nobody.test/", settings())


async def _never(request: web.Request) -> web.Response:
    raise AssertionError


async def test_https_needs_a_certificate(site: Site) -> None:
    site.gives("/", text="hello")
    assert PUBLIC in await fault(site.at(PUBLIC, "/").replace("http", "https"), settings())
