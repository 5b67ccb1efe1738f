"""Tool offers: the tools in a session's prompts, and `more_tools`, which finds and runs all other tools.

A session's offer is stored, so that all its prompts begin with the same bytes. Tool schemas can use up to a tenth of
the compression threshold.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Protocol

import msgspec
import orjson
from msgspec import Meta

from agent.model.usage import estimated_schema_tokens
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, ToolRegistry, parsed, tool
from hermes_state.errors import ToolError
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.tool_runs import count_tool_uses, keep_offer, load_offer
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    ConversationRef,
    SessionId,
    Tokens,
    ToolCall,
    ToolEffect,
    UserRef,
)

MORE_TOOLS = "more_tools"
SCHEMA_PERCENT = 10
"""Size limit for all tool schemas, as a percentage of the tokens by which the compression threshold exceeds 1,024."""
MAX_SCHEMA_TOKENS = 6_000
MAX_NAMED = 40
"""Maximum number of tools named in the description of `more_tools`."""


class Policy(StrEnum):
    ASK = "ask"
    ASK_ADMIN = "ask_admin"
    ALLOW = "allow"
    DENY = "deny"


class ToolAccess(Protocol):
    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        """Return the reason why a tool may not be used in a chat or by a person, or None if it is allowed."""

    def policy(self, tool: Tool, chat: ChatKey) -> Policy: ...

    def is_admin(self, person: UserRef) -> bool: ...

    def load_admin_chats(self, db: Connection) -> Sequence[ChatId]:
        """Return the direct chats in which the bot can ask admins for approval."""


class OpenAccess:
    """Access rules that allow every tool without approval."""

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        return None

    def policy(self, tool: Tool, chat: ChatKey) -> Policy:
        return Policy.ALLOW

    def is_admin(self, person: UserRef) -> bool:
        return True

    def load_admin_chats(self, db: Connection) -> Sequence[ChatId]:
        return ()


class ReadyCall(msgspec.Struct, frozen=True, kw_only=True):
    """Valid tool call, with its tool and its parsed arguments."""

    call: ToolCall
    """The call to the tool. If the model called `more_tools`, this is the inner call."""
    tool: Tool
    arguments: Any
    """Arguments as the type that the tool declares, or a dict for tools of plugins and MCP servers."""

    @property
    def may_need_approval(self) -> bool:
        is_exempt = not self.tool.needs_approval or self.tool.is_exempt(self.arguments)
        return self.tool.effect is not ToolEffect.READ_ONLY and not is_exempt

    @property
    def shape(self) -> str:
        """Return the kind of call that a saved approval would cover. Empty if each call needs its own approval."""
        return self.tool.shape(self.arguments)


class OfferRegistry:
    """Keeps the tool offer of each session, and finds the tool for each call."""

    def __init__(self, registry: ToolRegistry, store: Store, access: ToolAccess | None = None) -> None:
        self.registry = registry
        self.access = access or OpenAccess()
        self._store = store
        self._kept: OrderedDict[SessionId, tuple[Tool, ...]] = OrderedDict()

    async def of(self, conversation: ConversationRef, session_id: SessionId, threshold: Tokens) -> tuple[Tool, ...]:
        """Return the tools in the prompts of a session."""
        if (kept := self._kept.get(session_id)) is not None:
            return kept
        names = await self._store.read_short(load_offer, session_id)
        if names is None:
            uses = await self._store.read_short(count_tool_uses, conversation.chat_id)
            offered = offer(self.usable(conversation.chat, conversation.chat_kind), uses, threshold)
            names = await self._store.write(keep_offer, session_id, [tool.name for tool in offered])
        found = [self.registry.get(name) for name in names]
        tools = tuple(tool for tool in found if tool is not None)
        if MORE_TOOLS in names:
            usable = self.usable(conversation.chat, conversation.chat_kind)  # a server may have connected since then
            tools = (*tools, more_tools(tool for tool in usable if tool.name not in names))
        if not any(self.registry.is_awaited(name) for name in names):  # the tool's server is not connected yet
            self._kept[session_id] = tools
            if len(self._kept) > 4_096:
                self._kept.popitem(last=False)
        return tools

    def usable(self, chat: ChatKey, kind: ChatKind) -> list[Tool]:
        return [tool for tool in self.registry.available() if self.access.refusal(tool, chat, kind, None) is None]

    def resolve(self, call: ToolCall, context: ToolContext) -> ReadyCall:
        """Return the tool and parsed arguments of a call. Raises `ToolError` if the call cannot be run."""
        if call.name == MORE_TOOLS:
            given: _MoreToolsArguments = parsed(call.arguments, _MoreToolsArguments)
            if given.tool is None or given.arguments is None:
                finder = more_tools(self.usable(context.chat, context.chat_kind))
                return ReadyCall(call=call, tool=finder, arguments=given)
            text = orjson.dumps(given.arguments).decode()
            call = msgspec.structs.replace(call, name=given.tool, arguments=text)
        tool = self.registry.get(call.name)
        if tool is not None:
            reason = self.access.refusal(tool, context.chat, context.chat_kind, context.started_by)
            if reason is not None:
                raise ToolError(f"{tool.name} cannot be used here: {reason}")
        arguments = self.registry.check(call)
        assert tool is not None, "the registry has checked the name"
        tool.check(arguments, context)
        return ReadyCall(call=call, tool=tool, arguments=arguments)


def offer(tools: Sequence[Tool], uses: Mapping[str, int], threshold: Tokens) -> tuple[Tool, ...]:
    """Return the tools that fit into a prompt, in the given order, followed by `more_tools` if some do not fit.

    Essential tools always stay. Tools of plugins and servers are left out first, then the least used built-in tools.
    """
    room = min(MAX_SCHEMA_TOKENS, max(0, threshold - 1_024) * SCHEMA_PERCENT // 100)
    sizes = {tool.name: schema_tokens(tool) for tool in tools}
    if sum(sizes.values()) <= room:
        return tuple(tools)
    room -= schema_tokens(more_tools(tools))
    kept: set[str] = set()
    for one in sorted(tools, key=lambda one: (not one.is_essential, bool(one.source), -uses.get(one.name, 0))):
        if one.is_essential or sizes[one.name] <= room:
            kept.add(one.name)
            room -= sizes[one.name]
    return (*(tool for tool in tools if tool.name in kept), more_tools(tools))


def schema_tokens(tool: Tool) -> int:
    return estimated_schema_tokens(tool.schema)


class _MoreToolsArguments(Arguments, frozen=True):
    query: Annotated[str, Meta(description="Words to find. Empty: list all.")] = ""
    tool: Annotated[str | None, Meta(description="Tool to run. Without arguments, shows its schema.")] = None
    arguments: Annotated[dict[str, Any] | None, Meta(description="Arguments for `tool`.")] = None


def more_tools(behind: Iterable[Tool]) -> Tool:
    """Return the tool that finds and runs the tools missing from the prompt."""
    tools = tuple(behind)
    names = ", ".join(tool.name for tool in tools[:MAX_NAMED])

    @tool(
        name=MORE_TOOLS,
        description=f"Finds and runs tools that are not listed: {names}{', …' if len(tools) > MAX_NAMED else ''}.",
        effect=ToolEffect.READ_ONLY,
        is_persisted=False,
        step=StepWords(doing="Looking for a tool", did="looked for tools"),
    )
    async def run(arguments: _MoreToolsArguments, context: ToolContext) -> str:
        name = arguments.tool
        if name is None:
            return _listed(tools, arguments.query)
        for one in tools:
            if one.name == name:
                schema = orjson.dumps(one.schema.parameters).decode()
                return f"{one.name}: {one.description}\nArguments (JSON schema): {schema}"
        raise ToolError(f"there is no tool named {name[:64]!r}; {_listed(tools, '')}")

    return run


def _listed(tools: Sequence[Tool], query: str) -> str:
    words = query.lower().split()
    rated = [(sum(word in f"{tool.name} {tool.description}".lower() for word in words), tool) for tool in tools]
    found = [tool for hits, tool in sorted(rated, key=lambda pair: -pair[0]) if hits or not words]
    if not found:
        return f"No tool matches {query!r}; available tools: {', '.join(tool.name for tool in tools)}"
    return "\n".join(f"{tool.name}: {tool.description.partition('. ')[0][:200]}" for tool in found[:MAX_NAMED])
