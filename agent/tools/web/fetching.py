"""Fetching of one page: a request for each redirect, none of which leaves the bounds.

Every request has a session and a connection of its own: nothing of one chat, be it a cookie or a looked-up address,
is there for the next.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from agent.settings import WebSettings
from agent.tools.web.addresses import AddressRejected, checked_url, host_of, is_public, open_socket
from hermes_state.errors import ToolError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, CookieJar
    from aiohttp.abc import AbstractResolver
    from yarl import URL

MAX_REDIRECTS = 5
CONNECT_SECONDS = 10.0
PIECE_BYTES = 65_536
_REDIRECTS = (301, 302, 303, 307, 308)
_CODINGS = ("", "identity", "gzip", "deflate")
"""Packings that are read; others need megabytes before they give anything."""
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; hermes-gateway)",
    "Accept": "text/html, text/markdown, text/plain, application/json, application/xml;q=0.9, */*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Bounds of a fetch."""

    hosts: WebSettings = field(default_factory=WebSettings)
    seconds: float = 30.0
    """Longest time for all of it, redirects included."""
    max_bytes: int = 5_000_000
    """Most bytes of a body, unpacked, that are read."""
    is_public: Callable[[str], bool] = is_public
    """Guard of every connection, by its address."""
    resolver: "AbstractResolver | None" = None
    """Looks names up; None: the system's way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """Body of a page as it came."""

    url: str
    """Its own address, behind all redirects."""
    media_type: str
    """Such as `text/html`; empty where the server names none."""
    charset: str
    """Character set that the server states, if any."""
    data: bytes
    is_cut: bool
    """There is more of it than may be read."""


async def fetch_page(url: str, settings: FetchSettings, is_readable: Callable[[str], bool]) -> FetchResult:
    """The page at an address, if its media type is readable. Raises `ToolError` with what is wrong."""
    import aiohttp

    target = checked_url(url, settings.hosts)
    cookies = aiohttp.CookieJar()  # some sites redirect for ever without theirs
    try:
        async with asyncio.timeout(settings.seconds):
            for _ in range(MAX_REDIRECTS + 1):
                async with _asked(target, settings, cookies) as response:
                    if response.status not in _REDIRECTS:
                        return await _page(response, settings.max_bytes, is_readable)
                    target = _next(response, settings.hosts)
    except TimeoutError:
        raise ToolError(f"{host_of(target)} did not answer within {settings.seconds:g} seconds") from None
    except (aiohttp.ClientError, ValueError) as error:
        raise ToolError(f"{host_of(target)} {_fault(error)}") from error
    raise ToolError(f"{host_of(target)} redirects more than {MAX_REDIRECTS} times")


@asynccontextmanager
async def _asked(url: "URL", settings: FetchSettings, cookies: "CookieJar") -> "AsyncIterator[ClientResponse]":
    import aiohttp

    is_allowed = (lambda address: True) if host_of(url) in settings.hosts.private_hosts else settings.is_public
    connector = aiohttp.TCPConnector(
        socket_factory=partial(open_socket, is_allowed=is_allowed),
        resolver=settings.resolver,
        use_dns_cache=False,
        force_close=True,
    )
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
    async with (
        aiohttp.ClientSession(
            connector=connector, cookie_jar=cookies, headers=_HEADERS, timeout=timeout, trust_env=False
        ) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        yield response


def _next(response: "ClientResponse", hosts: WebSettings) -> "URL":
    from yarl import URL

    place = response.headers.get("Location", "")
    if not place:
        raise ToolError(f"{host_of(response.url)} redirects to nowhere")
    return checked_url(str(response.url.join(URL(place))), hosts)


async def _page(response: "ClientResponse", max_bytes: int, is_readable: Callable[[str], bool]) -> FetchResult:
    host, kind = host_of(response.url), response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if response.status != 200:
        wait = retry_after(response)
        pause = f"; it asks to wait {wait} seconds" if wait else ""
        raise ToolError(f"{host} answered with HTTP status {response.status}{pause}")
    if response.headers.get("Content-Encoding", "").strip().lower() not in _CODINGS:
        raise ToolError(f"{host} packs its answer in a way that was not asked for")
    if not is_readable(kind):
        raise ToolError(f"{response.url} is {kind[:100]}, which cannot be read; only text of any kind is")
    data, is_cut = await read_body(response, max_bytes)
    return FetchResult(url=str(response.url), media_type=kind, charset=response.charset or "", data=data, is_cut=is_cut)


async def read_body(response: "ClientResponse", max_bytes: int) -> tuple[bytes, bool]:
    """The beginning of a body, unpacked, of at most `max_bytes`; tells whether there is more."""
    data = bytearray()
    async for piece in response.content.iter_chunked(PIECE_BYTES):
        data += piece
        if len(data) > max_bytes:
            del data[max_bytes:]
            return bytes(data), True
        await asyncio.sleep(0)  # a fast server's next piece is always there
    return bytes(data), False


def retry_after(response: "ClientResponse") -> int | None:
    """Seconds for which a server asks not to be called, where it says so in seconds."""
    stated = response.headers.get("Retry-After", "").strip()
    return int(stated) if stated.isdecimal() and len(stated) < 7 else None


def _fault(error: Exception) -> str:
    """Failure of a request, as the end of a sentence."""
    import aiohttp

    cause = getattr(error, "os_error", None)
    match error:
        case aiohttp.InvalidURL():
            return "is no name of a host, and no number in its usual form"
        case aiohttp.ClientConnectorError() if isinstance(cause, AddressRejected):
            return "has a private address, and only the public internet is asked (web.private_hosts names exceptions)"
        case aiohttp.ClientConnectorDNSError():
            return "is not known: no server has this name"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return "has no valid certificate for https"
        case aiohttp.ClientConnectorError():
            return f"cannot be reached: {str(cause)[:200]}"
        case _:
            return f"does not answer as a web server does ({type(error).__name__})"
