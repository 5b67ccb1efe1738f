"""The agent's tools: how they are declared, registered, called, and loaded from plugins.

A Python type declares the arguments of a tool, provides their JSON schema, and parses a call's arguments. Tools of
plugins and MCP servers can have a JSON schema instead of a type. Error messages tell the model how to correct its call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, Protocol, Self, TypeAlias

import msgspec
import orjson
import structlog

from agent.model.base import ToolSchema
from hermes_state.aio import crash_logged
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


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class for the arguments of a tool. A field's `Meta` describes it for models and limits its values."""


class PromptStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the last prompt in tokens, and a function that requests a compression."""

    tokens: int
    threshold: Tokens
    context_length: Tokens
    held_back: str | None
    """Reason why the conversation cannot be compressed now, or None if it can."""
    compress: Callable[[str | None], None]
    """Requests a compression before the next model call. The argument is the topic to focus on, or None."""


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    chat_id: ChatId
    lineage_id: LineageId
    turn_id: TurnId
    epoch: int
    store: Store
    chat: ChatKey
    chat_kind: ChatKind
    started_by: UserRef
    """User who started the turn."""
    agent: str = ""
    is_scheduled: bool = False
    is_subagent: bool = False
    input_window: Tokens = DEFAULT_INPUT_WINDOW
    """Maximum size of a prompt, in tokens, for the model that will read the result."""
    result_size: int = 100_000
    """Longest result, in characters, that this model will see."""
    sees_images: bool = False
    prompt: PromptStatus | None = None
    """Status of the turn's last prompt. None after a restart, until a prompt has been measured again."""
    call: tuple[MessageId, str] | None = None
    """Id of the stored answer that contains this call, and the call's own id."""
    delegate: "Callable[[tuple[MessageId, str], str, tuple[str, ...] | None], Awaitable[str]] | None" = None
    """Runs the task of a call in a sub-agent that can use only the named tools (None: all), and returns its report.

    Raises `ToolError` if the sub-agent cannot run. None in the turn of a sub-agent.
    """
    on_step: "OnStep" = lambda step: None

    @property
    def claim(self) -> TurnClaim:
        return TurnClaim(id=self.turn_id, epoch=self.epoch)

    @classmethod
    def of(cls, turn: RunningTurn, store: Store, **more: Any) -> Self:
        """Return the context for a turn's tools. `more`: values for other fields of the context."""
        return cls(
            chat_id=turn.chat_id,
            lineage_id=turn.lineage_id,
            turn_id=turn.id,
            epoch=turn.epoch,
            store=store,
            chat=turn.chat,
            chat_kind=turn.chat_kind,
            started_by=turn.started_by,
            agent=turn.agent,
            is_scheduled=turn.is_scheduled,
            is_subagent=turn.parent is not None,
            **more,
        )


class StepWords(msgspec.Struct, frozen=True, kw_only=True):
    """Words that tell people about a tool's calls, such as “Reading” and “read files”.

    `about` returns the subject of one call, such as a file's name. The model wrote it, so nobody can trust it.
    """

    doing: str
    did: str
    about: Callable[[Any], str] = lambda arguments: ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Tool call of a turn or of its sub-agent, in words for people. `about` is not trusted and can be long."""

    key: tuple[MessageId, str]
    words: StepWords
    about: str
    is_subagent: bool = False
    state: ToolRunState = ToolRunState.STARTED


OnStep: TypeAlias = Callable[[Step], None]
"""Function that receives each step when it begins and again when it has ended. Must not block."""

ToolFunction: TypeAlias = Callable[[Any, ToolContext], Awaitable["str | ToolReply"]]
"""Function that a tool runs. Receives parsed arguments, and returns the result for the model or raises `ToolError`."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Tool that a model can call. `name` has at most 64 characters, all of them letters, digits, `_` or `-`."""

    name: str
    description: str
    parameters: type[Arguments] | Mapping[str, Any]
    """Type of the arguments, or a JSON schema of type object. With a schema, the tool's functions receive a dict."""
    effect: ToolEffect
    run: ToolFunction
    why_unavailable: Callable[[], str | None] = lambda: None
    """Returns a message for people that says why the tool is unavailable now, or None if it can be offered."""
    timeout_seconds: float = 120.0
    max_result_characters: int = 1_000_000
    """Maximum length of a result. A longer result is cut, with a note. Good tools keep their results much shorter."""
    max_shown_characters: int | None = None
    """Length above which the model sees only a result's beginning. None: the limit that all tools share."""
    is_persisted: bool = True
    """True if a long result is stored, and the model sees only its beginning. Tools that read stored results set False,
    and limit their results to `ToolContext.result_size`."""
    needs_approval: bool = True
    """False if calls skip the approval policy because they only change the chat's own data, such as notes."""
    is_exempt: Callable[[Any], bool] = lambda arguments: False
    """Returns True for a call that skips the approval policy because it neither writes nor executes."""
    check: Callable[[Any, ToolContext], None] = lambda arguments, context: None
    """Checks a call before people are asked to approve it. Raises `ToolError` if the call cannot succeed."""
    shape: Callable[[Any], str] = lambda arguments: "any"
    """Returns the kind of a call. An approval for `session` or `always` covers all calls of the same kind."""
    reach: Callable[[str], str] = lambda shape: "with any arguments" if shape == "any" else f"of the kind `{shape}`"
    """Returns a description of all calls that have a given shape, worded to end a sentence. If the description ends
    with a code block, it includes a final line break.
    """
    instructs: Callable[[Any], bool] = lambda arguments: False
    """Returns True for a call that changes the instructions of later turns. In groups, moderators must approve it."""
    is_remote: bool = False
    """True if the tool runs on an MCP server and follows the policy for MCP tools."""
    shown: Callable[[Any], str] | None = None
    """Returns a description of a call's exact effect, as Markdown for people. None: people see the arguments."""
    is_essential: bool = False
    """True if the tool is in every prompt, even for small context windows."""
    source: str = ""
    """Plugin or server that provides the tool. Empty for built-in tools."""
    step: StepWords | None = None
    """Words that tell people about the calls. None: a general sentence with the tool's name."""

    @cached_property
    def schema(self) -> ToolSchema:
        return ToolSchema(name=self.name, description=self.description, parameters=schema_of(self.parameters))

    def step_of(self, arguments: Any, key: tuple[MessageId, str], *, is_subagent: bool = False) -> Step:
        """Return a call, which begins now, as a step for people."""
        words, about = self.step or GENERAL_STEP, self.name
        with crash_logged("tool.step_failed", tool=self.name):  # a plugin's function must not end the turn
            about = words.about(arguments) if self.step is not None else about
        return Step(key=key, words=words, about=about, is_subagent=is_subagent)

    async def reply(self, arguments: Any, context: ToolContext) -> "ToolReply":
        """Run the tool with parsed arguments. Every error in the tool becomes a reply."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                output = await self.run(arguments, context)
        except ToolError as error:
            return failed(str(error))
        except TimeoutError:
            return failed(f"no answer within {self.timeout_seconds:g} seconds; the call may still take effect")
        except Exception as error:  # the boundary of a tool call: the model gets an error, and the turn continues
            log.exception("tool.crashed", tool=self.name)
            return failed(f"the tool crashed ({type(error).__name__})")
        reply = ToolReply(text=output) if isinstance(output, str) else output
        if len(reply.text) > (limit := self.max_result_characters):
            note = f"[cut here: the result had {len(reply.text):,} characters]"
            reply = msgspec.structs.replace(reply, text=f"{reply.text[:limit]}\n{note}")
        return reply


GENERAL_STEP = StepWords(doing="Using the tool", did="used other tools")


class ToolReply(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to a tool call: `DONE` or `FAILED`, with text and images for the model."""

    text: str
    state: ToolRunState = ToolRunState.DONE
    images: tuple[Image, ...] = ()


class ToolSource(Protocol):
    """Source of tools that appear and disappear while the agent runs."""

    @property
    def by_name(self) -> Mapping[str, Tool]: ...

    def why_missing(self, name: str) -> str | None:
        """Return the reason why a tool is missing now, or None if the source does not know the tool."""


class ToolRegistry:
    """The agent's tools by name: the added tools in the order in which they were added, then the tools of a source."""

    def __init__(self, tools: Iterable[Tool] = (), source: ToolSource | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._source = source
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"two tools have the name {tool.name}")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name) or (self._source.by_name.get(name) if self._source is not None else None)

    @property
    def by_name(self) -> Mapping[str, Tool]:
        brought = self._source.by_name if self._source is not None else {}
        return {**self._tools, **{name: tool for name, tool in brought.items() if name not in self._tools}}

    def is_awaited(self, name: str) -> bool:
        """Return True for an unknown tool that the source might provide later."""
        return self._source is not None and self.get(name) is None and self._source.why_missing(name) is not None

    def available(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.by_name.values() if tool.why_unavailable() is None)

    def check(self, call: ToolCall) -> Any:
        """Return the parsed arguments of a call. Raises `ToolError` if the call cannot be run.

        >>> ToolRegistry().check(ToolCall(id="1", name="look", arguments="{}"))
        Traceback (most recent call last):
        hermes_state.errors.ToolError: there is no tool named 'look'; available tools: none
        """
        tool = self.get(call.name)
        if tool is None or tool.why_unavailable() is not None:
            if self._source is not None and (reason := self._source.why_missing(call.name)) is not None:
                raise ToolError(reason)
            names = ", ".join(tool.name for tool in self.available())
            raise ToolError(f"there is no tool named {call.name[:64]!r}; available tools: {names or 'none'}")
        return parsed(call.arguments, tool.parameters)

    async def run(self, call: ToolCall, arguments: Any, context: ToolContext) -> ToolReply:
        """Run a call with the arguments returned by `check`. Every error in the tool becomes a reply."""
        return await self.by_name[call.name].reply(arguments, context)


def tool(
    *,
    description: str,
    effect: ToolEffect,
    parameters: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Callable[[ToolFunction], Tool]:
    """Turn a function into a tool. The tool has the function's name unless `name` is given.

    The type of its first parameter declares the arguments, unless `parameters` is a JSON schema. `options`: other
    fields of `Tool`.

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


# ---- arguments of calls

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def parsed(text: str, declared: type[Arguments] | Mapping[str, Any]) -> Any:  # the declared type, or a dict
    """Return the arguments of a call as the declared type, or as a dict for a JSON schema.

    Raises `ToolError` with a message that tells the model how to correct the call.
    """
    arguments = checked_arguments(text, schema_of(declared))
    try:
        return msgspec.convert(arguments, declared) if isinstance(declared, type) else arguments
    except msgspec.ValidationError as error:
        raise ToolError(f"the arguments are invalid: {error}") from error


def schema_of(declared: type[Arguments] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of an arguments type.

    >>> class Open(Arguments, frozen=True):
    ...     id: str
    ...     role: str | None = None
    >>> schema_of(Open)["required"], schema_of(Open)["properties"]
    (['id'], {'id': {'type': 'string'}, 'role': {'type': 'string'}})
    """
    return _generated(declared) if isinstance(declared, type) else declared


@cache
def _generated(declared: type[Arguments]) -> Mapping[str, Any]:
    (root,), components = msgspec.json.schema_components([declared], ref_template="{name}")
    return _flat(root, components)


def _flat(place: Mapping[str, Any], components: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema without references, titles, null types and empty defaults, to make every request cheaper."""
    flat = dict(place)
    if "anyOf" in flat:  # keep the type, drop null
        flat |= flat.pop("anyOf")[0]
    if "$ref" in flat:
        named = components[flat.pop("$ref")]
        flat |= {key: named[key] for key in named if key not in ("title", "description")}
    if "enum" in flat:
        flat = {"type": "string", **flat}
    if "items" in flat:
        flat["items"] = _flat(flat["items"], components)
    if "properties" in flat:
        flat["properties"] = {name: _flat(inner, components) for name, inner in flat["properties"].items()}
    return {key: value for key, value in flat.items() if value or key not in ("default", "required")}


def checked_arguments(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as a dict that matches `schema`, with defaults for missing arguments.

    Only the top level is checked, because plugins and servers check nested values themselves. Raises `ToolError` if the
    arguments do not match.

    >>> checked_arguments('{"id": "m12"}', {"properties": {"id": {"type": "string"}, "limit": {"default": 10}}})
    {'id': 'm12', 'limit': 10}
    """
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        raise ToolError(f"the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError("the arguments must be a JSON object")
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    if missing := [key for key in schema.get("required", ()) if key not in arguments]:
        raise ToolError(f"missing arguments: {', '.join(missing)}")
    unknown = [key for key in arguments if key not in properties]
    if unknown and schema.get("additionalProperties", True) is False:
        raise ToolError(f"unknown arguments: {', '.join(unknown)}; known: {', '.join(properties) or 'none'}")
    for key, rule in properties.items():
        if key in arguments:
            _check(key, arguments[key], rule)
        elif "default" in rule:
            arguments[key] = rule["default"]
    return arguments


def _check(key: str, value: object, rule: Mapping[str, Any]) -> None:
    wanted = rule.get("type") or []
    kinds = [wanted] if isinstance(wanted, str) else wanted
    is_bool = isinstance(value, bool)  # a bool is an int in Python, but not in JSON
    fits = (kind == "boolean" if is_bool else isinstance(value, _TYPES.get(kind, (object,))) for kind in kinds)
    if kinds and not any(fits):
        raise ToolError(f"{key} must be of type {' or '.join(kinds)}")
    if "enum" in rule and value not in rule["enum"]:
        raise ToolError(f"{key} must be one of {', '.join(map(str, rule['enum']))}")
    if isinstance(value, int | float) and not is_bool:
        if value < rule.get("minimum", value):
            raise ToolError(f"{key} must be at least {rule['minimum']}")
        if value > rule.get("maximum", value):
            raise ToolError(f"{key} must be at most {rule['maximum']}")


# ---- plugins


def load_plugin_tools(taken: Iterable[str]) -> list[Tool]:
    """Load the tools of installed packages. Skips broken plugins and names in `taken`, with a warning."""
    names, found = set(taken), list[Tool]()
    for point in sorted(entry_points(group="hermes_gateway.tools"), key=lambda point: point.name):
        source = point.dist.name if point.dist is not None else point.value
        try:
            offered = point.load()
            tools = [offered] if isinstance(offered, Tool) else list(offered)
            if not all(isinstance(tool, Tool) for tool in tools):
                raise TypeError(f"{point.value} is not a tool: use the decorator `agent.tools.tool`")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the gateway then starts without it
            log.warning("tools.plugin_failed", plugin=source, error=f"{type(error).__name__}: {error}")
            continue
        for tool in tools:
            if tool.name in names:
                log.warning("tools.skipped", plugin=source, tool=tool.name, why="another tool has this name")
                continue
            names.add(tool.name)
            found.append(replace(tool, source=source))
    return found
