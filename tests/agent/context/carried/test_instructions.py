"""Instructions that a tool read are listed after a compression."""

import json
from typing import Any

import pytest

from agent.context.commit import MAX_NAMED, READ_AGAIN, to_read_again
from hermes_state.values import Message, MessageBody, MessageRole, Origin, ToolCall
from tests.agent.context.rows import human, row


def calls(*made: tuple[str, dict[str, Any]]) -> Message:
    """An answer that calls tools. The id of each call is its position."""
    body = MessageBody(
        calls=tuple(
            ToolCall(id=str(at), name=name, arguments=json.dumps(given)) for at, (name, given) in enumerate(made)
        )
    )
    return row(MessageRole.ASSISTANT, "", origin=Origin.ASSISTANT, body=body)


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("skill", {"name": "trips"}, "skill trips"),
        ("skill", {"name": "trips", "file": "forms/visa.md", "offset": 9}, "skill trips (forms/visa.md)"),
        ("more_tools", {"tool": "skill", "arguments": {"name": "trips"}}, "skill trips"),
        ("read_file", {"path": "AGENTS.md"}, "file AGENTS.md"),
        ("read_file", {"path": "my docs/été/CLAUDE.md", "offset": 1}, "file my docs/été/CLAUDE.md"),
        ("read_file", {"path": "app/AGENTS.override.md"}, "file app/AGENTS.override.md"),
        ("read_file", {"path": ".cursorrules"}, "file .cursorrules"),
        ("read_file", {"path": ".cursor/rules/style.mdc"}, "file .cursor/rules/style.mdc"),
        ("read_file", {"path": ".github/copilot-instructions.md"}, "file .github/copilot-instructions.md"),
        ("fs_read_text_file", {"path": "/srv/app/GEMINI.md"}, "file /srv/app/GEMINI.md"),
        ("read_file", {"path": "AGENT.md"}, "file AGENT.md"),
        (
            "read_file",
            {"path": ".github/instructions/python.instructions.md"},
            "file .github/instructions/python.instructions.md",
        ),
        ("read_file", {"path": ".cursor/rules/a.md"}, "file .cursor/rules/a.md"),
        ("read_file", {"path": ".clinerules/style.md"}, "file .clinerules/style.md"),
        ("read_file", {"path": ".kiro/steering/tech.md"}, "file .kiro/steering/tech.md"),
        ("read_file", {"path": "skills/trips/forms/visa.md"}, "file skills/trips/forms/visa.md"),
        ("read_file", {"path": ".goosehints"}, "file .goosehints"),
        ("read_file", {"path": ".junie/guidelines.md"}, "file .junie/guidelines.md"),
        ("fs__get_file_contents", {"path": "QWEN.md"}, "file QWEN.md"),
        ("shell", {"command": ["cat", "docs/AGENTS.md"]}, "file docs/AGENTS.md"),
        ("execute_command", {"command": "sed -n 1,80p CLAUDE.local.md"}, "file CLAUDE.local.md"),
        ("terminal", {"command": "cd app && cat docs/CONTRIBUTING.md | head -50"}, "file docs/CONTRIBUTING.md"),
        ("read_file", {"path": "README.md"}, None),
        ("read_file", {"path": "notes/my-agents.md.bak"}, None),
        ("read_file", {"path": "MYAGENTS.md"}, None),
        ("more_tools", {"tool": "skill"}, None),
        ("search_files", {"pattern": "AGENTS.md"}, None),
        ("write_file", {"path": "AGENTS.md", "content": "Answer briefly."}, None),
        ("web_fetch", {"url": "https://example.org/AGENTS.md"}, None),
        ("delegate", {"task": "Read AGENTS.md and say what it wants."}, None),
        ("terminal", {"command": "cat AGENTS.md; " + "x" * 2_000}, None),
        ("web_fetch", {"url": "https://example.org/index.html"}, None),
    ],
)
def test_instructions_read_by_a_call_are_listed(tool: str, arguments: dict[str, Any], named: str | None) -> None:
    expected = None if named is None else READ_AGAIN + named
    assert to_read_again([human("go on"), calls((tool, arguments))], ()) == expected


def test_instructions_still_in_view_failed_calls_and_invalid_json_are_not_listed() -> None:
    read = calls(("skill", {"name": "trips"}), ("skill", {"name": "boats"}))
    refused = row(MessageRole.TOOL, "Error: there is no such skill", origin=Origin.TOOL, tool_call_id="1")
    assert to_read_again([read, refused], ()) == READ_AGAIN + "skill trips"
    assert to_read_again([read, refused], {read.id}) is None
    broken = MessageBody(calls=(ToolCall(id="1", name="skill", arguments='{"name":'),))
    assert to_read_again([row(MessageRole.ASSISTANT, "", origin=Origin.ASSISTANT, body=broken)], ()) is None


def test_names_stay_listed_until_they_are_read_again_in_view() -> None:
    before = row(MessageRole.USER, f"Open items\n\n{READ_AGAIN}skill trips; file a/AGENTS.md", origin=Origin.TODO)
    again = calls(("skill", {"name": "trips"}))
    assert to_read_again([before], {before.id}) == READ_AGAIN + "skill trips; file a/AGENTS.md"
    assert to_read_again([before, again], {again.id}) == READ_AGAIN + "file a/AGENTS.md"
    assert to_read_again([before, again], ()) == READ_AGAIN + "file a/AGENTS.md; skill trips", "the newest last"


def test_only_the_newest_instructions_are_listed() -> None:
    many = [calls(("skill", {"name": f"skill-{number}"})) for number in range(12)]
    line = to_read_again(many, ()) or ""
    assert line.count("skill skill-") == MAX_NAMED
    assert line.endswith("skill skill-11")
