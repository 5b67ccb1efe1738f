"""HTTP transport to the Bot API: the SDK's request interface on aiohttp.

It tells senders whether a failed request might have had an effect, lets the poller close a dead connection, and streams
files. It keeps the token, which is part of every address, out of logs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
import orjson
from telegram.error import NetworkError, TelegramError
from telegram.request import BaseRequest, RequestData

from hermes_state.connector import connector_for, proxy_fault
from hermes_state.network import NetworkSettings
from platforms.text import UNREADABLE, parsed_json

MAX_BODY_BYTES = 16_000_000
"""Maximum size of a response, in bytes. A batch of updates is about a tenth of this size."""

CLOSE_SECONDS = 5
"""Maximum time to close connections, in seconds, because an unreachable peer never confirms the close."""


class NotSentError(NetworkError):
    """The request could not be sent, so it had no effect."""


class AmbiguousRequestError(NetworkError):
    """No response arrived after the request was sent, so the request might have had an effect."""


class FloodControl(TelegramError):
    """Status 429: the request had no effect. Retry it after `retry_after` seconds.

    The SDK's own `RetryAfter` is not used, because it causes deprecation warnings.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"flood control for {retry_after:g} s")
        self.retry_after = retry_after


class BotApiRequest(BaseRequest):
    """Pool of connections to a Bot API server."""

    def __init__(
        self,
        *,
        connections: int,
        connect_seconds: float,
        request_seconds: float,
        network: NetworkSettings | None = None,
    ) -> None:
        self._network = network or NetworkSettings()
        self._connections = connections
        self._connect_seconds = connect_seconds
        self._request_seconds = request_seconds
        self._session: aiohttp.ClientSession | None = None

    @property
    def read_timeout(self) -> float:
        """Default number of seconds that a request may go without receiving data."""
        return self._request_seconds

    async def initialize(self) -> None:
        """Open the pool if it is closed."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=connector_for(self._network, "telegram", limit=self._connections),
                auto_decompress=True,
                headers={"User-Agent": self.USER_AGENT},
            )

    async def shutdown(self) -> None:
        """Close every connection. Running requests fail."""
        session, self._session = self._session, None
        if session is not None:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await session.close()
            except TimeoutError:
                return  # the sockets are closed anyway, because aiohttp aborts them

    async def renew(self) -> None:
        """Close every connection, and start with new ones."""
        await self.shutdown()
        await self.initialize()

    async def do_request(
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: object = BaseRequest.DEFAULT_NONE,
        write_timeout: object = BaseRequest.DEFAULT_NONE,
        connect_timeout: object = BaseRequest.DEFAULT_NONE,
        pool_timeout: object = BaseRequest.DEFAULT_NONE,
    ) -> tuple[int, bytes]:
        """Return the response's status and body. Ignores all timeouts except a number in `read_timeout`.

        Raises `NotSentError` if the request was not sent, `AmbiguousRequestError` if no complete response arrived, and
        `FloodControl` after a response with status 429.
        """
        data = _encoded(request_data) if request_data is not None else None
        silent_seconds = read_timeout if isinstance(read_timeout, int | float) else self._request_seconds
        async with self._open(method, url, silent_seconds, data=data) as response:
            body = bytearray()
            async for piece in response.content.iter_chunked(65_536):
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise AmbiguousRequestError("the Bot API's response is too large")
            if response.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise FloodControl(_retry_after(body, response.headers.get("Retry-After")))
            if response.status >= HTTPStatus.MULTIPLE_CHOICES and not _is_from_bot_api(body):
                # This response is from a proxy or a starting server. The SDK would read any 404 as a rejected token.
                problem = f"something other than the Bot API answered {response.status}"
                raise (
                    AmbiguousRequestError(problem)
                    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                    else NotSentError(problem)
                )
            return response.status, bytes(body)

    @asynccontextmanager
    async def stream(self, url: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response before its body is read. Raises the errors of `do_request`, even inside the block."""
        async with self._open("GET", url, self._request_seconds) as response:
            yield response

    @staticmethod
    def parse_json_payload(payload: bytes) -> dict[str, Any]:  # Any: the SDK's own return type
        """Parse a response for the SDK. The body is not logged, because it may contain a message.

        A sent or edited message is reduced to its id, date and chat. The SDK parses every field of a message. If one
        of them could not be parsed, a message that was sent would look as if sending had failed.
        """
        try:
            answer = parsed_json(payload)
        except UNREADABLE:
            raise TelegramError("the server's answer is not JSON") from None
        if not isinstance(answer, dict):
            raise TelegramError("the server's answer is not an object")
        match answer.get("result"):
            case {"message_id": message_id, "date": date, "chat": {"id": chat_id, "type": kind}}:
                sent = {"message_id": message_id, "date": date, "chat": {"id": chat_id, "type": kind}}
                return {"ok": True, "result": sent}
        return answer

    @asynccontextmanager
    async def _open(
        self, method: str, url: str, silent_seconds: float, data: aiohttp.FormData | aiohttp.BytesPayload | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise NotSentError("the adapter is shutting down")
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._connect_seconds, sock_connect=self._connect_seconds, sock_read=silent_seconds
        )
        # Report only the type of the error, because aiohttp's messages may contain the URL, which includes the token.
        try:
            # The Bot API never redirects. Another server would receive the message and the token.
            async with self._session.request(
                method, url, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotSentError(proxy_fault(error) or f"no connection to the Bot API ({type(error).__name__})") from None
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise AmbiguousRequestError(f"the connection to the Bot API broke ({type(error).__name__})") from None


def _encoded(request_data: RequestData) -> aiohttp.FormData | aiohttp.BytesPayload:
    if not request_data.contains_files:  # encoding a form takes several times as long
        return aiohttp.BytesPayload(orjson.dumps(request_data.parameters), content_type="application/json")
    # Quoting would show people file names with %20.
    form = aiohttp.FormData(request_data.json_parameters, quote_fields=False)
    for name, (filename, content, mime) in request_data.multipart_data.items():
        form.add_field(name, content, filename=filename, content_type=mime)
    return form


def _is_from_bot_api(body: bytearray) -> bool:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and "ok" in answer


def _retry_after(body: bytearray, header: str | None) -> float:
    """Return the seconds to wait, from the body, the header or a default, in this order."""
    try:
        return float(orjson.loads(body)["parameters"]["retry_after"])
    except (ValueError, KeyError, TypeError):
        # Telegram's short pauses are about five seconds.
        return float(header) if header is not None and header.isdigit() else 5.0
