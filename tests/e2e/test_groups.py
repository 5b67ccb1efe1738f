"""Chats of several people: who may change the conversation that they share, and how much of one person is taken."""

import time

from tests.e2e.world import GROUP, World

PEOPLE = {"HERMES_ACCESS__ALLOW": "telegram:50,telegram:42", "HERMES_ACCESS__MODERATORS": "telegram:51"}


async def say(world: World, text: str, person: int) -> None:
    await world.say_in_group(text, user_id=person)


async def replies(world: World, count: int, match: str) -> list[str]:
    return await world.replies(count, chat_id=GROUP, match=match)


async def test_what_changes_a_shared_conversation_is_for_admins_and_moderators(world: World) -> None:
    await world.gateway.start(**PEOPLE)
    await say(world, "@lab_gateway_bot hello", 50)
    await world.replies(1, chat_id=GROUP)
    refused = ("new", "reset", "undo", "undo 3", "resume abcd", "model lab-32k", "compress undo", "compress UNDO")
    for number, line in enumerate(refused, start=1):
        name, _, argument = line.partition(" ")
        await say(world, f"/{name}@lab_gateway_bot {argument}", 50)
        assert len(await replies(world, number, "In a shared chat, only admins and moderators")) == number, line
    assert world.query("SELECT count(*) FROM sessions") == [(1,)]
    assert world.query("SELECT count(*) FROM view_edits") == [(0,)]
    for number, (line, answer) in enumerate((("model", "Model: "), ("history", "hello"), ("title Ours", "Ours"))):
        await say(world, f"/{line.replace(' ', '@lab_gateway_bot ') if ' ' in line else line + '@lab_gateway_bot'}", 50)
        assert await replies(world, 1, answer), number
    await say(world, "/undo@lab_gateway_bot", 51)
    assert await replies(world, 1, "Undid 1 exchange")
    await say(world, "/new@lab_gateway_bot", 51)
    assert await replies(world, 1, "Started a new conversation")
    await say(world, "/new@lab_gateway_bot", 1)
    assert await replies(world, 2, "Started a new conversation")
    await world.script(match="hang", hang=True)
    await say(world, "@lab_gateway_bot hang", 42)
    await world.asked(2)
    await say(world, "/new@lab_gateway_bot", 50)
    count = len(refused) + 1
    assert len(await replies(world, count, "In a shared chat, only admins and moderators")) == count
    assert not await world.replies(0, chat_id=GROUP, match="Queued until the current answer", wait=0)


async def test_messages_beyond_the_limit_are_refused_once_and_taken_a_minute_later(world: World) -> None:
    await world.gateway.start(HERMES_SESSIONS__MESSAGES_PER_MINUTE="3")
    now = int(time.time())
    for number in range(8):
        await world.say(f"message {number}", date=now + number)
    assert await world.replies(1, match="limit: 3 per minute")
    await world.ask("message 8", "message 8", chat_id=43, date=now + 8)
    await world.ask("message 9", "message 9", date=now + 61)
    assert len(await world.replies(1, match="limit: 3 per minute")) == 1
    taken = [text for (text,) in world.query("SELECT text FROM messages WHERE role = 'user' ORDER BY id")]
    assert sorted(taken) == [f"message {number}" for number in (0, 1, 2, 8, 9)]


async def test_a_person_has_sixty_messages_a_minute_by_default(world: World) -> None:
    await world.gateway.start()
    now = int(time.time())
    await world.say("message {n}", repeat=70, date=now)
    [notice] = await world.replies(1, match="limit: 60 per minute")
    assert "Please send them again" in notice
    await world.stored(60)
    await world.ask("later", "later", date=now + 60)
    assert world.query("SELECT count(*) FROM inbox WHERE kind = 'message'") == [(61,)]
