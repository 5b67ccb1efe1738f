"""What people meet when something is wrong: one helpful sentence, and nothing lost."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.databases import sqlite_only
from tests.e2e.protocols import ModelProtocol
from tests.e2e.test_compression import page_of
from tests.e2e.test_discord import ready
from tests.e2e.test_discord import say as say_on_discord
from tests.e2e.world import World, world_in
from tests.hermes_state.helpers import locked_by_another_process
from tests.side_by_side import side_by_side


async def test_a_lock_by_another_process_delays_and_loses_nothing(world: World) -> None:
    """It is held four times as long as a write waits for it."""
    await world.gateway.start(HERMES_STORE__BUSY_SECONDS="1")
    await world.say("before")
    await world.replies(1)
    began = time.monotonic()
    with locked_by_another_process(world.database, 4.0):
        for number in range(3):
            await world.say(f"while locked {number}", chat_id=42)
        assert await world.replies(1, match="while locked 2", wait=45)
    assert time.monotonic() - began > 4.0, "the lock was felt"
    text = " ".join(await world.replies(1, match="while locked"))
    assert [text.count(f"while locked {number}") for number in range(3)] == [1, 1, 1]
    assert world.query("SELECT count(*) FROM inbox WHERE state <> 'done'") == [(0,)]
    assert world.query("SELECT count(*), count(DISTINCT inbox_id) FROM messages WHERE role = 'user'") == [(4, 4)]


@sqlite_only
@pytest.mark.parametrize("is_running", [True, False], ids=["while it runs", "while it rests"])
async def test_a_damaged_search_index_stops_nobody_and_is_made_anew(world: World, is_running: bool) -> None:
    await world.gateway.start()
    await world.converse("the harbour before")
    if not is_running:
        await world.gateway.stop()
    with contextlib.closing(sqlite3.connect(world.home / "state.db")) as db, db:
        db.execute("UPDATE messages_fts_data SET block = x'ff'")
    if not is_running:
        await world.gateway.start()
    await world.ask("the harbour after", "the harbour after")
    await world.gateway.wait_for_log("search.rebuilt", seconds=20)
    code, text = await world.command_line("search", "harbour", "--role", "user")
    assert code == 0
    assert "harbour before" in text
    assert "harbour after" in text
    code, text = await world.command_line("doctor")
    assert "The search index is intact." in text


@pytest.mark.parametrize("before", [[], ["an ordinary message first"]])
async def test_stop_acts_from_memory_while_the_database_is_locked(world: World, before: list[str]) -> None:
    await world.gateway.start()
    await world.script(match="hang", hang=True)
    await world.say("hang")
    await world.turn_runs()
    with locked_by_another_process(world.database, 60.0) as holder:
        for text in before:
            await world.say(text, chat_id=43)
        await world.say("/stop")
        await world.gateway.wait_for_log("command.answered_offline")
        assert holder.poll() is None, "the database is still locked"
    assert await world.replies(1, match="Stopped", wait=20)
    assert world.query("SELECT state FROM turns ORDER BY id LIMIT 1") == [("stopped",)]


EXPLAINED = {
    "401": "key",
    "quota": "credit",
    "402": "credit",
    "404": "model",
    "context": "/new",
    "content_filter": "content filter",
}


async def test_a_model_that_refuses_is_explained_in_one_sentence(world: World) -> None:
    await world.gateway.start()
    for count, (kind, words) in enumerate(EXPLAINED.items(), start=1):
        await world.script(match="please", times=10, error={"kind": kind})
        await world.converse("please")
        reply = (await world.visible())[-1]
        assert words in reply, kind
        assert len(reply) < 300
        assert world.query("SELECT state FROM turns ORDER BY id DESC LIMIT 1") == [("failed",)]
        await world.llm.delete("script")
        await world.converse("/retry")
        assert len(await world.replies(count, match="^echo")) == count
        await world.converse("/new")


async def test_a_model_that_is_down_is_tried_again_and_then_explained(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__BASE_URL="http://127.0.0.1:9/v1")
    await world.say("anybody there?")
    [reply] = await world.replies(1, wait=40)
    assert "/retry" in reply


async def test_where_nothing_is_compressed_a_prompt_that_does_not_fit_names_what_helps(world: World) -> None:
    await world.gateway.start(
        HERMES_MODEL__CONTEXT_LENGTH="4096",
        HERMES_MODEL__MAX_OUTPUT_TOKENS="1024",
        HERMES_COMPRESSION__ENABLED="false",
    )
    await world.say("word " * 790)
    await world.replies(1)
    for number in range(6):
        await world.say(f"{number} " + "many more words " * 100)
        await world.replies(number + 2)
    replies = await world.replies(7)
    assert any("/new" in reply and "/compress" in reply for reply in replies)
    assert world.query("SELECT count(*) FROM messages WHERE role = 'user'") == [(7,)]


async def test_a_stranger_gets_a_pairing_code_that_works_once(world: World) -> None:
    await world.gateway.start()
    await world.say("let me in", chat_id=77)
    [reply] = await world.replies(1, chat_id=77)
    code = reply.split("pair approve ")[1].split()[0].rstrip(",")
    await world.ask("hello?", "still needs approval", chat_id=77)
    await world.ask(f"/pair approve {code}", "Only admins", chat_id=42)
    await world.ask(f"/pair approve {code}", "now has access", chat_id=1)
    await world.ask(f"/pair approve {code}", "not valid", chat_id=1)
    await world.ask("now I am in", "now I am in", chat_id=77)
    await world.ask("/pair revoke telegram:77", "no longer has access", chat_id=1)
    await world.ask("/stpo", "/stop(.|\n)*/help")
    await world.say("still here?", chat_id=77)
    assert await world.replies(2, chat_id=77, match="pairing code")
    assert world.query("SELECT count(*) FROM messages WHERE text LIKE 'still%' OR text LIKE 'let me%'") == [(0,)]


async def test_reload_applies_access_and_keeps_the_last_good_file(world: World) -> None:
    world.gateway.environ.pop("HERMES_ACCESS__ALLOW")
    world.configure("access:\n  allow: [telegram:42]\n")
    await world.gateway.start()
    await world.say("hello")
    await world.replies(1, match="hello")
    world.configure("access:\n  alow: [telegram:43]\n")
    (world.home / ".env").write_text("HERMES_NONSENSE=1\n")
    world.gateway.signal(signal.SIGHUP)
    await world.gateway.wait_for_log("config.rejected")
    await world.gateway.wait_for_log("HERMES_NONSENSE is not a setting")
    assert "allow" in world.gateway.log_text()
    await world.say("still me")
    await world.replies(1, match="still me")
    world.configure("access:\n  allow: [telegram:43]\n")
    await world.reload()
    await world.ask("and now?", "pairing code")
    await world.ask("my turn", "my turn", chat_id=43)


async def test_chats_go_on_while_a_reload_waits_for_its_file(world: World) -> None:
    world.home.mkdir(mode=0o700)
    await world.gateway.start()
    config = world.home / "config.yaml"
    os.mkfifo(config)  # as slow as a disk can be
    world.gateway.signal(signal.SIGHUP)
    async with asyncio.timeout(15):
        writer = await asyncio.to_thread(config.open, "w")  # once somebody reads it
    with writer:
        await world.converse("are you there?")
        writer.write("agent: {max_tool_rounds: 3}\n")
    await world.gateway.wait_for_log("config.reloaded")
    assert "agent.max_tool_rounds" in world.gateway.log_text()


async def test_reload_takes_another_model_from_the_next_turn_on_and_names_what_waits_for_a_restart(
    world: World,
) -> None:
    del world.gateway.environ["HERMES_MODEL__NAME"]
    world.configure("model:\n  name: lab-128k\n")
    await world.gateway.start()
    await world.hold(match="slow", text="from the old one")
    await world.say("slow")
    await world.turn_runs()
    world.configure("model:\n  name: lab-32k\ndiscord:\n  thread_mention: true\n")
    await world.reload()
    await world.release()
    assert await world.replies(1, match="from the old one")
    await world.say("next")
    await world.replies(2)
    assert [request["model"] for request in await world.asked(2)] == ["lab-128k", "lab-32k"]
    [line] = [json.loads(line) for line in world.gateway.log_text().splitlines() if "config.reloaded" in line]
    assert (line["applied"], line["needs_restart"]) == (["model.name"], ["discord.thread_mention"])


async def test_flood_control_sheds_previews_and_still_delivers_the_final_answer(world: World) -> None:
    await world.gateway.start()
    await world.tg.post("faults", {"kind": "429", "match": "sendMessageDraft", "retry_after": 2, "times": 1})
    await world.script(match="long", text="word " * 60, chunk_chars=5, chunk_delay=0.05)
    await world.say("long story")
    assert len(await world.replies(1, wait=30)) == 1
    calls = await world.tg.get("calls", method="sendMessage|sendMessageDraft|sendChatAction")
    refused = next(call["t"] for call in calls if call.get("error"))
    early = [call for call in calls if refused < call["t"] < refused + 1.9]
    assert early == [], "nothing is sent to the chat during the penalty"


STRICT = {"per_chat_per_sec": 1, "group_per_min": 20, "global_per_sec": 30, "penalty": 2}
"""Telegram's published limits, and a ban of two seconds for whoever goes beyond them."""


async def test_under_strict_flood_control_every_part_arrives_once_and_no_penalty_is_made_worse(
    tmp_path: Path, protocol: ModelProtocol
) -> None:
    """Previews and the parts of one long answer are more than a chat takes in a second: the answer itself is banned."""

    async def in_chat(folder: Path, chat_id: int) -> None:
        async with world_in(folder, protocol) as world:
            await _answer_at_length(world, chat_id)

    chats = {"private": 42, "group": -100200}
    await side_by_side({kind: in_chat(tmp_path / kind, chat_id) for kind, chat_id in chats.items()})


async def _answer_at_length(world: World, chat_id: int) -> None:
    await world.gateway.start()
    words = [f"word{number}" for number in range(1_150)]
    await world.script(match="long", text=" ".join(words), chunk_chars=400, chunk_delay=0.1)
    await world.tg.post("config", {"flood": STRICT})
    place = {"chat_id": chat_id, "user_id": 42, **({"chat_type": "supergroup"} if chat_id < 0 else {})}
    await world.tg.post("message", {**place, "text": "@lab_gateway_bot long story"})
    await world.tg.get(
        "sent", method="(editMessageText|sendMessage)$", chat_id=chat_id, match=words[-1], wait=60, count=1
    )
    shown = await world.visible(chat_id)
    assert len(shown) > 2
    assert re.findall(r"word\d+", " ".join(shown)) == words
    calls = [call for call in await world.tg.get("calls") if str(call["params"].get("chat_id")) == str(chat_id)]
    refused = [call for call in calls if "Too Many Requests" in (call["error"] or "")]
    assert refused, "the limits were met"
    for ban in refused:
        until = ban["t"] + int(re.findall(r"\d+", ban["error"])[-1])
        assert [call for call in calls if ban["t"] < call["started"] < until - 0.1] == [], "nothing is sent in a ban"


async def test_who_waits_for_a_locked_database_is_told_on_each_platform(both: World) -> None:
    world = both
    waits, goes_on = "message is not lost", "continue with yours"
    await ready(world, **world.web_chat())
    async with page_of(world) as page:
        await page.write("before")
        await page.until_answered(1)
        with locked_by_another_process(world.database, 16.0):
            await world.say("hello")
            await world.say("behind it", chat_id=1)
            await say_on_discord(world, "hello")
            writing = asyncio.create_task(page.write("hello"))
            await page.until(waits)
            for chat_id in (1, 42):
                assert await world.replies(1, chat_id=chat_id, match=waits)
            assert await world.dc.get("sent", action="send", match=waits, wait=20, count=1)
            assert world.query("SELECT count(*) FROM inbox") == [(1,)], "nothing was stored"
        await writing
        await page.until(goes_on)
        await page.until_answered(4)
    for chat_id in (1, 42):
        told = [text for text in await world.replies(3, chat_id=chat_id, wait=30) if waits in text or goes_on in text]
        assert [waits in told[0], goes_on in told[1], len(told)] == [True, True, 2]
    for words in (waits, goes_on):
        assert len(await world.dc.get("sent", action="send", match=words, wait=20, count=1)) == 1
