"""Settings of the agent, its tools and memory. Fields with a `Setting` are configuration keys. Others are constants."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator

from hermes_state.errors import ToolError
from hermes_state.network import NetworkSettings
from hermes_state.setting_types import (
    AnyCase,
    Hosts,
    Off,
    Secret,
    SecretHeaders,
    TimeZone,
    Url,
    Variables,
    keyed,
    listed,
)
from hermes_state.settings import Setting
from hermes_state.values import ToolEffect


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Persona of the agent, and limits for one turn."""

    persona: Annotated[str | None, Setting(default_text="built in")] = None
    """Persona of the agent. If not set, the gateway uses `SOUL.md`, if that file exists."""
    time_zone: Annotated[TimeZone | None, Setting(default_text="the server's")] = None
    """Time zone of message timestamps and new schedules, such as `Europe/Berlin`."""
    max_tool_rounds: Annotated[int, Setting(ge=1, le=1_000, unit="rounds")] = 50
    """Maximum number of rounds of tool calls in one turn. Raise the limit for long tasks."""


@dataclass(frozen=True, kw_only=True)
class TranscriptionSettings:
    """Transcription of voice messages."""

    model: Annotated[str | None, Setting(default_text="off")] = None
    """Name of a speech-to-text model, such as `whisper-1`. Set a name to enable voice messages."""
    base_url: Annotated[Url | None, Setting(default_text="`model.base_url`")] = None
    """Base URL of the OpenAI-compatible API for audio: transcription and spoken answers."""
    api_key: Annotated[Secret | None, Setting(default_text="`model.api_key`")] = None
    """API key for audio. A server on your own machine usually needs none."""


@dataclass(frozen=True, kw_only=True)
class VoiceSettings:
    """Spoken answers: voice messages that follow the text. They use the server in `transcription`."""

    model: Annotated[str | None, Off, Setting(default_text="off")] = None
    """Name of a text-to-speech model, such as `gpt-4o-mini-tts`. Set a name to enable spoken answers. The default
    voice is `alloy`. To use another voice, add its name after `@`: `gpt-4o-mini-tts@coral`."""
    reply: Annotated[Literal["never", "same", "always"], AnyCase, Setting()] = "same"
    """Answers that are also spoken: none (`never`), all (`always`), or those to spoken messages (`same`).
    `/voice` changes it for one chat."""

    @property
    def mode(self) -> Literal["off", "same", "always"]:
        return "off" if self.reply == "never" else self.reply

    @property
    def names(self) -> tuple[str, str]:
        """Names of the speech model and of its voice."""
        name, _, voice = (self.model or "").partition("@")
        return name, voice or "alloy"


@dataclass(frozen=True, kw_only=True)
class WorkspaceSettings:
    """Each chat's own folder, which the file tools can use."""

    max_bytes: Annotated[int, Setting(ge=1 << 20, le=10 << 40, unit="bytes", restart=True)] = 1 << 30
    """Maximum disk space for the files of one chat."""
    max_file_bytes: int = 50 << 20
    """Maximum size of a file that tools read, write or send, in bytes. No platform accepts larger files from a bot."""


@dataclass(frozen=True, kw_only=True)
class TerminalSettings:
    """Shell commands that the agent runs, each in a sandbox (`docs/reference/tools.md`)."""

    enabled: Annotated[bool, Setting()] = False
    """Let the agent run shell commands with the tool `terminal`."""
    network: Annotated[bool, Setting()] = False
    """Let commands use the network, including services on this machine and in the local network."""
    seconds: Annotated[float, Setting(ge=1, le=86_400, unit="seconds")] = 120
    """Maximum time for a command that does not run in the background. `model.turn_seconds` also applies."""
    memory_mb: Annotated[int, Setting(ge=64, le=1_048_576, unit="MB")] = 512
    """Memory limit of a command, including all its processes, shared memory and files in `/tmp`."""
    unsafe: Annotated[bool, Setting()] = False
    """Run commands without a sandbox, with all rights of the gateway's user. Commands can then read your API keys."""
    max_processes: int = 100
    """Maximum number of processes and threads of a command: enough for a parallel build, too few for a fork bomb."""
    output_chars: int = 20_000
    """Maximum number of output characters to keep: half from the beginning, half from the end."""
    max_background: int = 4
    """Maximum number of background commands that one chat can run at the same time."""


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Long-term memory of a chat: `MEMORY.md` and `USER.md`."""

    enabled: Annotated[bool, Setting()] = True
    """Offer the tool `memory`, and show the notes to the model at the start of a conversation."""
    flush: Annotated[bool | None, Setting(default_text="on in direct chats")] = None
    """Let a model write notes before each compression. `true` includes shared groups, where any member can
    then influence the notes."""
    memory_size: Annotated[int, Setting(ge=200, le=50_000, unit="characters")] = 2_200
    """Maximum length of `MEMORY.md`."""
    user_size: Annotated[int, Setting(ge=200, le=50_000, unit="characters")] = 1_400
    """Maximum length of `USER.md`. In a group, the limit applies to each person's part."""


_Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(listed), Setting()]
_EFFECTS = {"reads": ToolEffect.READ_ONLY, "writes": ToolEffect.WRITES, "executes": ToolEffect.EXECUTES}
_EffectWords: TypeAlias = dict[str, Literal["reads", "writes", "executes"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """MCP server that the gateway starts (`command`) or reaches over HTTP (`url`), and its permitted tools."""

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
    """Effect of each tool (`reads`, `writes` or `executes`), by tool name or pattern. The first match applies."""
    trust_hints: Annotated[bool, Setting()] = False
    seconds: Annotated[float, Setting(ge=1, le=3_600, unit="seconds")] = 60
    enabled: Annotated[bool, Setting()] = True
    network: NetworkSettings = field(default_factory=NetworkSettings, repr=False)

    @property
    def complaint(self) -> str | None:
        """Error message about keys that cannot be combined, or None if the keys are valid."""
        if (self.command is None) == (self.url is None):
            return "command: set either command (a program to start) or url (an address)"
        other, wrong = ("url", ("headers",)) if self.url is None else ("command", ("args", "env", "cwd"))
        given = next((key for key in wrong if getattr(self, key)), None)
        return f"{given}: works only with {other}; set {other}, or remove {given}" if given is not None else None

    def offers(self, tool: str) -> bool:
        """Return True if the agent may use this tool."""
        allowed, denied = (any(fnmatchcase(tool, one) for one in names) for names in (self.allow, self.deny))
        return allowed and not denied

    def effect_of(self, tool: str, *, claims_to_read: bool) -> ToolEffect:
        """Return the effect of a tool: the configured one, or the server's own hint if `trust_hints` is on."""
        for pattern, word in self.effects.items():
            if fnmatchcase(tool, pattern):
                return _EFFECTS[word]
        return ToolEffect.READ_ONLY if self.trust_hints and claims_to_read else ToolEffect.WRITES


@dataclass(frozen=True, kw_only=True)
class WebSettings:
    """Web pages and web search (`docs/reference/tools.md`)."""

    enabled: Annotated[bool, Setting()] = True
    """Offer `web_fetch`, and `web_search` if a search service is configured."""
    allow_hosts: Annotated[Hosts, Setting(default_text="all")] = ()
    """Hosts whose pages the agent can read, including subdomains."""
    deny_hosts: Annotated[Hosts, Setting(default_text="none")] = ()
    """Hosts whose pages the agent must not read, including subdomains."""
    private_hosts: Annotated[Hosts, Setting(default_text="none")] = ()
    """Hosts in your own network whose pages the agent can read, written exactly as in the URL. All other private
    addresses are blocked."""
    search: Annotated[Literal["searxng", "brave", "tavily"] | None, Off, AnyCase, Setting(default_text="off")] = None
    """Search service for `web_search`."""
    search_url: Annotated[Url | None, Setting(default_text="the service's own URL")] = None
    """Base URL of the search service. SearXNG requires it, for example `http://127.0.0.1:8080`."""
    search_key: Annotated[Secret | None, Setting()] = None
    """API key of the search service. Brave and Tavily require one."""

    def check(self, host: str) -> None:
        """Raise `ToolError` if the settings forbid this host."""
        allowed, denied = (
            any(host == name or host.endswith(f".{name}") for name in names)
            for names in (self.allow_hosts, self.deny_hosts)
        )
        if denied or (self.allow_hosts and not allowed):
            raise ToolError(f"the operator does not allow {host} (web.allow_hosts, web.deny_hosts)")
