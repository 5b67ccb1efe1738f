"""Pooled HTTP connections to model providers, based on the aiohttp client that both SDKs contain.

Only this module uses private names of `httpx2`: the SDKs' client creates its own aiohttp sessions and offers no public
way to replace them.
"""

import functools
import ssl
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import aiohttp
import httpx2

from agent.model.base import Endpoint
from agent.model.replies import guards


def new_http_client(kind: type[httpx2.AsyncClient], base_url: str, endpoint: Endpoint) -> httpx2.AsyncClient:
    """Return an SDK's HTTP client for one provider, with our aiohttp sessions and the environment's proxy settings."""
    client: Any = kind(
        verify=ssl_context(),
        timeout=httpx2.Timeout(connect=endpoint.connect_seconds, read=endpoint.read_seconds, write=30.0, pool=10.0),
        max_redirects=3,
        event_hooks=guards(base_url),
        # Keep no cookies, because all chats share this client.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    )
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            transport.client = _new_session
    made: httpx2.AsyncClient = client
    return made


def _new_session() -> aiohttp.ClientSession:
    """Return a session without a connection limit, without cookies, and with the system's DNS resolver.

    `sessions.max_turns` already limits the connections. aiohttp's own resolver does not know the names of a local
    network.
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
    """Return the shared TLS context. Creating another would block the event loop for 20 ms and use a megabyte."""
    return ssl.create_default_context()  # httpx2's own function would import another transport
