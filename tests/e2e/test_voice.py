"""Voice messages become words where that is configured, and are refused kindly where it is not."""

import pytest

from tests.e2e.protocols import prompt_of
from tests.e2e.world import World

EARS = {"HERMES_TRANSCRIPTION__MODEL": "lab-transcribe"}
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
    outcomes = world.query("SELECT purpose, outcome FROM model_calls WHERE outcome <> 'ok'")
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
