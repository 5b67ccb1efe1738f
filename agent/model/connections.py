"""Pooled HTTP connections to model providers, over the aiohttp client that both SDKs bring.

This is the only module that uses private names of `httpx2`. The SDKs' client creates its aiohttp sessions itself and
has no public way to hand it others.
"""

import functools
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import aiohttp
import httpx2

from agent.model.base import Endpoint
from agent.model.bodies import guards


def new_http_client(kind: type[httpx2.AsyncClient], base_url: str, endpoint: Endpoint) -> httpx2.AsyncClient:
    """Return an HTTP client of an SDK that calls one provider, uses the environment's proxies and our sessions."""
    client: Any = kind(
        verify=ssl_context(),
        timeout=httpx2.Timeout(connect=endpoint.connect_seconds, read=endpoint.read_seconds, write=30.0, pool=10.0),
        max_redirects=3,
        event_hooks=guards(base_url),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # keeps none: all chats share this client
    )
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport.client = _new_session
    made: httpx2.AsyncClient = client
    return made


def _new_session() -> aiohttp.ClientSession:
    """Return a session without a limit on connections, without cookies, and with the system's name look-up.

    `sessions.max_turns` is the limit; another one here would be hidden. aiohttp's look-up does not know the names of a
    local network.
    """
    connector = aiohttp.TCPConnector(
        limit=0,
        keepalive_timeout=5.0,  # some servers close idle connections soon after
        resolver=aiohttp.ThreadedResolver(),
        ssl=ssl_context(),
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the one context of all connections: another one takes 20 ms of the event loop, and a megabyte."""
    return ssl.create_default_context()  # as for the platforms; the one of httpx2 imports another transport
