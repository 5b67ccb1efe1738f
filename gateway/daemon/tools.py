"""Tools that need parts of the daemon: files, terminal, web, schedules and MCP servers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agent.documents.reading import DocumentReader
from agent.images.scaling import ImageScaler
from agent.settings import WebSettings
from agent.tools.files.file_tools import ImageReader, file_tools
from agent.tools.files.search_files import search_tool as search_files_tool
from agent.tools.files.send_file import FileDelivery, send_file_tool
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ServerRegistry
from agent.tools.registry import Tool, ToolContext
from agent.tools.schedules.schedule_tool import schedule_tool
from agent.tools.terminal.sandbox import probe_sandbox
from agent.tools.terminal.terminal_tool import TERMINAL, BackgroundRegistry, terminal_tool
from agent.tools.web.fetching import FetchSettings, fetch_tool
from agent.tools.web.search_tool import SearchService, brave, search_tool, searxng, tavily
from gateway.access.permissions import AccessControl
from gateway.config import LiveConfig, LoadedConfig
from gateway.schedules import schedule_zone

_WEB_OFF = "web.enabled is false"


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class BuiltInTools:
    """Builds the built-in tools. Owns the background commands and MCP servers, which continue after a tool call."""

    live: LiveConfig
    access: AccessControl
    workspaces_of: Callable[[str], WorkspaceStore]
    """Returns the workspaces of an agent. All calls for one agent return the same object."""
    background: BackgroundRegistry
    servers: ServerRegistry
    sending: FileDelivery
    scaler: ImageScaler
    documents: DocumentReader = field(default_factory=DocumentReader)
    reschedule: Callable[[], None]

    def make(self, loaded: LoadedConfig, agent: str = "") -> tuple[Tool, ...]:
        """Return new tools of an agent. They read the current configuration on each call, except for the image size."""
        live, workspaces, files, clock = self.live, self.workspaces_of(agent), self.sending.files, self.sending.clock
        max_bytes = loaded.config.attachments.max_bytes
        images = ImageReader(
            files=files, max_bytes=max_bytes, scaler=self.scaler, clock=clock, documents=self.documents
        )
        return (
            *file_tools(workspaces, images),
            search_files_tool(workspaces),
            send_file_tool(workspaces, self.sending),
            terminal_tool(lambda: live.config.terminal, workspaces.folder_of, self.background),
            *web_tools(live),
            schedule_tool(lambda: schedule_zone(live.config), self.access.may_moderate, self.reschedule, clock),
        )

    async def reload(self, tools: Mapping[str, Tool], group: asyncio.TaskGroup) -> None:
        """Apply the current configuration to background commands and MCP servers."""
        probe_sandbox.cache_clear()

        def has_no_terminal(context: ToolContext) -> bool:
            place = context.chat, context.chat_kind, context.started_by
            refusal = self.access.refusal(tools[TERMINAL], *place, context.agent)
            return refusal is not None or not self.live.config.terminal.enabled

        await self.background.stop("the terminal was disabled", has_no_terminal)
        self.connect(group)

    def connect(self, group: asyncio.TaskGroup) -> None:
        """Start the configured MCP servers and stop servers that are no longer configured."""
        network = self.live.config.network
        servers = [replace(server, network=network) for server in self.live.config.mcp.enabled_servers]
        self.servers.configure(servers, group)


def web_tools(live: LiveConfig) -> tuple[Tool, ...]:
    """Return the web tools, which read the current configuration on each call."""

    def holds_secret(text: str) -> bool:
        return live.redactor().would_leak(text)

    def fault() -> str | None:
        return None if live.config.web.enabled else _WEB_OFF

    return (
        fetch_tool(lambda: FetchSettings(hosts=live.config.web, network=live.config.network), holds_secret, fault),
        search_tool(lambda: search_service(live.config.web), holds_secret, lambda: live.config.network),
    )


def search_service(config: WebSettings) -> SearchService | str:
    """Return the configured search service, or the reason why none is available."""
    key, url = config.search_key.get_secret_value() if config.search_key is not None else "", config.search_url
    if not config.enabled:
        return _WEB_OFF
    if config.search is None:
        return "no search service is configured; set web.search"
    if config.search == "searxng":
        return searxng(url, key) if url else "web.search is searxng, but web.search_url is not set"
    if not key:
        return f"web.search is {config.search}, but web.search_key is not set"
    service = brave if config.search == "brave" else tavily
    return service(key, url) if url else service(key)
