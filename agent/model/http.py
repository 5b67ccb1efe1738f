"""Where a model is, and connections to it for any number of calls at once, whichever SDK makes them.

The HTTP library looks at every connection of a pool for every request, so one pool for 300 calls costs 4 ms of the
event loop a call; pools of 32 keep it under 2. Calls fill the first pool before the next, so that a quiet gateway
reuses the same few connections.

Connections to one provider through the OpenAI SDK, and what is sent and read over them.

The SDK brings the connection, the event stream and the error classes. Its typed request transform and its typed
chunks are avoided: they cost 0.1 ms a message and 0.06 ms a chunk on the event loop, a hundred times what the plain
JSON costs. Its own retries are off.

The event loop is shared: a stream that comes as fast as it can be read gives way to others now and then.

What has been received already is read without ever waiting, tens of kilobytes at a time; twenty such streams would
hold up everything else for a tenth of a second, again and again.
"""

import asyncio
import functools
import json
import re
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

import httpx2
import openai
from openai import AsyncOpenAI, AsyncStream

from agent.model.errors import error_text, status_error, stream_error
from hermes_state.errors import ModelError, ModelNotFound, ModelTimeout, ModelUnavailable, ReplyMalformed

CALLS_PER_POOL = 32

CONNECTION_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=CALLS_PER_POOL)
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


async def read_json(response: httpx2.Response, most_bytes: int = MAX_BODY_BYTES) -> object:
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


OPENAI_HOST: Final = "api.openai.com"
BASE_URL: Final = f"https://{OPENAI_HOST}/v1"
MAX_CACHE_KEY_CHARACTERS: Final = 64
"""Characters; OpenAI refuses longer ones."""


class Connections:
    """SDK clients of one provider, for any number of calls at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        def make() -> AsyncOpenAI:
            http = openai.DefaultAsyncHttpxClient(
                timeout=endpoint.timeout, limits=CONNECTION_LIMITS, verify=ssl_context()
            )
            return AsyncOpenAI(
                api_key=endpoint.api_key or "none",  # local servers want no key, the SDK insists on one
                base_url=endpoint.base_url or BASE_URL,  # else the SDK looks for one of whoever runs us
                timeout=endpoint.timeout,
                max_retries=0,
                http_client=http,
            )

        self._pools = Pools(make)

    @property
    def host(self) -> str | None:
        """Where the provider is, without credentials or path."""
        return httpx2.URL(str(self._pools.first.base_url)).host

    def client(self) -> AbstractContextManager[AsyncOpenAI]:
        """A client with room for one more call, for the length of that call."""
        return self._pools.client()

    @property
    def base_url(self) -> str:
        """The root of the API."""
        return str(self._pools.first.base_url)

    async def fetched(self, address: str, most_bytes: int) -> object:
        """The JSON at an address of the provider's host. Raises the kinds of `ModelError`."""
        with self.client() as client, errors_translated():
            stream = await client.get(address, cast_to=object, stream=True, stream_cls=AsyncStream[object])
            async with stream:
                return await read_json(stream.response, most_bytes)

    @asynccontextmanager
    async def posted(self, path: str, payload: bytes, *, streams: bool) -> AsyncIterator[AsyncIterable[object]]:
        """Send a request; what comes back is JSON: the events of a stream, or one whole body.

        Raises the kinds of `ModelError`, while it is read, too. Leaving it, however, closes the connection.
        """
        kind = AsyncStream[object] if streams else WholeBody
        with self.client() as client, errors_translated():
            stream = await client.post(path, cast_to=object, content=payload, stream=True, stream_cls=kind)
            async with stream:
                yield stream

    async def close(self) -> None:
        await self._pools.close()


class WholeBody(AsyncStream[object]):
    """A reply that comes as a whole, as the only event of a stream."""

    async def __stream__(self) -> AsyncIterator[object]:
        whole = await read_json(self.response)
        if isinstance(whole, dict) and (error := whole.get("error")):
            raise openai.APIError("an error in place of a reply", self.response.request, body=error)
        yield whole


SLICE_SECONDS: Final = 0.0002
"""How long one stream keeps the event loop: some ten events. With twenty streams everything else waits for some ten
milliseconds; giving way after every event would take a fifth more processor time."""


class LoopBudget:
    """What one stream takes of the event loop's time."""

    def __init__(self, slice_seconds: float = SLICE_SECONDS) -> None:
        self._slice = slice_seconds
        self._over_at = time.perf_counter() + slice_seconds

    async def checkpoint(self) -> None:
        """Let others go first if this stream has had its slice; asked after each event."""
        if time.perf_counter() >= self._over_at:
            await asyncio.sleep(0)
            self._over_at = time.perf_counter() + self._slice


_NEWER_LIMIT = re.compile(r"max_tokens\b.{0,80}\buse\b.{0,10}max_completion_tokens", re.IGNORECASE)
"""Servers that pass on what OpenAI said may leave its codes out."""
_UNSUPPORTED_ENCRYPTION = re.compile(r"encrypted[ _]content is not supported", re.IGNORECASE)
_MISSING_REASONING = re.compile(r"reasoning_content.{0,60}must be passed back", re.IGNORECASE | re.DOTALL)
_REASONING = re.compile(r"\b(?:reasoning|thinking|encrypted[ _]content)", re.IGNORECASE)


class RequestFault(StrEnum):
    """What about a request a provider does not take, where the same can be asked in another way."""

    LIMIT_NAME = "limit_name"
    """The output limit goes by another name there."""
    STREAM_OPTIONS = "stream_options"
    """A stream cannot be asked to end with what it used: it does so anyway, or never."""
    ENCRYPTED_REASONING = "encrypted_reasoning"
    """The model has no reasoning that could be sent along."""
    MISSING_REASONING = "missing_reasoning"
    """Every answer has to say what was thought before it, if only that nothing was."""
    REPLAYED_REASONING = "replayed_reasoning"
    """Reasoning that came from there is not taken back: it was made for another account, say."""


@contextmanager
def errors_translated() -> Iterator[None]:
    """What the SDK raises while a call is made or its answer is read becomes a kind of `ModelError`."""
    try:
        yield
    except (openai.APITimeoutError, httpx2.TimeoutException) as error:
        raise ModelTimeout("the provider stopped answering") from error
    except (openai.APIConnectionError, httpx2.HTTPError) as error:
        raise ModelUnavailable("the connection to the provider failed") from error
    except openai.APIStatusError as error:
        raise status_error(error.status_code, error.response.headers, error.body) from error
    except openai.APIError as error:
        raise stream_error(error.body) from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReplyMalformed("the provider's answer is not JSON") from error


def fault_of(error: ModelError) -> RequestFault | None:
    """What the provider did not take, if asking in another way may help."""
    cause = error.__cause__
    if type(error) not in (ModelError, ModelNotFound) or not isinstance(cause, openai.APIStatusError):
        return None
    text, param = error_text(cause.body), str(cause.param or "")
    if (cause.code == "unsupported_parameter" and param == "max_tokens") or _NEWER_LIMIT.search(text):
        return RequestFault.LIMIT_NAME
    if "stream_options" in text or param.startswith("stream_options"):
        return RequestFault.STREAM_OPTIONS
    if param.startswith("include") or _UNSUPPORTED_ENCRYPTION.search(text):
        return RequestFault.ENCRYPTED_REASONING
    if _MISSING_REASONING.search(text):
        return RequestFault.MISSING_REASONING
    if cause.code == "invalid_encrypted_content" or _REASONING.search(text):
        return RequestFault.REPLAYED_REASONING
    return None
