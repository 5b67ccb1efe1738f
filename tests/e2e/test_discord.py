"""The same promises on Discord."""

import sqlite3
from typing import Any

from tests.e2e.world import World

ALICE = 100000000000000001


async def say(world: World, content: str, **place: object) -> Any:
    where = place or {"dm_user_id": ALICE}
    return await world.dc.post("message", {"user_id": ALICE, "content": content, **where})


async def sent(world: World, count: int, wait: float = 20, **filters: object) -> list[str]:
    """The texts of messages that the bot sent; waits for `count` of them."""
    rows = await world.dc.get("sent", action="send", wait=wait, count=count, **filters)
    return [row["text"] for row in rows]


async def ready(world: World, **changes: str) -> None:
    since = len(world.gateway.log_bytes())
    await world.gateway.start(**changes)
    await world.gateway.wait_for_log("discord running", since=since)


async def test_a_direct_message_gets_an_answer(discord_world: World) -> None:
    await ready(discord_world)
    await say(discord_world, "hello")
    [reply] = await sent(discord_world, 1)
    assert reply.endswith("hello")
    assert await discord_world.gateway.stop() == 0


async def test_six_messages_sent_while_the_daemon_is_stopped_are_answered_once_each_in_order(
    discord_world: World,
) -> None:
    world = discord_world
    await ready(world, HERMES_SESSIONS__MERGE_SECONDS="0")
    await say(world, "before")
    await sent(world, 1)
    assert await world.gateway.stop() == 0
    for number in range(6):
        await say(world, f"missed-{number}")
    await ready(world)
    replies = await sent(world, 7)
    assert [number for reply in replies for number in range(6) if f"missed-{number}" in reply] == list(range(6))
    assert world.query("SELECT count(*), count(DISTINCT turn_id) FROM messages WHERE text LIKE 'missed-%'") == [(6, 6)]


async def test_messages_around_a_kill_are_answered_once_each_in_order(discord_world: World) -> None:
    world = discord_world
    await ready(world, HERMES_SESSIONS__MERGE_SECONDS="0")
    await world.script(match="number-0", hang=True)
    for number in range(2):
        await say(world, f"number-{number}")
    await world.asked(1)
    await world.gateway.kill()
    await say(world, "number-2")
    await ready(world)
    replies = await sent(world, 3)
    assert [number for reply in replies for number in range(3) if f"number-{number}" in reply] == list(range(3))
    assert world.query("SELECT count(*), count(DISTINCT turn_id) FROM messages WHERE role = 'user'") == [(3, 3)]


async def test_replaying_messages_and_commands_starts_nothing(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    said = [await say(world, "once")]
    await sent(world, 1)
    said.append(await say(world, "/new"))
    await sent(world, 2)
    counts = "SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM turns), (SELECT count(*) FROM sessions)"
    before = world.query(counts)
    for message in said * 3:
        await world.dc.post("event", {"t": "MESSAGE_CREATE", "d": message})
    await say(world, "/whoami")  # what comes after it is handled after it
    replies = await sent(world, 3)
    assert f"discord:{ALICE}" in replies[2]
    [(inbox, turns, sessions)] = world.query(counts)
    assert [(inbox - 1, turns, sessions)] == before


async def test_replaying_slash_commands_starts_nothing_and_answers_once(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.gateway.wait_for_log("discord.menu_published")
    await say(world, "before")
    await sent(world, 1)
    given = []
    for number, name in enumerate(("new", "whoami", "retry"), start=1):
        given.append(await world.dc.post("interaction", {"name": name, "dm_user_id": ALICE}))
        await world.dc.get("sent", action="interaction_(edit|followup|reply)", wait=20, count=number)
    channel = given[0]["channel_id"]
    counts = """SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM turns), (SELECT count(*) FROM sessions),
        (SELECT count(*) FROM outbox)"""
    before, shown = world.query(counts), len(await world.dc.get("messages", channel_id=channel))
    for one in given * 3:
        await world.dc.post("event", {"t": "INTERACTION_CREATE", "d": one["event"]})
    await say(world, "/whoami")  # what comes after it is handled after it
    await sent(world, 2)
    [(inbox, turns, sessions, outbox)] = world.query(counts)
    assert [(inbox - 1, turns, sessions, outbox - 1)] == before
    assert len(await world.dc.get("messages", channel_id=channel)) == shown + 2, "the question and its answer"


async def test_a_stop_is_heard_while_the_database_is_locked(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.script(match="hang", hang=True)
    await say(world, "hang")
    await world.asked(1)
    with sqlite3.connect(world.home / "state.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        await say(world, "an ordinary message first", channel="general", mention=True)
        await say(world, "/stop")
        await world.gateway.wait_for_log("command.from_memory", seconds=5)
        other.execute("ROLLBACK")
    other.close()
    assert await world.dc.get("sent", action="send|edit", match="Stopped", wait=20, count=1)
    assert world.query("SELECT state FROM turns ORDER BY id LIMIT 1") == [("stopped",)]


async def test_a_lost_acknowledgement_shows_one_copy(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.dc.post("faults", {"kind": "reset_after", "match": r"POST /channels/\d+/messages"})
    message = await say(world, "say it once")
    await sent(world, 1)
    await world.dc.get("sent", action="nonce_duplicate", wait=20, count=1)
    shown = await world.dc.get("messages", channel_id=message["channel_id"])
    assert sum("say it once" in row["content"] for row in shown if row["author"].get("bot")) == 1


async def test_a_slash_command_is_answered_in_its_own_place(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.gateway.wait_for_log("discord.menu_published")
    await world.dc.post("interaction", {"name": "whoami", "channel": "general", "user_id": ALICE})
    [row] = await world.dc.get("sent", action="interaction_(edit|followup|reply)", wait=10, count=1)
    assert f"discord:{ALICE}" in row["text"]
    assert world.query("SELECT count(*) FROM turns") == [(0,)]


async def test_a_mention_in_a_channel_is_answered_and_other_talk_is_not(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await say(world, "just talking", channel="general")
    await say(world, "hello bot", channel="general", mention=True)
    [reply] = await sent(world, 1)
    assert "hello bot" in reply
    assert world.query("SELECT count(*) FROM inbox") == [(1,)]
