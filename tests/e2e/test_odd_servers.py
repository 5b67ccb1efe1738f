"""Servers with rules of their own: a conversation that one of them refuses does not stay refused."""

from typing import Any

import pytest

from tests.e2e.chats import Chat
from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.world import World

pytestmark = pytest.mark.each_protocol

LOOK = 'look [[tool:history_search {"query": "harbour"}]]'


async def outcomes(world: World) -> list[str]:
    return [outcome for (outcome,) in world.query("SELECT outcome FROM model_calls ORDER BY id")]


async def test_a_chat_with_tool_calls_goes_on_at_servers_that_want_short_ids_or_know_no_tools(chat: Chat) -> None:
    world = chat.world
    await chat.start()
    await chat.world.script(last_role="tool", error={"kind": "402"}, times=1)
    await chat.ask(LOOK, "out of credit")  # so that the next message follows the result of a tool
    await world.llm.post("config", {"shape": "mistral"})
    await chat.ask("first", "echo: (.|\n)*first")
    assert (await outcomes(world))[2:] == ["shape", "ok"]
    await chat.ask("second", "echo: (.|\n)*second")
    assert (await outcomes(world))[4:] == ["ok"], "the form is remembered"
    *_, earlier, later = await world.asked(5)
    said, more = prompt_of(earlier), prompt_of(later)
    assert [one.role for one in said][-3:] == ["tool", "assistant", "user"]
    assert more[: len(said)] == said, "the beginning stays the same for the provider's cache"

    await world.llm.post("config", {"shape": "gemma"})
    await chat.ask("third", "echo: (.|\\n)*third")
    assert (await outcomes(world))[5:] == ["shape", "ok"]
    assert "I call history_search with" in conversation_of((await world.asked(7))[-1])
    await chat.ask("fourth", "echo: (.|\n)*fourth")
    assert (await outcomes(world))[7:] == ["ok"]

    await chat.world.llm.post("config", {"shape": "never"})
    told = await chat.ask("more", "/new")
    assert "/model" in told
    assert "base_url" not in told
    await chat.ask("/new", "fresh|new conversation|start")
    await chat.ask("again", "echo: (.|\n)*again")


UNREAD = {
    "groq": {
        "status": 400,
        "body": {
            "error": {
                "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more "
                "details.",
                "type": "invalid_request_error",
                "code": "tool_use_failed",
                "failed_generation": '<function=history_search{"query": "x"}</function>',
            }
        },
    },
    "ollama": {"status": 500, "body": {"error": "error parsing tool call: raw='{', err=unexpected end of JSON input"}},
}


async def test_a_call_that_its_own_server_could_not_read_is_asked_for_again(chat: Chat) -> None:
    await chat.start()
    for count, error in enumerate(UNREAD.values()):
        await chat.world.script(match=f"please {count}", error=error, times=2)
        await chat.ask(f"please {count}", f"echo: (.|\n)*please {count}")
        assert (await outcomes(chat.world))[3 * count :] == ["malformed", "malformed", "ok"]
    await chat.world.script(match="never", error=UNREAD["groq"], times=9)
    assert "base_url" not in await chat.ask("never", "/retry")


async def test_a_stream_that_breaks_off_is_tried_again_unless_people_saw_it_twice(chat: Chat) -> None:
    await chat.start()
    await chat.world.script(match="unseen", text="never seen", truncate=1, times=2)
    await chat.ask("unseen", "echo: ")
    assert len(await outcomes(chat.world)) == 3
    frames = chat.world.protocol.frames(4)
    await chat.world.script(match="please", text="HALF " * 200, truncate=frames, chunk_delay=0.05, times=3)
    await chat.ask("please", "/retry")
    assert (await outcomes(chat.world))[3:] == ["malformed", "malformed"]


LIMITS: dict[str, Any] = {
    "pydantic": {
        "status": 422,
        "body": {
            "detail": [
                {
                    "type": "less_than_equal",
                    "loc": ["body", "max_tokens"],
                    "msg": "Input should be less than or equal to 2048",
                    "input": 32_000,
                    "ctx": {"le": 2_048},
                }
            ]
        },
    },
    "json schema": {
        "status": 400,
        "body": {
            "errors": [
                {
                    "instancePath": "/max_output_tokens",
                    "keyword": "maximum",
                    "params": {"comparison": "<=", "limit": 2_048},
                    "message": "must be <= 2048",
                }
            ]
        },
    },
}


@pytest.mark.parametrize("wording", LIMITS)
async def test_an_output_limit_worded_as_a_validation_error_is_no_full_window(chat: Chat, wording: str) -> None:
    world = chat.world
    await chat.start(HERMES_MODEL__CONTEXT_LENGTH="16000")
    await world.script(match="many", text="noted")
    await chat.ask("many words " * 160, "noted")
    await world.script(match="please", error=LIMITS[wording], times=1)
    await chat.ask("please", "echo: (.|\n)*please")
    assert (await outcomes(world))[1:] == ["output_cap", "ok"]
    await chat.ask("and on", "echo: (.|\n)*and on")
    limits = [one["max_tokens"] or one["body"]["max_output_tokens"] for one in await world.asked(4)]
    assert limits[2] <= 2_048
    assert limits[3] <= 2_048
    assert world.query("SELECT count(*) FROM compressions") == [(0,)]
    assert world.query("SELECT learned_context, learned_output FROM model_profiles") == [(None, 2_048)]


async def test_no_window_is_believed_that_is_smaller_than_an_answered_prompt(chat: Chat) -> None:
    world = chat.world
    await chat.start(HERMES_MODEL__CONTEXT_LENGTH="16000")
    await world.script(match="many", text="noted", times=4)
    for _ in range(4):
        await chat.ask("many words " * 150, "noted")
    assert (await world.asked(4))[-1]["prompt_tokens"] > 2_300
    wrong = {"error": {"message": "maximum context length is 2100 tokens", "code": "context_length_exceeded"}}
    await world.script(match="longer", error={"status": 400, "body": wrong}, times=1)
    await chat.ask("longer " * 200, "longer|no longer fits")
    await chat.ask("/new", "fresh|new conversation|start")
    before = len(await outcomes(world))
    assert await world.gateway.stop() == 0
    await chat.start()
    await world.script(match="please", error={"status": 400, "body": wrong}, times=1)
    await chat.ask("please", "echo: (.|\n)*please")
    assert (await outcomes(world))[before:] == ["overflow", "ok"], "an output limit may have been meant"
    assert world.query("SELECT learned_context FROM model_profiles") == [(None,)]
