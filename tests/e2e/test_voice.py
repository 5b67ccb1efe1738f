"""Voice messages become text, and answers become voice messages, if audio models are configured."""

import re

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.protocols import prompt_of
from tests.e2e.test_compression import page_of
from tests.e2e.test_files import on_telegram
from tests.e2e.world import World

EARS = {"HERMES_TRANSCRIPTION__MODEL": "lab-transcribe"}
MOUTH = {"HERMES_VOICE__MODEL": "lab-tts@coral"}
ALWAYS = {**MOUTH, "HERMES_VOICE__REPLY": "always"}
HANGS = {"kind": "hang", "match": "speech", "times": 1}
OPEN = "SELECT count(*) FROM outbox WHERE state IN ('pending','sending','ambiguous')"
VOICE = {"media": "voice", "file_name": "voice.ogg", "mime": "audio/ogg", "duration": 7}


@pytest.mark.each_protocol
async def test_a_voice_message_is_answered_and_found_by_its_words(world: World) -> None:
    await world.gateway.start(**EARS, HERMES_ACCESS__ADMINS="telegram:42")
    await world.say("", **VOICE, file_text="OggS SAYS:remind me of the heron")
    assert await world.replies(1, match="heron")
    _, request = await world.asked(2)
    said = prompt_of(request)[-1].text
    assert "remind me of the heron" in said
    assert "was spoken" in said
    await world.ask("/search heron", "m1 .* session")
    purposes = "SELECT purpose, outcome, input_tokens, output_tokens, chat_id IS NOT NULL FROM model_calls ORDER BY id"
    assert world.query(purposes)[0] == ("transcription", "ok", 10, 5, 1)


async def test_a_recording_without_words_gets_a_sentence_and_no_turn(world: World) -> None:
    await world.gateway.start(**EARS)
    await world.say("", **{**VOICE, "duration": 601}, file_text="SAYS:far too much")
    assert await world.replies(1, match="at most 10 minutes")
    assert not await world.llm.get("requests"), "a long recording is not fetched"
    await world.say("", **VOICE, file_text="OggS")
    assert await world.replies(1, match="could not hear any words")
    await world.llm.post("faults", {"kind": "status", "status": 503, "match": "transcriptions", "times": 9})
    await world.say("", **VOICE, file_text="SAYS:hello")
    assert await world.replies(1, match="could not listen .* right now")
    unreadable = {"status": 400, "body": '{"error": "failed to read audio data"}'}  # from whisper.cpp without ffmpeg
    await world.llm.delete("faults")
    await world.llm.post("faults", {"kind": "status", **unreadable, "match": "transcriptions"})
    await world.say("", **VOICE, file_text="SAYS:hello")
    assert await world.replies(1, match="service refused the request")
    outcomes = world.query("SELECT purpose, outcome FROM model_calls WHERE outcome = 'unavailable'")
    assert outcomes == [("transcription", "unavailable")] * 4
    assert world.query("SELECT count(*) FROM turns") == [(0,)]
    assert world.query("SELECT DISTINCT state FROM inbox") == [("done",)]


async def test_a_refused_key_names_the_configuration(world: World) -> None:
    await world.gateway.start(**EARS, HERMES_TRANSCRIPTION__API_KEY="not-the-one")
    await world.llm.post("config", {"api_key": "lab-key"})
    await world.say("", **VOICE, file_text="SAYS:hello")
    assert await world.replies(1, match="check the `?transcription`? settings")


async def test_what_was_heard_is_not_paid_again_after_a_kill(world: World) -> None:
    await world.gateway.start(**EARS)
    await world.llm.post("script", {"hang": True, "times": 1})
    await world.say("", **VOICE, file_text="SAYS:about the heron", caption="a crow")
    await world.llm.get("requests", count=2, wait=15)
    await world.gateway.kill()
    await world.llm.delete("script")
    await world.gateway.start(**EARS)
    assert await world.replies(1, match="heron")
    assert world.query("SELECT count(*) FROM model_calls WHERE purpose = 'transcription'") == [(1,)]
    assert world.query("SELECT text FROM messages WHERE role = 'user'") == [("a crow\nabout the heron",)]


async def speech_calls(world: World, count: int) -> int:
    """Number of calls of the speech model; waits for `count` of them."""
    return len(await world.asked(count, model="lab-tts"))


async def test_who_speaks_gets_the_text_and_then_a_voice_message(world: World) -> None:
    await world.gateway.start(**EARS, **MOUTH)
    await world.script(
        match="heron", times=2, text="# Birds\n\nA **heron** [waits](https://a.example).\n\n```\nlong code\n```"
    )
    await world.say("and by text, about the heron")
    await world.replies(1)
    await world.say("", **VOICE, file_text="SAYS:about the heron")
    assert await on_telegram(world, "voice") == [("", "", b"OggS coral SAYS:Birds.\nA heron waits.")]
    methods = [row["method"] for row in await world.tg.get("sent")]
    assert [one for one in methods if one in ("sendMessage", "sendVoice")] == [
        "sendMessage",
        "sendMessage",
        "sendVoice",
    ]
    assert await world.tg.get("calls", method="sendChatAction", match="record_voice")
    assert world.query("SELECT outcome, chat_id FROM model_calls WHERE purpose = 'speech'") == [("ok", 1)]
    await world.until_rows(OPEN, (0,))


@pytest.mark.parametrize(("reply", "spoken"), [("always", 2), ("never", 0)])
async def test_always_speaks_every_answer_and_never_none(world: World, reply: str, spoken: int) -> None:
    await world.gateway.start(**EARS, **MOUTH, HERMES_VOICE__REPLY=reply)
    await world.ask("the first", "first")
    await world.say("", **VOICE, file_text="SAYS:the second")
    await world.replies(2)
    assert await speech_calls(world, spoken) == spoken
    assert len(await on_telegram(world, "voice", spoken)) == spoken
    assert world.query("SELECT count(*) FROM outbox WHERE kind = 'voice'") == [(spoken,)]


async def test_a_chat_chooses_which_answers_are_spoken(world: World) -> None:
    await world.gateway.start(**EARS, **MOUTH)
    await world.ask("/voice", "I answer a voice message here with text and a voice message")
    await world.ask("/voice always", "every answer here with a voice message, too")
    await world.ask("the first", "echo: .*first")
    assert len(await on_telegram(world, "voice")) == 1
    await world.gateway.kill()
    await world.gateway.start(HERMES_VOICE__REPLY="always")
    await world.ask("/voice off", "only with text")
    await world.ask("/voice loud", "Send `?/voice off`?, `?/voice same`? or `?/voice always")
    await world.say("", **VOICE, file_text="SAYS:the second")
    await world.replies(1, match="echo: .*second")
    await world.ask("the third", "echo: .*third", chat_id=43)
    # The setting applies to the other chat.
    voices = "SELECT chat_id, state FROM outbox WHERE kind = 'voice' ORDER BY id"
    await world.until_rows(voices, (1, "sent"), (2, "sent"))


async def test_without_a_speech_model_voice_says_so(world: World) -> None:
    await world.gateway.start()
    await world.ask("/voice always", "no speech model is configured")


async def test_a_long_answer_is_spoken_in_part_and_a_refused_format_again_as_mp3(world: World) -> None:
    await world.gateway.start(**ALWAYS | {"HERMES_VOICE__MODEL": "lab-mp3"})
    await world.script(match="long", text="A sentence about herons. " * 100)
    await world.say("long")
    [(caption, _, sound)] = await on_telegram(world, "voice")
    assert caption == "The recording contains only the beginning. The text above is complete."
    assert sound == b"ID3 alloy SAYS:" + b"A sentence about herons. " * 59 + b"A sentence about herons."


async def test_on_discord_an_answer_is_spoken_in_an_attachment(discord_world: World) -> None:
    await discord.ready(discord_world, **ALWAYS)
    await discord.say(discord_world, "hello")
    rows = await discord_world.dc.get("sent", action="send", wait=20, count=2)
    assert [row["attachments"] for row in rows] == [[], ["voice.ogg"]]


async def test_in_the_web_chat_an_answer_has_a_player(world: World) -> None:
    await world.gateway.start(**ALWAYS, **world.web_chat())
    async with page_of(world) as page:
        await page.write("hello")
        await page.until("echo:")
        await world.until_rows("SELECT state FROM outbox WHERE kind = 'voice'", ("sent",))
        assert '<audio controls data-file="/chat/main/files/1"' in await page.html()
        assert (await page.fetch("/chat/main/files/1"))[1].startswith(b"OggS coral SAYS:echo")


async def test_without_a_voice_the_text_stays_and_the_chat_is_told_once(world: World) -> None:
    await world.gateway.start(**ALWAYS)
    await world.llm.post("faults", {"kind": "status", "status": 401, "match": "speech", "times": 2})
    await world.ask("one", "echo: .*one")
    assert await world.replies(1, match="could not record a voice message")
    await world.ask("two", "echo: .*two")
    await world.until_rows("SELECT state FROM outbox WHERE kind = 'voice'", ("dead",), ("dead",))
    await world.ask("three", "echo: .*three")
    assert len(await on_telegram(world, "voice")) == 1
    assert len(await world.replies(4)) == 4, "three answers and one notice"
    assert world.gateway.log_text().count("speech.failed") == 2


@pytest.mark.parametrize("command", ["/stop", "/undo"])
async def test_a_hanging_recording_holds_up_nothing_and_ends_with_a_command(world: World, command: str) -> None:
    await world.gateway.start(**ALWAYS)
    await world.llm.post("faults", HANGS)
    await world.ask("one", "echo: .*one")
    await speech_calls(world, 1)
    if command == "/stop":
        await world.ask("two", "echo: .*two")  # a newer message does not wait for the recording
    await world.until_rows("SELECT count(*) FROM outbox WHERE kind <> 'voice' AND settled_at IS NULL", (0,))
    told = "Stopped. I will not send the voice message of that answer." if command == "/stop" else "Undid"
    await world.ask(command, re.escape(told))
    await world.until_rows("SELECT DISTINCT state FROM outbox WHERE kind = 'voice'", ("dead",))
    await world.until_rows("SELECT outcome FROM model_calls WHERE purpose = 'speech'", ("cancelled",))
    await world.ask("three", "echo: .*three")
    assert len(await on_telegram(world, "voice")) == 1


async def test_a_slow_recording_ends_at_the_time_limit(world: World) -> None:
    await world.gateway.start(**ALWAYS, HERMES_MODEL__READ_SECONDS="0.3")
    await world.llm.post("faults", {**HANGS, "times": -1})
    await world.ask("one", "echo: .*one")
    assert await world.replies(1, match="could not record a voice message")
    assert world.query("SELECT DISTINCT outcome FROM model_calls WHERE purpose = 'speech'") == [("timeout",)]


async def test_a_kill_loses_no_voice_message_and_pays_for_none_twice(world: World) -> None:
    await world.gateway.start(**ALWAYS)
    await world.llm.post("faults", HANGS)
    await world.ask("one", "echo: .*one")
    await speech_calls(world, 1)
    await world.gateway.kill()
    await world.tg.post("faults", {"kind": "500", "match": "sendVoice", "times": -1})
    await world.gateway.start(**ALWAYS)
    assert await world.tg.get("calls", method="sendVoice", count=1, wait=20)
    await world.gateway.kill()
    await world.tg.delete("faults")
    await world.gateway.start(**ALWAYS)
    assert len(await on_telegram(world, "voice")) == 1
    assert len(await world.replies(1)) == 1
    assert await speech_calls(world, 2) == 2, "the interrupted call, and the one whose recording was stored"
