"""Approval questions: they show the complete effect of a call, and the reach of a saved approval."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from agent.memory.notes import MemoryDirectory
from agent.settings import ServerSettings, TerminalSettings, WorkspaceSettings
from agent.tools.approvals import fenced, inline, question_about
from agent.tools.files.file_tools import file_tools
from agent.tools.files.workspace import WorkspaceStore
from agent.tools.mcp.servers import ServerHandle
from agent.tools.mcp.settings import RemoteTool
from agent.tools.memory import memory_tool
from agent.tools.offers import ReadyCall
from agent.tools.registry import Tool, parsed
from agent.tools.schedules.schedule_tool import schedule_tool
from agent.tools.terminal.terminal_tool import BackgroundRegistry, terminal_tool
from hermes_state.errors import ToolError
from hermes_state.tools.approvals import AnswererRole, ApprovalRequest
from hermes_state.values import SystemClock, ToolCall, ToolEffect

INVISIBLE = "\u200d\u200b\u200f\u061c\u2028\u2063\u00ad\ufeff\u3164\u2800\u17b4\U000e0041\ue000"


@pytest.mark.parametrize("character", INVISIBLE, ids=ascii)
def test_invisible_characters_are_shown_as_codes(character: str) -> None:
    code = f"\\u{ord(character):04x}"
    assert code in fenced(f"rm a{character}b")
    assert code in inline(f"rm a{character}b")


@pytest.mark.parametrize(
    "text", ["\u2764\ufe0f", "\U0001f469\u200d\U0001f680", "می\u200cخواهم", "क्\u200dष", "naïve – 5 €"]
)
def test_ordinary_characters_are_unchanged(text: str) -> None:
    assert text in fenced(text)
    assert text in inline(text)


LONG = " ".join(f"word{number}" for number in range(3_000))
DEEP = "/".join(["folder" * 40] * 39)


def tools(folder: Path) -> dict[str, Tool]:
    async def unused(*_: object) -> None:
        raise AssertionError

    clock = SystemClock()
    notes = MemoryDirectory(path=folder)
    server = ServerHandle(ServerSettings(name="harbour", command="x"), None, clock, str)  # type: ignore[arg-type]
    remote = RemoteTool(name="bo`ok" + "k" * 300, description="", parameters={}, claims_to_read=False)
    known = [
        *file_tools(WorkspaceStore(folder, WorkspaceSettings())),
        memory_tool(notes),
        schedule_tool(lambda: "UTC", lambda person: True, lambda: None, clock),
        terminal_tool(lambda: TerminalSettings(enabled=True), lambda chat: folder, BackgroundRegistry(unused)),
        server._tool("harbour__book", remote),
        Tool(name="plugin", description="", parameters={}, effect=ToolEffect.WRITES, run=unused),  # type: ignore[arg-type]
    ]
    return {tool.name: tool for tool in known}


def question(folder: Path, tool: str, arguments: Mapping[str, Any]) -> ApprovalRequest:
    call, known = ToolCall(id="1", name=tool, arguments=orjson.dumps(arguments).decode()), tools(folder)[tool]
    ready = ReadyCall(call=call, tool=known, arguments=parsed(call.arguments, known.parameters))
    return question_about(ready, AnswererRole.STARTER)


@pytest.mark.parametrize(
    ("tool", "arguments", "shown"),
    [
        ("write_file", {"path": "./" * 110 + "AGENTS.md", "content": LONG}, ["`AGENTS.md`, with this content", LONG]),
        ("write_file", {"path": f"/workspace//{DEEP}/x.py", "content": "1"}, [f"{DEEP}/x.py"]),
        (
            "edit_file",
            {"path": "a/./b", "old": LONG, "new": f"new {LONG}", "all": True},
            ["`a/b`, every occurrence", LONG, "new word0"],
        ),
        ("memory", {"action": "add", "target": "user", "text": LONG}, ["add", "user", LONG]),
        ("memory", {"action": "replace", "target": "memory", "text": "a", "old": LONG}, ["replace", LONG]),
        ("schedule", {"action": "add", "cron": "0 8 * * mon-fri", "text": LONG}, ["0 8 * * mon-fri", "next", LONG]),
        ("schedule", {"action": "add", "at": "2099-11-24 08:00", "text": "x"}, ["2099-11-24 08:00"]),
        ("schedule", {"action": "remove", "id": 1234}, ["Remove", "1234", "`/schedule` lists them"]),
        (
            "terminal",
            {"action": "run", "command": LONG, "background": True, "seconds": 7.5},
            [LONG, "background", "7.5"],
        ),
        (
            "harbour__book",
            {"boat": LONG, "url": "https://a.example/" + "x" * 500},
            [LONG, "x" * 500, "k" * 300, "harbour"],
        ),
        ("plugin", {"deep": [{"key": LONG}], "flag": False}, [LONG, "deep", "flag", "false"]),
    ],
)
def test_a_question_shows_all_arguments(tmp_path: Path, tool: str, arguments: dict[str, Any], shown: list[str]) -> None:
    text = question(tmp_path, tool, arguments).markdown
    assert not [words for words in shown if words not in text]
    assert f"`{tool}`" in text


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/" * 50 + "x", "x" * 300, "a\nb", "a\u202eb"])
def test_an_invalid_path_is_refused_before_the_question(tmp_path: Path, path: str) -> None:
    for name in ("write_file", "edit_file"):
        with pytest.raises(ToolError):
            tools(tmp_path)[name].check(SimpleNamespace(path=path), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tool", "arguments", "covered"),
    [
        (
            "write_file",
            {"path": "a", "content": "b"},
            "`write_file` by everyone in this chat for any file in this chat's workspace.",
        ),
        (
            "terminal",
            {"command": "ls -l"},
            "`terminal` by everyone in this chat running `ls` with any plain words as arguments.",
        ),
        (
            "terminal",
            {"command": "make all"},
            "`terminal` by everyone in this chat running exactly\n```sh\nmake all\n```",
        ),
        ("harbour__book", {}, "`harbour__book` by everyone in this chat with any arguments."),
        ("plugin", {}, "`plugin` by everyone in this chat with any arguments."),
    ],
)
def test_a_question_says_what_is_covered(tmp_path: Path, tool: str, arguments: dict[str, Any], covered: str) -> None:
    footer = question(tmp_path, tool, arguments).footer(7)
    assert covered in footer
    assert "(until `/new`)" in footer
    assert "any file of the chat" not in footer


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pаypal.com", "p\\u0430ypal.com"),  # Cyrillic
        ("gοogle", "g\\u03bfogle"),  # Greek
        ("notes/сор.md", "notes/\\u0441\\u043e\\u0440.md"),
        ("ｒm", "\\uff52m"),
        ("a\nb", "a\\u000ab"),
        (" a ", "\\u0020a\\u0020"),
        *((name, name) for name in ("заметки/план.md", "Καλημέρα", "日本語test", "naïve.py", "straße")),
    ],
)
def test_look_alike_letters_are_shown_as_codes_but_names_in_other_scripts_are_not(text: str, code: str) -> None:
    assert inline(text) == f"`{code}`"


def test_a_look_alike_letter_in_a_command_is_shown_as_code() -> None:
    assert "p\\u0430ypal" in fenced("curl https://pаypal.com")
    assert "привет, мир" in fenced("echo привет, мир")
    assert "\\nпривет" in fenced(r'{"text": "one\nпривет"}')


def test_long_white_space_is_replaced_by_its_length() -> None:
    assert fenced("ls" + " " * 500 + "; reboot") == "```\nls[500 spaces]; reboot\n```"
    assert fenced("ls" + "\u3000\u00a0" * 50 + "; reboot") == "```\nls[100 spaces]; reboot\n```"
    assert fenced("ls" + " \n" * 50 + "reboot") == "```\nls[50 line ends]reboot\n```"
    assert fenced("ls" + "\n" * 50 + "reboot") == "```\nls[50 line ends]reboot\n```"


@pytest.mark.parametrize("name", ["a`b", "``` x", "x" * 201])
def test_a_long_name_or_a_name_with_backticks_is_a_code_block(name: str) -> None:
    shown = inline(name)
    fence = re.match(r"\n(`+)\n", shown)
    assert shown == f"\n{fence[1]}\n{name}\n{fence[1]}\n"
    assert fence[1] not in name
