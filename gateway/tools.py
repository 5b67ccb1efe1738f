"""Tools that need a part of the daemon: files, the terminal, the web, schedules, MCP servers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from agent.images.scaling import ImageScaler
from agent.tools.files.file_tools import ImageReader
from agent.tools.files.send_file import FileDelivery
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ImageStore, ServerRegistry
from agent.tools.registry import Tool, ToolContext
from agent.tools.schedules.schedule_tool import schedule_tool
from agent.tools.terminal.sandbox import probe_sandbox
from agent.tools.terminal.terminal_tool import TERMINAL, BackgroundRegistry, terminal_tool
from gateway.access.permissions import AccessControl
from gateway.access.tools import ToolAccessControl, find_admin_chats
from gateway.assembly import make_workspaces, workspace_tools
from gateway.config import LoadedConfig
from gateway.outbound.adapters import AdapterRegistry
from gateway.schedules.runner import schedule_zone
from gateway.timers import Timer
from gateway.turns.servers import server_settings
from gateway.turns.terminal import tell_background_end
from gateway.turns.web import web_tools
from hermes_state.admin.pairings import UserRole
from hermes_state.files.folder import AttachmentFolder
from hermes_state.redaction import Redactor
from hermes_state.store.writer import Store
from hermes_state.values import ChatId, Clock, UserRef


@dataclass(kw_only=True, slots=True)
class ToolBuilder:
    """Builder of those tools, and owner of what outlives their calls: background commands, servers.

    They are built anew when an agent is; `loaded` is the configuration in force.
    """

    loaded: Callable[[], LoadedConfig]
    access: Callable[[], AccessControl]
    store: Store
    adapters: AdapterRegistry
    files: AttachmentFolder
    scaler: ImageScaler
    deliver: Callable[[ChatId], None]
    clock: Clock
    rescheduled: Timer
    """Woken when a tool has changed schedules."""
    workspaces: WorkspaceStore = field(init=False)
    background: BackgroundRegistry = field(init=False)
    servers: ServerRegistry = field(init=False)
    permissions: ToolAccessControl = field(init=False)

    def __post_init__(self) -> None:
        self.workspaces = make_workspaces(self.loaded())
        self.background = BackgroundRegistry(partial(tell_background_end, self.store, self.clock, self.deliver))
        images = ImageStore(files=self.files, clock=self.clock, scaler=self.scaler)
        self.servers = ServerRegistry(images, self.clock, lambda text: Redactor(self.loaded().secrets())(text))
        self.permissions = ToolAccessControl(
            settings=lambda: self.loaded().config.tools,
            is_admin=self.is_admin,
            load_admin_chats=lambda db: find_admin_chats(self.loaded().config, db),
        )

    def is_admin(self, person: UserRef) -> bool:
        """True for an admin, as the access settings in force have it."""
        return self.access().role_of(person) is UserRole.ADMIN

    def build(self, loaded: LoadedConfig) -> tuple[Tool, ...]:
        """The tools of a configuration."""
        files = FileDelivery(
            files=self.files, max_bytes=self.adapters.max_file_bytes, deliver=self.deliver, clock=self.clock
        )
        images = ImageReader(
            files=self.files,
            max_bytes=loaded.config.attachments.max_bytes,
            scaler=self.scaler,
            clock=self.clock,
        )
        terminal = terminal_tool(lambda: self.loaded().config.terminal, self.workspaces.folder_of, self.background)
        schedule = schedule_tool(
            lambda: schedule_zone(self.loaded().config),
            lambda person: self.access().may_moderate(person),
            self.rescheduled.wake,
            self.clock,
        )
        return (*workspace_tools(self.workspaces, files, images), terminal, *web_tools(self.loaded), schedule)

    async def reload(self, tools: Mapping[str, Tool], group: asyncio.TaskGroup) -> None:
        """Bring what outlives calls in line with the configuration in force."""
        probe_sandbox.cache_clear()
        reason, has_none = "the terminal having been switched off", partial(self._has_no_terminal, tools[TERMINAL])
        await self.background.stop(reason, has_none)
        self.connect(group)

    async def end_revoked(self) -> None:
        """End the background commands of people who have no access any more."""
        access = self.access()
        await self.background.stop("access having been revoked", lambda it: not access.has_access(it.started_by))

    def connect(self, group: asyncio.TaskGroup) -> None:
        """Start the servers that are configured, and end those that are not any more."""
        self.servers.configure(server_settings(self.loaded().config.mcp), group)

    def _has_no_terminal(self, terminal: Tool, context: ToolContext) -> bool:
        """True for a turn that could not start a command now."""
        refusal = self.permissions.refusal(terminal, context.chat, context.chat_kind, context.started_by)
        return refusal is not None or not self.loaded().config.terminal.enabled
