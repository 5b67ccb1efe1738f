"""The built-in tools of the gateway, as an agent of a default configuration offers them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent.context.pending import CompressionRegistry
from agent.images.scaling import ImageScaler
from agent.settings import TerminalSettings
from agent.tools.files.image_reader import ImageReader
from agent.tools.files.send_file import FileDelivery
from agent.tools.offers import OpenAccess
from agent.tools.schedules.schedule_tool import schedule_tool
from agent.tools.terminal.terminal_tool import BackgroundCommand, BackgroundRegistry, terminal_tool
from agent.turn import Agent
from gateway.assembly import make_agent, make_workspaces, workspace_tools
from gateway.config import LoadedConfig, load_config
from gateway.schedules.runner import schedule_zone
from gateway.turns.web import web_tools
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.transcripts import View
from hermes_state.values import ConversationRef, SystemClock


@asynccontextmanager
async def agent_with_all_tools(folder: Path) -> AsyncIterator[Agent]:
    """An agent as the daemon makes it, its files below `folder`, terminal and search on; nobody is told anything."""
    store = await SqliteStore.open(folder / "tools.db", synchronous="NORMAL")
    agent = make_full_agent(configured_in(folder), store)
    try:
        yield agent
    finally:
        await agent.close()
        await store.close()


def configured_in(folder: Path) -> LoadedConfig:
    """The default configuration with a search service, its files below `folder`."""
    search = {"HERMES_WEB__SEARCH": "brave", "HERMES_WEB__SEARCH_KEY": "key"}
    return load_config({"HOME": str(folder), "HERMES_HOME": str(folder), **search})


def make_full_agent(loaded: LoadedConfig, store: Store) -> Agent:
    """An agent with all built-in tools."""
    clock, kept, workspaces = SystemClock(), AttachmentFolder(loaded.attachments), make_workspaces(loaded)
    files = FileDelivery(files=kept, max_bytes=lambda _: 0, deliver=lambda _: None, clock=clock)
    images = ImageReader(files=kept, max_bytes=0, scaler=ImageScaler(kept), clock=clock)
    terminal = terminal_tool(lambda: TerminalSettings(enabled=True), workspaces.folder_of, BackgroundRegistry(_ignore))
    schedule = schedule_tool(lambda: schedule_zone(loaded.config), lambda _: True, lambda: None, clock)
    return make_agent(
        loaded,
        store=store,
        pending=CompressionRegistry(),
        extra_tools=(
            *workspace_tools(workspaces, files, images),
            terminal,
            *web_tools(lambda: loaded),
            schedule,
        ),
        tool_access=OpenAccess(),
        listeners=(),
        on_wait=_wait_for_nothing,
        clock=clock,
    )


async def _ignore(ended: BackgroundCommand) -> None:
    """Nobody is told."""


async def _wait_for_nothing(conversation: ConversationRef, view: View) -> None:
    """Nobody is told."""
