"""Configured MCP servers. One task per server connects, reconnects after failures, and converts the server's tools.

A server that is down keeps its tools, so that prompts do not change. A call to it fails, and the error says when the
gateway will try to connect again.
"""

import asyncio
import importlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from agent.images.scaling import ImageLimits, ImageScaler
from agent.settings import ServerSettings
from agent.tools.approvals import inline, json_block
from agent.tools.mcp.schemas import MAX_NAME, clean_text, tool_names
from agent.tools.mcp.settings import RemoteResult, RemoteTool, ServerCatalog, ServerState, ServerStatus, reading_tools
from agent.tools.registry import Tool, ToolContext, ToolReply
from hermes_state import attachments
from hermes_state.aio import Backoff, cancel_all, wait_until
from hermes_state.attachments import StoredFile
from hermes_state.errors import HermesError, ToolError
from hermes_state.files.folder import AttachmentFolder
from hermes_state.imports import defer
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.values import ChatId, Clock, Image, Millis

log = structlog.get_logger()

MISSING_SDK: Final = (
    "MCP servers need an SDK that is not installed: run `make mcp` in a clone of the repository, or "
    "`pip install 'hermes-gateway[mcp]'`"
)
RETRIES: Final = Backoff(1.0, 300.0)


def missing_sdk() -> str | None:
    """Return advice on how to install the SDK, or None if it is installed. Does not import the SDK."""
    return None if find_spec("mcp") is not None else MISSING_SDK


class ServerHandle:
    def __init__(
        self, settings: ServerSettings, images: "ImageStore", clock: Clock, redact: Callable[[str], str]
    ) -> None:
        self.settings = settings
        self._images, self._clock, self._redact = images, clock, redact
        self._connection: Any = None  # a `Connection`; its module imports the SDK
        self.status = ServerStatus(name=settings.name, since=clock.now())
        self.tools: Mapping[str, Tool] = {}
        self._hints: dict[str, set[bool]] = {}
        """All values of the read-only hint that the server has sent for each tool."""

    async def run(self, before: Iterable[asyncio.Task[None]] = ()) -> None:
        """Keep the server connected. `before`: earlier tasks for this server, which are ended first."""
        await cancel_all(before)
        failures, loop = 0, asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._serve()
                error = "the server closed the connection"
            except Exception as caught:  # noqa: BLE001 - the SDK's exception groups contain any error of its tasks
                error = self._redact(_reason(caught))
            was_stable = loop.time() - began > 60
            failures = 1 if was_stable else failures + 1
            pause = RETRIES.after(failures) * random.uniform(0.7, 1.0)
            self._move(ServerState.DOWN, error, Millis(self._clock.now() + round(pause * 1000)))
            log.warning("mcp.server_failed", server=self.settings.name, error=error, retry_seconds=round(pause, 1))
            await asyncio.sleep(pause)

    async def _serve(self) -> None:
        """Connect to the server, and return when the connection ends."""
        if (missing := missing_sdk()) is not None:
            raise ToolError(missing)
        sdk, changed = await asyncio.to_thread(_load_sdk), asyncio.Event()
        async with sdk.connected(self.settings, changed) as connection:
            try:
                async for catalog in connection.catalogs(self.status.catalog):
                    self._take(catalog)
                    self._connection = connection  # publish the tools first, because reading the other lists can hang
                self._move(ServerState.CONNECTED, self.status.error)
                log.info("mcp.server_connected", server=self.settings.name, tools=len(self.tools))
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(self._follow(connection, changed))
                    await connection.ended.wait()
                    watch.cancel()
            finally:
                self._connection = None

    async def _follow(self, connection: Any, changed: asyncio.Event) -> None:
        """Read the server's lists again when they change, or 5 minutes after a list could not be read."""
        while True:
            await wait_until(changed, 300.0 if self.status.catalog.faults else None)
            changed.clear()
            try:
                async for catalog in connection.catalogs(self.status.catalog):
                    self._take(catalog)
            except HermesError as error:  # keep the old lists
                log.warning("mcp.list_failed", server=self.settings.name, error=self._redact(_reason(error)))
            else:
                log.info("mcp.list_changed", server=self.settings.name, tools=len(self.tools))
            await asyncio.sleep(1.0)  # a server could announce changes all the time

    def _move(self, state: ServerState, error: str | None, next_try_at: Millis | None = None) -> None:
        since = self.status.since if state is self.status.state else self._clock.now()
        self.status = replace(self.status, state=state, since=since, error=error, next_try_at=next_try_at)

    def _take(self, catalog: ServerCatalog) -> None:
        catalog = replace(catalog, faults=tuple(map(self._redact, catalog.faults)))
        offered: dict[str, RemoteTool] = {}
        for tool in (*reading_tools(catalog), *catalog.tools):  # a server replaces a tool of ours with the same name
            hints = self._hints.setdefault(tool.name, set())
            hints.add(tool.claims_to_read)
            if self.settings.offers(tool.name):
                offered[tool.name] = replace(tool, claims_to_read=hints == {True})
        names = tool_names(self.settings.name, offered)
        self.tools = {names[name]: self._tool(names[name], tool) for name, tool in sorted(offered.items())}
        self.status = replace(self.status, tools=self.tools, catalog=catalog)

    def _tool(self, name: str, remote: RemoteTool) -> Tool:
        server, has_changed = self.settings.name, len(self._hints.get(remote.name, ())) > 1
        shape = f"{name} (its hint has changed)" if has_changed and self.settings.trust_hints else name

        def shown(arguments: Mapping[str, Any]) -> str:
            return f"{inline(remote.name)} of the MCP server {inline(server)}, with:\n{json_block(arguments)}"

        return Tool(
            name=name,
            description=remote.description or f"{clean_text(remote.name, MAX_NAME)} of {server}.",
            parameters=remote.parameters,
            effect=self.settings.effect_of(remote.name, claims_to_read=remote.claims_to_read),
            run=partial(self.call, remote),
            why_unavailable=lambda: None if self._connection is not None else self._why_down(),
            timeout_seconds=self.settings.seconds + 5,
            shape=lambda arguments: shape,
            reach=lambda shape: "with any arguments",
            is_remote=True,
            shown=shown,
            source=server,
        )

    async def call(self, tool: RemoteTool, arguments: dict[str, Any], context: ToolContext) -> str | ToolReply:
        if self._connection is None:
            raise ToolError(self._why_down())
        result = await self._connection.call(tool, arguments)
        if result.is_error:
            raise ToolError(result.text or "the server reports that the call failed")
        return await self._images.output(result, context)

    def _why_down(self) -> str:
        error, next_try_at, waits = self.status.error, self.status.next_try_at, ""
        if next_try_at is not None:
            waits = f"; the gateway tries again in {max(1, (next_try_at - self._clock.now()) // 1000)} s"
        return f"the MCP server {self.settings.name} is not connected{f' ({error})' if error else ''}{waits}"


class ServerRegistry:
    """Configured servers by name. Implements `ToolSource` for their tools."""

    def __init__(self, images: "ImageStore", clock: Clock, redact: Callable[[str], str]) -> None:
        self._images, self._clock, self._redact = images, clock, redact
        self._handles: dict[str, ServerHandle] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def configure(self, wanted: Iterable[ServerSettings], group: asyncio.TaskGroup) -> None:
        """Start new servers, end removed servers and restart changed servers. Does not wait for any of them."""
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
        self._is_closed = True
        self._handles.clear()
        await cancel_all(self._tasks.values())

    @property
    def by_name(self) -> Mapping[str, Tool]:
        return {name: tool for handle in self._handles.values() for name, tool in handle.tools.items()}

    def why_missing(self, name: str) -> str | None:
        """Return the reason why a tool is missing if its server is configured but not connected; otherwise None."""
        server = name.partition("__")[0]
        handle = self._handles.get(server)
        return None if handle is None or handle.status.state is ServerState.CONNECTED else handle._why_down()

    def statuses(self) -> list[ServerStatus]:
        return [handle.status for handle in self._handles.values()]


def _load_sdk() -> Any:  # the module `connection`
    defer("mcp")  # 8 MB of server code, which is not needed here
    defer("mcp.client")
    return importlib.import_module("agent.tools.mcp.connection")


def _reason(error: BaseException) -> str:
    """Return the message of an error, or of the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = str(error) if isinstance(error, HermesError) else f"{type(error).__name__}: {error}"
    return clean_text(words, 300)


# ---- images of results


class ImageStore(msgspec.Struct, frozen=True, kw_only=True):
    """Stores images from tool results in the same place as images that people send."""

    files: AttachmentFolder
    clock: Clock
    scaler: ImageScaler | None = None

    async def output(self, result: RemoteResult, context: ToolContext) -> str | ToolReply:
        text = result.text or "(the result is empty)"
        if not (count := sum(block.get("type") == "image" for block in result.content)):
            return text
        files = await asyncio.to_thread(
            lambda: [self.files.store(data, f"result.{mime.partition('/')[2]}", mime) for mime, data in result.images]
        )
        images = await context.store.write(_insert, context.chat_id, files, self.clock.now())
        scaler = self.scaler or ImageScaler(self.files)
        shown = [image for image in images if context.sees_images and await scaler.load(image.path, ImageLimits())]
        note = f"\n[not shown to you: {counted(count - len(shown), 'image')}]" if len(shown) < count else ""
        return ToolReply(text=text + note, images=tuple(shown))


@locks(chat="chat_id")
def _insert(db: Connection, chat_id: ChatId, files: Sequence[StoredFile], now: Millis) -> tuple[Image, ...]:
    return tuple(
        Image(attachment_id=attachments.insert(db, chat_id, file, now), mime=file.mime or "", path=file.path)
        for file in files
    )
