"""What a turn is made of arrives at the model and comes back, whatever protocol lies between."""

import base64
from typing import Any

import pytest

from tests.e2e.protocols import CHAT_COMPLETIONS, chosen, conversation_of, prompt_of
from tests.e2e.world import STARTED_ANEW, World
from tests.pictures import picture

pytestmark = pytest.mark.each_protocol

FILLER = "We looked at the harbour, the old bridge and the market, and wrote down what each of them costs. " * 12


async def ended(world: World, number: int) -> dict[str, Any]:
    """A request that was held, once the server has seen its end."""
    await world.llm.get("requests", wait=15, outcome="client_gone", count=1)
    return (await world.asked(number + 1))[number]


async def test_requests_arrive_where_the_protocol_has_them_and_tools_are_told_in_order(world: World) -> None:
    await world.gateway.start()
    await world.converse("we spoke of herons")
    [request] = await world.asked(1)
    assert request["path"] == world.protocol.path
    assert [said.role for said in prompt_of(request)] == ["system", "user"]
    assert world.query("SELECT input_tokens + cache_read_tokens, output_tokens FROM model_calls") == [
        (request["prompt_tokens"], request["completion_tokens"])
    ]
    [(route,)] = world.query("SELECT route FROM model_calls")
    assert route.startswith(f"{world.protocol}:")

    first = [{"name": "history_search", "arguments": {"query": word}} for word in ("herons", "storks")]
    await world.script(match="what did", last_role="user", text="Let me look.", tool_calls=first)
    await world.script(match_any="nothing was found|found, best first", last_role="tool", tool_calls=first[:1])
    await world.script(last_role="tool", text="Of herons.")
    await world.ask("what did we speak of?", "Of herons")
    await world.converse("thanks")
    *_, request = await world.asked(5)
    said = prompt_of(request)[3:]
    roles = [one.role for one in said]
    # A text beside calls is an item of its own in one of them, and so is each call.
    assert [role for place, role in enumerate(roles) if place == 0 or role != roles[place - 1] or role == "tool"] == [
        *("user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user")
    ]
    results = [one.text for one in said if one.role == "tool"]
    assert ["herons" in results[0], "herons" in results[2]] == [True, True]
    assert "Let me look." in conversation_of(request)
    assert world.query("SELECT state, count(*) FROM tool_runs GROUP BY 1") == [("done", 3)]


async def test_a_picture_is_seen_with_its_caption_and_is_there_in_the_next_turn(world: World) -> None:
    await world.gateway.start(HERMES_MODEL__IMAGES="true")
    photo = {"file_b64": base64.b64encode(picture((3_000, 1_500))).decode(), "file_name": "dot.png"}
    await world.say("", media="photo", caption="what is it?", mime="image/png", **photo)
    assert await world.replies(1, match="what is it")
    await world.ask("and now?", "and now")
    for request in await world.asked(2):
        [seen] = [said for said in prompt_of(request) if said.images]
        assert (seen.role, seen.images) == ("user", 1)
        assert "what is it?" in seen.text
    scaled = base64.b64encode(picture((2_000, 1_000))).decode()
    assert scaled in str((await world.asked(2))[1]["body"])


async def test_a_stop_hangs_up_on_a_model_that_is_in_the_middle_of_its_answer(world: World) -> None:
    await world.gateway.start()
    frames = world.protocol.frames(2)
    await world.script(match="hang", text="one two three four", chunk_chars=4, hang_after=frames)
    await world.say("hang")
    assert await world.tg.get("sent", method="sendMessageDraft", wait=10, count=1)
    await world.ask("/stop", "Stopped")
    assert (await ended(world, 0))["outcome"] == "client_gone"
    assert await world.replies(1, match="one two …", wait=15), "what was written stays, behind the reply to /stop"
    assert world.query("SELECT outcome, estimated FROM model_calls") == [("cancelled", 1)]


async def test_a_kill_between_two_tools_leaves_each_run_once_and_the_turn_goes_on(
    world: World, pytestconfig: pytest.Config
) -> None:
    await world.gateway.start()
    look = [{"name": "history_search", "arguments": {"query": "herons"}}]
    await world.script_calls("look", *look)
    await world.script(match="look", last_role="tool", hang=True, times=1)
    await world.script(match="look", last_role="tool", text="There are none.")
    await world.say("look for herons")
    await world.asked(2)
    await world.gateway.kill()
    if world.protocol is (chosen(pytestconfig) or CHAT_COMPLETIONS):
        world.gateway.program = STARTED_ANEW  # forked as the first one it would share the order of its sets
    await world.gateway.start()
    assert await world.replies(1, match="There are none")
    before, after = (await world.asked(3))[1:]
    assert prompt_of(before) == prompt_of(after)
    assert world.query("SELECT state FROM tool_runs") == [("done",)]
    assert world.query("SELECT state, restarts FROM turns") == [("finished", 1)]


async def test_a_prompt_that_the_provider_finds_too_long_is_compressed_and_answered(world: World) -> None:
    await world.gateway.start()
    await world.converse(*(f"Message {number}: TICKET-{number}. {FILLER}" for number in range(14)))
    await world.llm.post("models", {"lab-128k": {"context": 8_192, "max_output": 1_024}})
    await world.ask("and now?", "^echo: .*and now")
    asked = await world.asked(0, wait=0)
    *_, last = asked
    assert 1 <= [request["outcome"] for request in asked].count("context_overflow") <= 3
    assert len([said for said in prompt_of(last) if "CONTEXT COMPACTION" in said.text and said.role != "system"]) == 1
    # Not every protocol's refusal says how large the window is: then it may take a second attempt.
    assert world.query("SELECT DISTINCT layer, outcome FROM compressions") == [("overflow", "compressed")]
    assert world.query("SELECT state FROM turns WHERE state <> 'finished'") == []
