"""Tools of an agent: their declaration, their registry, and the plugins that bring more."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, Protocol, Self, TypeAlias

import structlog

from agent.model.base import ToolSchema
from agent.tools.arguments import Arguments, parsed, schema_of
from hermes_state.errors import ToolError
from hermes_state.store.writer import Store
from hermes_state.tool_runs import ToolRunState
from hermes_state.turns import RunningTurn, TurnClaim
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    Image,
    LineageId,
    MessageId,
    Tokens,
    ToolCall,
    ToolEffect,
    TurnId,
    UserRef,
)

log = structlog.get_logger()

DEFAULT_INPUT_WINDOW = Tokens(128_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStatus:
    """Size of the last prompt in tokens, and a way to have it compressed."""

    tokens: int
    threshold: Tokens
    context_length: Tokens
    held_back: str | None
    """Reason why no compression is possible now, if any."""
    compress: Callable[[str | None], None]
    """Asks for a compression before the next model call, with a focus or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    chat_id: ChatId
    lineage_id: LineageId
    turn_id: TurnId
    epoch: int
    store: Store
    chat: ChatKey
    chat_kind: ChatKind
    started_by: UserRef
    """User who started the turn."""
    is_scheduled: bool = False
    is_subagent: bool = False
    input_window: Tokens = DEFAULT_INPUT_WINDOW
    """Longest prompt, in tokens, of the model that reads the result."""
    result_size: int = 100_000
    """Longest result that this model is shown, in characters."""
    sees_images: bool = False
    prompt: PromptStatus | None = None
    """None if no prompt of the turn was measured since a restart."""
    call: tuple[MessageId, str] | None = None
    """Stored answer with the call, and the id of the call."""
    delegate: "Callable[[tuple[MessageId, str], str, tuple[str, ...] | None], Awaitable[str]] | None" = None
    """Lets a sub-agent do the task of a call, with only these tools if any are named. Returns its report or raises
    `ToolError`. None in the turn of a sub-agent."""

    @property
    def claim(self) -> TurnClaim:
        return TurnClaim(id=self.turn_id, epoch=self.epoch)

    @classmethod
    def of(cls, turn: RunningTurn, store: Store, **more: Any) -> Self:
        """Return the context of a turn's tools. `more` are fields."""
        return cls(
            chat_id=turn.chat_id,
            lineage_id=turn.lineage_id,
            turn_id=turn.id,
            epoch=turn.epoch,
            store=store,
            chat=turn.chat,
            chat_kind=turn.chat_kind,
            started_by=turn.started_by,
            is_scheduled=turn.is_scheduled,
            is_subagent=turn.parent is not None,
            **more,
        )


ToolFunction: TypeAlias = Callable[[Any, ToolContext], Awaitable["str | ToolReply"]]
"""Function of a tool: it receives parsed arguments and returns the result for the model, or raises `ToolError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Tool that a model may call. `name` is at most 64 letters, digits, `_` and `-`."""

    name: str
    description: str
    parameters: type[Arguments] | Mapping[str, Any]
    """Type of the arguments, or a JSON schema of type object, with which the tool's functions receive a dict."""
    effect: ToolEffect
    run: ToolFunction
    why_unavailable: Callable[[], str | None] = lambda: None
    """Returns why the tool cannot be used now, for people. It is offered only if that is None."""
    timeout_seconds: float = 120.0
    max_result_characters: int = 1_000_000
    """Longest result. More is cut, with a note. A good tool limits itself far below."""
    max_shown_characters: int | None = None
    """Length from which only the beginning of a result is shown, if that is less than the budget."""
    is_persisted: bool = True
    """A long result is stored, and its beginning shown. False for tools that read such results: they bound themselves
    by `ToolContext.result_size`."""
    needs_approval: bool = True
    """A call that writes or executes follows the approval policy. False for things of the chat, such as notes."""
    is_exempt: Callable[[Any], bool] = lambda arguments: False
    """Returns True for a call that follows no policy, because it neither writes nor executes."""
    check: Callable[[Any, ToolContext], None] = lambda arguments, context: None
    """Checks a call before people are asked about it. Raises `ToolError` if it is impossible."""
    shape: Callable[[Any], str] = lambda arguments: "any"
    """Returns the kind of a call. `session` and `always` allow all calls of the same shape."""
    reach: Callable[[str], str] = lambda shape: "with any arguments" if shape == "any" else f"of the kind `{shape}`"
    """Returns words about the calls of a shape, which follow the tool's name."""
    instructs: Callable[[Any], bool] = lambda arguments: False
    """Returns True for a call that changes the instructions of later turns. In a group a moderator must allow it."""
    is_remote: bool = False
    """The tool runs on an MCP server and follows the policy for those."""
    shown: Callable[[Any], str] | None = None
    """Returns the exact effect of a call, as Markdown for people; None: its arguments are shown."""
    is_essential: bool = False
    """The tool is in every prompt, however small the window is."""
    source: str = ""
    """Plugin or server that brought the tool; empty for the gateway's own."""

    @property
    def schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=schema_of(self.parameters))

    async def reply(self, arguments: Any, context: ToolContext) -> "ToolReply":
        """Run the tool with parsed arguments. Every error in it becomes a reply."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                output = await self.run(arguments, context)
        except ToolError as error:
            return failed(str(error))
        except TimeoutError:
            return failed(f"no answer within {self.timeout_seconds:g} seconds; what it had begun may still take effect")
        except Exception as error:  # the boundary of a tool call: the model is told, and the turn continues
            log.exception("tool.crashed", tool=self.name)
            return failed(f"the tool broke ({type(error).__name__})")
        reply = ToolReply(text=output) if isinstance(output, str) else output
        if len(reply.text) > (limit := self.max_result_characters):
            note = f"[cut here: the result had {len(reply.text):,} characters]"
            reply = replace(reply, text=f"{reply.text[:limit]}\n{note}")
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """Reply to a call: `DONE` or `FAILED`, with text and images for the model."""

    text: str
    state: ToolRunState = ToolRunState.DONE
    images: tuple[Image, ...] = ()


class ToolSource(Protocol):
    """Tools that come and go while the agent runs."""

    @property
    def by_name(self) -> Mapping[str, Tool]: ...

    def why_missing(self, name: str) -> str | None:
        """Return why a tool is missing now, if the source knows."""


class ToolRegistry:
    """Tools of an agent by name: its own in the order of their addition, then those of a source."""

    def __init__(self, tools: Iterable[Tool] = (), source: ToolSource | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._source = source
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"two tools are named {tool.name}")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name) or (self._source.by_name.get(name) if self._source is not None else None)

    @property
    def by_name(self) -> Mapping[str, Tool]:
        brought = self._source.by_name if self._source is not None else {}
        return {**self._tools, **{name: tool for name, tool in brought.items() if name not in self._tools}}

    def is_awaited(self, name: str) -> bool:
        """Return True for an unknown tool that the source may bring later."""
        return self._source is not None and self.get(name) is None and self._source.why_missing(name) is not None

    def available(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.by_name.values() if tool.why_unavailable() is None)

    def check(self, call: ToolCall) -> Any:
        """Return the parsed arguments of a call. Raises `ToolError` if it cannot be run.

        >>> ToolRegistry().check(ToolCall(id="1", name="look", arguments="{}"))
        Traceback (most recent call last):
        hermes_state.errors.ToolError: there is no tool named 'look'; there are: none
        """
        tool = self.get(call.name)
        if tool is None or tool.why_unavailable() is not None:
            if self._source is not None and (reason := self._source.why_missing(call.name)) is not None:
                raise ToolError(reason)
            names = ", ".join(tool.name for tool in self.available())
            raise ToolError(f"there is no tool named {call.name[:64]!r}; there are: {names or 'none'}")
        return parsed(call.arguments, tool.parameters)

    async def run(self, call: ToolCall, arguments: Any, context: ToolContext) -> ToolReply:
        """Run a call with the arguments that `check` returned. Every error in the tool becomes a reply."""
        return await self.by_name[call.name].reply(arguments, context)


def tool(
    *,
    description: str,
    effect: ToolEffect,
    parameters: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Callable[[ToolFunction], Tool]:
    """Decorate a function that is a tool, of the same name unless another is given. `options` are fields of `Tool`.

    The type of its first argument declares the arguments, unless `parameters` gives their JSON schema.

    >>> class Sum(Arguments, frozen=True):
    ...     numbers: list[int]
    >>> @tool(description="Adds.", effect=ToolEffect.READ_ONLY, timeout_seconds=1.0)
    ... async def add(asked: Sum, context: ToolContext) -> str:
    ...     return str(sum(asked.numbers))
    >>> add.name, add.schema.parameters["required"]
    ('add', ['numbers'])
    """

    def made(run: ToolFunction) -> Tool:
        declared = next(iter(run.__annotations__.values())) if parameters is None else parameters
        own_name = name or run.__name__
        return Tool(name=own_name, description=description, parameters=declared, effect=effect, run=run, **options)

    return made


def failed(reason: str) -> ToolReply:
    return ToolReply(text=f"Error: {reason}", state=ToolRunState.FAILED)


# ---- plugins


def load_plugin_tools(taken: Iterable[str]) -> list[Tool]:
    """Load the tools of installed packages. Broken ones, and names in `taken`, are left out with a warning."""
    names, found = set(taken), list[Tool]()
    for point in sorted(entry_points(group="hermes_gateway.tools"), key=lambda point: point.name):
        source = point.dist.name if point.dist is not None else point.value
        try:
            offered = point.load()
            tools = [offered] if isinstance(offered, Tool) else list(offered)
            if not all(isinstance(tool, Tool) for tool in tools):
                raise TypeError(f"{point.value} is no tool: use the decorator of agent.tools")
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything, and the gateway starts without it
            log.warning("tools.plugin_failed", plugin=source, error=f"{type(error).__name__}: {error}")
            continue
        for tool in tools:
            if tool.name in names:
                log.warning("tools.left_out", plugin=source, tool=tool.name, why="its name is taken")
                continue
            names.add(tool.name)
            found.append(replace(tool, source=source))
    return found
