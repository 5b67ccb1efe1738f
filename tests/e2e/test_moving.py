"""Moving in from hermes-agent and OpenClaw, whose real programs made the state directories."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.memory.notes import MemoryDirectory
from gateway.moving.conversations import ImportedConversation
from gateway.moving.hermes import HermesSource
from gateway.moving.run import ImportJob
from hermes_state.chats import ensure_chat
from hermes_state.engines.opening import open_store
from hermes_state.values import ChatKey, ChatKind, Millis
from tests.databases import sqlite_only
from tests.e2e.protocols import conversation_of
from tests.e2e.world import GROUP, World

FIXTURES = Path(__file__).parents[1] / "fixtures" / "moving"
COUNTS = "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM messages), (SELECT count(*) FROM schedules)"


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def hermes(tmp_path: Path) -> Path:
    """hermes-agent's state directory, with a longer newest conversation and some broken rows."""
    home = unpacked("hermes-0.19.0", tmp_path / "hermes")
    with closing(sqlite3.connect(home / "state.db")) as db, db:
        start = 1_788_300_000
        said = [
            ("user" if number % 2 == 0 else "assistant", f"Line {number} of the tram. " * 40) for number in range(60)
        ]
        rows = [("20260901_130000_aaaa0003", role, text, start + at) for at, (role, text) in enumerate(said)]
        query = "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)"
        db.executemany(query, [*rows, ("20260901_130000_aaaa0003", "tool", "nobody asked", start + 100)])
        db.execute("UPDATE messages SET tool_calls = '[{' WHERE tool_calls IS NOT NULL")
        db.execute("UPDATE sessions SET origin_json = '{' WHERE source = 'signal'")
    return home


async def test_conversations_of_hermes_agent_are_continued_resumed_searched_and_compressed(
    world: World, hermes: Path
) -> None:
    dry = await world.command_line("import", "hermes", str(hermes), "--dry-run")
    assert dry[0] == 0, dry[1]
    assert "Would import 4 conversations\n" in dry[1]
    assert not world.home.exists()
    code, output = await world.command_line("import", "hermes", str(hermes))
    assert (code, output) == (0, dry[1].replace("Would import", "Imported"))
    for fault in (
        "message 4 of conversation 20260901_090000_aaaa0001: Expecting property name",
        "conversation 20260901_160000_aaaa0006: Expecting property name",
        "a tool's result does not name its call",
        "schedule Odd: it repeats every 45 minutes",
    ):
        assert output.count(fault) == 1, (fault, output)
    counts = world.query(COUNTS)
    code, output = await world.command_line("import", "hermes", str(hermes))
    assert (code, world.query(COUNTS)) == (0, counts), output
    assert "Imported 0 conversations (4 already here)\n" in output
    assert world.query("SELECT spec, state FROM schedules ORDER BY id") == [
        ("0 7 * * 1-5", "active"),
        ("0 */2 * * *", "active"),
        ("2036-05-01T09:00", "active"),
        ("30 18 * * *", "paused"),
    ]
    [(main,)] = world.query("SELECT id FROM chats WHERE chat_ref = 'main'")
    assert (world.home / "memory" / str(main) / "MEMORY.md").read_text().startswith("- The home server runs Debian 12.")
    assert (world.home / "skills" / "pruning" / "references" / "dates.md").exists()
    assert os.listdir(world.home / "skills") == ["pruning"]

    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    assert (await world.command_line("import", "hermes", str(hermes)))[0] == 75
    await world.converse("And on Monday?")
    seen = conversation_of((await world.asked(1))[0])
    pieces = (
        "I plan a trip",
        "CONTEXT COMPACTION",
        "Plan nine days",
        "Where do we sleep?",
        "Line 59 of",
        "And on Monday?",
    )
    places = [seen.index(piece) for piece in pieces]
    assert places == sorted(places)
    assert "Earlier turns were compacted" not in seen
    assert "In May, for nine days." not in seen, "the summary stands for it"
    assert [seen.count(piece) for piece in ("I plan a trip", "in the Pensao Luz")] == [1, 1]
    await world.ask("/search tile museum", "see the tile museum")
    await world.script(summary=True, text="## Goal\nTrams in Lisbon.\n", times=9)
    await world.ask("/compress here 3", "Compressed: ")
    [(key,)] = world.query("SELECT key FROM sessions WHERE title = 'Balcony'")
    await world.ask(f"/resume {key[:8]}", "Back in conversation")
    assert await world.gateway.stop() == 0
    await world.gateway.start()
    await world.converse("And ivy?")
    seen = conversation_of((await world.asked(0, wait=0))[-1])
    assert [piece in seen for piece in ("north balcony", "costs about 12 EUR", "And ivy?", "tram")] == [True] * 3 + [
        False
    ]
    assert await world.outcomes() == {"ok"}
    assert await world.violations() == []


@pytest.mark.parametrize(
    ("name", "answers", "prompt"),
    [
        ("openclaw-2026.9.6", "the evening", ("Remind me of the dentist.", "I will.")),
        ("openclaw-2026.3.2", "Lovage", ("Which herb is number 0?", "Lovage.")),
    ],
)
async def test_conversations_of_openclaw_go_on(
    world: World, tmp_path: Path, name: str, answers: str, prompt: tuple[str, str]
) -> None:
    state = unpacked(name, tmp_path / "openclaw")
    for _ in range(2):
        code, output = await world.command_line("import", "openclaw", str(state))
        assert code == 0, output
    assert "already here" in output
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    await world.converse("What was it?")
    seen = conversation_of((await world.asked(1))[0])
    assert [piece in seen for piece in prompt] == [True, True]
    await world.ask(f"/search {answers}", answers)
    if name == "openclaw-2026.9.6":
        kept = "SELECT m.text FROM session_context c JOIN messages m ON m.id = c.message_id ORDER BY c.pos"
        [(summary,), (tail,)] = world.query(kept)
        assert "Plan four days in Rome with Ida." in summary
        assert "[Stands for 5 messages, m1 to m5." in summary
        assert tail == "The Nightjet costs 69.90 EUR and more."
        assert world.query("SELECT spec, zone FROM schedules ORDER BY id")[0] == ("0 8 * * 1-5", "Europe/Vienna")


@sqlite_only
def test_a_killed_import_continues(tmp_path: Path, hermes: Path) -> None:
    main = ChatKey(platform="local", account="local", chat_ref="main")

    class Killing(HermesSource):
        def conversations(self) -> Iterator[ImportedConversation]:
            for number, one in enumerate(super().conversations()):
                if number == 2:
                    signal.raise_signal(signal.SIGKILL)
                yield one

    async def run(source: HermesSource, home: Path) -> list[tuple[int, int]]:
        notes = MemoryDirectory(path=home / "memory")
        job = ImportJob(source=source, home=home, notes=notes, zone="UTC", is_per_user=False)
        async with open_store(home / "state.db") as store:
            chat_id = await store.write(ensure_chat, main, ChatKind.LOCAL, None, Millis(0))
            await job.run(store, chat_id, Millis(1_796_000_000_000))
            query = "SELECT lineage_id, count(*) FROM messages GROUP BY lineage_id ORDER BY 1"
            return await store.read(lambda db: db.execute(query).fetchall())

    if (child := os.fork()) == 0:
        try:
            asyncio.run(run(Killing(hermes), tmp_path / "killed"))
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    again = asyncio.run(run(HermesSource(hermes), tmp_path / "killed"))
    assert again == asyncio.run(run(HermesSource(hermes), tmp_path / "whole"))


async def test_conversations_are_exported_while_the_gateway_runs(world: World, tmp_path: Path) -> None:
    await world.gateway.start()
    key = "sk-abcdefghij0123456789"
    await world.ask(f"My key is {key}.", "echo")
    note = {"media": "document", "file_name": "plan.txt", "mime": "text/plain", "file_b64": "dGhlIHBsYW4="}
    await world.say("", caption="Read this.", **note)
    assert await world.replies(1, match="Read this")
    await world.ask_in_group("@lab_gateway_bot Ann here", "Ann here")
    await world.ask_in_group("@lab_gateway_bot Bob here", "Bob here", user_id=43)

    async def exported(name: str, *words: str) -> str:
        code, output = await world.command_line("export", str(tmp_path / name), *words)
        assert code == 0, output
        return (tmp_path / name).read_text()

    page = await exported("all.html")
    assert page.count("<h2>") == 2
    assert 'download="plan.txt" href="data:application/octet-stream;base64,dGhlIHBsYW4="' in page
    rows = [json.loads(line) for line in (await exported("ann.jsonl", "--person", "telegram:42")).splitlines()]
    assert {row["chat"]: [one["name"] for one in rows if one["chat"] == row["chat"]] for row in rows} == {
        "telegram:42": ["User42", None] * 2,
        f"telegram:{GROUP}": ["User42"],
    }
    assert (await world.command_line("send", "telegram:42", "the lamp is on"))[0] == 0
    text = await exported("direct.md", "telegram:42")
    assert re.findall("^# .*", text, re.MULTILINE) == ["# telegram:42"]
    assert re.search(r"^### Gateway, .*\n\n.*\nthe lamp is on", text, re.MULTILINE)
    text = await exported("group.md", f"telegram:{GROUP}")
    assert ("Bob here" in text, "My key" in text) == (True, False)
    assert key not in page + json.dumps(rows)
    for words, told in (
        (("all.html",), "Use --force"),
        (("x.pdf",), "must end with"),
        (("x.md", "telegram:9"), "No chat"),
        (("x.md", "--person", "telegram:9"), "No message of telegram:9 is stored"),
        (("none/x.md",), f"The folder {tmp_path / 'none'} does not exist"),
    ):
        code, output = await world.command_line("export", str(tmp_path / words[0]), *words[1:])
        assert (code, told in output) == (1, True), output
    assert not [name for name in os.listdir(tmp_path) if name.startswith("x.")]


@sqlite_only
async def test_a_backup_is_restored_by_one_command(world: World, tmp_path: Path) -> None:
    copy = str(tmp_path / "today.db")
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    await world.converse("The first harbour")
    assert (await world.command_line("backup", copy))[0] == 0
    code, output = await world.command_line("backup", str(tmp_path / "none" / "today.db"))
    assert (code, f"The folder {tmp_path / 'none'} does not exist" in output) == (1, True)
    await world.converse("The second harbour")
    assert (await world.command_line("restore", copy))[0] == 75
    assert await world.gateway.stop() == 0
    code, output = await world.command_line("restore", copy)
    assert code == 0, output
    assert "The old database is now " in output
    code, output = await world.command_line("restore", str(tmp_path / "other.db"))
    assert (code, "other.db is missing" in output) == (78, True)
    await world.gateway.start()
    code, output = await world.command_line("search", "harbour")
    assert ("first harbour" in output, "second harbour" in output) == (True, False)
    await world.converse("And now?")
