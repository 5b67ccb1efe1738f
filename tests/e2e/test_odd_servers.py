"""Servers with rules of their own: a conversation that one of them refuses does not stay refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.chats import PLATFORMS, Chat, chat_on
from tests.e2e.protocols import ModelProtocol, conversation_of, prompt_of
from tests.e2e.world import World

pytestmark = pytest.mark.each_protocol

LOOK = 'look [[tool:history_search {"query": "harbour"}]]'


@pytest.fixture(params=PLATFORMS)
async def chat(request: pytest.FixtureRequest, tmp_path: Path, protocol: ModelProtocol) -> AsyncIterator[Chat]:
    """A person who writes on each platform."""
    async with chat_on(request.param, tmp_path, protocol) as made:
        yield made


async def outcomes(world: World) -> list[str]:
    return [outcome for (outcome,) in world.query("SELECT outcome FROM model_calls ORDER BY id")]


async def unfinished_call(chat: Chat) -> None:
    """A turn that failed behind the result of its tool, so that the next message follows that."""
    await chat.world.script(last_role="tool", error={"kind": "402"}, times=1)
    await chat.ask(LOOK, "out of credit")


async def test_a_chat_with_tool_calls_goes_on_at_a_server_that_wants_short_ids(chat: Chat) -> None:
    world = chat.world
    await chat.start()
    await unfinished_call(chat)
    await world.llm.post("config", {"shape": "mistral"})
    await chat.ask("first", "echo: (.|\n)*first")
    assert (await outcomes(world))[2:] == ["shape", "ok"]
    await chat.ask("second", "echo: (.|\n)*second")
    assert (await outcomes(world))[4:] == ["ok"], "the form is remembered"
    *_, earlier, later = await world.asked(5)
    said, more = prompt_of(earlier), prompt_of(later)
    assert [one.role for one in said][-3:] == ["tool", "assistant", "user"]
    assert more[: len(said)] == said, "the beginning stays the same for the provider's cache"
    assert [one for one in await world.violations() if one["rule"] != "user_after_tool"] == []


async def test_a_server_that_knows_no_tools_reads_the_calls_as_text(chat: Chat) -> None:
    world = chat.world
    await chat.start()
    await unfinished_call(chat)
    await world.llm.post("config", {"shape": "gemma"})
    await chat.ask("first", "echo: (.|\\n)*first")
    assert (await outcomes(world))[2:] == ["shape", "shape", "ok"]
    assert "I call history_search with" in conversation_of((await world.asked(5))[-1])
    await chat.ask("second", "echo: (.|\n)*second")
    assert (await outcomes(world))[5:] == ["ok"]


async def test_where_no_form_helps_the_sentence_says_what_does(chat: Chat) -> None:
    await chat.start()
    await chat.ask("hello", "echo: ")
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


@pytest.mark.parametrize("server", UNREAD)
async def test_a_call_that_its_own_server_could_not_read_is_asked_for_again(chat: Chat, server: str) -> None:
    await chat.start()
    await chat.world.script(match="please", error=UNREAD[server], times=2)
    await chat.ask("please", "echo: ")
    assert await outcomes(chat.world) == ["malformed", "malformed", "ok"]


async def test_a_call_that_its_own_server_never_reads_is_no_fault_of_the_models_name(chat: Chat) -> None:
    await chat.start()
    await chat.world.script(match="please", error=UNREAD["groq"], times=9)
    assert "base_url" not in await chat.ask("please", "/retry")


async def test_a_stream_that_breaks_off_before_any_word_is_tried_a_third_time(chat: Chat) -> None:
    await chat.start()
    await chat.world.script(match="please", text="never seen", truncate=1, times=2)
    await chat.ask("please", "echo: ")
    assert len(await outcomes(chat.world)) == 3


async def test_a_stream_that_breaks_off_twice_in_sight_is_not_tried_again(chat: Chat) -> None:
    await chat.start()
    frames = chat.world.protocol.frames(4)
    await chat.world.script(match="please", text="HALF " * 200, truncate=frames, chunk_delay=0.05, times=3)
    await chat.ask("please", "/retry")
    assert await outcomes(chat.world) == ["malformed", "malformed"]


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
