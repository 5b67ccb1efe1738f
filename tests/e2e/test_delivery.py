"""Long answers: as many messages as a chat can bear, the rest as a file, and an end to them when somebody says so."""

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.world import GROUP, TOKEN, World

LONG = {"HERMES_MODEL__NAME": "lab-200k", "HERMES_MODEL__CONTEXT_LENGTH": "200000"}
"""A model that can write as much."""
CAPTION = "This file contains the complete reply."
WORDS = 12_000
"""Words of an answer that takes more than 20 messages on Telegram, and many more on Discord."""


def long_answer(words: int = WORDS) -> str:
    return "\n".join(" ".join(f"word{number}" for number in range(at, at + 10)) for at in range(0, words, 10))


async def file_on_telegram(world: World) -> tuple[str, str, str]:
    """Caption, name and text of the file that the bot has sent; waits for it."""
    assert await world.tg.get("sent", method="sendDocument", count=1, wait=20)
    chat = await world.tg.get("chat/42")
    [message] = [row for row in chat["messages"] if "document" in row]
    root = f"{world.tg.url}/bot{TOKEN}"
    async with world.http.post(f"{root}/getFile", json={"file_id": message["document"]["file_id"]}) as response:
        path = (await response.json())["result"]["file_path"]
    async with world.http.get(f"{world.tg.url}/file/bot{TOKEN}/{path}") as response:
        return message["caption"], message["document"]["file_name"], await response.text()


async def test_an_answer_takes_at_most_twenty_messages_and_the_rest_comes_as_a_file(world: World) -> None:
    await world.gateway.start(**LONG)
    answer = long_answer()
    await world.script(match="tell me all", text=answer)
    await world.say("tell me all")
    assert await file_on_telegram(world) == (CAPTION, "reply.md", answer)
    shown = await world.replies(19)
    assert len(shown) == 19
    assert shown[0].startswith("word0 word1 ")
    await world.ask("thanks", "^echo: .*thanks")
    assert world.query("SELECT count(*) FROM outbox WHERE part > 0 AND state <> 'sent'") == [(0,)]


async def test_where_no_file_may_be_sent_a_sentence_says_where_the_rest_is(world: World) -> None:
    await world.gateway.start(**LONG)
    forbidden = {"description": "Bad Request: not enough rights to send documents to the chat"}
    await world.tg.post("faults", {"kind": "400", "match": "sendDocument", "times": -1, **forbidden})
    await world.script(match="tell me all", text=long_answer())
    await world.say("tell me all")
    replies = await world.replies(20)
    assert "I cannot attach a file" in replies[19]
    assert world.query("SELECT count(*) FROM outbox WHERE state = 'dead'") == [(0,)]


async def test_on_discord_the_rest_comes_as_a_file_too(discord_world: World) -> None:
    world = discord_world
    await discord.ready(world, **LONG)
    answer = long_answer()
    await world.script(match="tell me all", text=answer)
    said = await discord.say(world, "tell me all")
    sent = await discord.sent(world, 20)
    assert len(sent) == 20
    shown = await world.dc.get("messages", channel_id=said["channel_id"])
    *_, last = (row for row in shown if row["author"].get("bot"))
    assert last["content"] == CAPTION
    [file] = last["attachments"]
    assert file["filename"] == "reply.md"
    async with world.http.get(file["url"]) as response:
        assert await response.text() == answer


async def test_stop_ends_the_delivery_of_an_answer_and_is_answered_next(world: World) -> None:
    await world.gateway.start()
    await world.script(match="tell me all", text=long_answer())
    await world.tg.post("faults", {"kind": "delay", "seconds": 0.3, "match": "send(Message$|Document)", "times": -1})
    await world.say("tell me all")
    await world.replies(2)
    await world.ask("/stop", "^Stopped")
    await world.ask("what else?", "^echo: .*what else")
    texts = await world.replies(0, wait=0)
    at = next(index for index, text in enumerate(texts) if text.startswith("Stopped"))
    assert at <= 5, "what was under way, and nothing more"
    assert "/history" in texts[at]
    assert not [text for text in texts[at:] if text.startswith("word")]
    assert not await world.tg.get("sent", method="sendDocument", count=0)
    assert world.query("SELECT count(*) FROM outbox WHERE settled_at IS NULL AND part > 0") == [(0,)]
    await world.ask("/history", "word0 word1")


@pytest.mark.each_protocol
async def test_the_answer_to_a_stop_comes_before_what_was_written_until_then(world: World) -> None:
    await world.gateway.start()
    text = long_answer(3_000)
    await world.script(match="hang please", text=text, chunk_chars=4_000, hang_after=world.protocol.frames(3))
    await world.say("hang please")
    await world.tg.get("sent", method="sendMessageDraft", wait=10, count=1)
    await world.say("/stop")
    replies = await world.replies(3)
    assert replies[0].startswith("Stopped.")
    assert replies[1].startswith("word0 word1")


async def test_a_stop_of_somebody_else_in_a_group_leaves_the_delivery_alone(world: World) -> None:
    await world.gateway.start()
    await world.script(match="tell me all", text=long_answer(4_000))
    await world.tg.post("faults", {"kind": "delay", "seconds": 0.2, "match": "sendMessage$", "times": -1})
    await world.say_in_group("@lab_gateway_bot tell me all")
    await world.gateway.wait_for_log("turn.finished")
    await world.ask_in_group("/stop@lab_gateway_bot", "Nothing was running", user_id=43)
    assert await world.replies(1, chat_id=GROUP, match="word3999")
