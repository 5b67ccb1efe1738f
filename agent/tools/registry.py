"""Tools of an agent: their registry, what each may do to the world, and running one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
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
    """Size of the prompt that a call answers, in tokens, and a way to have it compressed."""

    tokens: int
    threshold: Tokens
    context_length: Tokens
    held_back: str | None
    """Reason why no compression may be asked for now; None: one may."""
    compress: Callable[[str | None], None]
    """Asks for a compression, with a focus if any, before the next model call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateRequest:
    """A task for a sub-agent."""

    call: tuple[MessageId, str]
    """Stored answer that asks for it, and the id of its call there."""
    task: str
    tools: tuple[str, ...] | None
    """Names of the only tools that it may use; None: all that sub-agents may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Conversation and turn that a tool runs for, and whose turn it is."""

    chat_id: ChatId
    lineage_id: LineageId
    turn_id: TurnId
    epoch: int
    """Epoch in which the turn was taken up."""
    store: Store
    chat: ChatKey
    chat_kind: ChatKind
    started_by: UserRef
    """Person whose message the turn answers."""
    is_scheduled: bool = False
    """True in a turn that a schedule began."""
    is_subagent: bool = False
    input_window: Tokens = DEFAULT_INPUT_WINDOW
    """Longest prompt, in tokens, of the model that reads the result."""
    result_size: int = 100_000
    """Most characters of one result that this model is shown."""
    sees_images: bool = False
    """The model that reads the result sees images."""
    prompt: PromptStatus | None = None
    """None where no prompt of the turn was measured since a restart."""
    call: tuple[MessageId, str] | None = None
    """Stored answer with the call that the tool is run for, and its id there."""
    delegate: Callable[[DelegateRequest], Awaitable[str]] | None = None
    """Has a sub-agent do a task and returns its report; raises `ToolError`. None in the turn of a sub-agent."""

    @property
    def claim(self) -> TurnClaim:
        """The turn as it was taken up, for whoever writes for it."""
        return TurnClaim(id=self.turn_id, epoch=self.epoch)

    @classmethod
    def of(
        cls, turn: RunningTurn, store: Store, input_window: Tokens = DEFAULT_INPUT_WINDOW, result_size: int = 100_000
    ) -> Self:
        """The context of a turn's tools."""
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
            input_window=input_window,
            result_size=result_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """Result of a tool that shows images beside its text."""

    text: str
    images: tuple[Image, ...]


ToolFunction: TypeAlias = Callable[[Any, ToolContext], Awaitable[str | ToolOutput]]
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
    """Reason why the tool cannot be used now, in words for people; it is not offered then. None: it can."""
    timeout_seconds: float = 120.0
    max_result_characters: int = 1_000_000
    """Longest result, in characters; more is cut, with a note. A backstop: a good tool limits itself far below."""
    max_shown_characters: int | None = None
    """Result from which on only its beginning is shown, where that is less than the budget."""
    is_persisted: bool = True
    """A long result is stored and shown by its beginning. False for tools that read such results: they bound
    themselves by `ToolContext.result_size`."""
    needs_approval: bool = True
    """A call that writes or executes follows the approval policy. False for what is the chat's own, such as notes."""
    is_exempt: Callable[[Any], bool] = lambda arguments: False
    """Tells of a call, by its arguments, that it follows no policy, because it neither writes nor executes."""
    check: Callable[[Any, ToolContext], None] = lambda arguments, context: None
    """Looks at a call before anybody is asked about it; raises `ToolError` for one that cannot be done."""
    shape: Callable[[Any], str] = lambda arguments: "any"
    """Kind of a call, by its arguments: what `session` and `always` allow is this tool with calls of the same shape."""
    reach: Callable[[str], str] = lambda shape: "with any arguments" if shape == "any" else f"of the kind `{shape}`"
    """The calls of a shape, in words that follow the tool's name."""
    instructs: Callable[[Any], bool] = lambda arguments: False
    """True for a call that changes what later turns are told: in a chat of several people a moderator must allow it."""
    is_remote: bool = False
    """The tool runs on an MCP server, and follows the policy for those."""
    shown: Callable[[Any], str] | None = None
    """Exact effect of a call, as Markdown for whoever is asked; None: its arguments."""
    is_essential: bool = False
    """Always listed in prompts, however small the window is."""
    source: str = ""
    """Plugin or server that brought the tool; empty for the gateway's own."""

    @property
    def schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=schema_of(self.parameters))

    async def reply(self, arguments: Any, context: ToolContext) -> "ToolReply":
        """Run the tool with arguments that fit. Whatever goes wrong in it becomes a reply."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                output = await self.run(arguments, context)
        except ToolError as error:
            return failed(str(error))
        except TimeoutError:
            return failed(f"no answer within {self.timeout_seconds:g} seconds; what it had begun may still take effect")
        except Exception as error:  # a broken tool is the model's news, not the end of the turn
            log.exception("tool.crashed", tool=self.name)
            return failed(f"the tool broke ({type(error).__name__})")
        text, images = (output, ()) if isinstance(output, str) else (output.text, output.images)
        if len(text) > (limit := self.max_result_characters):
            text = f"{text[:limit]}\n[cut here: the result had {len(text):,} characters]"
        return ToolReply(text=text, state=ToolRunState.DONE, images=images)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """Reply of a tool to a call: `DONE` or `FAILED`, and the text that the model reads."""

    text: str
    state: ToolRunState
    images: tuple[Image, ...] = ()


class ToolSource(Protocol):
    """Tools that come and go while the agent is there."""

    @property
    def by_name(self) -> Mapping[str, Tool]: ...

    def why_missing(self, name: str) -> str | None:
        """Reason why a tool is not there now, if the source knows one."""


class ToolRegistry:
    """The tools of an agent, by name: its own in the order in which they were added, behind them those of a source."""

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
        return self._tools.get(name) or self._brought.get(name)

    @property
    def by_name(self) -> Mapping[str, Tool]:
        brought = {name: tool for name, tool in self._brought.items() if name not in self._tools}
        return self._tools | brought if brought else self._tools

    @property
    def _brought(self) -> Mapping[str, Tool]:
        return self._source.by_name if self._source is not None else {}

    def is_awaited(self, name: str) -> bool:
        """True for a tool that is not known, and may be as soon as whoever brings it is there."""
        return self._source is not None and self.get(name) is None and self._source.why_missing(name) is not None

    def available(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.by_name.values() if tool.why_unavailable() is None)

    def check(self, call: ToolCall) -> Any:
        """The call's arguments, fit for its tool. Raises `ToolError` when there is nothing that could be run.

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
        """Run a call that `check` has passed. Whatever goes wrong in the tool becomes a reply."""
        return await self.by_name[call.name].reply(arguments, context)


def tool(
    *,
    description: str,
    parameters: type[Arguments] | Mapping[str, Any],
    effect: ToolEffect,
    name: str | None = None,
    **options: Any,
) -> Callable[[ToolFunction], Tool]:
    """Decorator that makes a tool of a function, by its name unless another is given; `options` are fields of `Tool`.

    >>> @tool(description="Adds.", parameters={"type": "object"}, effect=ToolEffect.READ_ONLY, timeout_seconds=1.0)
    ... async def add(arguments, context):
    ...     return "3"
    >>> add.name, add.timeout_seconds
    ('add', 1.0)
    """

    def made(run: ToolFunction) -> Tool:
        own_name = name or run.__name__
        return Tool(name=own_name, description=description, parameters=parameters, effect=effect, run=run, **options)

    return made


def failed(reason: str) -> ToolReply:
    """Reply to a call that could not be done."""
    return ToolReply(text=f"Error: {reason}", state=ToolRunState.FAILED)
