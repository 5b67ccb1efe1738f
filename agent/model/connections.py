"""Pooled HTTP connections to model providers, based on the aiohttp client that both SDKs contain.

Only this module uses private names of `httpx2`: the SDKs' client creates its own aiohttp sessions and offers no public
way to replace them.
"""

from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import aiohttp
import httpx2

from agent.model.base import Endpoint
from agent.model.replies import guards
from hermes_state.connector import connector_for
from hermes_state.imports import ssl_context
from hermes_state.network import NetworkSettings


def new_http_client(kind: type[httpx2.AsyncClient], base_url: str, endpoint: Endpoint) -> httpx2.AsyncClient:
    """Return an SDK's HTTP client for one provider, with our aiohttp sessions and the proxy of the settings."""
    client: Any = kind(
        verify=ssl_context(),
        trust_env=False,  # the connector chooses the proxy
        timeout=httpx2.Timeout(connect=endpoint.connect_seconds, read=endpoint.read_seconds, write=30.0, pool=10.0),
        max_redirects=3,
        event_hooks=guards(base_url),
        # Keep no cookies, because all chats share this client.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
    )
    client._transport.client = partial(_new_session, endpoint.network)
    made: httpx2.AsyncClient = client
    return made


def _new_session(network: NetworkSettings) -> aiohttp.ClientSession:
    """Return a session without a connection limit, without cookies, and with the system's DNS resolver.

    `sessions.max_turns` already limits the connections. aiohttp's own resolver does not know the names of a local
    network.
    """
    connector = connector_for(
        network,
        "model",
        limit=0,
        keepalive_timeout=5.0,  # some servers close idle connections soon after
        resolver=aiohttp.ThreadedResolver(),
        ssl=ssl_context(),
    )
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
