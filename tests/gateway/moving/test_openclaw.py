"""Sessions of OpenClaw in its older files, of kinds that no program here makes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.moving.openclaw import OpenClawSource

CHATS = {
    "agent:main:telegram:group:-100:topic:7": "telegram:-100/7",
    "agent:main:telegram:operations:direct:42": "telegram:42",
    "agent:main:discord:channel:900": "discord:900",
    "agent:main:discord:direct:42": "local:chat-",
    "agent:main:whatsapp:direct:+43": "local:chat-",
}


def said(role: str, text: str, **more: object) -> dict[str, Any]:
    return {"type": "message", "message": {"role": role, "content": text, "timestamp": 1_000}, **more}


def source(folder: Path, sessions: Mapping[str, list[Mapping[str, Any]]]) -> OpenClawSource:
    """Return a state directory with these events by session key."""
    files = folder / "agents" / "main" / "sessions"
    files.mkdir(parents=True)
    keys = {key: {"sessionId": f"s{number}"} for number, key in enumerate(sessions)}
    (files / "sessions.json").write_text(json.dumps(keys))
    for number, events in enumerate(sessions.values()):
        (files / f"s{number}.jsonl").write_text("\n".join(map(json.dumps, events)))
    return OpenClawSource(folder)


def test_a_key_names_the_chat(tmp_path: Path) -> None:
    runs = ("agent:main:subagent:1", "agent:main:cron:2")
    state = source(tmp_path, {key: [said("user", "hello")] for key in (*CHATS, *runs)})
    names = [found.chat.key.name for found in state.conversations()]
    assert [re.sub("-[0-9a-f]{8}$", "-", name) for name in names] == list(CHATS.values())
    assert len(set(names)) == len(CHATS)
    assert state.faults == ["2 runs of schedules, sub-agents and webhooks: not a conversation"]


def test_a_reset_begins_a_conversation_and_other_branches_are_left_out(tmp_path: Path) -> None:
    events = [
        {"type": "session", "id": "s"},
        said("user", "one", id="a", parentId=None),
        said("assistant", "other answer", id="b", parentId="a"),
        said("assistant", "answer", id="c", parentId="a"),
        {"type": "reset", "id": "d", "parentId": "c"},
        said("user", "two", id="e", parentId="d"),
        said("user", "gone", id="f", parentId="e"),
        {"type": "leaf", "id": "g", "parentId": "f", "targetId": "e"},
    ]
    state = source(tmp_path, {"agent:main:main": events})
    found = list(state.conversations())
    assert [[new.text for new, _ in one.rows] for one in found] == [["one", "answer"], ["two"]]
    assert len({one.mark for one in found}) == 2


def test_broken_lines_are_listed_and_the_rest_comes(tmp_path: Path) -> None:
    events = [
        said("user", "one"),
        {"type": "message", "message": {"role": "user", "timestamp": 1}},
        said("user", "two"),
    ]
    state = source(tmp_path, {"agent:main:main": events})
    file = tmp_path / "agents" / "main" / "sessions" / "s0.jsonl"
    file.write_text(file.read_text() + '\n{"type": "mess')
    [found] = state.conversations()
    assert [new.text for new, _ in found.rows] == ["one", "two"]
    assert [fault.partition(":")[0] for fault in state.faults] == [
        f"line 4 of {file}",
        "message 1 of conversation s0",
    ]
