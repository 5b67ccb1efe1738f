"""Tools of an agent: their registry, what each may do to the world, and running one of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import structlog

from agent.model.base import ToolSchema
from agent.tools.arguments import checked_arguments
from hermes_state.errors import ToolError
from hermes_state.journal import RunningTurn
from hermes_state.store.writer import Store
from hermes_state.tool_runs import ToolRunState
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    Image,
    LineageId,
    Tokens,
    ToolCall,
    ToolEffect,
    TurnId,
    UserRef,
)

log = structlog.get_logger()

DEFAULT_INPUT_WINDOW = Tokens(128_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Conversation and turn that a tool runs for, and whose turn it is."""

    chat_id: ChatId
    lineage_id: LineageId
    turn_id: TurnId
    store: Store
    chat: ChatKey
    chat_kind: ChatKind
    started_by: UserRef
    """Person whose message the turn answers."""
    input_window: Tokens = DEFAULT_INPUT_WINDOW
    """Longest prompt, in tokens, of the model that reads the result."""

    @classmethod
    def of(cls, turn: RunningTurn, store: Store, input_window: Tokens = DEFAULT_INPUT_WINDOW) -> Self:
        """The context of a turn's tools."""
        return cls(
            chat_id=turn.chat_id,
            lineage_id=turn.lineage_id,
            turn_id=turn.id,
            store=store,
            chat=turn.chat,
            chat_kind=turn.chat_kind,
            started_by=turn.started_by,
            input_window=input_window,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """Result of a tool that shows images beside its text."""

    text: str
    images: tuple[Image, ...]


ToolFunction: TypeAlias = Callable[[dict[str, Any], ToolContext], Awaitable[str | ToolOutput]]
"""Function of a tool: takes checked arguments, returns the result as the model reads it.

It raises `ToolError` with what went wrong.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Tool that a model may call. `name` is at most 64 letters, digits, `_` and `-`."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of type object."""
    effect: ToolEffect
    run: ToolFunction
    is_available: Callable[[], bool] = lambda: True
    """Called whenever the tools are listed: an unavailable tool is not offered."""
    timeout_seconds: float = 120.0
    max_result_characters: int = 1_000_000
    """Longest result, in characters; more is cut, with a note. A backstop: a good tool limits itself far below."""

    @property
    def schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """Reply of a tool to a call: `DONE` or `FAILED`, and the text that the model reads."""

    text: str
    state: ToolRunState
    images: tuple[Image, ...] = ()


class ToolRegistry:
    """The tools of an agent, by name, in the order in which they were added."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"two tools are named {tool.name}")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def available(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self._tools.values() if tool.is_available())

    def check(self, call: ToolCall) -> dict[str, Any]:
        """The call's arguments, fit for its tool. Raises `ToolError` when there is nothing that could be run.

        >>> ToolRegistry().check(ToolCall(id="1", name="look", arguments="{}"))
        Traceback (most recent call last):
        hermes_state.errors.ToolError: there is no tool named 'look'; there are: none
        """
        tool = self._tools.get(call.name)
        if tool is None or not tool.is_available():
            names = ", ".join(tool.name for tool in self.available())
            raise ToolError(f"there is no tool named {call.name[:64]!r}; there are: {names or 'none'}")
        return checked_arguments(call.arguments, tool.parameters)

    async def run(self, call: ToolCall, arguments: dict[str, Any], context: ToolContext) -> ToolReply:
        """Run a call that `check` has passed. Whatever goes wrong in the tool becomes a reply."""
        tool = self._tools[call.name]
        try:
            async with asyncio.timeout(tool.timeout_seconds):
                output = await tool.run(arguments, context)
        except ToolError as error:
            return failed(str(error))
        except TimeoutError:
            return failed(f"no answer within {tool.timeout_seconds:g} seconds; what it had begun may still take effect")
        except Exception as error:  # a broken tool is the model's news, not the end of the turn
            log.exception("tool.crashed", tool=tool.name)
            return failed(f"the tool broke ({type(error).__name__})")
        text, images = (output, ()) if isinstance(output, str) else (output.text, output.images)
        if len(text) > (limit := tool.max_result_characters):
            text = f"{text[:limit]}\n[cut here: the result had {len(text):,} characters]"
        return ToolReply(text=text, state=ToolRunState.DONE, images=images)


def failed(reason: str) -> ToolReply:
    """Reply to a call that could not be done."""
    return ToolReply(text=f"Error: {reason}", state=ToolRunState.FAILED)
