"""Connections to one provider through the OpenAI SDK, and what is sent and read over them.

The SDK brings the connection, the event stream and the error classes. Its typed request transform and its typed
chunks are avoided: they cost 0.1 ms a message and 0.06 ms a chunk on the event loop, a hundred times what the plain
JSON costs. Its own retries are off.
"""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final

import httpx2
import openai
from openai import AsyncOpenAI, AsyncStream

from agent.model.openai_errors import errors_translated
from agent.model.pools import LIMITS, Endpoint, Pools, ssl_context, whole_json

OPENAI_HOST: Final = "api.openai.com"
BASE_URL: Final = f"https://{OPENAI_HOST}/v1"
LONGEST_CACHE_KEY: Final = 64
"""Characters; OpenAI refuses longer ones."""


class Connections:
    """SDK clients of one provider, for any number of calls at once."""

    def __init__(self, endpoint: Endpoint) -> None:
        def make() -> AsyncOpenAI:
            http = openai.DefaultAsyncHttpxClient(timeout=endpoint.timeout, limits=LIMITS, verify=ssl_context())
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
                return await whole_json(stream.response, most_bytes)

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
        whole = await whole_json(self.response)
        if isinstance(whole, dict) and (error := whole.get("error")):
            raise openai.APIError("an error in place of a reply", self.response.request, body=error)
        yield whole
