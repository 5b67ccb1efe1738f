"""Sessions of OpenClaw in its older files, of kinds that no program here makes."""

import json
import re
import sqlite3
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.moving.conversations import store_conversation, views
from gateway.moving.openclaw import OpenClawSource
from hermes_state.store.sql import scalars
from hermes_state.transcripts import load_view
from hermes_state.values import LineageId
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
    [found] = state.conversations()
    assert [new.text for new, _ in found.rows] == ["one", "two", ""]
    assert [(one.id, one.arguments) for one in found.rows[2][0].body.calls] == [("c\ufffd", '{"word": "\u00e9\ufffd"}')]
    assert [one.text for one in state.schedules()] == ["go"]
    assert [fault.partition(":")[0] for fault in state.faults] == [
        "session agent",
        f"line 6 of {lines}",
        "message 1 of conversation s0",
        "schedule odd",
    ]
