"""Blocks of settings for tools: where each may be used, approvals, schedules and MCP servers."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from agent.settings import ServerSettings
from gateway.config.blocks import BaseConfig, checked_block, fields_of, setting
from hermes_state.kinds import AnyCase, keyed
from hermes_state.values import ChatKey, ToolEffect

ToolSwitch: TypeAlias = Literal["on", "off", "admins"]
PolicyWord: TypeAlias = Literal["ask", "ask_admin", "allow", "deny"]


# YAML reads `on` and `off` as booleans, and a name of digits as a number.
_Switch: TypeAlias = Annotated[
    ToolSwitch, BeforeValidator(lambda word: ("off", "on")[bool(word)] if word in (0, 1) else word)
]
Switches: TypeAlias = Annotated[
    dict[str, _Switch], BeforeValidator(lambda block: {str(name): word for name, word in keyed(block).items()})
]
SwitchesByPlace: TypeAlias = Annotated[dict[str, Switches], BeforeValidator(keyed)]


class ApprovalConfig(BaseConfig):
    """Policy for calls that change something: `ask` the person whose turn it is, `ask_admin`, `allow` or `deny`."""

    writes: Annotated[PolicyWord, AnyCase] = "ask"
    """Calls that write files or change something elsewhere."""
    executes: Annotated[PolicyWord, AnyCase] = "ask_admin"
    """Calls that run programs."""
    mcp: Annotated[PolicyWord | None, AnyCase] = setting(None, default_text="ask_admin")
    """Calls of tools on MCP servers that do more than read. Unless it is set, `allow` and `deny` of the keys above
    apply to them, too."""

    def policy_of(self, effect: ToolEffect, *, is_mcp: bool) -> PolicyWord:
        """The policy for calls with an effect."""
        own = self.executes if effect is ToolEffect.EXECUTES else self.writes
        if not is_mcp:
            return own
        return self.mcp or (own if own in ("allow", "deny") else "ask_admin")


ApprovalByPlace: TypeAlias = Annotated[dict[str, ApprovalConfig], BeforeValidator(keyed)]


class ToolsConfig(BaseConfig):
    """Tools of the agent: where each may be used, when a person is asked, and how much room results have."""

    use: Switches = setting({}, default_text="all on")
    """Switch of a tool by its name: `on`, `off`, or `admins` for turns that an admin has started; `*` stands for those
    that are not named."""
    use_on: SwitchesByPlace = setting({}, default_text="none")
    """The same for one platform (`discord`) or one chat by its name in `/whoami` (`telegram:42`); a chat's wins."""
    approval: ApprovalConfig = Field(default_factory=ApprovalConfig)
    approval_on: ApprovalByPlace = setting({}, default_text="none")
    """The block `approval` for one platform or one chat; a chat's wins."""
    approval_minutes: float = setting(60, ge=1, le=10_080, unit="minutes")
    """Time in which a question can be answered; after it the answer is no."""
    default_result_size: int = setting(100_000, ge=1_000, le=10_000_000, unit="characters")
    """Longest result that the model is shown whole, at most a fifth of its input window. All of a longer one is stored,
    and the model shown its beginning."""
    turn_budget: int = setting(200_000, ge=1_000, le=50_000_000, unit="characters")
    """Room for the results of one round of calls together, at most two fifths of the input window."""

    def switch_of(self, tool: str, chat: ChatKey) -> ToolSwitch:
        """The switch of a tool in a chat."""
        blocks = [self.use_on[place] for place in places_of(chat) if place in self.use_on]
        found = (block[name] for block in (*blocks, self.use) for name in (tool, "*") if name in block)
        return next(found, "on")

    def approval_in(self, chat: ChatKey) -> ApprovalConfig:
        """The approval policy of a chat."""
        return next((self.approval_on[place] for place in places_of(chat) if place in self.approval_on), self.approval)


class ScheduleConfig(BaseConfig):
    """Schedules: messages that come back into a chat at a time (`docs/reference/tools.md`)."""

    missed: Annotated[Literal["once", "skip"], AnyCase] = "once"
    """Times that have passed while the gateway was not running: `once` makes up for all of them by one message, `skip`
    leaves them out. A message for one time comes late in either case."""


def places_of(chat: ChatKey) -> Iterator[str]:
    """Names by which settings mean a chat, the narrowest first.

    >>> list(places_of(ChatKey(platform="telegram", account="telegram", chat_ref="-100", thread_ref="7")))
    ['telegram:-100/7', 'telegram:-100', 'telegram']
    """
    yield chat.name
    if chat.user_ref:
        yield chat.name.removesuffix(f"#{chat.user_ref}")
    if chat.thread_ref:
        yield f"{chat.platform}:{chat.chat_ref}"
    yield chat.platform


def _servers(value: object) -> Mapping[str, ServerSettings]:
    """Return a block of names, each with a block under it; as JSON in a variable."""
    found: dict[str, ServerSettings] = {}
    for name, row in keyed(value).items():
        if not isinstance(name, str) or re.fullmatch(r"(?=.{1,24}$)[a-z0-9]+([_-][a-z0-9]+)*", name) is None:
            raise ValueError(
                f"{name!r} cannot be the name of a server: write at most 24 of the characters a-z 0-9, "
                "with single - or _ between"
            )
        if not isinstance(row, Mapping):
            raise ValueError(f"{name} must be a block with command or url")
        found[name] = checked_block(ServerSettings, row, name, fields_of(ServerSettings), {"name": name})
        if (complaint := found[name].complaint) is not None:
            raise ValueError(f"{name}.{complaint}")
    return found


class McpConfig(BaseConfig):
    """MCP servers, whose tools the agent has beside its own (`docs/reference/tools.md`)."""

    servers: Annotated[dict[str, ServerSettings], BeforeValidator(_servers)] = setting({}, default_text="none")
    """Servers by name, each a block: `command` with `args`, `env` and `cwd`, or `url` with `headers`; `allow` and
    `deny` (names or patterns of tools), `effects` (by tool `reads`, `writes` or `executes`; else `writes`),
    `trust_hints` (take the server's word for tools that only read), `seconds` (longest call, 60), `enabled`."""

    @property
    def enabled_servers(self) -> list[ServerSettings]:
        return [server for server in self.servers.values() if server.enabled]
