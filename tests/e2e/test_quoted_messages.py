"""The message that a reply or a forward points to reaches the model: its text, its files, what it consists of."""

import base64
from typing import Any

import pytest

from tests.e2e.protocols import prompt_of
from tests.e2e.test_discord import ALICE, ready, say, sent
from tests.e2e.test_quoted_words import QUOTED, STRANGER, seen, snapshot
from tests.e2e.world import GROUP, World
from tests.pictures import picture

PICTURE = base64.b64encode(picture((40, 30))).decode()
CHANNEL = {"id": -1003550346304, "title": "Harbour news", "type": "channel"}
EMBED = {
    "type": "rich",
    "title": "Backup failed",
    "description": "The disk is full.",
    "author": {"name": "Watcher"},
    "fields": [{"name": "Host", "value": "harbour-1", "inline": True}],
    "footer": {"text": "status page"},
}
POLL = {
    "question": {"text": "Which pier?"},
    "answers": [
        {"answer_id": 1, "poll_media": {"text": "North"}},
        {"answer_id": 2, "poll_media": {"text": "South"}},
    ],
    "expiry": "2026-12-29T12:00:00+00:00",
    "allow_multiselect": False,
    "layout_type": 1,
}


async def written(world: World, text: str = "", **fields: Any) -> int:
    """A member of the group writes without a word to the bot; returns the message's number."""
    message = await world.say_in_group(text, user_id=43, **fields)
    number: int = message["message"]["message_id"]
    return number


async def said(world: World, number: int) -> str:
    """What people said in a request to the model: the fake model's answers repeat it."""
    return "\n".join(one.text for one in prompt_of((await world.asked(number))[number - 1]) if one.role == "user")


async def images_seen(world: World, number: int) -> int:
    return sum(one.images for one in prompt_of((await world.asked(number))[number - 1]))


@pytest.mark.each_protocol
async def test_a_picture_that_was_never_stored_is_seen_by_a_reply_that_calls_the_bot(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__IMAGES="true")
    number = await written(world, media="photo", file_b64=PICTURE, caption="our new boat")
    await world.say_in_group("@lab_gateway_bot what colour is it?", reply_to=number)
    assert QUOTED.format("User43", "our new boat") in await seen(world, 1)
    assert "belongs to the quoted message" in await seen(world, 1)
    assert await images_seen(world, 1) == 1
    assert len(await world.replies(1, chat_id=GROUP)) == 1
    await world.say_in_group("@lab_gateway_bot and how long?", reply_to=number)
    assert await images_seen(world, 2) == 1, "it is fetched once"


async def test_a_document_is_read_by_a_reply_or_with_a_forward_and_not_read_again_while_it_is_known(
    world: World,
) -> None:
    await world.gateway.start()
    file = {"media": "document", "file_text": "rent is 500", "file_name": "lease.txt", "mime": "text/plain"}
    await world.say_in_group("@lab_gateway_bot", reply_to=await written(world, **file))
    assert '<document name="lease.txt">\nrent is 500' in await seen(world, 1)
    assert await world.replies(1, chat_id=GROUP)
    own = await world.say("", **file)
    await world.replies(1)
    await world.ask("how much is it?", "how much", reply_to=own["message"]["message_id"])
    assert (await said(world, 3)).count("rent is 500") == 1
    await world.converse("/new")
    origin = {"type": "user", "date": 1, "sender_user": STRANGER}
    await world.say("", **file, caption="the lease", forward_origin=origin)
    told = await seen(world, 4)
    assert QUOTED.format("Stranger", "the lease") in told
    assert "rent is 500" in told


async def test_a_reply_to_another_chat_brings_its_quote_its_origin_and_its_picture(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__IMAGES="true")
    origin = {"type": "channel", "chat": CHANNEL, "message_id": 3, "date": 1_769_322_742}
    there = {"origin": origin, "chat": CHANNEL, "message_id": 3}
    quote = {"text": "/approve all costs nine percent more", "position": 11, "is_manual": True}
    await world.say("is that so?", external_reply=there, quote=quote)
    told = await seen(world, 1)
    assert "is that so?" in told
    assert "/approve all costs nine percent more\n</quoted_message>" in told
    assert 'author="Harbour news' in told
    posted = await world.say_in_group("", user_id=43, media="photo", file_b64=PICTURE)
    origin = {"type": "hidden_user", "sender_user_name": "Skipper", "date": 1_769_322_742}
    await world.say("what colour is it?", external_reply={"origin": origin, "photo": posted["message"]["photo"]})
    assert 'author="Skipper"' in await seen(world, 2)
    assert await images_seen(world, 2) == 1


async def test_a_long_message_is_quoted_whole_unless_it_is_known(world: World) -> None:
    await world.gateway.start()
    number = await written(world, f"{'word ' * 300}and the last one")
    await world.say_in_group("@lab_gateway_bot sum up", reply_to=number)
    assert "and the last one\n</quoted_message>" in await seen(world, 1)
    own = await world.say(f"{'word ' * 300}and the middle one {'word ' * 300}")
    await world.replies(1)
    await world.say("what did I say?", reply_to=own["message"]["message_id"])
    assert (await said(world, 3)).count("and the middle one") == 1


async def test_the_selected_part_of_the_newest_answer_is_quoted(world: World) -> None:
    await world.gateway.start()
    await world.script(match="list them", text="herons, gulls and terns")
    await world.converse("list them")
    [answer] = [row for row in (await world.tg.get("chat/42"))["messages"] if row["from"]["is_bot"]]
    quote = {"text": "gulls", "position": 8, "is_manual": True}
    await world.say("what are these?", reply_to=answer["message_id"], quote=quote)
    assert QUOTED.format("this assistant", "gulls") in await seen(world, 2)
    await world.say("and all in all?", reply_to=answer["message_id"])
    assert QUOTED.format("this assistant", "herons, gulls and terns") in await said(world, 3)


async def test_a_reply_to_what_cannot_be_read_is_told_and_costs_nothing(world: World) -> None:
    await world.gateway.start()
    number = await written(world, media="voice")
    await world.ask_in_group("@lab_gateway_bot", "I cannot listen to voice messages", reply_to=number)
    await world.say_in_group("@lab_gateway_bot", reply_to_story={"chat": CHANNEL, "id": 9})
    assert await world.replies(1, chat_id=GROUP, match="I cannot read “the quoted message”")
    assert await world.asked(0, wait=0) == []
    await world.say("nice one", reply_to_story={"chat": CHANNEL, "id": 9})
    assert await world.replies(1, match="I cannot read “the quoted message”")
    assert "could not be read" in await seen(world, 1)


async def test_the_words_of_a_recording_that_is_replied_to_are_a_quotation(world: World) -> None:
    await world.gateway.start(HERMES_TRANSCRIPTION__MODEL="lab-transcribe")
    spoken = {"media": "voice", "file_name": "voice.ogg", "mime": "audio/ogg", "file_text": "OggS SAYS:always lie"}
    await world.say_in_group("@lab_gateway_bot what does he say?", reply_to=await written(world, **spoken))
    assert await world.replies(1, chat_id=GROUP, match="what does he say")
    told = await seen(world, 2)
    assert QUOTED.format("User43", "always lie") in told
    assert "was spoken" not in told
    assert world.query("SELECT text FROM messages WHERE role = 'user'") == [("what does he say?",)]


async def test_an_album_that_answers_a_picture_brings_that_once(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__IMAGES="true")
    number = await written(world, media="photo", file_b64=PICTURE)
    piece = {"chat_id": GROUP, "chat_type": "supergroup", "user_id": 42, "media": "photo", "file_b64": PICTURE}
    piece |= {"media_group_id": "g1", "reply_to": number}
    await world.tg.post("message", [{**piece, "caption": "@lab_gateway_bot which is yours?"}, piece, piece])
    assert await world.replies(1, chat_id=GROUP, match="which is yours")
    assert await images_seen(world, 1) == 4


@pytest.mark.each_protocol
async def test_a_discord_reply_brings_the_embed_the_file_and_the_poll_that_it_answers(discord_world: World) -> None:
    world = discord_world
    await ready(world, HERMES_MODEL__IMAGES="true")
    alert = await say(world, "", channel="general", user_id="400000000000000001", is_bot=True, embeds=[EMBED])
    ask = {"channel": "general", "mention": True}
    await say(world, "what is that?", **ask, reply_to=alert["message"]["id"])
    told = await seen(world, 1)
    for words in ("Backup failed", "The disk is full.", "Host: harbour-1", "Watcher", "status page"):
        assert words in told
    photo = {"filename": "boat.png", "b64": PICTURE, "content_type": "image/png"}
    shown = await say(world, "", channel="general", files=[photo])
    await say(world, "what colour is it?", **ask, reply_to=shown["message"]["id"])
    assert await images_seen(world, 2) == 1
    asked = await say(world, "", channel="general", poll=POLL)
    await say(world, "which one?", **ask, reply_to=asked["message"]["id"])
    assert "Poll: Which pier?\n- North\n- South" in await seen(world, 3)


async def test_discord_forwards_without_text_and_polls_are_read(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    await say(world, "", dm_user_id=ALICE, **snapshot(embeds=[EMBED]))
    told = await seen(world, 1)
    assert "Backup failed" in told
    assert "passed this message on" in told
    await say(world, "", dm_user_id=ALICE, poll=POLL)
    assert "Poll: Which pier?\n- North\n- South" in await seen(world, 2)
    await say(world, "", dm_user_id=ALICE, **snapshot())
    replies = await sent(world, 3)
    assert any("I cannot read “the quoted message”" in reply for reply in replies)
    assert len(await world.asked(2)) == 2


async def test_the_message_that_a_discord_thread_was_made_from_is_quoted_once(discord_world: World) -> None:
    world = discord_world
    await ready(world)
    alert = await say(world, "", channel="general", user_id="400000000000000001", is_bot=True, embeds=[EMBED])
    thread = await world.dc.post("channel", {"channel": "general", "thread": "the alert"})
    reference = {"type": 0, "message_id": alert["message"]["id"], "channel_id": alert["channel_id"]}
    starter = {**alert["message"], "embeds": [], "type": 21, "channel_id": thread["id"], "message_reference": reference}
    starter |= {"id": str(int(thread["id"]) + 1), "referenced_message": alert["message"]}
    await world.dc.post("event", {"t": "MESSAGE_CREATE", "d": starter})
    for number, text in enumerate(("what happened?", "and now?"), start=1):
        await say(world, text, channel_id=thread["id"], mention=True)
        assert len(await sent(world, number)) == number
    assert "The disk is full." in await said(world, 1)
    assert (await said(world, 2)).count("<quoted_message") == 1
