"""The database taken away under a running gateway, missed at a start, and damaged: nothing of it in silence."""

import json
import os
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.databases import about_files
from tests.e2e.protocols import ModelProtocol
from tests.e2e.world import World, world_in
from tests.hermes_state.helpers import opened
from tests.side_by_side import side_by_side

pytestmark = about_files

LOST = "store.broken"


async def report(world: World, *words: str) -> Any:
    _, output = await world.command_line(*words, "--json")
    return json.loads(output)


async def assert_told(world: World, words: str) -> None:
    """The log, `status` and `doctor` say what happened and how to get the rows back."""
    await world.gateway.wait_for_log(LOST)
    status = await report(world, "status")
    findings = {one["check"]: one for one in await report(world, "doctor")}
    for text in (world.gateway.log_text(), status["vitals"]["database"], findings["database"]["text"]):
        assert words in text
        assert "hermes-gateway backup FILE" in text
    assert status["vitals"]["is_ready"] is False
    assert findings["database"]["verdict"] == "failed"


async def texts_of(path: Path) -> list[str]:
    with opened(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [text for (text,) in db.execute("SELECT text FROM messages WHERE role = 'user' ORDER BY id")]


async def test_a_database_lost_under_a_running_gateway_is_told_of_and_comes_back(
    tmp_path: Path, protocol: ModelProtocol
) -> None:
    async def lost_and_back(folder: Path, what: str) -> None:
        async with world_in(folder, protocol) as world:
            await _lose_and_bring_back(world, folder, what)

    losses = ("state.db", "state.db*", "replaced", "home")
    await side_by_side({what: lost_and_back(tmp_path / str(at), what) for at, what in enumerate(losses)})


async def _lose_and_bring_back(world: World, tmp_path: Path, what: str) -> None:
    await world.gateway.start()
    await world.converse("before the loss")
    if what == "home":
        shutil.rmtree(world.home)
    elif what == "replaced":
        other = Path(shutil.copy(world.home / "state.db", tmp_path / "other.db"))
        os.replace(other, world.home / "state.db")
    else:
        for file in world.home.glob(what):
            file.unlink()
    await world.gateway.wait_for_log(LOST)
    await world.say("into the gap")
    await world.say("mine waits too", chat_id=43)
    assert await world.replies(1, match="message is not lost", wait=30)
    assert await world.replies(1, chat_id=43, match="message is not lost", wait=30)
    await assert_told(world, "replaced by another file" if what == "replaced" else "was deleted")
    target = tmp_path / "backup" / "state.db"
    target.parent.mkdir()
    code, output = await world.command_line("backup", str(target))
    assert code == 0, output
    assert await texts_of(target) == ["before the loss"]
    code, output = await world.command_line("backup", str(target))
    assert (code, "already exists" in output) == (1, True)
    assert await world.gateway.stop() == 0

    # what docs/reference/operations.md says: with the gateway stopped, and its files out of the way
    world.home.mkdir(exist_ok=True)
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (world.home / name).unlink(missing_ok=True)
    shutil.copy(target, world.home / "state.db")
    await world.gateway.start()
    assert await world.replies(1, match="echo.*into the gap", wait=20)
    assert await world.replies(1, chat_id=43, match="echo.*mine waits too", wait=20)
    assert len(await world.replies(0, match="message is not lost", wait=0)) == 1, "each chat was told once"
    assert world.query("SELECT text FROM messages WHERE role = 'user' AND chat_id = 1 ORDER BY id") == [
        ("before the loss",),
        ("into the gap",),
    ]


async def test_a_database_that_was_moved_goes_on_where_it_was_once_it_is_back(world: World, tmp_path: Path) -> None:
    await world.gateway.start()
    await world.converse("one")
    (world.home / "state.db").rename(tmp_path / "away.db")
    await assert_told(world, f"was moved to {tmp_path / 'away.db'}")
    await world.say("two")
    assert await world.replies(1, match="message is not lost", wait=30)
    (tmp_path / "away.db").rename(world.home / "state.db")
    assert await world.replies(1, match="echo.*two", wait=40)
    assert (await report(world, "status"))["vitals"]["database"] == ""


async def test_a_running_answer_whose_database_goes_is_told_and_finished_from_the_backup(
    world: World, tmp_path: Path
) -> None:
    await world.gateway.start()
    await world.hold(match="a long one")
    await world.say("a long one")
    await world.turn_runs()
    (world.home / "state.db").unlink()
    assert await world.replies(1, match="damaged or missing")
    await world.release()
    code, output = await world.command_line("backup", str(tmp_path / "copy.db"))
    assert code == 0, output
    await world.gateway.kill()
    for name in ("state.db-wal", "state.db-shm"):
        (world.home / name).unlink()
    shutil.copy(tmp_path / "copy.db", world.home / "state.db")
    await world.llm.delete("script")
    await world.gateway.start()
    assert len(await world.replies(1, match="^echo", wait=20)) == 1


async def test_a_start_without_its_database_needs_a_word_and_a_backup_no_running_gateway(
    world: World, tmp_path: Path
) -> None:
    await world.gateway.start()
    await world.converse("hello")
    await world.gateway.kill()  # the write-ahead log alone contains what was said
    code, output = await world.command_line("backup", str(tmp_path / "copy.db"))
    assert code == 0, output
    assert await texts_of(tmp_path / "copy.db") == ["hello"]
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    for file in world.home.glob("state.db*"):
        file.unlink()
    for words in (("run",), ("search", "hello"), ("status",)):
        code, output = await world.command_line(*words)
        assert code == 78, words
        assert "--fresh" in output
    findings = {one["check"]: one for one in await report(world, "doctor")}
    assert "--fresh" in findings["database"]["text"]
    assert not (world.home / "state.db").exists()
    unit = (Path(__file__).parents[2] / "systemd/hermes-gateway.service").read_text()
    assert "78" in unit.partition("RestartPreventExitStatus=")[2].splitlines()[0].split()


async def test_a_damaged_page_is_told_of_once_and_repaired(world: World) -> None:
    await world.gateway.start()
    for number in range(12):
        await world.converse(f"message {number} " + "with some length " * 60)
    assert await world.gateway.stop() == 0
    _damage_newest_messages(world.home / "state.db")
    await world.gateway.start()
    await world.ask("are you there?", "damaged or missing")
    await world.gateway.wait_for_log(LOST)
    code, output = await world.command_line("doctor", "--repair")
    assert code == 75, output
    findings = {one["check"]: one for one in await report(world, "doctor")}
    assert "--repair" in findings["database"]["text"]
    await world.say("and now?")
    assert await world.gateway.stop() == 0
    assert len(await world.replies(0, match="damaged or missing", wait=0)) == 1
    repaired = await report(world, "doctor", "--repair")
    [messages] = [table for table in repaired["tables"] if table["name"] == "messages"]
    assert 0 < messages["rows"] < messages["expected"]
    assert messages["lost"]
    assert repaired["kept"] in [str(file) for file in world.home.iterdir()]
    count = len(await world.replies(0, wait=0))
    await world.gateway.start()
    await world.replies(count + 1, wait=20)
    assert world.query("SELECT count(*) FROM messages WHERE text = 'are you there?'") == [(1,)]
    findings = {one["check"]: one for one in await report(world, "doctor")}
    assert findings["database"]["verdict"] == "fine"


def _damage_newest_messages(path: Path) -> None:
    """Overwrite the last leaf of the messages' table."""
    with opened(path) as db:
        query = "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf' ORDER BY path DESC LIMIT 1"
        try:
            (number,) = db.execute(query).fetchone()
        except sqlite3.OperationalError:
            pytest.skip("this SQLite does not tell where its pages are")
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((number - 1) * size)
        file.write(random.Random(1).randbytes(size))
