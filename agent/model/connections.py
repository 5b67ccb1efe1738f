"""Connections to one provider, for any number of calls at once.

The HTTP library looks at every connection of a pool for every request, so one pool for 300 calls costs 4 ms of the
event loop a call; pools of 32 keep it under 2. Calls fill the first pool before the next, so that a quiet gateway
reuses the same few connections.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import openai
from openai import AsyncOpenAI

CALLS_PER_POOL = 32

_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=CALLS_PER_POOL)
"""`sessions.max_turns` is the limit on concurrent calls; another one here would be hidden."""


@dataclass(slots=True)
class _Pool:
    client: AsyncOpenAI
    running: int = 0


class Connections:
    """SDK clients of one provider, each with a pool of its own. Its own retries are off."""

    def __init__(self, *, api_key: str, base_url: str | None, timeout: httpx2.Timeout) -> None:
        self._timeout = timeout
        self._ssl = httpx2.create_ssl_context()  # 30 ms or more, so all pools share one
        first = AsyncOpenAI(
            api_key=api_key, base_url=base_url, timeout=timeout, max_retries=0, http_client=self._http_client()
        )
        self._pools = [_Pool(first)]

    @property
    def host(self) -> str | None:
        """Where the provider is, without credentials or path."""
        return httpx2.URL(str(self._pools[0].client.base_url)).host

    @contextmanager
    def client(self) -> Iterator[AsyncOpenAI]:
        """A client with room for one more call, for the length of that call."""
        pool = next((pool for pool in self._pools if pool.running < CALLS_PER_POOL), None)
        if pool is None:
            pool = _Pool(self._pools[0].client.copy(http_client=self._http_client()))
            self._pools.append(pool)
        pool.running += 1
        try:
            yield pool.client
        finally:
            pool.running -= 1

    async def close(self) -> None:
        for pool in self._pools:
            await pool.client.close()

    def _http_client(self) -> httpx2.AsyncClient:
        return openai.DefaultAsyncHttpxClient(timeout=self._timeout, limits=_LIMITS, verify=self._ssl)
