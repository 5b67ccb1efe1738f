"""Connection to one MCP server, by the SDK. Nothing else imports the SDK, and nothing imports this but a thread."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import httpx2
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.methods import parse_server_result
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent.model.connections import ssl_context
from agent.settings import ServerSettings
from agent.tools.mcp.bounds import MAX_WEIGHT, BoundedTransport
from agent.tools.mcp.results import RemoteResult
from agent.tools.mcp.schemas import MAX_TOOL_TEXT, clean_schema, clean_text
from agent.tools.mcp.settings import RemoteTool, ServerCatalog
from agent.tools.mcp.stdio import INVALID_ANSWER, stdio_streams
from hermes_state.errors import ToolError
from hermes_state.kinds import plain_texts

T = TypeVar("T")

START_SECONDS: Final = 60.0
"""Longest wait for an answer while a connection is made, in seconds: some servers are fetched first."""
MAX_TOOLS: Final = 500
MAX_LISTED: Final = 1_000
"""Most tools, and most resources and prompts, that are taken from a server's lists."""
MAX_REMOTE_NAME: Final = 256
"""Longest name of a tool, in characters; the protocol has 128."""
NAMES_SECONDS: Final = 5.0
"""Longest wait for a page of resources or prompts, whose names are shown to admins and nothing else, in seconds."""
_MAX_ERROR = 2_000
_MAX_FAULT = 200
_ASSUMED_VERSION = "2025-03-26"
"""Version of the protocol for a server that names no version, or an unknown one."""
_CHANGES = (
    types.ToolListChangedNotification,
    types.ResourceListChangedNotification,
    types.PromptListChangedNotification,
)


class Connection:
    """Connection that is open. Its calls may be made from any task."""

    def __init__(self, session: ClientSession, settings: ServerSettings, ended: asyncio.Event) -> None:
        self._session, self._settings = session, settings
        self.ended = ended
        """Set when it is of no more use."""

    async def catalogs(self) -> AsyncIterator[ServerCatalog]:
        """Yield the server's lists as they are now: first its tools alone, at last all that it has."""
        session, has = self._session, self._session.server_capabilities or types.ServerCapabilities()
        lists, faults = dict[str, Any](), tuple[str, ...]()
        for field, ask, most, kept, seconds in (
            ("tools", session.list_tools, MAX_TOOLS, _remote_tool, START_SECONDS),
            ("resources", session.list_resources, MAX_LISTED, lambda one: clean_text(one.uri, 200), NAMES_SECONDS),
            ("prompts", session.list_prompts, MAX_LISTED, lambda one: clean_text(one.name, 64), NAMES_SECONDS),
        ):
            if getattr(has, field) is not None:
                lists[field], more = await _pages(ask, field, most, kept, seconds)
                faults += more
            yield ServerCatalog(**lists, faults=faults)

    async def call(self, tool: str, arguments: dict[str, Any]) -> RemoteResult:
        """Call a tool; the server is told when whoever waits for it gives up. Raises `ToolError`."""
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        try:  # not by `call_tool`, which runs the server's own patterns over its results
            result = await self._session.send_request(
                types.CallToolRequest(params=params), types.CallToolResult, self._settings.seconds
            )
        except ValidationError as error:
            raise ToolError(INVALID_ANSWER) from error
        except MCPError as error:
            raise ToolError(self._explained(error)) from error
        content = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
        return RemoteResult(content=content, structured=result.structured_content, is_error=bool(result.is_error))

    def _explained(self, error: MCPError) -> str:
        if error.code == types.REQUEST_TIMEOUT:
            return f"no answer within {self._settings.seconds:g} seconds; what it had begun may still take effect"
        is_stream = error.message.startswith("SSE stream")
        if _is_end(error):
            self.ended.set()
            return "the connection to the server ended during the call; what it had begun may have taken effect"
        what = "the answer of the server could not be read" if is_stream else "the server refused the call"
        return f"{what}: {clean_text(error.message, _MAX_ERROR)}"


def _is_end(error: MCPError) -> bool:
    """True for the end of the connection. Servers use the SDK's code for any error of theirs, too."""
    return error.code == types.CONNECTION_CLOSED and error.message == "Connection closed"


async def _pages(
    ask: Callable[..., Awaitable[Any]],
    field: str,
    most: int,
    kept: Callable[[Any], T],  # one for each list
    seconds: float,
) -> tuple[tuple[T, ...], tuple[str, ...]]:
    """All of a list, page by page, and what ended it too early: of each page, which may be megabytes, what is used.

    Raises `MCPError` when the connection has ended.
    """
    found: list[T] = []
    cursor: str | None = None
    for _ in range(most):
        try:
            async with asyncio.timeout(seconds):
                page = await ask(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        except (MCPError, ValidationError, TimeoutError) as error:
            if isinstance(error, MCPError) and _is_end(error):
                raise
            late = f"no answer within {seconds:g} seconds"
            reason = late if isinstance(error, TimeoutError) else getattr(error, "message", INVALID_ANSWER)
            return tuple(found), (f"{field}/list failed: {clean_text(reason, _MAX_FAULT)}",)
        listed, before, cursor = getattr(page, field), cursor, page.next_cursor
        found += map(kept, listed[: most - len(found)])
        if not cursor or len(found) >= most or (cursor == before and not listed):
            break
    return tuple(found), ()


class _EveryMethod(frozenset[str]):
    """All methods that a server may ask for: its requests are answered one by one, or a flood would take memory."""

    def __contains__(self, method: object) -> bool:
        return True


class _LenientDispatcher(JSONRPCDispatcher):
    """Dispatcher that mends answers which do not follow the protocol: the SDK refuses a whole answer for one part."""

    async def send_raw_request(self, method: str, *args: Any, **more: Any) -> dict[str, Any]:
        try:
            result = await super().send_raw_request(method, *args, **more)
        except MCPError as error:
            if method != "initialize" or (error.code != types.METHOD_NOT_FOUND and error.message != INVALID_ANSWER):
                raise
            result = {}  # a server that needs no greeting, or has sent something else
        if method == "initialize":
            return _mended_greeting(result)
        if method == "tools/call":
            return _mended_result(result)
        return await _mended_list(*_LISTS[method], result) if method in _LISTS else result


def _mended_greeting(result: dict[str, Any]) -> dict[str, Any]:
    version, info, has = (result.get(key) for key in ("protocolVersion", "serverInfo", "capabilities"))
    has = has if isinstance(has, dict) else {"tools": {}}
    return {
        "protocolVersion": version if version in HANDSHAKE_PROTOCOL_VERSIONS else _ASSUMED_VERSION,
        "serverInfo": {key: str((info if isinstance(info, dict) else {}).get(key, "")) for key in ("name", "version")},
        "capabilities": {key: {} for key in ("tools", "resources", "prompts") if has.get(key) not in (None, False)},
    }


_LISTS: Final = {
    "tools/list": ("tools", "name", MAX_REMOTE_NAME),
    "resources/list": ("resources", "uri", MAX_WEIGHT),
    "prompts/list": ("prompts", "name", MAX_WEIGHT),
}
"""Name of each list, and the text that each of its items must have, with its greatest length."""
_TEXTS: Final = ("name", "uri", "title", "description")


async def _mended_list(field: str, key: str, longest: int, result: dict[str, Any]) -> dict[str, Any]:
    """Return a page of a list with the fields of its items that are used; items without their text are left out."""
    listed, cursor = result.get(field), result.get("nextCursor")
    if not isinstance(listed, list):
        raise MCPError(code=types.INTERNAL_ERROR, message=f"the answer holds no list of {field}")
    found = []
    for one in listed:
        if isinstance(one, dict) and isinstance(one.get(key), str) and 0 < len(one[key]) <= longest:
            texts = {name: one[name] for name in _TEXTS if isinstance(one.get(name), str)}
            notes, schema = one.get("annotations"), clean_schema(one.get("inputSchema"))
            reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
            found.append({"name": "", **texts, "inputSchema": schema, "annotations": {"readOnlyHint": reads}})
            await asyncio.sleep(0)  # a schema can take a tenth of a second
    return {field: found, **({"nextCursor": str(cursor)} if cursor else {})}


def _mended_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call. A result that does not follow the protocol becomes text."""
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
    """A connection, opened and closed in the same task. `changed` is set when the server's lists have changed."""

    async def on_message(message: object) -> None:
        if isinstance(message, _CHANGES):
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
                    raise ToolError(f"the server did not take the connection: {reason}") from error
                await session.discover()  # a server that knows only the protocol's newer half
            yield Connection(session, settings, ended)


@asynccontextmanager
async def _http_streams(settings: ServerSettings, ended: asyncio.Event) -> AsyncIterator[Any]:  # the SDK's own types
    timeout = httpx2.Timeout(connect=10.0, read=max(300.0, settings.seconds), write=30.0, pool=10.0)
    transport = BoundedTransport(httpx2.AsyncHTTPTransport(verify=ssl_context(), trust_env=False), ended)
    async with httpx2.AsyncClient(
        transport=transport, timeout=timeout, headers=plain_texts(settings.headers), trust_env=False
    ) as client:
        opened: AbstractAsyncContextManager[Any] = streamable_http_client(
            settings.url or "", http_client=client, max_sse_event_size=MAX_WEIGHT // 4
        )
        async with opened as streams:
            yield streams
