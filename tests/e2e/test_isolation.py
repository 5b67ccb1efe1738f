"""One chat's trouble is nobody else's: hanging models, slow downloads, groups."""

import asyncio

import pytest

from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.world import GROUP, World


@pytest.mark.each_protocol
async def test_ten_chats_stream_while_one_hangs(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ALLOW_ALL="true")
    await world.script(match="hang", hang=True)
    await world.say("hang", chat_id=999)
    await world.turn_runs()
    await world.hold(match="chat", text="word " * 60, chunk_chars=10, chunk_delay=0.05, times=10)
    for chat in range(100, 110):
        await world.say(f"chat {chat}", chat_id=chat)
    assert len(await world.asked(11)) == 11, "none waits for another"
    await world.release()
    await asyncio.gather(*(world.replies(1, chat_id=chat) for chat in range(100, 110)))
    drafts = await world.tg.get("sent", method="sendMessageDraft")
    assert {int(row["chat_id"]) for row in drafts} == set(range(100, 110)), "everybody saw the answer grow"
    assert await world.replies(0, chat_id=999, wait=0) == []


async def test_a_slow_download_delays_no_other_chat(world: World) -> None:
    await world.gateway.start()
    await world.tg.post("faults", {"kind": "hang", "match": "download", "seconds": 20})
    document = {"file_text": "slow words", "file_name": "slow.txt", "mime": "text/plain"}
    await world.say("", media="document", caption="read this", **document)
    await world.tg.get("calls", method="getFile", wait=10, count=1)
    await world.say("quick", chat_id=43)
    assert await world.replies(1, chat_id=43, wait=15)
    assert len((await world.tg.get("faults"))["fired"]) == 1, "the download hangs"
    assert await world.replies(0, wait=0) == []


async def test_documents_are_read_into_the_turn_and_voice_messages_get_a_sentence(world: World) -> None:
    await world.gateway.start()
    await world.ask("", "cannot listen to voice", media="voice")
    assert world.query("SELECT count(*) FROM turns") == [(0,)]
    assert world.query("SELECT state FROM inbox") == [("done",)]
    document = {"file_text": "the launch code is 7719", "file_name": "notes.txt", "mime": "text/plain"}
    await world.say("", media="document", caption="read this", **document)
    await world.replies(2)
    [request] = await world.asked(1)
    assert "the launch code is 7719" in prompt_of(request)[-1].text


async def test_in_a_shared_group_the_model_sees_who_said_what_and_no_unaddressed_talk(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ALLOW="telegram:50,telegram:51,telegram:52")
    await world.tg.post("config", {"privacy_mode": False})
    await world.say_in_group("just talking", user_id=50)
    for person, name in ((50, "Ann"), (51, "Bo]b"), (52, "Cy")):
        said = {"user_id": person, "username": name, "first_name": name}
        await world.say_in_group(f"@lab_gateway_bot I am number {person}", **said)
        await world.replies(person - 49, chat_id=GROUP, match="number")
    assert world.query("SELECT count(*) FROM inbox") == [(3,)]
    assert world.query("SELECT count(*) FROM messages WHERE text LIKE '%just talking%'") == [(0,)]
    text = conversation_of((await world.asked(3))[2])
    assert "[Ann]" in text
    assert "[Cy]" in text
    assert "[Bo)b] I am number 51" in text, "a name cannot forge the end of its brackets"


async def test_only_the_starter_or_an_admin_stops_a_turn_in_a_shared_group(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ALLOW="telegram:50,telegram:51")
    await world.script(match="hang", hang=True, times=2)
    await world.say_in_group("@lab_gateway_bot hang", user_id=50)
    await world.turn_runs()
    await world.ask_in_group("/stop@lab_gateway_bot", "Only the person who started", user_id=51)
    await world.ask_in_group("/stop@lab_gateway_bot", "Stopped", user_id=50)
    await world.say_in_group("@lab_gateway_bot hang", user_id=50)
    await world.turn_runs(2)
    await world.say_in_group("/stop@lab_gateway_bot", user_id=1)
    assert await world.replies(2, chat_id=GROUP, match="Stopped")


async def test_per_user_keeps_the_people_of_a_group_apart(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ALLOW="telegram:50,telegram:51", HERMES_SESSIONS__GROUPS="per_user")
    for number, person in enumerate((50, 51), start=1):
        await world.say_in_group(f"@lab_gateway_bot I am {person}", user_id=person)
        await world.replies(number, chat_id=GROUP, match="I am")
    second = (await world.asked(2))[1]
    assert "I am 50" not in conversation_of(second)
    assert world.query("SELECT count(*) FROM sessions") == [(2,)]
    await world.ask_in_group("/new@lab_gateway_bot", "Started a new conversation", user_id=50)
