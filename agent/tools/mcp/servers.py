"""MCP servers in use: each is connected by a task of its own, connected again when it fails, and brings its tools.

A server that is down keeps its tools: prompts that list them go on saying the same, and a call is told when the next
try is made.
"""

import asyncio
import importlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import structlog

from agent.settings import ServerSettings
from agent.tools.approvals import inline, json_block
from agent.tools.mcp.results import ImageStore
from agent.tools.mcp.schemas import MAX_NAME, clean_text, tool_names
from agent.tools.mcp.settings import RemoteTool, ServerCatalog, ServerState, ServerStatus
from agent.tools.registry import Tool, ToolContext, ToolOutput
from hermes_state.aio import Backoff, cancel_all, wait_until
from hermes_state.errors import HermesError, ToolError
from hermes_state.imports import defer
from hermes_state.values import Clock, Millis

log = structlog.get_logger()

MISSING_SDK: Final = (
    "MCP servers need an SDK that is not installed: run `make mcp` in a clone, or `pip install 'hermes-gateway[mcp]'` "
    "where the gateway is installed as a package"
)
RETRIES: Final = Backoff(1.0, 300.0)
STABLE_SECONDS: Final = 60.0
"""Seconds after which a connection counts as a good one: its end is followed by a short pause again."""
RELIST_FAILED_SECONDS: Final = 300.0
"""Seconds after which a list that could not be read is asked for again."""
_RELIST_SECONDS = 1.0
"""Least time between two looks at a server's lists, in seconds."""


def missing_sdk() -> str | None:
    """Advice how to install the SDK; None where it is there. Imports nothing."""
    return None if find_spec("mcp") is not None else MISSING_SDK


class ServerHandle:
    """One server: its connection, its tools, its state."""

    def __init__(
        self, settings: ServerSettings, images: ImageStore, clock: Clock, redact: Callable[[str], str]
    ) -> None:
        self.settings = settings
        self._images, self._clock, self._redact = images, clock, redact
        self._connection: Any = None  # `Connection`, whose module brings the SDK
        self._catalog = ServerCatalog()
        self.tools: Mapping[str, Tool] = {}
        self._hints: dict[str, set[bool]] = {}
        """Read-only hints that the server has given for each tool so far."""
        self._state, self._since = ServerState.STARTING, clock.now()
        self._error: str | None = None
        self._next_try_at: Millis | None = None

    async def run(self, before: Iterable[asyncio.Task[None]] = ()) -> None:
        """Keep the server connected. `before`: tasks of the same server that have to end first."""
        await cancel_all(before)
        failures, loop = 0, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._serve()
                error = "it has ended the connection"
            except Exception as caught:  # noqa: BLE001 - the SDK's groups hold whatever went wrong in its tasks
                error = self._redact(_reason(caught))
            failures = 1 if loop.time() - began > STABLE_SECONDS else failures + 1
            pause = RETRIES.after(failures) * random.uniform(0.7, 1.0)
            self._move(ServerState.DOWN, error, Millis(self._clock.now() + round(pause * 1000)))
            log.warning("mcp.server_failed", server=self.settings.name, error=error, retry_seconds=round(pause, 1))
            await asyncio.sleep(pause)

    async def _serve(self) -> None:
        """Connect, and stay so until the connection ends."""
        if (missing := missing_sdk()) is not None:
            raise ToolError(missing)
        sdk, changed = await asyncio.to_thread(_load_sdk), asyncio.Event()
        async with sdk.connected(self.settings, changed) as connection:
            try:
                async for catalog in connection.catalogs():
                    self._take(catalog)
                    self._connection = connection  # tools come before what may hang
                self._move(ServerState.CONNECTED, self._error)
                log.info("mcp.server_connected", server=self.settings.name, tools=len(self.tools))
                watch = asyncio.create_task(self._follow(connection, changed))
                try:
                    await connection.ended.wait()
                finally:
                    await cancel_all([watch])
            finally:
                self._connection = None

    async def _follow(self, connection: Any, changed: asyncio.Event) -> None:
        """Look at the server's lists again whenever it says that they have changed."""
        while True:
            await wait_until(changed, RELIST_FAILED_SECONDS if self._catalog.faults else None)
            changed.clear()
            try:
                async for catalog in connection.catalogs():
                    self._take(catalog)
            except Exception as error:  # noqa: BLE001 - lists as they were, and a connection that works, are better than none
                log.warning("mcp.list_failed", server=self.settings.name, error=self._redact(_reason(error)))
            else:
                log.info("mcp.list_changed", server=self.settings.name, tools=len(self.tools))
            await asyncio.sleep(_RELIST_SECONDS)

    def _move(self, state: ServerState, error: str | None, next_try_at: Millis | None = None) -> None:
        if state is not self._state:
            self._state, self._since = state, self._clock.now()
        self._error, self._next_try_at = error, next_try_at

    def _take(self, catalog: ServerCatalog) -> None:
        tools = catalog.tools
        if any(fault.startswith("tools/") for fault in catalog.faults):  # keep those known before
            tools = tuple({tool.name: tool for tool in (*self._catalog.tools, *tools)}.values())
            catalog = replace(catalog, tools=tools)
        offered = {}
        for tool in tools:
            hints = self._hints.setdefault(tool.name, set())
            hints.add(tool.claims_to_read)
            if self.settings.offers(tool.name):
                offered[tool.name] = replace(tool, claims_to_read=hints == {True})
        names = tool_names(self.settings.name, offered)
        self.tools = {names[name]: self._tool(names[name], tool) for name, tool in sorted(offered.items())}
        self._catalog = catalog

    def _tool(self, name: str, remote: RemoteTool) -> Tool:
        server, has_changed = self.settings.name, len(self._hints.get(remote.name, ())) > 1
        shape = f"{name} (its hint has changed)" if has_changed and self.settings.trust_hints else name

        def shown(arguments: Mapping[str, Any]) -> str:
            return f"{inline(remote.name)} of the MCP server {inline(server)}, with\n{json_block(arguments)}"

        return Tool(
            name=name,
            description=remote.description or f"{clean_text(remote.name, MAX_NAME)} of {server}.",
            parameters=remote.parameters,
            effect=self.settings.effect_of(remote.name, claims_to_read=remote.claims_to_read),
            run=partial(self.call, remote.name),
            why_unavailable=lambda: None if self._connection is not None else self._why_down(),
            timeout_seconds=self.settings.seconds + 5,
            shape=lambda arguments: shape,
            reach=lambda shape: "with any arguments",
            is_remote=True,
            shown=shown,
            source=server,
        )

    async def call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> str | ToolOutput:
        """Call a tool of the server. Raises `ToolError`."""
        if self._connection is None:
            raise ToolError(self._why_down())
        result = await self._connection.call(tool, arguments)
        if result.is_error:
            raise ToolError(result.text or "the server says that the call has failed")
        return await self._images.output(result, context)

    def _why_down(self) -> str:
        waits = ""
        if self._next_try_at is not None:
            waits = f"; the next try is made in {max(1, (self._next_try_at - self._clock.now()) // 1000)} s"
        return (
            f"the MCP server {self.settings.name} is not connected{f' ({self._error})' if self._error else ''}{waits}"
        )

    @property
    def status(self) -> ServerStatus:
        return ServerStatus(
            name=self.settings.name,
            state=self._state,
            since=self._since,
            tools={name: tool.effect for name, tool in self.tools.items()},
            catalog=replace(self._catalog, faults=tuple(map(self._redact, self._catalog.faults))),
            error=self._error,
            next_try_at=self._next_try_at,
        )


class ServerRegistry:
    """The configured servers by name, and their tools: a source of tools that comes and goes."""

    def __init__(self, images: ImageStore, clock: Clock, redact: Callable[[str], str]) -> None:
        self._images, self._clock, self._redact = images, clock, redact
        self._handles: dict[str, ServerHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def configure(self, wanted: Iterable[ServerSettings], group: asyncio.TaskGroup) -> None:
        """Start servers that are new, end those that are gone, both for those that have changed. Waits for nothing."""
        by_name = {} if self._is_closed else {settings.name: settings for settings in wanted}
        for name, handle in list(self._handles.items()):
            if by_name.get(name) != handle.settings:
                del self._handles[name]
                self._tasks[name].cancel()
        for name, settings in by_name.items():
            if name not in self._handles:
                handle = self._handles[name] = ServerHandle(settings, self._images, self._clock, self._redact)
                before = [self._tasks[name]] if name in self._tasks else []
                self._tasks[name] = group.create_task(handle.run(before), name=f"mcp {name}")

    async def close(self) -> None:
        """End all servers, for good."""
        self._is_closed = True
        self._handles.clear()
        await cancel_all(self._tasks.values())

    @property
    def by_name(self) -> Mapping[str, Tool]:
        """The tools of all servers that have ever been connected."""
        return {name: tool for handle in self._handles.values() for name, tool in handle.tools.items()}

    def why_missing(self, name: str) -> str | None:
        """Reason why a tool is not there that may be one of a server which is not connected yet."""
        server = name.partition("__")[0]
        handle = self._handles.get(server)
        return None if handle is None or handle.status.state is ServerState.CONNECTED else handle._why_down()

    def statuses(self) -> list[ServerStatus]:
        return [handle.status for handle in self._handles.values()]


def _load_sdk() -> Any:  # its types are where it is imported
    defer("mcp")  # 8 MB of servers, which nobody asks for here
    defer("mcp.client")
    return importlib.import_module("agent.tools.mcp.connection")


def _reason(error: BaseException) -> str:
    """Message of a group of errors: the first of them that says something."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = str(error) if isinstance(error, HermesError) else f"{type(error).__name__}: {error}"
    return clean_text(words, 300)
