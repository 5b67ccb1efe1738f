"""Connection to one MCP server, by the SDK. Nothing else imports the SDK, and nothing imports this but a thread."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import httpx2
import mcp_types as types
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import ValidationError

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
_MAX_ERROR = 2_000
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

    async def catalog(self) -> ServerCatalog:
        """The server's lists as they are now; only what it says that it has is asked for."""
        session, has = self._session, self._session.server_capabilities or types.ServerCapabilities()
        tools = await _pages(session.list_tools, "tools", MAX_TOOLS, _remote_tool) if has.tools else ()
        resources = await _pages(session.list_resources, "resources", MAX_LISTED, _uri) if has.resources else ()
        prompts = await _pages(session.list_prompts, "prompts", MAX_LISTED, _name) if has.prompts else ()
        return ServerCatalog(tools=tools, resources=resources, prompts=prompts)

    async def call(self, tool: str, arguments: dict[str, Any]) -> RemoteResult:
        """Call a tool; the server is told when whoever waits for it gives up. Raises `ToolError`."""
        params = types.CallToolRequestParams(name=tool, arguments=arguments)
        try:  # not by `call_tool`, which runs the server's own patterns over its results
            result = await self._session.send_request(
                types.CallToolRequest(params=params), types.CallToolResult, self._settings.seconds
            )
        except ValidationError as error:
            raise ToolError("the answer of the server is none that the protocol knows") from error
        except MCPError as error:
            raise ToolError(self._explained(error)) from error
        content = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
        return RemoteResult(content=content, structured=result.structured_content, is_error=bool(result.is_error))

    def _explained(self, error: MCPError) -> str:
        if error.code == types.REQUEST_TIMEOUT:
            return f"no answer within {self._settings.seconds:g} seconds; what it had begun may still take effect"
        is_stream = error.message.startswith("SSE stream")  # of this one answer
        if error.code == types.CONNECTION_CLOSED and not is_stream:
            self.ended.set()
            return "the connection to the server ended during the call; what it had begun may have taken effect"
        what = "the answer of the server could not be read" if is_stream else "the server refused the call"
        return f"{what}: {clean_text(error.message, _MAX_ERROR)}"


class _ToolDispatcher(JSONRPCDispatcher):
    """Dispatcher of the SDK that leaves out of a server's tools what is none: the SDK would refuse all of them."""

    async def send_raw_request(self, method: str, *args: Any, **more: Any) -> dict[str, Any]:
        result = await super().send_raw_request(method, *args, **more)
        if method == "tools/list" and isinstance(tools := result.get("tools"), list):
            result["tools"] = [_mended(tool) for tool in tools if isinstance(tool, dict) and _has_name(tool)]
        return result


def _has_name(tool: dict[str, Any]) -> bool:
    return isinstance(tool.get("name"), str) and 0 < len(tool["name"]) <= MAX_REMOTE_NAME


def _mended(tool: dict[str, Any]) -> dict[str, Any]:
    """Fields that are used of a tool, in the form that the protocol asks for."""
    texts = {key: tool[key] for key in ("name", "title", "description") if isinstance(tool.get(key), str)}
    schema, notes = tool.get("inputSchema"), tool.get("annotations")
    reads = isinstance(notes, dict) and notes.get("readOnlyHint") is True
    schema = {**(schema if isinstance(schema, dict) else {}), "type": "object"}
    return {**texts, "inputSchema": schema, "annotations": {"readOnlyHint": reads}}


def _remote_tool(tool: types.Tool) -> RemoteTool:
    return RemoteTool(
        name=tool.name,
        description=clean_text(tool.description or tool.title, MAX_TOOL_TEXT),
        parameters=clean_schema(tool.input_schema),
        claims_to_read=bool(tool.annotations and tool.annotations.read_only_hint),
    )


def _uri(resource: types.Resource) -> str:
    return clean_text(str(resource.uri), 200)


def _name(prompt: types.Prompt) -> str:
    return clean_text(prompt.name, 64)


async def _pages(
    ask: Callable[..., Awaitable[Any]],
    field: str,
    most: int,
    kept: Callable[[Any], T],  # one for each list
) -> tuple[T, ...]:
    """All of a list, page by page: of each, which may be megabytes, only what is used."""
    found: list[T] = []
    cursor: str | None = None
    for _ in range(most):
        page = await ask(params=types.PaginatedRequestParams(cursor=cursor) if cursor else None)
        for one in getattr(page, field)[: most - len(found)]:
            found.append(kept(one))
            await asyncio.sleep(0)  # a schema can take a tenth of a second
        cursor = page.next_cursor
        if not cursor or len(found) >= most:
            break
    return tuple(found)


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
            dispatcher=_ToolDispatcher(GatedReadStream(reading, gate), GatedWriteStream(writing, gate)),
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
