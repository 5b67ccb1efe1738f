"""A database, configurations and plugins that an earlier version left behind go on working.

They lie in `tests/fixtures/before` with what that version made of them; the README there says how they came about.
"""

import asyncio
import json
import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.databases import about_files
from tests.e2e.protocols import CHAT_COMPLETIONS
from tests.e2e.test_compression import page_of
from tests.e2e.test_discord import say as say_on_discord
from tests.e2e.world import ROOT, World, world_in

pytestmark = about_files

BEFORE = ROOT / "tests" / "fixtures" / "before"
ADMIN, ANN, BO, REVOKED, GROUP = 1, 42, 43, 79, -100200
CHATS = (ADMIN, *range(42, 54), 77, REVOKED, GROUP)
OLD_MESSAGES = 100
"""Ids of each Telegram chat that count as used; none had so many messages."""
REPEATED = {
    "message_id": 1,
    "date": 0,
    "text": "again",
    "chat": {"id": ANN, "type": "private"},
    "from": {"id": ANN, "is_bot": False, "first_name": "Ann"},
}
"""A message that was answered before, as Telegram would deliver it once more."""
RECENT = re.compile(r"\[(?!2025-11-03)\d{4}-\d\d-\d\d \d\d:\d\d\]")
"""Stamp of a message that is not in the database."""

ACCEPTED = "SELECT count(*) FROM inbox"
UNSETTLED = """SELECT (SELECT count(*) FROM inbox WHERE settled_at IS NULL)
    + (SELECT count(*) FROM turns WHERE ended_at IS NULL) + (SELECT count(*) FROM outbox WHERE settled_at IS NULL)"""
TRIP_BY_TRAIN = "SELECT substr(key, 1, 8) FROM sessions WHERE title = 'The second trip'"
VERDICTS = "SELECT layer, outcome, reason, summary_kind, model, verdict FROM compressions ORDER BY id"
LEARNED = """SELECT route, model, offered_context, json_extract(calibration, '$.samples') > 70 FROM model_profiles
    ORDER BY route, model"""
"""The old version had learned from 79 replies of one model; from those of this test alone it would be far fewer."""

Walk = Callable[[World], Awaitable[dict[str, Any]]]


def assert_as_before(name: str, seen: Mapping[str, Any]) -> None:
    """Compares what is seen now with what the earlier version recorded."""
    recorded = json.loads((BEFORE / "expected" / f"{name}.json").read_text())
    assert seen.keys() == recorded.keys()
    for key, value in json.loads(json.dumps(seen)).items():
        assert value == recorded[key], key


# ---- what was left behind


def copied(source: Path, home: Path) -> Path:
    """A state directory; git keeps neither its mode nor, to be safe from whoever looks for secrets, a `.env`."""
    shutil.copytree(source, home)
    home.chmod(0o700)
    if (home / "dotenv").exists():
        (home / "dotenv").rename(home / ".env")
    return home


def restored(home: Path) -> Path:
    """The state directory with the database."""
    copied(BEFORE / "home", home)
    with closing(sqlite3.connect(home / "state.db")) as db:
        db.executescript((BEFORE / "state.sql").read_text())
        assert db.execute("PRAGMA quick_check").fetchall() == [("ok",)]
    return home


def told(home: Path, *words: str, **variables: str) -> Any:
    """The JSON that `hermes-gateway` prints."""
    environ = {**dict.fromkeys(os.environ), "PATH": os.environ["PATH"], "HOME": str(home), "HERMES_HOME": str(home)}
    result = CliRunner().invoke(app, [*words, "--json"], env={**environ, **variables})
    assert (result.exit_code, result.stderr) == (0, ""), (words, result.output, result.exception)
    return json.loads(result.stdout)


# ---- configurations


def settings_of(name: str, home: Path) -> dict[str, Any]:
    """Every setting that a configuration sets: its value, and where that comes from. Only old keys are warned of."""
    copied(BEFORE / "settings" / name, home)
    lines = (home / "environ").read_text().replace("$HERMES_HOME", str(home)).splitlines()
    shown = told(home, "config", "show", **dict(line.split("=", 1) for line in lines))
    assert all(" is no longer a setting" in warning for warning in shown["warnings"])
    found = {key: [row["value"], row["source"].replace(str(home), "~")] for key, row in shown["settings"].items()}
    return {key: row for key, row in found.items() if not row[1].startswith("default")}


@pytest.mark.parametrize("name", ["yaml", "variables", "customary"])
def test_every_setting_arrives(tmp_path: Path, name: str) -> None:
    assert_as_before(f"settings-{name}", settings_of(name, tmp_path / "home"))


# ---- the database at rest

LOOKUPS = (
    ("sessions",),
    ("lineage",),
    ("search", "heron", "--role", "assistant"),
    ("search", "旧桥", "--newest", "--limit", "3"),
    ("history", "telegram:42", "--limit", "500"),
    ("history", "m87"),
    ("usage",),
    ("usage", "telegram:42"),
    ("insights", "--days", "3"),
)
PASSING = (
    "day",
    "today_since",
    "today",
    "chat_today",
    "score",
    "chat_name",
    "thumbs",
    "account",
    "accounts",
    "agents_today",
)
"""Keys whose values change by the day or with the version of SQLite, or that are new."""


def lookups_of(home: Path) -> dict[str, Any]:
    """Answers of the command line. All calls are moved to yesterday: `insights` looks at the last days alone."""
    restored(home)
    with closing(sqlite3.connect(home / "state.db")) as db:
        [(newest,)] = db.execute("SELECT max(created_at) FROM model_calls")
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        days = (yesterday - datetime.fromtimestamp(newest / 1000, UTC).date()).days
        db.execute("UPDATE model_calls SET created_at = created_at + ?", (days * 86_400_000,))
        db.commit()
    return {" ".join(words): _lasting(told(home, *words)) for words in LOOKUPS}


def _lasting(found: Any) -> Any:
    """Without what is passing, and without the days on which no model was called."""
    if isinstance(found, dict):
        return {key: _lasting(value) for key, value in found.items() if key not in PASSING}
    if isinstance(found, list):
        return [_lasting(one) for one in found if not (isinstance(one, dict) and one.get("calls") == 0)]
    return found


def test_the_command_line_finds_the_same(tmp_path: Path) -> None:
    assert_as_before("lookups", lookups_of(tmp_path / "home"))


# ---- the daemon


@asynccontextmanager
async def upgraded(folder: Path, **changes: str) -> AsyncIterator[World]:
    """A gateway that has taken over the state directory, on three platforms, and has done what was left to do."""
    restored(folder / "home")
    async with world_in(folder, CHAT_COMPLETIONS, discord=True) as world:
        environ = world.gateway.environ
        ours = [name for name in environ if name.startswith("HERMES_") and "LOGGING__F" not in name]
        for name in ours:  # addresses stay; what else the fakes need stands in the old configuration
            if name != "HERMES_HOME" and "://" not in environ[name]:
                del environ[name]
        await world.dc.post("config", {"rate_limits": False})
        for chat_id in CHATS:
            await world.tg.post("message", {"chat_id": chat_id, "text": "before", "repeat": OLD_MESSAGES})
        await world.tg.post("expire")
        [(accepted,)] = world.query(ACCEPTED)
        await say_on_discord(world, "has somebody heard this?", channel="general", mention=True)
        await world.gateway.start(**changes)
        await settled(world, accepted)
        yield world


async def settled(world: World, accepted: int) -> None:
    """Waits until more than `accepted` events have been stored, and nothing is owed to anybody."""
    async with asyncio.timeout(20):
        while world.query(ACCEPTED) <= [(accepted,)] or world.query(UNSETTLED) != [(0,)]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # rows of another process have no event to wait for


@asynccontextmanager
async def caused(world: World) -> AsyncIterator[list[dict[str, Any]]]:
    """Requests to the model that an event causes."""
    found: list[dict[str, Any]] = []
    [(accepted,)] = world.query(ACCEPTED)
    since = max(row["seq"] for row in await world.llm.get("requests"))
    yield found
    await settled(world, accepted)
    found += [wire(request) for request in await world.asked(0, wait=0, since=since)]


def wire(request: Mapping[str, Any]) -> dict[str, Any]:
    """Name and view of the model that a request is for."""
    seen = {
        key: value for key, value in request["body"].items() if key in ("model", "instructions", "input", "messages")
    }
    found: dict[str, Any] = json.loads(RECENT.sub("[now]", json.dumps(seen, ensure_ascii=False)))
    return found


async def ask(world: World, text: str, chat_id: int = ANN, **more: object) -> list[dict[str, Any]]:
    """Says something on Telegram; returns the requests to the model that it causes."""
    async with caused(world) as seen:
        await world.say(text, chat_id=chat_id, **more)
    return seen


async def figures(world: World, command: str, chat_id: int = ANN) -> list[str]:
    """Numbers, dates and ids in the reply to a command, but for those of the window and of today."""
    before = len(await world.visible(chat_id))
    assert await ask(world, command, chat_id) == []
    lines = "\n".join((await world.visible(chat_id))[before:]).splitlines()
    kept = [line for line in lines if "Context" not in line and "today" not in line.lower()]
    return re.findall(r"[\w$:.,-]*\d[\w:.,-]*", "\n".join(kept))


def ids_in(found: list[str]) -> list[str]:
    """Ids of messages and sessions among such figures: the layout of these lists has changed since."""
    return sorted({word.strip(",.:") for word in found if re.match(r"m\d|1k94", word)})


async def lives_on(world: World) -> dict[str, Any]:
    """Every chat under the built-in engine."""
    seen: dict[str, Any] = {"left open": sorted(map(wire, await world.asked(0, wait=0)), key=str)}
    await world.tg.post("update", {"update": {"message": REPEATED}})
    for command in ("/history 50", "/usage"):
        seen[command] = await figures(world, command)
    seen["/sessions"] = ids_in(await figures(world, "/sessions"))
    await world.gateway.wait_for_log("search.rebuilt", seconds=20)  # with every field of a message
    for command in ("/lineage telegram:42", "/lineage telegram:43", "/search heron", "/session m37"):
        seen[command] = ids_in(await figures(world, command, ADMIN))
    seen["compressed"] = await ask(world, "and now?")
    seen["undone"] = await ask(world, "/compress undo") + await ask(world, "what came before?")
    seen["undone again"] = await ask(world, "/compress undo") + await ask(world, "and before that?")
    seen["resumed"] = await ask(world, f"/resume {world.query(TRIP_BY_TRAIN)[0][0]}") + await ask(world, "which train?")
    for chat_id in (BO, 44, 45, 50, 52, 53, 77):
        seen[str(chat_id)] = await ask(world, "and now?", chat_id)
    seen["group"] = await ask(world, "@lab_gateway_bot and now?", GROUP, user_id=BO, first_name="Bo")
    async with caused(world) as seen["discord"]:
        await say_on_discord(world, "and now?", channel="general", mention=True)
    async with page_of(world) as page, caused(world) as seen["local"]:
        await page.until("hello from the page")
        await page.until("local:owner")  # the reply to a command, which is no part of the conversation
        await page.write("and now?")
    seen["shown"] = {str(chat_id): await world.visible(chat_id) for chat_id in range(43, 54)}
    seen["shown"] = json.loads(RECENT.sub("[now]", json.dumps(seen["shown"])))
    return seen | {"verdicts": world.query(VERDICTS), "learned": world.query(LEARNED)}


async def test_every_chat_goes_on_as_it_would_have(tmp_path: Path) -> None:
    async with upgraded(tmp_path) as world:
        assert_as_before("daemon", await lives_on(world))
        await world.ask("let me in again", "pairing code", chat_id=REVOKED)
        assert await world.gateway.stop() == 0
        assert "Traceback" not in world.gateway.log_text()


async def test_an_agent_takes_over_an_old_chat_and_the_old_conversation_is_kept(tmp_path: Path) -> None:
    agents = {"HERMES_AGENTS": '{"ops": {"persona": "You run servers."}}'}
    routes = {"HERMES_ROUTES": '[{"agent": "ops", "chat": "telegram:42"}]'}
    async with upgraded(tmp_path, **agents, **routes) as world:
        query = "SELECT count(*) FROM messages m JOIN sessions s ON s.id = m.session_id WHERE s.agent = ''"
        before = world.query(query)
        [request] = await ask(world, "and now?")
        assert [row["role"] for row in request["messages"]] == ["system", "user"]
        assert "You run servers." in request["messages"][0]["content"]
        assert any("The agent ops answers here from now on" in text for text in await world.visible(ANN))
        assert world.query(query) == before
        assert world.query("SELECT DISTINCT agent FROM schedules") in ([], [("",)])
        assert len(await ask(world, "and now?", BO)) == 1


# ---- plugins


def engines_of(home: Path) -> dict[str, Any]:
    """The old plugins, as `plugins list` has them."""
    found = told(restored(home), "plugins", "list", HERMES_CONTEXT__ENGINE="notes")
    assert (found["active"], found["problem"]) == ("notes", None)
    found = {one["name"]: {**one, "source": one["source"].replace(str(home), "~")} for one in found["plugins"]}
    return {name: found[name] for name in ("notes", "gentle")}


def test_plugins_are_found(tmp_path: Path) -> None:
    assert_as_before("plugins", engines_of(tmp_path / "home"))


async def notes_seen(world: World) -> dict[str, Any]:
    """An engine of its own: its tools, what it is told, and its compressions."""
    noted = await ask(world, 'note this [[tool:note {"text": "the mill is open"}]]', 45)
    return {
        "tools": noted + await ask(world, "what were you told? [[tool:told {}]]", 45),
        "by hand": await ask(world, "/compress the mill", 45) + await ask(world, "and now?", 45),
        "undone": await ask(world, "/compress undo", 45) + await ask(world, "and then? [[tool:told {}]]", 45),
        "by itself": await ask(world, "pack everything") + await ask(world, "are you there? [[tool:told {}]]"),
        "ended": await ask(world, "/new", 45),
    }


async def gentle_seen(world: World) -> dict[str, Any]:
    """A subclass of the built-in engine: its compressions."""
    return {
        "by hand": await ask(world, "/compress", BO) + await ask(world, "and now?", BO),
        "by itself": await ask(world, "The market costs nothing. " * 140, 53) + await ask(world, "and now?", 53),
    }


@pytest.mark.parametrize(("engine", "walk"), [("notes", notes_seen), ("gentle", gentle_seen)])
async def test_a_plugin_compresses(tmp_path: Path, engine: str, walk: Walk) -> None:
    # The tools of then: each one more makes the small windows of these chats smaller.
    tools = json.dumps({"*": "off", "history_search": "on", "history_open": "on", "note": "on", "told": "on"})
    settings = {"CONTEXT__ENGINE": engine, "COMPRESSION__MODE": "blocking", "TOOLS__USE": tools}
    async with upgraded(tmp_path, **{f"HERMES_{key}": value for key, value in settings.items()}) as world:
        before = len(world.query(VERDICTS))
        seen = await walk(world)
        assert_as_before(engine, {**seen, "verdicts": world.query(VERDICTS)[before:]})
        assert "Traceback" not in world.gateway.log_text()
