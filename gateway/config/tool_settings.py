"""Settings for tools: availability, approvals, schedules and MCP servers."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from agent.settings import ServerSettings
from gateway.config.blocks import BaseConfig, checked_block, did_you_mean, fields_of, setting
from hermes_state.setting_types import AnyCase, keyed
from hermes_state.values import ChatKey, ToolEffect

ToolSwitch: TypeAlias = Literal["on", "off", "admins"]
PolicyWord: TypeAlias = Literal["ask", "ask_admin", "allow", "deny"]


# YAML reads `on` and `off` as booleans, and a name made of digits as a number.
_Switch: TypeAlias = Annotated[
    ToolSwitch, BeforeValidator(lambda word: ("off", "on")[bool(word)] if word in (0, 1) else word)
]
Switches: TypeAlias = Annotated[
    dict[str, _Switch], BeforeValidator(lambda block: {str(name): word for name, word in keyed(block).items()})
]
SwitchesByPlace: TypeAlias = Annotated[dict[str, Switches], BeforeValidator(keyed)]


BUILT_IN_TOOLS = (
    "context delegate edit_file history_open history_search list_files memory read_file schedule search_files "
    "send_file skill terminal todo web_fetch web_search write_file"
)


class ApprovalConfig(BaseConfig):
    """Approval policy for tool calls: `ask` (the user who started the turn), `ask_admin`, `allow` or `deny`."""

    writes: Annotated[PolicyWord, AnyCase] = "ask"
    """Policy for calls that write files or change data in other systems."""
    executes: Annotated[PolicyWord, AnyCase] = "ask_admin"
    """Policy for calls that run programs."""
    mcp: Annotated[PolicyWord | None, AnyCase] = setting(None, default_text="`ask_admin`")
    """Policy for calls to MCP tools that do more than read. If this policy is not set, `allow` or `deny` under
    `writes` or `executes` also applies to these calls."""

    def policy_of(self, effect: ToolEffect, *, is_mcp: bool) -> PolicyWord:
        """Return the policy for calls with the given effect."""
        own = self.executes if effect is ToolEffect.EXECUTES else self.writes
        if not is_mcp:
            return own
        return self.mcp or (own if own in ("allow", "deny") else "ask_admin")


ApprovalByPlace: TypeAlias = Annotated[dict[str, ApprovalConfig], BeforeValidator(keyed)]


class ToolsConfig(BaseConfig):
    """Tools of the agent: their availability, approvals, and limits on results."""

    use: Switches = setting({}, default_text="all on")
    """Availability of each tool by name: `on`, `off`, or `admins` (only in turns that an admin started). `*` means all
    other tools."""
    use_on: SwitchesByPlace = setting({}, default_text="none")
    """Like `tools.use`, but for one platform (`discord`), one bot of several (`telegram/operations`) or one chat
    (`telegram:42`). The narrowest one wins."""
    approval: ApprovalConfig = Field(default_factory=ApprovalConfig)
    approval_on: ApprovalByPlace = setting({}, default_text="none")
    """Approval policy for one platform, one bot or one chat, instead of `tools.approval`."""
    default_result_size: int = setting(100_000, ge=1_000, le=10_000_000, unit="characters")
    """Longest tool result that the model sees in full, but at most 20 % of the input window."""
    turn_budget: int = setting(200_000, ge=1_000, le=50_000_000, unit="characters")
    """Maximum total size of the results in one round of tool calls, but at most 40 % of the input window."""

    def switch_of(self, tool: str, chat: ChatKey) -> ToolSwitch:
        """Return the availability of a tool in a chat."""
        blocks = [self.use_on[place] for place in places_of(chat) if place in self.use_on]
        found = (block[name] for block in (*blocks, self.use) for name in (tool, "*") if name in block)
        return next(found, "on")

    def approval_in(self, chat: ChatKey) -> ApprovalConfig:
        """Return the approval policy of a chat."""
        return next((self.approval_on[place] for place in places_of(chat) if place in self.approval_on), self.approval)


def places_of(chat: ChatKey, parent_ref: str = "") -> Iterator[str]:
    """Yield the names under which settings can refer to a chat, the most specific first.

    `parent_ref` is the channel of a Discord thread.

    >>> list(places_of(ChatKey(platform="telegram", account="telegram", chat_ref="-100", thread_ref="7")))
    ['telegram:-100/7', 'telegram:-100', 'telegram', 'telegram']
    """
    yield chat.name
    if chat.user_ref:
        yield chat.name.removesuffix(f"#{chat.user_ref}")
    if chat.thread_ref or parent_ref:
        yield f"{chat.account}:{parent_ref or chat.chat_ref}"
    yield chat.account
    yield chat.platform


def _servers(value: object) -> Mapping[str, ServerSettings]:
    """Return a mapping from server name to block. In an environment variable, it is written as JSON."""
    found: dict[str, ServerSettings] = {}
    for name, row in keyed(value).items():
        if not isinstance(name, str) or re.fullmatch(r"(?=.{1,24}$)[a-z0-9]+([_-][a-z0-9]+)*", name) is None:
            raise ValueError(
                f"{name!r} cannot be the name of a server: use at most 24 of the characters a-z and 0-9, "
                "with single - or _ between them"
            )
        if not isinstance(row, Mapping):
            raise ValueError(f"{name} must be a block with command or url")
        found[name] = checked_block(ServerSettings, row, name, fields_of(ServerSettings), {"name": name})
        if (complaint := found[name].complaint) is not None:
            raise ValueError(f"{name}.{complaint}")
    return found


def unknown_tools(blocks: Iterable[ToolsConfig]) -> Iterator[str]:
    """Yield a warning for each switch whose tool is neither built in nor of an MCP server. A plugin can have it."""
    known = BUILT_IN_TOOLS.split()
    for name in dict.fromkeys(name for one in blocks for row in (one.use, *one.use_on.values()) for name in row):
        if name != "*" and "__" not in name and name not in known:
            meant = did_you_mean(name, known) or ", so only a tool of a plugin can have this name"
            yield f"tools.use: there is no built-in tool {name}{meant}"


class McpConfig(BaseConfig):
    """MCP servers whose tools the agent can use (`docs/reference/tools.md`)."""

    servers: Annotated[dict[str, ServerSettings], BeforeValidator(_servers)] = setting({}, default_text="none")
    """MCP servers by name. Each server needs `command` (with `args`, `env`, `cwd`) or `url` (with `headers`). Optional
    keys are `allow`, `deny`, `effects`, `trust_hints`, `seconds` and `enabled`."""

    @property
    def enabled_servers(self) -> list[ServerSettings]:
        return [server for server in self.servers.values() if server.enabled]
