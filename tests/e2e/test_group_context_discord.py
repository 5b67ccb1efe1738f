"""The talk between mentions on Discord: gaps, deletions, threads that the bot opened, and hints to strangers."""

from tests.e2e.protocols import conversation_of
from tests.e2e.test_discord import ALICE, BOB, ready, say, sent
from tests.e2e.world import World

BOT = "900000000000000001"
ON = {"HERMES_GROUPS__CONTEXT": "on"}


async def heard(world: World, *texts: str) -> None:
    await world.until_rows("SELECT text FROM talk ORDER BY id", *((text,) for text in texts))


async def test_talk_is_fetched_after_an_outage_and_a_deleted_message_is_gone(discord_world: World) -> None:
    world = discord_world
    await ready(world, **ON)
    await say(world, "before the outage", channel="general", user_id=BOB)
    gone = await say(world, "a mistake", channel="general")
    await heard(world, "before the outage", "a mistake")
    assert await world.gateway.stop() == 0
    await say(world, "/new", channel="general")
    await say(world, "during the outage", channel="general", user_id=BOB)
    await ready(world)
    await heard(world, "before the outage", "a mistake", "/new", "during the outage")
    await world.dc.post("delete", {"channel_id": gone["channel_id"], "message_id": gone["message"]["id"]})
    await heard(world, "before the outage", "/new", "during the outage")
    await say(world, "what happened?", channel="general", mention=True)
    told = conversation_of((await world.asked(1))[0])
    assert "a mistake" not in told
    places = [told.index(words) for words in ("before the outage", "/new", "during the outage", "what happened?")]
    assert places == sorted(places)
    assert told.count("(no access)") == 2
    assert world.query("SELECT count(*) FROM inbox WHERE kind = 'command'") == [(0,)]


async def test_a_thread_that_the_bot_opened_needs_no_mention_unless_the_setting_says_so(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    own = await world.dc.post("channel", {"channel": "general", "thread": "ours", "user_id": BOT})
    others = await world.dc.post("channel", {"channel": "general", "thread": "theirs", "user_id": str(ALICE)})
    await say(world, "to each other", channel_id=others["id"])
    await say(world, "from a stranger", channel_id=own["id"], user_id=BOB)
    await say(world, "from a bot", channel_id=own["id"], user_id=BOB + 1, is_bot=True)
    await say(world, "in our thread", channel_id=own["id"])
    [reply] = await sent(world, 1, channel_id=own["id"])
    assert "in our thread" in reply
    await world.gateway.stop()
    await ready(world, HERMES_DISCORD__THREAD_MENTION="true")
    await say(world, "without a mention", channel_id=own["id"])
    await say(world, "with a mention", channel_id=own["id"], mention=True)
    await sent(world, 2, channel_id=own["id"])
    assert world.query("SELECT text FROM messages WHERE origin = 'human'") == [("in our thread",), ("with a mention",)]


async def test_a_stranger_who_mentions_the_bot_gets_one_direct_message(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    for text in ("hello", "are you there?"):
        await say(world, text, channel="general", user_id=BOB, mention=True)
    await say(world, "hello", channel="general", mention=True)
    rows = await world.dc.get("sent", action="send", wait=20, count=2)
    [hint] = [row for row in rows if "You wrote to me in a group, but you do not have access yet" in row["text"]]
    said = await say(world, "let me in", dm_user_id=BOB, user_id=BOB)
    assert hint["channel_id"] == said["channel_id"]
    assert await sent(world, 1, match="Your pairing code is")
    assert len(await sent(world, 0, wait=0, match="You wrote to me")) == 1
