"""Settings of the agent's tools and memory. A field with a `Setting` is a key, the others are bounds of the code."""

from dataclasses import dataclass
from typing import Annotated

from hermes_state.settings import Setting


@dataclass(frozen=True, kw_only=True)
class SubagentSettings:
    """Sub-agents, to which the agent hands tasks on by the tool `delegate`."""

    max_parallel: Annotated[int, Setting(ge=1, le=50, unit="sub-agents")] = 3
    """Most that work for one turn at one time; further ones wait. Set 1 for a server that serves one call at a time."""
    max_rounds: int = 20
    """Most rounds of tool calls of one, which then has to report what it has."""
    seconds: float = 600.0
    """Longest time that one may work, begun anew by a restart. The turn's own deadline holds for all of them."""


@dataclass(frozen=True, kw_only=True)
class WorkspaceSettings:
    """The folder of each chat that the file tools reach."""

    max_bytes: Annotated[int, Setting(ge=1 << 20, le=10 << 40, unit="bytes", restart=True)] = 1 << 30
    """Room on disk that one chat's files may take; beyond it tools write nothing more."""
    max_file_bytes: int = 50 << 20
    """Largest file that tools read, write or send, in bytes: no platform takes a larger one from a bot."""


@dataclass(frozen=True, kw_only=True)
class TerminalSettings:
    """Shell commands of the agent, each in a sandbox (`docs/tools.md`)."""

    enabled: Annotated[bool, Setting()] = False
    """Offer the tool `terminal`."""
    network: Annotated[bool, Setting()] = False
    """Let commands use the network, this machine's own services and local network included."""
    seconds: Annotated[float, Setting(ge=1, le=86_400, unit="seconds")] = 120
    """Longest time that a command may take, unless it runs in the background; `model.turn_seconds` holds, too."""
    memory_mb: Annotated[int, Setting(ge=64, le=1_048_576, unit="MB")] = 512
    """Memory of a command: all its processes, shared memory and files in `/tmp` together."""
    unsafe: Annotated[bool, Setting()] = False
    """Run commands without a sandbox, with all rights of the gateway's own user: they can read its keys."""
    max_processes: int = 100
    """Processes and threads of a command: enough for a parallel build, and no fork bomb."""
    output_chars: int = 20_000
    """Longest output that is kept, in characters; of a longer one the beginning and the end, half of it each."""
    max_background: int = 4
    """Background commands of one chat at one time."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Notes that the agent keeps for a chat beyond its conversations: `MEMORY.md` and `USER.md`."""

    enabled: Annotated[bool, Setting()] = True
    """Offer the tool `memory`, and show the notes to the model when a conversation begins."""
    flush: Annotated[bool | None, Setting(default_text="on in direct chats")] = None
    """Before a compression, let a model note what must be known beyond it: one more call, by `auxiliary.flush`. In
    groups with a shared conversation it runs only if set to `true`, because anybody there can influence the notes."""
    memory_size: Annotated[int, Setting(ge=200, le=50_000, unit="characters")] = 2_200
    """Longest `MEMORY.md`, of facts about the work."""
    user_size: Annotated[int, Setting(ge=200, le=50_000, unit="characters")] = 1_400
    """Longest `USER.md`, about the person; in a group the longest part of one person in it."""
