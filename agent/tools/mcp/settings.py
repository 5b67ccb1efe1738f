"""Values about one MCP server, without the SDK: its settings, its lists and its state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from hermes_state.values import Millis, ToolEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Server to start (`command`) or to reach over HTTP (`url`), and which of its tools may be used."""

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    effects: Mapping[str, ToolEffect] = field(default_factory=dict)
    """Effect of tools by name or pattern; the first that fits holds."""
    trusts_hints: bool = False
    seconds: float = 60.0

    def offers(self, tool: str) -> bool:
        """Return True for a tool that the agent may know of."""
        is_allowed, is_denied = (any(fnmatchcase(tool, one) for one in some) for some in (self.allow, self.deny))
        return is_allowed and not is_denied

    def effect_of(self, tool: "RemoteTool") -> ToolEffect:
        """Return the effect of a tool as the operator says, or as the server does if it is trusted."""
        for pattern, effect in self.effects.items():
            if fnmatchcase(tool.name, pattern):
                return effect
        return ToolEffect.READ_ONLY if self.trusts_hints and tool.claims_to_read else ToolEffect.WRITES


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTool:
    """Tool as its server describes it, in the form that providers take; its name is the server's own."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    claims_to_read: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCatalog:
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
    name: str
    state: ServerState = ServerState.STARTING
    since: Millis
    tools: Mapping[str, ToolEffect] = field(default_factory=dict)
    """Effects of its tools, by the names that the agent calls."""
    catalog: ServerCatalog = ServerCatalog()
    error: str | None = None
    next_try_at: Millis | None = None
