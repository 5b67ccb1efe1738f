"""The gateway's built-in tools, as an agent with the default configuration offers them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from agent.images.scaling import ImageScaler
from agent.tools.files.send_file import FileDelivery
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ImageStore, ServerRegistry
from agent.tools.offers import OpenAccess
from agent.tools.terminal.terminal_tool import BackgroundCommand, BackgroundRegistry
from agent.turn import Agent
from gateway.access.permissions import AccessControl
from gateway.config import LiveConfig, LoadedConfig, load_config
from gateway.config.context_settings import NoticeConfig
from gateway.daemon.agent import AgentMaker
from gateway.daemon.tools import BuiltInTools
from gateway.models.pricing import SpendingControl
from gateway.outbound.notices import NoticeWriter
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.files.folder import AttachmentFolder
from hermes_state.store.writer import Store
from hermes_state.values import SystemClock


@asynccontextmanager
async def agent_with_all_tools(folder: Path) -> AsyncIterator[Agent]:
    """Yield an agent built like the gateway's, with terminal and search. Its files are below `folder`."""
    store = await SqliteStore.open(folder / "tools.db", synchronous="NORMAL")
    agent = make_full_agent(configured_in(folder), store)
    try:
        yield agent
    finally:
        await agent.close()
        await store.close()


def configured_in(folder: Path) -> LoadedConfig:
    """Return the default configuration plus a terminal and a search service. All files are below `folder`."""
    more = {"HERMES_TERMINAL__ENABLED": "true", "HERMES_WEB__SEARCH": "brave", "HERMES_WEB__SEARCH_KEY": "key"}
    return load_config({"HOME": str(folder), "HERMES_HOME": str(folder), **more})


def make_full_agent(loaded: LoadedConfig, store: Store) -> Agent:
    """Return an agent with all built-in tools."""
    clock, files, live = SystemClock(), AttachmentFolder(loaded.attachments), LiveConfig(loaded)
    scaler = ImageScaler(files)
    tools = BuiltInTools(
        live=live,
        access=AccessControl(store, live),
        workspaces_of=cache(lambda agent: WorkspaceStore(loaded.workspaces, loaded.config.workspace)),
        background=BackgroundRegistry(_ignore),
        servers=ServerRegistry(ImageStore(files=files, clock=clock, scaler=scaler), clock, live.redactor()),
        sending=FileDelivery(files=files, max_bytes=lambda _: 0, deliver=lambda _: None, clock=clock),
        scaler=scaler,
        reschedule=lambda: None,
    )
    maker = AgentMaker(
        store=store,
        clock=clock,
        scaler=scaler,
        spending=SpendingControl(store, clock),
        access_of=lambda _: OpenAccess(),
        tools=tools.make,
        notices=NoticeWriter(store=store, settings=NoticeConfig, deliver=lambda _: None, clock=clock),
    )
    return maker.make(loaded)[0]


async def _ignore(ended: BackgroundCommand) -> None:
    """Ignore notifications."""
