"""Odd things in the state directory of hermes-agent."""

import json
import os
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

from agent.memory.notes import MemoryDirectory
from gateway.cli.moving import _target
from gateway.moving import HermesSource, ImportJob
from hermes_state.store.sql import scalars, select
from hermes_state.values import ChatKey, Millis
from tests.databases import open_store
from tests.hermes_state.helpers import closed_after

SHARED = ("agent:main:telegram:group:-100300", "agent:main:telegram:group:-100300:42")


def job(name: str, deliver: str, origin: object = None, **more: object) -> dict[str, object]:
    when = {"kind": "cron", "expr": "0 7 * * *"}
    return {"name": name, "prompt": name, "schedule": when, "deliver": deliver, "origin": origin, **more}


async def test_odd_things_are_listed_and_the_rest_comes(tmp_path: Path) -> None:
    folder, home = tmp_path / "hermes", tmp_path / "home"
    with tarfile.open(Path(__file__).parents[2] / "fixtures" / "moving" / "hermes-0.19.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    with closing(sqlite3.connect(folder / "state.db")) as db, db:
        db.execute("DELETE FROM sessions")
        db.execute("DELETE FROM messages")
        for key in SHARED:
            columns = "id, source, user_id, chat_id, thread_id, chat_type, started_at, session_key"
            values = (key, "telegram", "42", "-100300", "1", "group", 1_788_300_000, key)
            db.execute(f"INSERT INTO sessions ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            for at, name in ((1_788_300_001, "look"), (1e17, "look"), (1_788_300_002, b"\xff")):
                row = (key, "tool", "said", "c1", name, at)
                query = "INSERT INTO messages (session_id, role, content, tool_call_id, tool_name, timestamp)"
                db.execute(f"{query} VALUES (?, ?, ?, ?, ?, ?)", row)
            query = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', 'hi', 1788300003)"
            db.execute(query, (key,))
    with closing(sqlite3.connect(folder / "state.db")) as db:
        db.execute("PRAGMA journal_mode = WAL")
    jobs = [
        job("ann", "origin", {"platform": "telegram", "chat_id": "-100300", "thread_id": "1", "user_id": "42"}),
        job("somebody", "origin", {"platform": "telegram", "chat_id": "-100300"}),
        job("mine", "local"),
        job("limited", "local", repeat={"times": 3}),
        job("several", "telegram:42,discord:900"),
        job("all", "all"),
    ]
    (folder / "cron" / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    (folder / "SOUL.md").unlink()
    (folder / "SOUL.md").symlink_to("/etc/passwd")
    for name in ("a/notes", "b/notes", "linking"):
        (folder / "skills" / name).mkdir(parents=True)
        (folder / "skills" / name / "SKILL.md").write_text("---\nname: notes\ndescription: notes\n---\n")
    (folder / "skills" / "linking" / "secret").symlink_to("/etc/passwd")
    (folder / "skills" / "linked").symlink_to(folder / "skills" / "a" / "notes")
    names = sorted(os.listdir(folder))
    source = HermesSource(folder)
    async with closed_after(open_store(home / "state.db")) as store:
        chat_id = await store.write(_target, "telegram:42", Millis(0))
        notes = MemoryDirectory(path=home / "memory")
        report = await ImportJob(source=source, home=home, notes=notes, zone="UTC", is_per_user=False).run(
            store, chat_id, Millis(0)
        )
        query = "SELECT sender_ref FROM messages WHERE role = 'user' ORDER BY id"
        assert await store.read(lambda db: db.execute(query).fetchall()) == [(None,), ("telegram:42",)]
        query = "SELECT text || ' ' || creator_ref || ' ' || state FROM schedules ORDER BY id"
        assert await store.read(lambda db: scalars(db, str, query)) == [
            "ann telegram:42 active",
            "somebody local:owner paused",
            "mine local:owner active",
        ]
        query = "SELECT platform, account, chat_ref, thread_ref FROM chats ORDER BY id"
        assert [key.name for key in await store.read(lambda db: select(db, ChatKey, query))] == [
            "telegram:42",
            "telegram:-100300",
        ]
    assert sorted(os.listdir(folder)) == names
    assert sorted(os.listdir(home / "skills")) == ["notes", "pruning"]
    assert not (home / "SOUL.md").exists()
    assert [fault.partition(": ")[2] for fault in report.faults] == [
        f"a link out of {folder}",
        *["1e+20 is not a time in milliseconds", "an id or name is not text"] * 2,
        "there is another skill of this name",
        f"{folder / 'skills' / 'linked'} is a link",
        f"{folder / 'skills' / 'linking' / 'secret'} is a link",
        "paused, because its owner is not known",
        "it ends after some runs, which the gateway does not do",
        *["it is sent to several chats; add a schedule in each of them"] * 2,
    ]
