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
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agent.model.http import ssl_context
from agent.tools.mcp.bounds import MAX_WEIGHT, BoundedTransport
from agent.tools.mcp.requests import GatedReadStream, GatedWriteStream, RequestGate
from agent.tools.mcp.results import RemoteResult
from agent.tools.mcp.schemas import MAX_TOOL_TEXT, clean_schema, clean_text
from agent.tools.mcp.settings import RemoteTool, ServerCatalog, ServerSettings
from agent.tools.mcp.stdio import stdio_streams
from hermes_state.errors import ToolError

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
_UNKNOWN = "the answer is none that the protocol knows"
_ASSUMED_VERSION = "2025-03-26"
"""Version of the protocol that is meant where none, or none that is known, is named."""
_BLOCK: Final[TypeAdapter[Any]] = TypeAdapter(types.ContentBlock)
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

    async def tools(self) -> ServerCatalog:
        """The server's tools as they are now, without its other lists."""
        if self._capabilities.tools is None:
            return ServerCatalog()
        tools, faults = await self._list(self._session.list_tools, "tools", MAX_TOOLS, _remote_tool, START_SECONDS)
        return ServerCatalog(tools=tools, faults=faults)

    async def with_names(self, catalog: ServerCatalog) -> ServerCatalog:
        """The same with the resources and prompts that the server says that it has."""
        session, names, faults = self._session, {}, catalog.faults
        for field, ask, kept in (("resources", session.list_resources, _uri), ("prompts", session.list_prompts, _name)):
            if getattr(self._capabilities, field) is not None:
                names[field], more = await self._list(ask, field, MAX_LISTED, kept, NAMES_SECONDS)
                faults += more
        return ServerCatalog(tools=catalog.tools, **names, faults=faults)

    @property
    def _capabilities(self) -> types.ServerCapabilities:
        return self._session.server_capabilities or types.ServerCapabilities()

    async def _list(
        self,
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
                reason = late if isinstance(error, TimeoutError) else getattr(error, "message", _UNKNOWN)
                return tuple(found), (f"{field}/list failed: {clean_text(reason, _MAX_FAULT)}",)
            listed, before, cursor = getattr(page, field), cursor, page.next_cursor
            found += map(kept, listed[: most - len(found)])
            if not cursor or len(found) >= most or (cursor == before and not listed):
                break
        return tuple(found), ()

    async def call(self, tool: str, arguments: dict[str, Any]) -> RemoteResult:
        """Call a tool; the server is told when whoever waits for it gives up. Raises `ToolError`."""
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        try:  # not by `call_tool`, which runs the server's own patterns over its results
            result = await self._session.send_request(
                types.CallToolRequest(params=params), types.CallToolResult, self._settings.seconds
            )
        except ValidationError as error:
            raise ToolError(_UNKNOWN) from error
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
    """True for the end of the connection, not of the stream of one answer."""
    return error.code == types.CONNECTION_CLOSED and not error.message.startswith("SSE stream")


class _LenientDispatcher(JSONRPCDispatcher):
    """Dispatcher that brings answers into the form of the protocol: the SDK would refuse a whole answer for a part."""

    async def send_raw_request(self, method: str, *args: Any, **more: Any) -> dict[str, Any]:
        try:
            result = await super().send_raw_request(method, *args, **more)
        except MCPError as error:
            if method != "initialize" or error.code != types.METHOD_NOT_FOUND:
                raise
            result = {}  # a server that needs no greeting
        result = _MENDERS[method](result) if method in _MENDERS else result
        for tool in result["tools"] if method == "tools/list" else ():
            tool["inputSchema"] = clean_schema(tool["inputSchema"])
            await asyncio.sleep(0)  # a schema can take a tenth of a second
        return result


def _mended_greeting(result: dict[str, Any]) -> dict[str, Any]:
    version, info, has = (result.get(key) for key in ("protocolVersion", "serverInfo", "capabilities"))
    has = has if isinstance(has, dict) else {"tools": {}}
    return {
        "protocolVersion": version if version in HANDSHAKE_PROTOCOL_VERSIONS else _ASSUMED_VERSION,
        "serverInfo": {key: str((info if isinstance(info, dict) else {}).get(key, "")) for key in ("name", "version")},
        "capabilities": {key: {} for key in ("tools", "resources", "prompts") if has.get(key) not in (None, False)},
    }


def _mended_list(
    field: str, mended: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> Callable[..., dict[str, Any]]:
    def mend(result: dict[str, Any]) -> dict[str, Any]:
        listed, cursor = result.get(field), result.get("nextCursor")
        if not isinstance(listed, list):
            raise MCPError(code=types.INTERNAL_ERROR, message=f"the answer holds no list of {field}")
        more = {"nextCursor": cursor if isinstance(cursor, str) else json.dumps(cursor)} if cursor else {}
        found = (mended(one) for one in listed if isinstance(one, dict))
        return {field: [one for one in found if one is not None], **more}

    return mend


def _mended_tool(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Fields that are used of a tool, in the form that the protocol asks for."""
    texts = {key: tool[key] for key in ("name", "title", "description") if isinstance(tool.get(key), str)}
    if not 0 < len(texts.get("name", "")) <= MAX_REMOTE_NAME:
        return None
    schema, notes = tool.get("inputSchema"), tool.get("annotations")
    reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
    return {**texts, "inputSchema": schema, "annotations": {"readOnlyHint": reads}}


def _mended_name(key: str) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """What is used of a resource or prompt."""
    return lambda one: {"name": "", key: one[key]} if isinstance(one.get(key), str) else None


def _mended_result(result: dict[str, Any]) -> dict[str, Any]:
    """Result of a call: what is no block of content becomes text."""
    given, structured = result.get("content", result.get("toolResult")), result.get("structuredContent")
    if given is None and structured is None:
        raise MCPError(code=types.INTERNAL_ERROR, message="the result holds no content")
    blocks = [] if given is None else given if isinstance(given, list) else [given]
    if structured is not None and not isinstance(structured, dict):
        blocks, structured = [*blocks, structured], None
    return {
        "content": [_mended_block(block) for block in blocks if block is not None],
        "isError": result.get("isError") in (True, "true"),
        **({} if structured is None else {"structuredContent": structured}),
    }


def _mended_block(block: Any) -> Any:
    try:
        _BLOCK.validate_python(block, by_name=False)
    except ValidationError:
        return {"type": "text", "text": block if isinstance(block, str) else json.dumps(block, ensure_ascii=False)}
    return block


_MENDERS: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "initialize": _mended_greeting,
    "tools/list": _mended_list("tools", _mended_tool),
    "resources/list": _mended_list("resources", _mended_name("uri")),
    "prompts/list": _mended_list("prompts", _mended_name("name")),
    "tools/call": _mended_result,
}


def _remote_tool(tool: types.Tool) -> RemoteTool:
    return RemoteTool(
        name=tool.name,
        description=clean_text(tool.description or tool.title, MAX_TOOL_TEXT),
        parameters=tool.input_schema,
        claims_to_read=bool(tool.annotations and tool.annotations.read_only_hint),
    )


def _uri(resource: types.Resource) -> str:
    return clean_text(str(resource.uri), 200)


def _name(prompt: types.Prompt) -> str:
    return clean_text(prompt.name, 64)


@asynccontextmanager
async def connected(settings: ServerSettings, changed: asyncio.Event) -> AsyncIterator[Connection]:
    """A connection, opened and closed in the same task. `changed` is set when the server's lists have changed."""

    async def on_message(message: object) -> None:
        if isinstance(message, _CHANGES):
            changed.set()

    ended = asyncio.Event()
    streams = stdio_streams(settings, ended) if settings.command else _http_streams(settings, ended)
    gate = RequestGate()
    async with streams as (reading, writing):
        info = types.Implementation(name="hermes-gateway", version="1")
        async with ClientSession(
            dispatcher=_LenientDispatcher(GatedReadStream(reading, gate), GatedWriteStream(writing, gate)),
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
        transport=transport, timeout=timeout, headers=dict(settings.headers), trust_env=False
    ) as client:
        opened: AbstractAsyncContextManager[Any] = streamable_http_client(
            settings.url or "", http_client=client, max_sse_event_size=MAX_WEIGHT // 4
        )
        async with opened as streams:
            yield streams
