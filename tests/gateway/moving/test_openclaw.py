"""Sessions of OpenClaw in its older files, of kinds that no program here makes."""

import json
import re
import sqlite3
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from zstandard import ZstdCompressor

from agent.memory.notes import MemoryDirectory
from gateway.moving import ImportJob
from gateway.moving.conversations import store_conversation, views
from gateway.moving.openclaw import OpenClawSource, _event
from hermes_state.chats import ensure_chat
from hermes_state.errors import CommandError
from hermes_state.store.sql import scalars
from hermes_state.transcripts import load_view
from hermes_state.values import ChatKey, ChatKind, LineageId, Millis
from tests.databases import open_store
from tests.hermes_state.helpers import closed_after

CHATS = {
    "agent:main:telegram:group:-100:topic:7": "telegram:-100/7",
    "agent:main:telegram:operations:direct:42": "telegram:42",
    "agent:main:discord:channel:900": "discord:900",
    "agent:main:discord:direct:42": "local:chat-",
    "agent:main:whatsapp:direct:+43": "local:chat-",
}


def said(role: str, text: object, **more: object) -> dict[str, Any]:
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


async def test_a_row_kept_by_two_compactions_is_stored_once(tmp_path: Path) -> None:
    def compaction(name: str, parent: str, kept: str) -> dict[str, object]:
        at = {"timestamp": "2026-03-01T00:00:00Z", "firstKeptEntryId": kept}
        return {"type": "compaction", "id": name, "parentId": parent, "summary": f"## Goal {name}", **at}

    events = [
        said("user", "hi", id="a", parentId=None),
        said("assistant", "1", id="b", parentId="a"),
        said("user", "2", id="c", parentId="b"),
        compaction("d", "c", "b"),
        said("assistant", "hi", id="e", parentId="d"),
        said("user", "hi", id="f", parentId="e"),
        compaction("g", "f", "c"),
        said("user", "4", id="h", parentId="g"),
    ]
    [found] = source(tmp_path, {"agent:main:main": events}).conversations()
    assert [[new.text for new, _ in view] for view in views(found.rows)] == [
        ["hi", "1", "2"],
        ["## Goal d", "1", "2", "hi", "hi"],
        ["## Goal g", "2", "hi", "hi", "4"],
    ]
    async with closed_after(open_store(tmp_path / "home" / "state.db")) as store:
        await store.write(store_conversation, found, set())
        said_query = "SELECT text FROM messages WHERE seq > 0 ORDER BY id"
        assert await store.read(lambda db: scalars(db, str, said_query)) == ["hi", "1", "2", "hi", "hi", "4"]
        view = (await store.read(load_view, LineageId(1))).transcript
    assert [(row.text or "").partition("\n")[0] for row in view] == ["## Goal g", "2", "hi", "hi", "4"]
    assert "[Stands for 2 messages, m1 to m2." in (view[0].text or "")


def test_archived_sessions_are_listed(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parents[2] / "fixtures" / "moving" / "openclaw-2026.9.6.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with closing(sqlite3.connect(tmp_path / "agents" / "main" / "agent" / "openclaw-agent.sqlite")) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{name}"')
        [(session_id,)] = db.execute("SELECT session_id FROM session_windows WHERE display_name = 'Chess club'")
        db.execute("DELETE FROM transcript_events WHERE session_id = ?", (session_id,))
        needed = [row[1] for row in db.execute("PRAGMA table_info(session_transcript_cold_archives)") if row[3]]
        values = [session_id if name == "session_id" else 1 for name in needed]
        marks = ", ".join("?" * len(needed))
        db.execute(f"INSERT INTO session_transcript_cold_archives ({', '.join(needed)}) VALUES ({marks})", values)
    state = OpenClawSource(tmp_path)
    assert [one.title for one in state.conversations()] == ["Trip to Rome", None]
    assert state.faults == [f"conversation {session_id}: OpenClaw has moved its messages to a compressed archive"]


def test_broken_things_are_listed_and_the_rest_comes(tmp_path: Path) -> None:
    empty = {"type": "message", "message": {"role": "user", "timestamp": 1}}
    call = [{"type": "toolCall", "id": "c\ud800", "name": "look", "arguments": {"word": "\u00e9\ud800"}}]
    events = [said("user", "one"), empty, said("assistant", ""), said("user", "two"), said("assistant", call)]
    state = source(tmp_path, {"agent:main:main": events})
    files = tmp_path / "agents" / "main" / "sessions"
    lines, keys = files / "s0.jsonl", json.loads((files / "sessions.json").read_text())
    lines.write_text(lines.read_text() + '\n{"type": "mess')
    (files / "sessions.json").write_text(json.dumps({"agent:main:odd": [], **keys}))
    (tmp_path / "cron").mkdir()
    when = {"kind": "cron", "expr": "0 8 * * *"}
    jobs = [
        {"name": name, "schedule": when, "payload": {"text": text}} for name, text in (("odd", None), ("even", "go"))
    ]
    (tmp_path / "cron" / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    (files / "s0.checkpoint.7.jsonl").write_text(lines.read_text())
    (files / "s1.jsonl").mkdir()
    (files / "s2.jsonl").write_text("[" * 200_000 + "]" * 200_000 + "\n7\n")
    (files / "s3.jsonl.reset.2026-01-01T00-00-00.000Z").write_text(json.dumps(said("user", "old")))
    [found, old] = state.conversations()
    assert [new.text for new, _ in old.rows] == ["old"]
    assert [new.text for new, _ in found.rows] == ["one", "two", ""]
    assert [(one.id, one.arguments) for one in found.rows[2][0].body.calls] == [("c\ufffd", '{"word": "\u00e9\ufffd"}')]
    assert [one.text for one in state.schedules()] == ["go"]
    assert [fault.partition(":")[0] for fault in state.faults] == [
        "session agent",
        f"line 6 of {lines}",
        "message 1 of conversation s0",
        "conversation s1",
        f"line 1 of {files / 's2.jsonl'}",
        f"line 2 of {files / 's2.jsonl'}",
        "schedule odd",
    ]
    for name, text, told in (
        ("sessions.json", "[1]", "not a JSON object"),
        ("sessions.json", "[" * 200_000, "recursion"),
    ):
        (files / name).write_text(text)
        with pytest.raises(CommandError, match=told):
            list(state.conversations())
    with pytest.raises(ValueError, match="more than 64,000,000 bytes"):
        _event({"event_json": None, "event_zstd": ZstdCompressor().compress(b" " * 65_000_000)})


def test_a_branch_goes_on_above_a_broken_line(tmp_path: Path) -> None:
    events = [said("user", f"m{number}", id=f"{number}", parentId=f"{number - 1}") for number in range(6)]
    state = source(tmp_path, {"agent:main:main": events})
    lines = tmp_path / "agents" / "main" / "sessions" / "s0.jsonl"
    lines.write_text(lines.read_text().replace('"m3"', '"m3'))
    [found] = state.conversations()
    assert [new.text for new, _ in found.rows] == ["m0", "m1", "m2", "m4", "m5"]
    assert len(state.faults) == 1


@pytest.mark.parametrize(
    ("kept", "summary", "then"), [("b", "## Goal", ["1", "2"]), ("b", "", []), ("x", "## Goal", [])]
)
def test_a_kept_tail_begins_at_any_event(tmp_path: Path, kept: str, summary: str, then: list[str]) -> None:
    at = {"timestamp": "2026-03-01T00:00:00Z", "firstKeptEntryId": kept}
    events = [
        said("user", "0", id="a", parentId=None),
        {"type": "model_change", "id": "b", "parentId": "a"},
        said("user", "1", id="c", parentId="b"),
        said("user", "2", id="d", parentId="c"),
        {"type": "compaction", "id": "e", "parentId": "d", "summary": summary, **at},
        said("user", "3", id="f", parentId="e"),
        said("user", "4", id="g", parentId="f", message={"role": "user", "content": "late", "timestamp": 1e17}),
    ]
    state = source(tmp_path, {"agent:main:main": events})
    [found] = state.conversations()
    expected = ["0", "1", "2", *([summary] if summary else []), *then, "3"]
    assert [new.text for new, _ in found.rows] == expected
    assert [fault.partition(": ")[2] for fault in state.faults] == ["1e+17 is not a time in milliseconds"]


@pytest.mark.parametrize(
    ("channel", "target", "name", "is_active"),
    [
        ("telegram", "telegram:42", "telegram:42", True),
        ("telegram", "-100:topic:7", "telegram:-100/7", False),
        ("telegram", "@news", "local:chat-", False),
        ("discord", "user:77", "local:chat-", False),
        ("discord", "channel:900", "discord:900", False),
        ("slack", "C1", "local:chat-", False),
    ],
)
async def test_a_schedule_does_not_run_with_the_rights_of_others(
    tmp_path: Path, channel: str, target: str, name: str, is_active: bool
) -> None:
    way = {"channel": channel, "to": target}
    state = source(tmp_path / "state", {"agent:main:main": [said("user", "hello")]})
    keys = tmp_path / "state" / "agents" / "main" / "sessions" / "sessions.json"
    keys.write_text(json.dumps({"agent:main:main": {"sessionId": "s0", "deliveryContext": way}}))
    [found] = state.conversations()
    (tmp_path / "state" / "cron").mkdir()
    job = {"name": "News", "schedule": {"kind": "cron", "expr": "0 8 * * *"}, "payload": {"text": "News."}}
    (tmp_path / "state" / "cron" / "jobs.json").write_text(json.dumps({"jobs": [7, {**job, "delivery": way}]}))
    [schedule] = state.schedules()
    for chat in (found.chat, schedule.chat):
        assert chat is not None
        assert re.sub("-[0-9a-f]{8}$", "-", chat.key.name) == name
        assert (chat.sender == "telegram:42") == is_active
    async with closed_after(open_store(tmp_path / "home" / "state.db")) as store:
        chat_id = await store.write(
            ensure_chat, ChatKey(platform="local", account="local", chat_ref="main"), ChatKind.LOCAL, None, Millis(0)
        )
        task = ImportJob(
            source=state,
            home=tmp_path / "home",
            notes=MemoryDirectory(path=tmp_path / "m"),
            zone="UTC",
            is_per_user=False,
        )
        report = await task.run(store, chat_id, Millis(0))
        assert await store.read(lambda db: scalars(db, str, "SELECT state FROM schedules ORDER BY id")) == [
            "active" if is_active else "paused"
        ]
        assert ("schedule 'News': paused, because its owner is not known" in report.faults) != is_active
        await store.write(lambda db: db.execute("DELETE FROM schedules"))
        await store.write(lambda db: db.execute("UPDATE sessions SET key = CAST(id AS TEXT)"))
        again = await task.run(store, chat_id, Millis(0))
        assert (again.new.total(), again.known["schedules"], again.known["conversations"]) == (0, 1, 1)
