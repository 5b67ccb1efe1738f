"""The tool `terminal`, in the foreground and in the background."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent.settings import TerminalSettings
from agent.tools.registry import ToolContext, ToolRegistry, ToolReply, failed
from agent.tools.terminal.terminal_tool import BackgroundCommand, BackgroundRegistry, TerminalArguments, terminal_tool
from hermes_state.aio import cancel_all
from hermes_state.errors import ToolError
from hermes_state.tool_runs import ToolRunState
from hermes_state.turns import RunningTurn
from hermes_state.values import ChatId, ChatKey, ToolCall
from tests.agent.conftest import Chat
from tests.sandboxes import all_gone, needs_sandbox

pytestmark = needs_sandbox


@dataclass
class Terminal:
    """The tool in a turn of a chat, and its messages about background commands."""

    chat: Chat
    turn: RunningTurn
    folder_of: Callable[[ChatId], Path]
    settings: TerminalSettings = field(default_factory=lambda: TerminalSettings(enabled=True))
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.told = asyncio.Event()
        self.background = BackgroundRegistry(self._note)
        self.tools = ToolRegistry([terminal_tool(lambda: self.settings, self.folder_of, self.background)])

    async def _note(self, command: BackgroundCommand) -> None:
        self.ended.append(f"{command.id} {command.running.outcome}")
        self.told.set()

    async def __call__(self, **arguments: Any) -> ToolReply:
        asked = ToolCall(id="c", name="terminal", arguments=orjson.dumps(arguments).decode())
        try:
            context = ToolContext.of(self.turn, self.chat.store)
            return await self.tools.run(asked, self.tools.check(asked), context)
        except ToolError as error:
            return failed(str(error))

    async def begin(self, command: str) -> str:
        """Start a command in the background, and return its id."""
        reply = await self(command=command, background=True)
        assert reply.state is ToolRunState.DONE, reply.text
        return reply.text.rstrip(".").rpartition(" ")[2]


@pytest.fixture
async def terminal(chat: Chat, tmp_path: Path) -> AsyncIterator[Terminal]:
    folder = tmp_path / "workspace"
    folder.mkdir()
    made = Terminal(chat, await chat.start("do it"), lambda _: folder)
    yield made
    await made.background.stop("the end of the test")


async def test_a_command_returns_its_state_and_output(terminal: Terminal) -> None:
    reply = await terminal(command="echo out; echo err >&2; exit 7")
    assert reply.state is ToolRunState.DONE
    assert reply.text.startswith("[exit code 7; ")
    assert reply.text.endswith(" s]\nout\nerr\n")


async def test_the_time_limit_is_the_lower_of_request_and_setting(terminal: Terminal) -> None:
    assert "longer than 0.3 s" in (await terminal(command="sleep 100", seconds=0.3)).text
    terminal.settings = TerminalSettings(enabled=True, seconds=0.2)
    assert "longer than 0.2 s" in (await terminal(command="sleep 100", seconds=50)).text


async def test_only_a_few_commands_of_a_chat_run_at_once(terminal: Terminal) -> None:
    command = "mkdir run.$$-{0}; ls -d run.* | wc -l; sleep 0.3; rmdir run.$$-{0}"
    replies = await asyncio.gather(*(terminal(command=command.format(number)) for number in range(12)))
    counts = [int(reply.text.splitlines()[-1]) for reply in replies]
    assert 2 <= max(counts) <= 4


async def test_commands_of_another_chat_do_not_wait(terminal: Terminal) -> None:
    crowd = [asyncio.create_task(terminal(command="touch began; sleep 291")) for _ in range(6)]
    folder = terminal.folder_of(terminal.turn.chat_id)
    async with asyncio.timeout(10):
        while not (folder / "began").exists():  # noqa: ASYNC110  # a file has no event to wait for
            await asyncio.sleep(0.02)
    chat = Chat(terminal.chat.store, key=ChatKey(platform="telegram", account="telegram", chat_ref="8"))
    other = Terminal(chat, await chat.start("do it"), terminal.folder_of)
    other.tools = terminal.tools
    assert "exit code 0" in (await asyncio.wait_for(other(command="true"), 10)).text
    await cancel_all(crowd)
    assert await all_gone("sleep\x00291")
    assert "exit code 0" in (await asyncio.wait_for(terminal(command="true"), 10)).text, (
        "cancelled calls free their slot"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "run needs command"),
        ({"action": "poll"}, "poll needs id"),
        ({"action": "kill", "id": "nosuch"}, "there is no background command 'nosuch'; existing commands: none"),
        ({"command": "a\0b"}, "NUL"),
        ({"action": "sudo"}, "action must be one of"),
    ],
)
async def test_errors_explain_invalid_calls(arguments: dict[str, Any], reason: str, terminal: Terminal) -> None:
    reply = await terminal(**arguments)
    assert reply.state is ToolRunState.FAILED
    assert reason in reply.text


async def test_settings_disable_the_terminal_and_widen_its_approvals(terminal: Terminal) -> None:
    [tool] = terminal.tools.by_name.values()
    assert tool.shape(TerminalArguments(command="cat notes")) == "cat …"
    terminal.settings = TerminalSettings(enabled=True, unsafe=True)
    assert tool.shape(TerminalArguments(command="cat notes")) == "cat notes", (
        "without a sandbox, only the exact command"
    )
    terminal.settings = TerminalSettings(enabled=False)
    assert tool.why_unavailable() == "the terminal is off (terminal.enabled)"
    assert "there is no tool named 'terminal'" in (await terminal(command="true")).text


async def test_a_background_command_can_be_polled(terminal: Terminal) -> None:
    command_id = await terminal.begin("echo one; mkfifo go; read x < go; echo two; exit 5")
    assert f"{command_id} [running] echo one; mkfifo go" in (await terminal(action="list")).text
    first = await terminal(action="poll", id=command_id, seconds=0.5)
    assert first.text.startswith("[still running; ")
    assert first.text.endswith("one\n")
    poll = asyncio.create_task(terminal(action="poll", id=command_id, seconds=30))
    assert (await terminal(command="echo > go")).text.startswith("[exit code 0;")
    last = await poll
    assert last.text.startswith("[exit code 5; ")
    assert last.text.endswith("]\ntwo\n")
    assert (await terminal(action="list")).text == "There are no background commands."
    assert terminal.ended == [], "a call has reported the end"


async def test_the_end_of_an_unpolled_background_command_is_announced(terminal: Terminal) -> None:
    command_id = await terminal.begin("echo done; exit 6")
    await asyncio.wait_for(terminal.told.wait(), 30)
    assert terminal.ended == [f"{command_id} exit code 6"]
    assert (await terminal(action="poll", id=command_id)).text.endswith("done\n")


async def test_a_background_command_is_killed_with_its_children(terminal: Terminal) -> None:
    command_id = await terminal.begin("trap '' TERM; setsid sleep 292 & sleep 292")
    assert (await terminal(action="kill", id=command_id)).text.startswith("[stopped: as requested; ")
    assert await all_gone("sleep\x00292")
    assert terminal.ended == []


async def test_background_commands_of_a_chat_are_limited(terminal: Terminal) -> None:
    terminal.settings = TerminalSettings(enabled=True, max_background=2)
    replies = await asyncio.gather(*(terminal(command="sleep 287", background=True) for _ in range(5)))
    assert sorted(reply.state for reply in replies) == [ToolRunState.DONE] * 2 + [ToolRunState.FAILED] * 3
    refused = await terminal(command="sleep 100", background=True)
    assert "2 background commands" in refused.text
    await terminal.background.stop("the test")


async def test_background_commands_of_another_chat_are_not_accessible(terminal: Terminal) -> None:
    command_id = await terminal.begin("sleep 100")
    other = Chat(terminal.chat.store, key=ChatKey(platform="telegram", account="telegram", chat_ref="43"))
    terminal.turn = await other.start("kill it")
    assert "there is no background command" in (await terminal(action="kill", id=command_id)).text
    assert (await terminal(action="list")).text == "There are no background commands."


async def test_stopping_ends_background_commands_with_a_reason(terminal: Terminal) -> None:
    command_id = await terminal.begin("sleep 291")
    await terminal.background.stop("the gateway is stopping")
    assert terminal.ended == [f"{command_id} stopped: the gateway is stopping"]
    assert await all_gone("sleep\x00291")


async def test_a_cancelled_call_ends_its_command(terminal: Terminal) -> None:
    call = asyncio.create_task(terminal(command="mkfifo go; read x < go; sleep 290"))
    folder = terminal.folder_of(terminal.turn.chat_id)
    while not (folder / "go").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # there is no event for files of another process
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await all_gone("sleep 290")
