"""The same promises on Discord."""

from typing import Any

import pytest

from tests.e2e.world import World
from tests.hermes_state.helpers import locked_by_another_process

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


async def test_six_messages_sent_while_the_daemon_is_stopped_are_answered_once_each_in_order(
    discord_world: World,
) -> None:
    world = discord_world
    await ready(world, HERMES_SESSIONS__MERGE_SECONDS="0")
    await say(world, "before")
    [reply] = await sent(world, 1)
    assert reply.endswith("before")
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


async def test_the_very_first_message_is_answered_although_it_could_not_be_stored(discord_world: World) -> None:
    world = discord_world
    await ready(world, HERMES_SESSIONS__MERGE_SECONDS="0")
    with locked_by_another_process(world.database, 60):
        await say(world, "the first")
        await world.gateway.wait_for_log("inbox.delayed")
        await world.gateway.kill()
    await ready(world)
    await say(world, "the second")  # only a message tells of a direct chat
    assert await sent(world, 1, match="echo: .* the first")
    assert await sent(world, 1, match="echo: .* the second")
    assert world.query("SELECT count(*), count(DISTINCT turn_id) FROM messages WHERE role = 'user'") == [(2, 2)]


@pytest.mark.parametrize("nonce_seconds", [180, 0], ids=["the nonce is known", "the nonce is forgotten"])
async def test_a_kill_between_a_preview_and_its_id_leaves_no_half_answer(
    discord_world: World, nonce_seconds: int
) -> None:
    world = discord_world
    await world.dc.post("config", {"nonce_seconds": nonce_seconds})
    await ready(world)
    await world.script(match="tell me", text="The first half of it, and the rest.", pause_after=2, times=1)
    await world.dc.post("faults", {"name": "POST /channels/.*/messages", "kind": "reset_after", "times": 1})
    said = await say(world, "tell me")
    await sent(world, 1)  # and the answer to that request never arrived
    await world.gateway.kill()
    await world.script(match="tell me", text="All of it.")
    await ready(world)
    assert await world.dc.get("sent", action="send|edit", match="All of it", wait=30, count=1)
    shown = await world.dc.get("messages", channel_id=said["channel_id"])
    assert [row["content"] for row in shown if row["author"]["id"] != str(ALICE)] == ["All of it."]


async def test_replaying_messages_and_commands_starts_nothing_and_answers_once(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.gateway.wait_for_log("discord.menu_published")
    said = [await say(world, "before")]
    await sent(world, 1)
    said.append(await say(world, "/title Once"))
    await sent(world, 2)
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
    for message in said * 3:
        await world.dc.post("event", {"t": "MESSAGE_CREATE", "d": message})
    await say(world, "/whoami")  # what comes after it is handled after it
    assert f"discord:{ALICE}" in (await sent(world, 3))[2]
    [(inbox, turns, sessions, outbox)] = world.query(counts)
    assert [(inbox - 1, turns, sessions, outbox - 1)] == before
    assert len(await world.dc.get("messages", channel_id=channel)) == shown + 2, "the question and its answer"


async def test_a_stop_is_heard_while_the_database_is_locked(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.script(match="hang", hang=True)
    await say(world, "hang")
    await world.asked(1)
    with locked_by_another_process(world.database, 60):
        await say(world, "an ordinary message first", channel="general", mention=True)
        await say(world, "/stop")
        await world.gateway.wait_for_log("command.answered_offline")
    assert await world.dc.get("sent", action="send|edit", match="Stopped", wait=20, count=1)
    assert world.query("SELECT state FROM turns ORDER BY id LIMIT 1") == [("stopped",)]


async def test_a_mention_in_a_channel_is_answered_and_a_lost_acknowledgement_shows_one_copy(
    discord_world: World,
) -> None:
    world = discord_world
    await ready(world, HERMES_MODEL__STREAMING="false")  # the fault must hit the answer, not a preview
    await say(world, "just talking", channel="general")
    await say(world, "hello bot", channel="general", mention=True)
    [reply] = await sent(world, 1)
    assert "hello bot" in reply
    assert world.query("SELECT count(*) FROM inbox") == [(1,)]
    await world.dc.post("faults", {"kind": "reset_after", "match": r"POST /channels/\d+/messages"})
    message = await say(world, "say it once")
    await sent(world, 2)
    await world.dc.get("sent", action="nonce_duplicate", wait=20, count=1)
    shown = await world.dc.get("messages", channel_id=message["channel_id"])
    assert sum("say it once" in row["content"] for row in shown if row["author"].get("bot")) == 1


ADMIN_COMMANDS = {"insights", "lineage", "search", "session", "pair"}
BOB = 100000000000000002
EPHEMERAL = 64


async def pick(world: World, name: str, user_id: int = ALICE, **more: object) -> Any:
    """A person picks a slash command, in a channel unless told otherwise."""
    place = {} if "dm_user_id" in more else {"channel": "general"}
    return await world.dc.post("interaction", {"name": name, "user_id": user_id, **place, **more})


async def answers(world: World, count: int, action: str = "interaction_reply") -> list[dict[str, Any]]:
    """Answers to interactions; waits for `count` of them."""
    rows: list[dict[str, Any]] = await world.dc.get("sent", action=action, wait=10, count=count)
    return rows


async def all_acknowledged(world: World, count: int) -> bool:
    rows = await world.dc.get("interactions")
    return len(rows) == count and all(row["acked"] and row["ack_after"] < 3 for row in rows)


async def test_commands_for_admins_are_slash_commands_and_others_are_refused_by_themselves(
    discord_world: World,
) -> None:
    world = discord_world
    await ready(world, HERMES_ACCESS__ADMINS=f"discord:{BOB}")
    await world.gateway.wait_for_log("discord.menu_published")
    menu = {row["name"]: row for row in (await world.dc.get("state"))["commands"][""]}
    assert menu.keys() >= ADMIN_COMMANDS
    assert all(menu[name]["description"].endswith(" (admins)") for name in ADMIN_COMMANDS)
    given = {"insights": {"days": 7}, "lineage": {"place": "x"}, "search": {"words": "x"}, "session": {"id": "x"}}
    given["pair approve"] = {"code": "x"}
    for number, name in enumerate(sorted(given) * 2, start=1):
        await pick(world, name, options=given[name])
        rows = await answers(world, number)
        assert rows[-1]["text"] == f"Only admins can use /{name.split()[0]}."
        assert rows[-1]["ephemeral"], name
    assert world.query("SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM outbox)") == [(0, 0)]
    await pick(world, "insights", BOB)
    [row] = await answers(world, 1, "interaction_edit")
    assert "No model calls" in row["text"]
    assert await all_acknowledged(world, 11)


async def test_strangers_are_told_so_by_themselves_and_nothing_is_kept(discord_world: World) -> None:
    world = discord_world
    await ready(world, HERMES_ACCESS__ALLOW="telegram:42")
    await world.gateway.wait_for_log("discord.menu_published")
    for number in range(1, 6):
        await pick(world, "help")
        rows = await answers(world, number)
        assert "do not have access" in rows[-1]["text"]
        assert rows[-1]["ephemeral"]
    assert world.query("SELECT (SELECT count(*) FROM chats), (SELECT count(*) FROM outbox)") == [(0, 0)]
    for _ in range(3):
        await pick(world, "help", dm_user_id=ALICE)
    offers = await answers(world, 3, "interaction_edit")
    assert "pairing code" in offers[0]["text"]
    assert "still needs approval" in offers[2]["text"]
    for number in range(6, 9):
        await pick(world, "help", dm_user_id=ALICE)
        rows = await answers(world, number)
        assert "still needs approval" in rows[-1]["text"]
        assert rows[-1]["ephemeral"]
    assert world.query("SELECT count(*) FROM outbox") == [(3,)]
    assert await all_acknowledged(world, 11)


async def test_a_button_that_somebody_may_not_press_is_refused_by_itself(discord_world: World) -> None:
    world = discord_world
    people = {"HERMES_ACCESS__ALLOW": f"discord:{ALICE}", "HERMES_ACCESS__ADMINS": f"discord:{BOB}"}
    await ready(world, **people)
    await world.gateway.wait_for_log("discord.menu_published")
    await say(world, "first", channel="general", mention=True)
    await sent(world, 1)
    await pick(world, "new", BOB)
    await answers(world, 1, "interaction_edit")
    await pick(world, "sessions", ALICE)
    [listed] = await world.dc.get("sent", action="interaction_edit", match="Conversations", wait=10, count=1)
    custom_id = listed["components"][0]["components"][0]["custom_id"]
    press = {"custom_id": custom_id, "message_id": listed["message_id"], "channel": "general"}
    await world.dc.post("interaction", {**press, "user_id": ALICE})
    [row] = await answers(world, 1, "interaction_followup")
    assert row["text"].startswith("In a shared chat, only admins and moderators")
    assert row["ephemeral"]
    await world.dc.post("interaction", {**press, "user_id": BOB})
    assert await world.dc.get("sent", action="send", match="Back in conversation", wait=10, count=1)
    assert await all_acknowledged(world, 4)


async def test_commands_are_answered_in_their_place_and_more_than_are_taken_are_refused(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await world.gateway.wait_for_log("discord.menu_published")
    for _ in range(33):
        await pick(world, "whoami")
    refused = await answers(world, 3)
    assert [row["ephemeral"] and "limit: 30 per minute" in row["text"] for row in refused] == [True] * 3
    answered = await answers(world, 30, "interaction_edit")
    assert [f"discord:{ALICE}" in row["text"] for row in answered] == [True] * 30
    assert world.query("SELECT count(*) FROM turns") == [(0,)]
    assert world.query("SELECT count(*) FROM inbox") == [(30,)]
    assert await all_acknowledged(world, 33)
