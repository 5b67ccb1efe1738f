"""Connection to an MCP server through the SDK, which only this module and `stdio` import.

A private name of httpcore2 gives its connection pool the streams of our SOCKS package.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import httpcore2
import httpx2
import mcp_types as types
from httpcore2._backends.anyio import AnyIOStream
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.methods import parse_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError
from python_socks import ProxyError as SocksError
from python_socks.async_.anyio.v2 import Proxy as SocksProxy

from agent.settings import ServerSettings
from agent.tools.mcp.schemas import MAX_TOOL_TEXT, clean_schema, clean_text
from agent.tools.mcp.settings import RemoteResult, RemoteTool, ServerCatalog
from agent.tools.mcp.stdio import INVALID_ANSWER, MAX_WEIGHT, TOO_LARGE, stdio_streams, weight
from hermes_state.connector import socks_options
from hermes_state.errors import ToolError
from hermes_state.imports import ssl_context
from hermes_state.network import Proxy
from hermes_state.setting_types import plain_texts

T = TypeVar("T", bound=BaseModel)
Item = TypeVar("Item")

START_SECONDS: Final = 60.0
"""Time limit for each response while connecting, in seconds. Some servers download their program first."""
NAMES_SECONDS: Final = 5.0
"""Time limit for a page of resources or prompts, in seconds. A server counts as connected only after these lists."""
GOODBYE_SECONDS: Final = 2.0
_MAX_ERROR = 2_000


class Connection:
    """Open connection to a server. Any task can use it for calls."""

    def __init__(self, session: ClientSession, settings: ServerSettings, ended: asyncio.Event) -> None:
        self._session, self._settings = session, settings
        self.ended = ended
        """Event that is set when the connection ends."""

    async def catalogs(self, before: ServerCatalog) -> AsyncIterator[ServerCatalog]:
        """Yield the server's lists after reading the tools, after the resources, and after the prompts.

        A list that was not read yet is the one in `before`. A list with a fault also keeps the items of `before`.
        """
        session, has = self._session, self._session.server_capabilities or types.ServerCapabilities()
        names = ("tools", "resources", "prompts")
        lists: dict[str, Any] = {name: getattr(before, name) for name in names if getattr(has, name) is not None}
        faults = tuple[str, ...]()
        for field, ask, most, kept, seconds in (
            ("tools", session.list_tools, 500, _remote_tool, START_SECONDS),
            ("resources", session.list_resources, 1_000, lambda one: clean_text(one.uri, 200), NAMES_SECONDS),
            ("prompts", session.list_prompts, 1_000, _prompt_text, NAMES_SECONDS),
        ):
            if field in lists:
                found, more = await _pages(ask, field, most, kept, seconds)
                known = (*lists[field], *found) if more else found
                lists[field] = tuple({getattr(one, "name", one): one for one in known}.values())[:most]
                faults += more
            yield ServerCatalog(**lists, faults=faults)

    async def call(self, tool: RemoteTool, arguments: dict[str, Any]) -> RemoteResult:
        """Call a tool, or read a resource or a prompt. Cancelling the caller also cancels the call on the server.

        Raises `ToolError` if the call fails or takes too long.
        """
        if tool.reads == "resource":
            ask = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=str(arguments.get("uri"))))
            parts = (await self._ask(ask, types.ReadResourceResult)).contents
            return RemoteResult(content=[_resource(_json(part)) for part in parts])
        if tool.reads == "prompt":
            values = {key: str(value) for key, value in dict(arguments.get("arguments") or {}).items()}
            prompt = types.GetPromptRequestParams(name=str(arguments.get("name")), arguments=values)
            said = (await self._ask(types.GetPromptRequest(params=prompt), types.GetPromptResult)).messages
            return RemoteResult(content=[block for one in said for block in (_role(one.role), _json(one.content))])
        # `call_tool` would check the result with the server's own patterns, which can be very slow
        params = types.CallToolRequestParams(name=tool.name, arguments=arguments)
        result = await self._ask(types.CallToolRequest(params=params), types.CallToolResult)
        content = [_json(block) for block in result.content]
        return RemoteResult(content=content, structured=result.structured_content, is_error=bool(result.is_error))

    async def _ask(self, request: Any, kind: type[T]) -> T:  # Any: one of the SDK's requests
        try:
            return await self._session.send_request(request, kind, self._settings.seconds)
        except ValidationError as error:
            raise ToolError(INVALID_ANSWER) from error
        except MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                seconds = f"{self._settings.seconds:g} seconds"
                raise ToolError(f"no answer within {seconds}; the call may still take effect") from error
            if _is_end(error):
                self.ended.set()
                reason = "the connection to the server ended during the call; the call may have taken effect"
                raise ToolError(reason) from error
            is_stream = error.message.startswith("SSE stream")
            what = "the server's answer could not be read" if is_stream else "the server refused the call"
            raise ToolError(f"{what}: {clean_text(error.message, _MAX_ERROR)}") from error


def _json(block: BaseModel) -> dict[str, Any]:
    return block.model_dump(by_alias=True, mode="json", exclude_none=True)


def _role(role: str) -> dict[str, Any]:
    return {"type": "text", "text": f"{role}:"}


def _resource(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a resource as a content block of a result."""
    if "blob" in part and str(part.get("mimeType")).startswith("image/"):
        return {"type": "image", "data": part["blob"], "mimeType": part["mimeType"]}
    return {"type": "resource", "resource": part}


def _prompt_text(prompt: types.Prompt) -> str:
    names = ", ".join(clean_text(one.name, 64) for one in (prompt.arguments or [])[:20])
    return f"{clean_text(prompt.name, 64)}({names})"


def _is_end(error: MCPError) -> bool:
    """Return True if the connection has ended. Servers can send the same error code, so the message is checked too."""
    return error.code == types.CONNECTION_CLOSED and error.message == "Connection closed"


async def _pages(
    ask: Callable[..., Awaitable[Any]], field: str, most: int, kept: Callable[[Any], Item], seconds: float
) -> tuple[tuple[Item, ...], tuple[str, ...]]:
    """Return the items of a list, and a message about the error if one stopped the reading.

    `kept` extracts the needed part of each item immediately, because a page can be megabytes long. Raises `ToolError`
    if the connection has ended.
    """
    found: list[Item] = []
    cursor: str | None = None
    for _ in range(most):
        try:
            async with asyncio.timeout(seconds):
                page = await ask(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        except (MCPError, ValidationError, TimeoutError) as error:
            if isinstance(error, MCPError) and _is_end(error):
                raise ToolError("the connection to the server ended") from error
            late = f"no answer within {seconds:g} seconds"
            reason = late if isinstance(error, TimeoutError) else getattr(error, "message", INVALID_ANSWER)
            return tuple(found), (f"{field}/list failed: {clean_text(reason, 200)}",)
        listed, before, cursor = getattr(page, field), cursor, page.next_cursor
        found += map(kept, listed[: most - len(found)])
        if not cursor or len(found) >= most or (cursor == before and not listed):
            break
    return tuple(found), ()


class _EveryMethod(frozenset[str]):
    """Set that contains every method, so that the SDK answers a server's requests one by one.

    Answering a flood of requests at once would fill the memory.
    """

    def __contains__(self, method: object) -> bool:
        return True


class _LenientDispatcher(JSONRPCDispatcher):
    """Dispatcher that repairs invalid responses, because the SDK rejects a whole response for one invalid part."""

    async def send_raw_request(self, method: str, *args: Any, **more: Any) -> dict[str, Any]:
        try:
            result = await super().send_raw_request(method, *args, **more)
        except MCPError as error:
            if method != "initialize" or (error.code != types.METHOD_NOT_FOUND and error.message != INVALID_ANSWER):
                raise
            result = {}  # the server does not support the handshake, or answered it with an invalid response
        if method == "initialize":
            return _mended_greeting(result)
        if method == "tools/call":
            return _mended_result(result)
        return await _mended_list(*_LISTS[method], result) if method in _LISTS else result


def _mended_greeting(result: dict[str, Any]) -> dict[str, Any]:
    version, info, has = (result.get(key) for key in ("protocolVersion", "serverInfo", "capabilities"))
    has = has if isinstance(has, dict) else {"tools": {}}
    return {
        "protocolVersion": version if version in HANDSHAKE_PROTOCOL_VERSIONS else "2025-03-26",
        "serverInfo": {key: str((info if isinstance(info, dict) else {}).get(key, "")) for key in ("name", "version")},
        "capabilities": {key: {} for key in ("tools", "resources", "prompts") if has.get(key) not in (None, False)},
    }


_LISTS: Final = {
    "tools/list": ("tools", "name", 256),  # the protocol's limit is 128
    "resources/list": ("resources", "uri", MAX_WEIGHT),
    "prompts/list": ("prompts", "name", MAX_WEIGHT),
}
"""For each method: the response field with the list, the text that each item must have, and its maximum length."""


async def _mended_list(field: str, key: str, longest: int, result: dict[str, Any]) -> dict[str, Any]:
    """Return a page of a list with only the fields that we use. Items without the required text are dropped."""
    listed, cursor = result.get(field), result.get("nextCursor")
    if not isinstance(listed, list):
        raise MCPError(code=types.INTERNAL_ERROR, message=f"the answer has no list of {field}")
    found = []
    for one in listed:
        if isinstance(one, dict) and isinstance(one.get(key), str) and 0 < len(one[key]) <= longest:
            texts = {
                name: one[name] for name in ("name", "uri", "title", "description") if isinstance(one.get(name), str)
            }
            notes, schema = one.get("annotations"), clean_schema(one.get("inputSchema"))
            reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
            inputs = one.get("arguments")
            named = [{"name": held["name"]} for held in inputs if _has_name(held)] if isinstance(inputs, list) else []
            found.append(
                {"name": "", **texts, "inputSchema": schema, "annotations": {"readOnlyHint": reads}, "arguments": named}
            )
            await asyncio.sleep(0)  # cleaning a schema can take a tenth of a second
    return {field: found, **({"nextCursor": str(cursor)} if cursor else {})}


def _has_name(argument: object) -> bool:
    return isinstance(argument, dict) and isinstance(argument.get("name"), str)


def _mended_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call, converted to text if it is invalid."""
    try:
        parse_server_result("tools/call", HANDSHAKE_PROTOCOL_VERSIONS[-1], result)
    except ValidationError:
        text = json.dumps(result, ensure_ascii=False)
        return {"content": [{"type": "text", "text": text}], "isError": result.get("isError") is True}
    return result


def _remote_tool(tool: types.Tool) -> RemoteTool:
    return RemoteTool(
        name=tool.name,
        description=clean_text(tool.description or tool.title, MAX_TOOL_TEXT),
        parameters=tool.input_schema,
        claims_to_read=bool(tool.annotations and tool.annotations.read_only_hint),
    )


@asynccontextmanager
async def connected(settings: ServerSettings, changed: asyncio.Event) -> AsyncIterator[Connection]:
    """Yield a connection. `changed` is set when the server announces that its lists have changed."""

    async def on_message(message: object) -> None:
        tools, resources = types.ToolListChangedNotification, types.ResourceListChangedNotification
        if isinstance(message, tools | resources | types.PromptListChangedNotification):
            changed.set()

    ended = asyncio.Event()
    streams = stdio_streams(settings, ended) if settings.command else _http_streams(settings, ended)
    async with streams as (reading, writing):
        info = types.Implementation(name="hermes-gateway", version="1")
        async with ClientSession(
            dispatcher=_LenientDispatcher(reading, writing, inline_methods=_EveryMethod()),
            read_timeout_seconds=START_SECONDS,
            message_handler=on_message,
            client_info=info,
        ) as session:
            try:
                await session.initialize()
            except MCPError as error:
                if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                    reason = clean_text(error.message, _MAX_ERROR)
                    raise ToolError(f"the server did not accept the connection: {reason}") from error
                await session.discover()  # the server supports only newer versions of the protocol
            yield Connection(session, settings, ended)


@asynccontextmanager
async def _http_streams(settings: ServerSettings, ended: asyncio.Event) -> AsyncIterator[Any]:  # the SDK's own types
    timeout = httpx2.Timeout(connect=10.0, read=max(300.0, settings.seconds), write=30.0, pool=10.0)
    url = httpx2.URL(settings.url or "")
    proxy = settings.network.route("mcp")(url.scheme, url.host)
    async with httpx2.AsyncClient(
        transport=_BoundedTransport(ended, proxy),
        timeout=timeout,
        headers=plain_texts(settings.headers),
        trust_env=False,
    ) as client:
        opened: AbstractAsyncContextManager[Any] = streamable_http_client(
            settings.url or "", http_client=client, max_sse_event_size=MAX_WEIGHT // 4
        )
        async with opened as streams:
            yield streams


class OversizedAnswerError(httpx2.SSEError, httpx2.StreamError):
    """Error for a response that is too large. Both base classes are errors that the SDK reports as a failed call."""


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """HTTP transport that limits the size of responses.

    It refuses compressed responses, which could unpack to any size. `ended` is set when the server no longer knows the
    session, for example because the server was restarted.
    """

    def __init__(self, ended: asyncio.Event, proxy: Proxy | None) -> None:
        is_socks = proxy is not None and proxy.scheme == "socks5"
        context = ssl_context() if proxy is not None and proxy.scheme == "https" else None
        http = httpx2.Proxy(proxy.url, ssl_context=context) if proxy is not None and not is_socks else None
        super().__init__(verify=ssl_context(), trust_env=False, proxy=http)
        if proxy is not None and is_socks:  # the library's own SOCKS client needs a package without a maintainer
            self._pool = httpcore2.AsyncConnectionPool(ssl_context=ssl_context(), network_backend=_SocksBackend(proxy))
        self._ended, self._proxy = ended, proxy

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        if request.method == "DELETE":  # ends the session, and must not wait for a server that hangs
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(GOODBYE_SECONDS).as_dict()}
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            if self._proxy is None:
                raise
            fault = f"the server cannot be reached through the proxy ({error}); check network.proxy"
            raise httpx2.ProxyError(fault) from error
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            self._ended.set()
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is compressed, although the request did not allow it")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "").lower()
        response.stream = _BoundedStream(response.stream, has_events=kind.startswith("text/event-stream"))
        return response


class _SocksBackend(httpcore2.AnyIOBackend):
    """Network of a connection pool behind a SOCKS proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = SocksProxy(**socks_options(proxy))

    async def connect_tcp(self, host: str, port: int, **options: Any) -> AnyIOStream:  # type: ignore[override]
        try:
            return AnyIOStream((await self._proxy.connect(host, port, timeout=options["timeout"])).anyio_stream)
        except (OSError, EOFError, UnicodeError, SocksError) as error:
            raise httpcore2.ConnectError(str(error.__cause__ or error)) from error


class _BoundedStream(httpx2.AsyncByteStream):
    """Size-limited response body. In an event stream, the limit applies to each event."""

    def __init__(self, inner: httpx2.AsyncByteStream, *, has_events: bool) -> None:
        self._inner, self._has_events = inner, has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for data in self._inner:
            _, blank, rest = data.replace(b"\r", b"").rpartition(b"\n\n") if self._has_events else (b"", b"", data)
            taken = weight(rest) if blank else taken + weight(data)
            if taken > MAX_WEIGHT:
                raise OversizedAnswerError(TOO_LARGE)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()
