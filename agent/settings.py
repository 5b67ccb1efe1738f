"""Settings of the agent, its tools and memory. A field with a `Setting` is a key, the others are bounds of the code."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator

from hermes_state.errors import ToolError
from hermes_state.kinds import AnyCase, Hosts, Off, Secret, SecretHeaders, TimeZone, Url, Variables, keyed, listed
from hermes_state.settings import Setting
from hermes_state.values import ToolEffect


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The agent's persona, and how far it goes in one turn."""

    persona: Annotated[str | None, Setting(default_text="built in")] = None
    """Persona of the agent, in the words that open its system prompt; not set: those of `SOUL.md`, if there is one."""
    time_zone: Annotated[TimeZone | None, Setting(default_text="the server's")] = None
    """Time zone for times in chats, message timestamps and new schedules, such as `Europe/Berlin`."""
    max_tool_rounds: Annotated[int, Setting(ge=1, le=1_000, unit="rounds")] = 50
    """After so many rounds of tool calls the turn has to answer with what it has."""


@dataclass(frozen=True, kw_only=True)
class TranscriptionSettings:
    """Turning voice messages into words."""

    model: Annotated[str | None, Setting(default_text="off")] = None
    """Name of a speech-to-text model, such as `whisper-1`; set: recordings are heard."""
    base_url: Annotated[Url | None, Setting(default_text="`model.base_url`")] = None
    """Root of the OpenAI-compatible API that has it."""
    api_key: Annotated[Secret | None, Setting(default_text="`model.api_key`")] = None
    """Key for that API."""


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
    """Shell commands of the agent, each in a sandbox (`docs/reference/tools.md`)."""

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


_Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(listed), Setting()]
_EFFECTS = {"reads": ToolEffect.READ_ONLY, "writes": ToolEffect.WRITES, "executes": ToolEffect.EXECUTES}
_EffectWords: TypeAlias = dict[str, Literal["reads", "writes", "executes"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Server that is started (`command`) or reached over HTTP (`url`), and what of it may be used."""

    name: str
    command: Annotated[str | None, Setting()] = None
    args: Annotated[tuple[str, ...], Setting()] = ()
    env: Annotated[Variables, Setting()] = field(default_factory=dict, repr=False)
    cwd: Annotated[str | None, Setting()] = None
    url: Annotated[Url | None, Setting()] = None
    headers: Annotated[SecretHeaders, Setting()] = field(default_factory=dict, repr=False)
    allow: _Patterns = ("*",)
    deny: _Patterns = ()
    effects: Annotated[_EffectWords, BeforeValidator(keyed), Setting()] = field(default_factory=dict)
    """Effect of tools by name or pattern; the first that fits holds."""
    trust_hints: Annotated[bool, Setting()] = False
    seconds: Annotated[float, Setting(ge=1, le=3_600, unit="seconds")] = 60
    enabled: Annotated[bool, Setting()] = True

    @property
    def complaint(self) -> str | None:
        """Fault of the keys together."""
        if (self.command is None) == (self.url is None):
            return "command: name either the program to start (command) or an address (url)"
        other, wrong = ("url", ("headers",)) if self.url is None else ("command", ("args", "env", "cwd"))
        given = next((key for key in wrong if getattr(self, key)), None)
        return f"{given}: belongs to a server with {other}" if given is not None else None

    def offers(self, tool: str) -> bool:
        """Return True for a tool that the agent may know of."""
        allowed, denied = (any(fnmatchcase(tool, one) for one in names) for names in (self.allow, self.deny))
        return allowed and not denied

    def effect_of(self, tool: str, *, claims_to_read: bool) -> ToolEffect:
        """Return a tool's effect: by the operator, and by the server's own word only where that is trusted."""
        for pattern, word in self.effects.items():
            if fnmatchcase(tool, pattern):
                return _EFFECTS[word]
        return ToolEffect.READ_ONLY if self.trust_hints and claims_to_read else ToolEffect.WRITES


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """Pages that the agent reads, and searches of the web (`docs/reference/tools.md`)."""

    enabled: Annotated[bool, Setting()] = True
    """Offer `web_fetch`, and `web_search` where there is a service for it."""
    allow_hosts: Annotated[Hosts, Setting(default_text="all")] = ()
    """The only hosts whose pages may be read; each stands for what is below it, too."""
    deny_hosts: Annotated[Hosts, Setting(default_text="none")] = ()
    """Hosts whose pages are not read, and what is below them."""
    private_hosts: Annotated[Hosts, Setting(default_text="none")] = ()
    """Hosts that may have a private address, by exactly the name or number in the address; no others may."""
    search: Annotated[Literal["searxng", "brave", "tavily"] | None, Off, AnyCase, Setting(default_text="off")] = None
    """Service that `web_search` asks."""
    search_url: Annotated[Url | None, Setting(default_text="the service's own")] = None
    """Root of that service; SearXNG needs it, as in `http://127.0.0.1:8080`."""
    search_key: Annotated[Secret | None, Setting()] = None
    """Key for that service; Brave and Tavily need one."""

    def check(self, host: str) -> None:
        """Raise `ToolError` for a host that must not be asked."""
        allowed, denied = (
            any(host == name or host.endswith(f".{name}") for name in names)
            for names in (self.allow_hosts, self.deny_hosts)
        )
        if denied or (self.allow_hosts and not allowed):
            raise ToolError(f"the operator does not allow {host} (web.allow_hosts, web.deny_hosts)")
