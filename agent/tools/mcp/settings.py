"""What an MCP server has said of itself: values without the SDK."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hermes_state.values import Millis, ToolEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTool:
    """Tool as its server describes it, in the form that providers take; its name is the server's own."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    claims_to_read: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCatalog:
    """Lists of a server."""

    tools: tuple[RemoteTool, ...] = ()
    resources: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    """Sentences about lists, or parts of lists, that could not be read."""


class ServerState(StrEnum):
    STARTING = "starting"
    CONNECTED = "connected"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """State of a server for people."""

    name: str
    state: ServerState
    since: Millis
    tools: Mapping[str, ToolEffect]
    """Effects of its tools, by the names that the agent calls."""
    catalog: ServerCatalog
    error: str | None
    """Last failure."""
    next_try_at: Millis | None
