"""Where a model is, and connections to it for any number of calls at once, whichever SDK makes them.

The HTTP library looks at every connection of a pool for every request, so one pool for 300 calls costs 4 ms of the
event loop a call; pools of 32 keep it under 2. Calls fill the first pool before the next, so that a quiet gateway
reuses the same few connections.
"""

import functools
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import httpx2

from hermes_state.errors import ReplyMalformed

CALLS_PER_POOL = 32

LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=CALLS_PER_POOL)
"""`sessions.max_turns` is the limit on concurrent calls; another one here would be hidden."""

MAX_BODY_BYTES: Final = 32_000_000
"""Of a reply that comes as a whole: several times what the longest reply takes, with what stands around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a model is and how long to wait for it; times in seconds."""

    model: str
    api_key: str
    base_url: str | None = None
    """None: that of the protocol's inventor."""
    connect_seconds: float = 5.0
    read_seconds: float = 120.0
    """Longest silence, before the first byte and between two chunks; without streaming, until the reply is whole."""
    write_seconds: float = 30.0
    pool_seconds: float = 10.0
    streams: bool = True
    """False for servers that cannot: a reply then comes as a whole."""

    @property
    def timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(
            connect=self.connect_seconds, read=self.read_seconds, write=self.write_seconds, pool=self.pool_seconds
        )


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """One for all connections to models: another one takes some 20 ms of the event loop, and a megabyte."""
    return httpx2.create_ssl_context()


class _Client(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Client)


@dataclass(slots=True)
class _Pool(Generic[C]):
    client: C
    running: int = 0


class Pools(Generic[C]):
    """SDK clients of one provider, each with a pool of its own; `make` makes another."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._pools = [_Pool(make())]

    @property
    def first(self) -> C:
        """The client that is always there."""
        return self._pools[0].client

    @contextmanager
    def client(self) -> Iterator[C]:
        """A client with room for one more call, for the length of that call."""
        pool = next((pool for pool in self._pools if pool.running < CALLS_PER_POOL), None)
        if pool is None:
            pool = _Pool(self._make())
            self._pools.append(pool)
        pool.running += 1
        try:
            yield pool.client
        finally:
            pool.running -= 1

    async def close(self) -> None:
        for pool in self._pools:
            await pool.client.close()


async def whole_json(response: httpx2.Response, most_bytes: int = MAX_BODY_BYTES) -> object:
    """A body that is one JSON value, read within a bound: the SDKs would read whatever comes.

    Raises `ReplyMalformed` for one that is too long, `ValueError` for what is no JSON.
    """
    try:
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > most_bytes:
                raise ReplyMalformed(f"a reply with more than {most_bytes:,} bytes")
        whole: object = json.loads(body)
        return whole
    finally:
        await response.aclose()
