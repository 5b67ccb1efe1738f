"""Tool `terminal`: runs shell commands in the chat's workspace, in the foreground or in the background.

The chat gets a message when a background command ends, unless a call is waiting for it.
"""

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from weakref import WeakValueDictionary

from msgspec import Meta

from agent.settings import TerminalSettings
from agent.tools.approvals import fenced
from agent.tools.registry import Arguments, StepWords, Tool, ToolContext, tool
from agent.tools.terminal.running_command import RunningCommand
from agent.tools.terminal.sandbox import terminal_fault
from hermes_state.aio import cancel_all, wait_until
from hermes_state.errors import ToolError
from hermes_state.text import counted, shortened
from hermes_state.values import ChatId, ToolEffect

TERMINAL = "terminal"
STOP_SECONDS = 5.0
"""Time limit in seconds for ending background commands and reporting that they ended."""

_SECONDS = "For run: time limit. For poll: how long to wait for the end (default 0)."


class TerminalArguments(Arguments, frozen=True):
    action: Literal["run", "poll", "kill", "list"] = "run"
    command: Annotated[str, Meta(description="For run.")] = ""
    background: Annotated[bool, Meta(description="Return at once, with an id.")] = False
    seconds: Annotated[float, Meta(ge=0, description=_SECONDS)] | None = None
    id: Annotated[str, Meta(description="For poll and kill.")] = ""

    def needed(self, name: Literal["command", "id"]) -> str:
        """Return a required argument. Raises `ToolError` if it is missing."""
        value: str = getattr(self, name)
        if not value:
            raise ToolError(f"{self.action} needs {name}")
        return value


@dataclass(eq=False, slots=True, kw_only=True)
class BackgroundCommand:
    id: str
    command: str
    context: ToolContext
    """Context of the call that started the command."""
    running: RunningCommand
    pollers: int = 0
    """Number of tool calls that are waiting for the command to end."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class BackgroundRegistry:
    """Background commands of all chats. They outlive turns and configuration changes, but end with the gateway."""

    def __init__(self, on_end: Callable[[BackgroundCommand], Awaitable[None]]) -> None:
        """Create an empty registry. `on_end` is called when a command has ended and no call is waiting for it."""
        self._on_end = on_end
        self._commands: dict[str, BackgroundCommand] = {}
        self._starting: Counter[ChatId] = Counter()
        self._tasks: dict[asyncio.Task[None], BackgroundCommand] = {}

    def of(self, context: ToolContext) -> list[BackgroundCommand]:
        """Return the commands of the same chat and agent."""
        place = context.chat_id, context.agent
        return [one for one in self._commands.values() if (one.context.chat_id, one.context.agent) == place]

    def find(self, context: ToolContext, command_id: str) -> BackgroundCommand:
        found = next((one for one in self.of(context) if one.id == command_id), None)
        if found is None:
            known = ", ".join(one.id for one in self.of(context)) or "none"
            raise ToolError(f"there is no background command {command_id[:40]!r}; existing commands: {known}")
        return found

    async def start(
        self, command: str, folder: Path, settings: TerminalSettings, context: ToolContext
    ) -> BackgroundCommand:
        """Start a background command. Raises `ToolError`, for example if the chat has reached its limit."""
        running = sum(one.running.is_running for one in self.of(context)) + self._starting[context.chat_id]
        if running >= settings.max_background:
            raise ToolError(f"this chat has the maximum of {counted(running, 'background command')}; kill one first")
        self._starting[context.chat_id] += 1
        try:
            started = await RunningCommand.start(command, folder, settings, has_end=False)
        finally:
            self._starting[context.chat_id] -= 1
        one = BackgroundCommand(id=secrets.token_hex(3), command=command, context=context, running=started)
        self._commands[one.id] = one
        task = asyncio.create_task(self._follow(one), name=f"background command {one.id}")
        self._tasks[task] = one
        task.add_done_callback(self._tasks.pop)
        return one

    async def _follow(self, one: BackgroundCommand) -> None:
        try:
            await one.running.finish(None)
        finally:
            one.ended.set()
        ended = [other.id for other in self.of(one.context) if not other.running.is_running]
        for command_id in ended[:-10]:  # the ten newest are kept until their output is polled
            del self._commands[command_id]
        if not one.pollers:
            await self._on_end(one)

    async def wait(self, one: BackgroundCommand, seconds: float) -> str:
        """Return the state and the new output when the command ends, or after `seconds`.

        A command that has ended is removed from the registry.
        """
        one.pollers += 1
        try:
            await wait_until(one.ended, seconds)
        finally:
            one.pollers -= 1
        if one.ended.is_set():
            self._commands.pop(one.id, None)
        return one.running.report()

    async def stop(self, reason: str, is_meant: Callable[[ToolContext], bool] = lambda _: True) -> None:
        """End the commands whose context `is_meant` accepts. Their chats get a message with the reason."""
        meant = {task: one for task, one in self._tasks.items() if is_meant(one.context)}
        for one in meant.values():
            one.running.stop(reason)
        if meant:
            await asyncio.wait(meant, timeout=STOP_SECONDS)
        await cancel_all(meant)


def terminal_tool(
    settings: Callable[[], TerminalSettings], folder_of: Callable[[ChatId], Path], background: BackgroundRegistry
) -> Tool:
    """Return the tool `terminal`. `settings` returns the current settings, `folder_of` the workspace of a chat."""
    lines: WeakValueDictionary[ChatId, asyncio.Semaphore] = WeakValueDictionary()

    @tool(
        description="Run a shell command (bash if available) in a sandbox. It starts in /workspace, which holds this "
        "chat's files. Everything else, such as /tmp, is lost afterwards. There is no network unless the operator "
        "allows it. You see only the beginning and end of long output. When a command ends, its processes are killed. "
        "For servers and long-running commands, set background, then use poll (reads new output), kill and list.",
        effect=ToolEffect.EXECUTES,
        why_unavailable=lambda: terminal_fault(settings()),
        timeout_seconds=90_000.0,  # higher than `terminal.seconds` can be, because this tool ends commands itself
        is_exempt=lambda asked: asked.action != "run",
        shape=lambda asked: command_shape(asked, is_exact=settings().unsafe),
        reach=lambda shape: (
            f"running `{shape[:-2]}` with any plain words as arguments"
            if shape.endswith(" …")
            else f"running exactly\n{fenced(shape, 'sh')}\n"
        ),
        shown=_shown,
        step=StepWords(doing="Running", did="used the terminal", about=lambda asked: asked.command or asked.action),
    )
    async def terminal(asked: TerminalArguments, context: ToolContext) -> str:
        given, seconds = settings(), asked.seconds
        match asked.action:
            case "list":
                return _listed(background.of(context))
            case "run":
                command, folder = asked.needed("command"), folder_of(context.chat_id)
                if asked.background:
                    one = await background.start(command, folder, given, context)
                    return f"Started in the background; its id is {one.id}."
                async with lines.setdefault(context.chat_id, asyncio.Semaphore(4)):  # each command can use `memory_mb`
                    given = settings()  # may have changed while waiting
                    running = await RunningCommand.start(command, folder, given)
                    await running.finish(min(seconds or given.seconds, given.seconds))
                return running.report()
            case action:
                one = background.find(context, asked.needed("id"))
                if action == "poll":
                    return await background.wait(one, min(seconds or 0.0, given.seconds))
                one.pollers += 1  # this call reports the end of the command
                one.running.stop("as requested")
                return await background.wait(one, STOP_SECONDS)

    return terminal


_PLAIN = re.compile(
    r"(?a)(cat|cp|cut|date|df|diff|du|echo|grep|head|ls|md5sum|mkdir|mv|pwd|sha256sum|stat|tail|touch|tr|uniq|wc)"
    r"(?: +[\w./:,@%+=-]+)*"
)
"""Pattern for a program that starts no other programs, with arguments that the shell passes on unchanged."""


def command_shape(asked: TerminalArguments, *, is_exact: bool = False) -> str:
    """Return a command's kind for saved approvals: a harmless program with any arguments, or else the exact command.

    An empty kind means that each command needs its own approval. `is_exact`: always return the exact command, because
    there is no sandbox.

    >>> [command_shape(TerminalArguments(command=one)) for one in ("ls -l notes", "ls; reboot", "make all")]
    ['ls …', 'ls; reboot', 'make all']
    """
    command = asked.command.strip()
    found = None if is_exact else _PLAIN.fullmatch(command)
    shape = command if found is None else f"{found[1]} …"
    return "" if asked.background or len(shape) > 200 else shape


def _shown(asked: TerminalArguments) -> str:
    where = "\nThe command runs in the background." if asked.background else ""
    limit = f"\nTime limit: {asked.seconds:g} seconds." if asked.seconds is not None else ""
    return f"{fenced(asked.command, 'sh')}{where}{limit}"


def _listed(commands: list[BackgroundCommand]) -> str:
    if not commands:
        return "There are no background commands."
    return "\n".join(
        f"{one.id} [{'running' if one.running.is_running else one.running.outcome}] {shortened(one.command, 100)}"
        for one in commands
    )
