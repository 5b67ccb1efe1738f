"""HTTP calls to model providers through the public clients of their SDKs.

We encode a request as JSON once and pass the bytes to `client.post`, which returns the open response. The SDK adds
the address, headers, timeouts and proxies, and raises its own errors. We do not use its typed requests and chunks:
decoding plain JSON takes a hundredth of the time. `replies` reads the responses. See
docs/decisions/0026-model-calls-through-the-sdks-clients.md.

Prefixes of encoded prompts are cached, so that a call in a long conversation only encodes its new rows. Later rows
never change the bytes of a prefix. A prefix is valid for one version of a session and one `WireStyle`. The least
recently used prefixes are evicted.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from sys import getsizeof
from typing import Any, Final, TypeAlias

import aiohttp
import httpx2
import msgspec
import orjson
import structlog
from msgspec.structs import replace

from agent.model.base import CallForm, Endpoint, ModelLimits, ModelReply, ModelRequest, made_by
from agent.model.connections import new_http_client
from agent.model.errors.classifier import status_error
from agent.model.replies import SLICE_SECONDS, ReplyBuilder, checkpoint, read_events, read_json
from agent.model.wire import STRICT, TEXT, is_shown
from hermes_state import errors
from hermes_state.aio import make_way
from hermes_state.connector import proxy_fault
from hermes_state.values import Message, MessageRole, Origin, ReasoningEffort, Transcript

log = structlog.get_logger()

OPEN_RESPONSE: Final[Mapping[str, Any]] = {"cast_to": httpx2.Response, "stream": True}
"""Arguments that make an SDK's `get` and `post` return a response whose body has not been read yet."""
MAX_FETCH_SECONDS: Final = 5.0
"""Total time limit, in seconds, for fetching a model's limits. A user may be waiting for an answer."""
MAX_OTHER_FORMS: Final = 16
"""Maximum number of other forms of a request to try after a refusal. No server should refuse so many."""


class Sdk(msgspec.Struct, frozen=True, kw_only=True):
    """Client and error classes of a provider's SDK."""

    client: Callable[..., Any]  # builds the headers; the SDKs' clients have no common base class
    http_client: type[httpx2.AsyncClient]
    refusal: type[Exception]
    """Error class for a response with an error status."""
    connection_error: type[Exception]
    """Error class for a request without a response. The error's cause is the HTTP client's error."""


class HttpModel:
    """Model behind an HTTP API. Concurrent calls share one connection pool. Close the model when done."""

    def __init__(self, endpoint: Endpoint, protocol: str, sdk: Sdk, base_url: str) -> None:
        self.name = endpoint.model
        self._endpoint = endpoint
        self._sdk = sdk
        self._client = sdk.client(
            api_key=endpoint.api_key or "none",  # without a key, the SDK would read the environment or fail
            base_url=base_url,
            max_retries=0,
            default_headers=dict(endpoint.extra_headers),
            http_client=new_http_client(sdk.http_client, base_url, endpoint),
        )
        self.base_url = str(self._client.base_url)
        self.host = httpx2.URL(self.base_url).host
        self.route = f"{protocol}:{self.host}"

    async def fetch_json(self, address: str, body: object = None) -> object:
        """Return the JSON at a URL on the provider's host, to which `body` is posted if given. Raises `ModelError`."""
        with self._translated():
            asked = self._client.get if body is None else partial(self._client.post, body=body)
            return await read_json(await asked(address, **OPEN_RESPONSE))

    @contextmanager
    def _translated(self, asked: ModelRequest | None = None) -> Iterator[None]:
        """Translate all exceptions of a call into subclasses of `ModelError`. `asked`: the request that was sent."""
        try:
            yield
        except self._sdk.refusal as refusal:
            response = refusal.response  # type: ignore[attr-defined]  # the SDKs' errors have no class in common
            raise status_error(response.status_code, response.headers, response.text, asked) from refusal
        except (httpx2.HTTPError, aiohttp.ClientError, self._sdk.connection_error) as error:
            lost = error.__cause__ if isinstance(error, self._sdk.connection_error) else error
            if isinstance(lost, errors.ModelError):
                raise lost from None  # raised by our own hooks; one of the SDKs wraps such errors
            if isinstance(lost, httpx2.TooManyRedirects):
                raise errors.ModelNotFound("the provider's address redirects too many times") from error
            # Check aiohttp's error, because the SDK calls every lost connection a timeout.
            if isinstance(lost, TimeoutError) or (lost is not None and isinstance(lost.__cause__, TimeoutError)):
                raise errors.ModelTimeout("the provider stopped answering") from error
            fault = proxy_fault(lost.__cause__ if lost is not None else None)
            raise errors.ModelUnavailable(fault or "the connection to the provider failed") from error
        except RecursionError as error:
            raise errors.ReplyMalformed("the provider's answer is nested too deeply") from error

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class HttpChatModel(HttpModel, ABC):
    """Chat model that is called through one path of an HTTP API. Close it when done."""

    def __init__(self, endpoint: Endpoint, protocol: str, sdk: Sdk, base_url: str, path: str) -> None:
        super().__init__(endpoint, protocol, sdk, base_url)
        self._address = self.base_url.rstrip("/") + path  # absolute, because the SDK is slow at joining URLs
        self._made_by = made_by(self.route, self.name)
        self._streams = endpoint.streams
        self._kept = KeptPromptCache()
        self._temperature = endpoint.temperature
        self._taken: dict[tuple[ReasoningEffort | None, bool], int] = {}
        """Index of the accepted entry of `CallForm.efforts`, for each requested effort, with and without tools."""
        self._faults: frozenset[str] = frozenset()
        self._shape = 0
        """Shape of the message list that the server accepts (see `WireStyle.shape`)."""

    async def complete(self, request: ModelRequest, on_text: Callable[[str], None]) -> ModelReply:
        """Call the model. After a refusal, try other forms of the request, and remember the form that is accepted."""
        most, asked = self._endpoint.max_output_tokens, request.max_output_tokens
        if most is not None and asked is not None:
            request = replace(request, max_output_tokens=min(most, asked))
        request = replace(request, style=replace(request.style, shape=self._shape, reasoning_of=self._made_by))
        effort = request.reasoning_effort or self._endpoint.reasoning_effort
        wanted = (effort, bool(request.tools))
        form = CallForm(
            wanted=wanted,
            temperature=self._temperature,
            efforts=self._efforts(request, effort),
            index=self._taken.get(wanted, 0),
            faults=self._faults,
        )
        payload, builder = self._begun(request, form, on_text)
        refused: tuple[errors.ModelError, ...] = ()
        while True:
            try:
                reply = await self._ask(payload, builder)
            except errors.ModelError as error:
                before = payload
                while payload == before:
                    other = self._next_form(error, request, form)
                    # A refusal without a reason is often about the list's shape, so try the stricter shape first.
                    strictest = {errors.ShapeRejected: TEXT, errors.ModelError: STRICT}.get(type(error), 0)
                    if other == (request, form) and request.style.shape < strictest:
                        stricter = replace(request.style, shape=request.style.shape + 1)
                        other = replace(request, style=stricter), form
                    if other == (request, form) or len(refused) >= MAX_OTHER_FORMS:
                        error.refused = refused
                        raise
                    request, form = other
                    payload, builder = self._begun(request, form, on_text)
                refused = (*refused, error)
            else:
                self._learn(form)
                self._shape = max(self._shape, request.style.shape)
                return replace(reply, refused=refused)

    async def fetch_limits(self) -> ModelLimits | None:
        """Return the model's limits (see `ChatModel.fetch_limits`). If the server refuses, return empty limits."""
        try:
            async with asyncio.timeout(MAX_FETCH_SECONDS):
                return await self._stated_limits()
        except (TimeoutError, errors.ModelTimeout, errors.ModelUnavailable, errors.ModelRateLimited) as error:
            log.info("model.limits_fetch_failed", model=self.name, error=type(error).__name__)
            return None
        except errors.ModelError as error:
            log.info("model.limits_rejected", model=self.name, error=type(error).__name__, reason=str(error))
            return ModelLimits()

    async def _ask(self, payload: bytes, reply: ReplyBuilder) -> ModelReply:
        """Send a request and read its reply. Raises `ModelError`, with any usage reported so far."""
        try:
            try:
                async with asyncio.timeout(self._endpoint.first_piece_seconds) as bound:
                    await self._read(payload, reply, bound)
            except TimeoutError as error:
                with suppress(errors.ReplyMalformed):
                    return reply.finished()  # the reply is complete; only the end of the stream is missing
                raise errors.ModelStallTimeout("the provider keeps the connection open but sends nothing") from error
            return reply.finished()
        except errors.ModelError as error:
            error.usage, error.reported_cost = reply.usage, reply.cost
            raise

    async def _read(self, payload: bytes, reply: ReplyBuilder, bound: asyncio.Timeout) -> None:
        """Read a reply to its end. Each piece that arrives extends the timeout `bound`."""
        loop = asyncio.get_running_loop()
        advanced, seconds = 0.0, self._endpoint.read_seconds
        slack = min(1.0, seconds / 10)  # setting a timer for each word would cost as much as reading it

        def advance() -> None:
            nonlocal advanced
            if (now := loop.time()) > advanced + slack:
                advanced = now
                bound.reschedule(now + seconds + slack + 0.1)  # on silence, the HTTP timeout fires first

        def begin_whole() -> None:
            reply.is_stream = False
            advance()

        await make_way()
        with self._translated(reply.request):
            async with aclosing(await self._client.post(self._address, content=payload, **OPEN_RESPONSE)) as response:
                pieces = aiter(response.stream)  # already decompressed; `aiter_raw` would copy each piece
                slice_end = seen = time.perf_counter()
                async for event in read_events(pieces, begin_whole):
                    if (now := time.perf_counter()) > seen + SLICE_SECONDS:
                        slice_end = now + SLICE_SECONDS  # other tasks ran while this one waited for the event
                    before = reply.length
                    reply.add(event)
                    if reply.length > before:
                        advance()
                    slice_end = await checkpoint(slice_end)
                    seen = time.perf_counter()
                bound.reschedule(loop.time() + 1.0)
                with suppress(httpx2.HTTPError, aiohttp.ClientError):
                    async for _ in pieces:  # read to the end, so that the connection can be reused
                        pass

    @abstractmethod
    async def _stated_limits(self) -> ModelLimits | None:
        """Return the model's limits as stated by the provider. Raises `ModelError` if the request fails."""

    @abstractmethod
    def _begun(
        self, request: ModelRequest, form: CallForm, on_text: Callable[[str], None]
    ) -> tuple[bytes, ReplyBuilder]:
        """Return the HTTP request body and an empty builder for its reply."""

    @abstractmethod
    def _next_form(
        self, error: errors.ModelError, request: ModelRequest, form: CallForm
    ) -> tuple[ModelRequest, CallForm]:
        """Return the request and form to try after a refusal.

        Both are unchanged if the refusal does not suggest a change.
        """

    @abstractmethod
    def _efforts(self, request: ModelRequest, effort: ReasoningEffort | None) -> Sequence[Mapping[str, Any]]:
        """Return the alternative request fields for a reasoning effort (see `CallForm.efforts`)."""

    def _learn(self, form: CallForm) -> None:
        """Remember the form that the server accepted."""
        if (form.index, form.temperature) != (self._taken.get(form.wanted, 0), self._temperature):
            log.warning("settings.rejected", model=self.name, effort=form.wanted[0], sent=form.fields)
        self._taken[form.wanted], self._temperature = form.index, form.temperature
        self._faults |= form.faults


# ---- encoded prompts

MIN_KEPT_ROWS: Final = 32
"""Minimum number of rows to cache. Encoding fewer rows takes only a tenth of a millisecond."""
MIN_NEW_ROWS: Final = 16
"""Minimum number of rows by which a prefix grows."""

Render: TypeAlias = Callable[[Transcript, set[str]], Sequence[Any] | None]
"""Function that renders rows as JSON elements and adds their call ids to a set.

Returns None if the elements would depend on other rows.
"""


class KeptPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Encoded prefix of a prompt's message list."""

    rows: int = 0
    """Number of rows in the prefix."""
    encoded: tuple[bytes, ...] = ()
    """The elements as comma-separated JSON, in pieces. Joining the pieces would fragment memory."""
    call_ids: frozenset[str] = frozenset()
    ends: tuple[Message, ...] = ()
    """The first and the last row of the prefix."""
    made_for: tuple[object, ...] = ()
    """All values, besides the rows, that determine the bytes."""

    @property
    def size(self) -> int:
        """Memory use in bytes, including about 500 for the object itself."""
        return 500 + sum(map(getsizeof, self.encoded))

    def before(self, elements: Sequence[Any], at: int = 0) -> Any:
        """Return `elements` as JSON, with this prefix inserted at index `at`."""
        if not self.rows:
            return elements
        parts = (orjson.dumps(elements[:at])[1:-1], *self.encoded, orjson.dumps(elements[at:])[1:-1])
        return orjson.Fragment(b"[%b]" % b",".join(filter(None, parts)))

    def holds_for(self, rows: Transcript, made_for: tuple[object, ...]) -> bool:
        """Return True if the prefix is still valid for `rows`.

        `rows` must begin with the prefix's rows, no later row may affect them, and `made_for` must be unchanged.
        """
        if self.made_for != made_for or len(rows) < self.rows:
            return False
        return self.ends == (rows[0], rows[self.rows - 1]) and _are_answers_within(rows[self.rows :])


def _settled_rows(transcript: Transcript) -> int:
    """Return the number of initial rows whose messages no later row can change.

    The last of these rows is an answer, and the row after it is from a person. Later rows therefore cannot be merged
    into the messages of these rows.
    """
    turns = 0
    for index in range(len(transcript) - 1, 0, -1):
        row, before = transcript[index], transcript[index - 1]
        is_asked = row.role is MessageRole.USER and row.origin in (Origin.HUMAN, Origin.TALK)
        if is_asked and before.role is MessageRole.ASSISTANT and not before.body.calls and is_shown(before):
            turns += 1
            if turns == 3:  # the last three messages carry cache breakpoints
                return index if _are_answers_within(transcript[index:]) else 0
    return 0


def _are_answers_within(rows: Transcript) -> bool:
    """Return True if every tool result in these rows answers a call in them.

    A result for an earlier call would change the messages before these rows.
    """
    asked: set[str | None] = set()
    for row in rows:
        if row.role is MessageRole.ASSISTANT:
            asked.update(call.id for call in row.body.calls)
        elif row.role is MessageRole.TOOL and row.tool_call_id not in asked:
            return False
    return True


NOTHING: Final = KeptPrompt()


class KeptPromptCache:
    """Cached prefixes of the prompts sent to one model."""

    def __init__(self, *, min_rows: int = MIN_KEPT_ROWS, min_new: int = MIN_NEW_ROWS, max_bytes: int = 8_000_000):
        self._min_rows, self._min_new, self._max_bytes = min_rows, min_new, max_bytes
        self._kept: OrderedDict[object, KeptPrompt] = OrderedDict()
        self._size = 0

    def beginning_of(self, request: ModelRequest, render: Render, *further: object) -> KeptPrompt:
        """Return the cached prefix of a request, extended if useful. `further`: other values that affect `render`."""
        rows, view = request.transcript, request.view
        if view is None or len(rows) < self._min_rows or request.style.image_urls or request.style.shape:
            return NOTHING
        made_for = (*view, request.style, *further)
        known = self._dropped(view[0])
        if not known.rows and known.made_for == made_for:  # rendering failed before, and later rows cannot change that
            self._keep(view[0], known)
            return NOTHING
        if not known.holds_for(rows, made_for):
            known = NOTHING
        if (end := _settled_rows(rows)) - known.rows >= self._min_new:
            call_ids = set(known.call_ids)
            added = render(rows[known.rows : end], call_ids)
            if added is None:
                self._keep(view[0], KeptPrompt(made_for=made_for))
                return NOTHING
            known = KeptPrompt(
                rows=end,
                encoded=(*known.encoded, orjson.dumps(added)[1:-1]),
                call_ids=frozenset(call_ids),
                ends=(rows[0], rows[end - 1]),
                made_for=made_for,
            )
        if known.rows:
            self._keep(view[0], known)
        return known

    def _keep(self, key: object, beginning: KeptPrompt) -> None:
        self._kept[key] = beginning
        self._size += beginning.size
        while self._size > self._max_bytes:
            self._dropped(next(iter(self._kept)))

    def _dropped(self, key: object) -> KeptPrompt:
        """Remove a prefix and return it."""
        if key not in self._kept:
            return NOTHING
        self._size -= self._kept[key].size
        return self._kept.pop(key)
