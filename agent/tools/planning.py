"""Tools for organising the agent's own work: `todo`, `delegate` and `context`."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, Literal

from msgspec import Meta

from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from hermes_state.errors import ToolError
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection
from hermes_state.text import counted
from hermes_state.tools.todos import OPEN_STATES, TodoRow, TodoState, load_todos, put_todos
from hermes_state.values import Clock, LineageId, Millis, ToolEffect

MAX_ITEMS: Final = 50
MAX_TEXT_CHARACTERS: Final = 300
"""Maximum length of a to-do item, in characters. The list must stay short, because every compression repeats it."""


class _TodoChange(Arguments, frozen=True):
    id: Annotated[int | None, Meta(description="Number of an existing item.")] = None
    text: str | None = None
    state: TodoState | None = None


class _TodoArguments(Arguments, frozen=True):
    items: Annotated[
        tuple[_TodoChange, ...] | None, Meta(description="The whole list; with update, only new and changed items.")
    ] = None
    update: Annotated[bool, Meta(description="Keep all other items.")] = False


def todo_tool(clock: Clock) -> Tool:
    """Return the tool `todo`, the agent's to-do list for a conversation."""

    @tool(
        description="Your to-do list for this conversation, for tasks of three steps or more. Write it before you "
        "begin, keep one item in_progress, and mark each item done as soon as it is. The list stays when older "
        "messages leave your view. Call it without items to see the list.",
        effect=ToolEffect.WRITES,
        needs_approval=False,
        step=StepWords(doing="Updating the to-do list", did="updated the to-do list"),
    )
    async def todo(arguments: _TodoArguments, context: ToolContext) -> str:
        if arguments.items is None:
            return shown(await context.store.read(load_todos, context.lineage_id))
        write = partial(_change, changes=arguments.items, is_whole=not arguments.update, now=clock.now())
        return shown(await context.store.write(write, context.lineage_id))

    return todo


@locks(lineage="lineage_id")
def _change(
    db: Connection, lineage_id: LineageId, *, changes: Sequence[_TodoChange], is_whole: bool, now: Millis
) -> list[TodoRow]:
    """Store the changes from a call. Raises `ToolError`, and stores nothing, if they would make the list invalid."""
    known = {} if is_whole else {item.id: item for item in load_todos(db, lineage_id)}
    items = dict(known)
    for change in changes:
        number = max(items, default=0) + 1 if is_whole or change.id is None else change.id
        before = known.get(number)
        if before is None and not is_whole and change.id is not None:
            raise ToolError(f"there is no item {number}; omit the id to add an item. {shown(list(known.values()))}")
        text = " ".join((change.text or (before.text if before is not None else "")).split())
        if not 0 < len(text) <= MAX_TEXT_CHARACTERS:
            raise ToolError(f"the text of item {number} must be 1 to {MAX_TEXT_CHARACTERS} characters long")
        state = change.state or (before.state if before is not None else TodoState.PENDING)
        items[number] = TodoRow(id=number, text=text, state=state)
    if len(items) > MAX_ITEMS:
        raise ToolError(f"{len(items)} items, but the limit is {MAX_ITEMS}: write a new list without finished items")
    return put_todos(db, lineage_id, list(items.values()), now, is_whole=is_whole)


def shown(items: Sequence[TodoRow]) -> str:
    if not items:
        return "The list is empty."
    left = sum(item.state in OPEN_STATES for item in items)
    return "\n".join((f"{counted(len(items), 'item')}, {left} open:", *(item.line for item in items)))


# ---- sub-agents

DELEGATE: Final = "delegate"


class _TaskArguments(Arguments, frozen=True):
    task: Annotated[str, Meta(min_length=1, description="The work to do and the report to give.")]
    context: Annotated[str, Meta(description="Facts, paths and quotes that it needs from this conversation.")] = ""
    tools: Annotated[
        tuple[str, ...] | None, Meta(description="Names of the tools that it may use. Default: all available.")
    ] = None


@tool(
    name=DELEGATE,
    description="Delegate a task to a sub-agent, which works alone with tools and cannot see this conversation. Its "
    "report is the result. Use it for long work if only the outcome matters, such as reading many files or pages. "
    "Several calls in one step run in parallel. It cannot ask questions or do anything that needs approval.",
    effect=ToolEffect.READ_ONLY,  # so that a restart repeats the call, which continues its sub-agent
    timeout_seconds=86_400.0,  # includes waiting for other sub-agents; other limits normally end the task much earlier
    step=StepWords(doing="Working with a sub-agent on", did="used sub-agents", about=lambda asked: asked.task),
)
async def delegate_tool(arguments: _TaskArguments, context: ToolContext) -> str:
    """Run a task in a sub-agent and return its report. The sub-agent's calls follow the chat's approval policy."""
    if context.delegate is None or context.call is None:
        raise ToolError("sub-agents are not available here")
    known = f"\n\nContext:\n{arguments.context}" if arguments.context else ""
    return await context.delegate(context.call, f"{arguments.task}{known}", arguments.tools)


# ---- the context window


class _WindowArguments(Arguments, frozen=True):
    action: Literal["status", "compress"] = "status"
    focus: str | None = None


@tool(
    name="context",
    description="Show how full your context window is. `compress` summarises earlier messages but keeps details on "
    "`focus`.",
    effect=ToolEffect.READ_ONLY,
    step=StepWords(doing="Checking the context window", did="checked the context window"),
)
async def context_tool(arguments: _WindowArguments, context: ToolContext) -> str:
    """Return how full the context window is, or request a compression."""
    use = context.prompt
    if use is None:
        raise ToolError("the prompt has not been measured since the gateway restarted; try again in the next step")
    if arguments.action == "status":
        percent = use.tokens * 100 // use.context_length
        return (
            f"Your prompt has about {use.tokens:,} of {use.context_length:,} tokens ({percent} %). It is compressed "
            f"automatically at {use.threshold:,}."
        )
    if use.held_back is not None:
        raise ToolError(f"no compression is possible now: {use.held_back}")
    use.compress(arguments.focus or None)
    return "A compression will run before your next step, unless it would free no space."
