"""HTTP calls to model providers: where a model is, pooled connections, and requests put in the way that is taken.

The providers' SDKs bring the connection and the error classes. Their typed request transform and typed chunks are
avoided: they cost 0.1 ms a message and 0.06 ms a chunk on the event loop, a hundred times what the plain JSON costs.
Their own retries are off. Answers are read by `bodies`.
"""

import asyncio
import functools
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar

import httpx2
import structlog

from agent.model.base import ModelReply, ModelRequest, SettingsForm, made_by
from agent.model.bodies import MAX_REDIRECTS, SLICE_SECONDS, checkpoint, guards, read_events, read_json
from agent.model.errors import with_usage
from agent.model.errors.classifier import status_error
from agent.model.replies import ReplyBuilder
from hermes_state.errors import (
    ModelError,
    ModelNotFound,
    ModelStalled,
    ModelTimeout,
    ModelUnavailable,
    ReplyMalformed,
)
from hermes_state.values import ReasoningEffort

log = structlog.get_logger()

CALLS_PER_POOL: Final = 32
"""Calls that share one connection pool.

The HTTP library looks at every connection of a pool for every request, so one pool for 300 calls costs 4 ms of the
event loop a call; pools of 32 keep it under 2.
"""
CONNECTION_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=CALLS_PER_POOL)
"""`sessions.max_turns` is the limit on concurrent calls; another one here would be hidden."""

DRAIN_SECONDS: Final = 1.0
"""Longest wait for the end of a stream whose reply is whole, in seconds."""
_SILENCE_FIRST_SECONDS = 0.1
"""Seconds by which a reply that does not go on is waited for longer than silence, which has to be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """Address of a model, and how long to wait for it; times in seconds."""

    model: str
    api_key: str
    base_url: str | None = None
    """Root of the API; None: that of the protocol's inventor."""
    connect_seconds: float = 5.0
    read_seconds: float = 120.0
    """Longest silence, before the first byte and between two chunks; without streaming, until the reply is whole.

    Once the reply has begun, what brings nothing of it (comments, empty chunks) is silence, too.
    """
    first_piece_seconds: float = 300.0
    """Longest wait for the first piece of text, reasoning or call, while something else comes: models think."""
    streams: bool = True
    """Streaming; False for servers that cannot: a reply then comes as a whole."""
    max_output_tokens: int | None = None
    """Highest output limit that a request may set; what sets none keeps none."""
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    """Effort where a request asks for none of its own; None: the provider's."""
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # the provider's JSON

    @property
    def timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(connect=self.connect_seconds, read=self.read_seconds, write=30.0, pool=10.0)


S = TypeVar("S", bound="SdkStream")


class SdkStream(Protocol):
    """Answer of a provider in its SDK's form, of which the HTTP response below it is read."""

    response: httpx2.Response

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None: ...  # as each SDK annotates them


class SdkClient(Protocol[S]):
    """Methods of an SDK's client that are used here; both SDKs have them."""

    @property
    def base_url(self) -> httpx2.URL: ...

    async def close(self) -> None: ...

    async def get(self, path: str, *, cast_to: type[object], stream: Literal[True], stream_cls: type[S]) -> S: ...

    async def post(
        self, path: str, *, cast_to: type[object], content: bytes, stream: Literal[True], stream_cls: type[S]
    ) -> S: ...


C = TypeVar("C", bound=SdkClient[Any])  # each SDK takes its own kind of stream only


class Transport(Generic[C]):
    """HTTP calls to one provider through its SDK, any number at once.

    Calls fill the first connection pool before the next, so that a quiet gateway reuses the same few connections.
    """

    def __init__(
        self,
        endpoint: EndpointSettings,
        base_url: str,
        *,
        sdk_client: Callable[..., C],
        http_client: type[httpx2.AsyncClient],
        stream_class: type[SdkStream],
        sdk_error: type[Exception],
    ) -> None:
        """`sdk_error`: what the SDK raises when a call does not succeed."""

        def make_client() -> C:
            return sdk_client(
                api_key=endpoint.api_key or "none",  # else the SDK looks for one of whoever runs us, or insists on it
                base_url=base_url,
                timeout=endpoint.timeout,
                max_retries=0,
                default_headers=dict(endpoint.extra_headers),
                http_client=http_client(
                    timeout=endpoint.timeout,
                    limits=CONNECTION_LIMITS,
                    verify=ssl_context(),
                    max_redirects=MAX_REDIRECTS,
                    event_hooks=guards(base_url),
                ),
            )

        self._first_piece_seconds, self._read_seconds = endpoint.first_piece_seconds, endpoint.read_seconds
        self._make_client = make_client
        self._stream_class = stream_class
        self._sdk_error = sdk_error
        self._clients = [make_client()]
        self._running = [0]

    @property
    def base_url(self) -> str:
        """Root of the API."""
        return str(self._clients[0].base_url)

    @property
    def host(self) -> str | None:
        """Host of the provider, without credentials or path."""
        return httpx2.URL(self.base_url).host

    @contextmanager
    def client(self, request: ModelRequest | None = None) -> Iterator[C]:
        """SDK client with room for one more call, for the length of that call; `request`: what it asks a model.

        Raises the kinds of `ModelError` for whatever goes wrong in it.
        """
        index = next((index for index, running in enumerate(self._running) if running < CALLS_PER_POOL), None)
        if index is None:
            index = len(self._clients)
            self._clients.append(self._make_client())
            self._running.append(0)
        self._running[index] += 1
        try:
            yield self._clients[index]
        except (self._sdk_error, httpx2.HTTPError) as error:  # the latter past the SDK, while a body is read
            response, cause = getattr(error, "response", None), error.__cause__
            if response is not None:
                raise status_error(response.status_code, response.headers, response.text, request) from error
            if isinstance(cause, ModelError):  # our own, from a hook
                raise cause from None
            if isinstance(cause, httpx2.TooManyRedirects):
                raise ModelNotFound("the provider's address redirects again and again") from error
            if isinstance(error, httpx2.TimeoutException) or isinstance(cause, httpx2.TimeoutException):
                raise ModelTimeout("the provider stopped answering") from error
            raise ModelUnavailable("the connection to the provider failed") from error
        except RecursionError as error:
            raise ReplyMalformed("the provider's answer is nested too deeply") from error
        finally:
            self._running[index] -= 1

    async def fetch_json(self, address: str) -> object:
        """The JSON at an address of the provider's host. Raises the kinds of `ModelError`."""
        with self.client() as client:
            stream = await client.get(address, cast_to=object, stream=True, stream_cls=self._stream_class)
            async with stream:
                return await read_json(stream.response)

    async def complete(self, path: str, payload: bytes, reply: ReplyBuilder) -> ModelReply:
        """Send a request and read its reply, whatever the protocol. Cancelling it closes the connection.

        Raises the kinds of `ModelError`, with the usage that was reported before.
        """
        try:
            try:
                async with asyncio.timeout(self._first_piece_seconds) as bound:
                    await self._read(path, payload, reply, bound)
            except TimeoutError as error:
                with suppress(ReplyMalformed):
                    return reply.finished()  # nothing but the end of the stream is missing
                raise ModelStalled("the provider keeps the line open and does not go on") from error
            return reply.finished()
        except ModelError as error:
            with_usage(error, reply.usage, reply.cost)
            raise

    async def _read(self, path: str, payload: bytes, reply: ReplyBuilder, bound: asyncio.Timeout) -> None:
        """Read a reply to its end; every piece of it moves the bound on."""
        loop = asyncio.get_running_loop()

        def advance() -> None:
            bound.reschedule(loop.time() + self._read_seconds + _SILENCE_FIRST_SECONDS)

        with self.client(reply.request) as client:
            stream = await client.post(
                path, cast_to=object, content=payload, stream=True, stream_cls=self._stream_class
            )
            async with stream:
                pieces = stream.response.aiter_bytes()
                slice_end = time.perf_counter() + SLICE_SECONDS
                async for event in read_events(pieces, advance):
                    before = reply.length
                    reply.add(event)
                    if reply.length > before:
                        advance()
                    slice_end = await checkpoint(slice_end)
                bound.reschedule(loop.time() + DRAIN_SECONDS)
                with suppress(httpx2.HTTPError):  # read to the end, so that the connection can be used again
                    async for _ in pieces:
                        pass

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


class HttpModel(Generic[C]):
    """A model behind an HTTP API. Close it when done."""

    def __init__(self, endpoint: EndpointSettings, protocol: str, transport: Transport[C]) -> None:
        self.name = endpoint.model
        self.route = f"{protocol}:{transport.host}"
        self._transport = transport

    async def close(self) -> None:
        await self._transport.close()


MAX_WAYS: Final = 16
"""Most ways in which one request is put: more than any server has reason to refuse."""


class HttpChatModel(HttpModel[C], ABC):
    """A model that answers conversations behind one path of an HTTP API. Close it when done."""

    def __init__(self, endpoint: EndpointSettings, protocol: str, transport: Transport[C], path: str) -> None:
        super().__init__(endpoint, protocol, transport)
        self._path = path
        self._made_by = made_by(self.route, self.name)
        self._streams = endpoint.streams
        self._endpoint = endpoint
        sampling = {"top_p": endpoint.top_p, "temperature": endpoint.temperature}  # what comes first is given up first
        self._sampling = {name: value for name, value in sampling.items() if value is not None}
        self._taken: dict[tuple[ReasoningEffort | None, bool], int] = {}
        """Index of the form in which an effort was taken, with tools and without."""
        self._faults: frozenset[str] = frozenset()

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Make the call, see `ChatModel.complete`.

        A request is put in another way where that helps, each way once; what the server took is remembered.
        """
        own, wanted = self._endpoint.max_output_tokens, request.max_output_tokens
        if own is not None and wanted is not None:
            request = replace(request, max_output_tokens=min(own, wanted))
        form = self._form(request)
        payload, builder = self._begun(request, form, on_text)
        refused: tuple[ModelError, ...] = ()
        while True:
            builder.request = request
            try:
                reply = await self._transport.complete(self._path, payload, builder)
            except ModelError as error:
                before = payload
                while payload == before:
                    other = self._put_otherwise(error, request, form)
                    if other == (request, form) or len(refused) >= MAX_WAYS:
                        error.refused = refused
                        raise
                    request, form = other
                    payload, builder = self._begun(request, form, on_text)
                refused = (*refused, error)
            else:
                self._learn(form)
                return replace(reply, refused=refused)

    @abstractmethod
    def _begun(
        self, request: ModelRequest, form: SettingsForm, on_text: Callable[[str], None]
    ) -> tuple[bytes, ReplyBuilder]:
        """The body of the HTTP request, and the reply to it of which nothing has come yet."""

    @abstractmethod
    def _put_otherwise(
        self, error: ModelError, request: ModelRequest, form: SettingsForm
    ) -> tuple[ModelRequest, SettingsForm]:
        """The request and its form as a refusal wants them; as they were where it does not say."""

    @abstractmethod
    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> Sequence[Mapping[str, Any]]:
        """Fields of a request that ask for an effort, see `SettingsForm`."""

    def _form(self, request: ModelRequest) -> SettingsForm:
        """The form that was taken before, or the best."""
        effort = request.reasoning_effort or self._endpoint.reasoning_effort
        wanted = (effort, bool(request.tools))
        return SettingsForm(
            wanted=wanted,
            sampling=self._sampling,
            efforts=self._efforts(request, effort),
            index=self._taken.get(wanted, 0),
            faults=self._faults,
        )

    def _learn(self, form: SettingsForm) -> None:
        """Remember what was taken."""
        if (form.index, form.sampling) != (self._taken.get(form.wanted, 0), self._sampling):
            log.warning("settings.refused", model=self.name, effort=form.wanted[0], sent=form.fields)
        self._taken[form.wanted], self._sampling = form.index, dict(form.sampling)
        self._faults |= form.faults


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """One for all connections to models: another one takes some 20 ms of the event loop, and a megabyte."""
    return httpx2.create_ssl_context()
