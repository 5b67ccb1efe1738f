"""Cache breakpoints: their positions, no other changes, and cache hits at the provider."""

import copy
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import wire
from agent.model.base import Endpoint, ModelRequest, ToolSchema
from agent.model.protocols.anthropic import AnthropicModel, body_parts, with_cache_control
from agent.model.protocols.caching import apply_anthropic_cache_control, marks_prompts
from agent.model.protocols.chat_completions import encoded_request
from agent.model.wire import WireStyle
from hermes_state.values import Message
from tests.agent.context.histories import histories
from tests.agent.context.rows import answer, human, result
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server
from tests.fakes.llm_legality import check_anthropic
from tests.sampling import examples

Json = dict[str, Any]
MARK = {"type": "ephemeral"}


def said(role: str, content: object, **more: object) -> Json:
    return {"role": role, "content": content, **more}


def marked_places(messages: Sequence[Json]) -> list[int]:
    return [index for index, message in enumerate(messages) if "cache_control" in json.dumps(message)]


# --- the public function


def test_the_system_prompt_and_the_last_messages_are_marked() -> None:
    chat = [said(role, f"{n}") for n, role in enumerate(["user", "assistant"] * 4)]
    marked = apply_anthropic_cache_control([said("system", "Be."), *chat])
    assert marked_places(marked) == [0, 6, 7, 8]
    assert marked[0] == said("system", [{"type": "text", "text": "Be.", "cache_control": MARK}])
    assert marked_places(apply_anthropic_cache_control(chat)) == [4, 5, 6, 7]
    assert apply_anthropic_cache_control([]) == []


def test_only_a_lifetime_other_than_the_default_is_stated() -> None:
    chat = [said("user", "x")]
    assert apply_anthropic_cache_control(chat, ttl="5m")[0]["content"][0]["cache_control"] == MARK
    assert apply_anthropic_cache_control(chat, ttl="1h")[0]["content"][0]["cache_control"] == MARK | {"ttl": "1h"}


def test_the_last_part_carries_the_breakpoint() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    marked = apply_anthropic_cache_control([said("user", parts)])
    assert marked[0]["content"] == [parts[0], {**parts[1], "cache_control": MARK}]


@pytest.mark.parametrize("content", [None, "", []])
def test_a_message_without_content_is_marked_only_on_the_native_api(content: object) -> None:
    chat = [said("user", "x"), said("assistant", content, tool_calls=[{"id": "a"}])]
    assert apply_anthropic_cache_control(chat, native=True)[1] == {**chat[1], "cache_control": MARK}
    elsewhere = apply_anthropic_cache_control(chat)
    assert (elsewhere[1], marked_places(elsewhere)) == (chat[1], [0])


def test_a_tool_result_is_marked_on_the_native_api_and_elsewhere_in_its_content() -> None:
    chat = [said("user", "x"), said("assistant", "y", tool_calls=[{"id": "a"}]), said("tool", "z", tool_call_id="a")]
    assert apply_anthropic_cache_control(chat, native=True)[2] == {**chat[2], "cache_control": MARK}
    elsewhere = apply_anthropic_cache_control(chat, native=False)
    assert elsewhere[2] == chat[2] | {"content": [{"type": "text", "text": "z", "cache_control": MARK}]}
    assert marked_places(elsewhere) == [0, 1, 2]


def test_in_a_loop_of_calls_without_text_the_results_are_marked() -> None:
    loop = [said("assistant", None, tool_calls=[{"id": "a"}]), said("tool", "z", tool_call_id="a")]
    chat = [said("system", "Be."), said("user", "x"), *loop * 5]
    assert marked_places(apply_anthropic_cache_control(chat)) == [0, 7, 9, 11]
    assert marked_places(apply_anthropic_cache_control(chat[:3])) == [0, 1]
    assert marked_places(apply_anthropic_cache_control(chat, native=True)) == [0, 9, 10, 11]


def test_over_openrouter_each_step_reads_the_cache_of_the_step_before() -> None:
    """The newest breakpoint of a request is found again by the next request."""
    newest = []
    for rows in long_chat(4):
        body = orjson.loads(encoded_request("anthropic/claude-sonnet-5", request(*rows), cache_ttl="5m"))
        places = marked_places(body["messages"])
        assert places[-1] == len(body["messages"]) - 1, "the whole prompt is cached"
        assert not newest or newest[-1] in places, "and the cache is hit"
        assert not any("cache_control" in message for message in body["messages"])
        newest.append(places[-1])


@examples(40)
@given(rows=histories(), native=st.booleans(), ttl=st.sampled_from(["5m", "1h"]))
def test_only_breakpoints_are_added_and_the_input_stays(rows: tuple[Message, ...], native: bool, ttl: Any) -> None:
    chat = wire.chat_messages("Be.", rows, WireStyle(image_urls={1: "data:image/png;base64,AA=="}))
    before = copy.deepcopy(chat)
    marked = apply_anthropic_cache_control(chat, ttl, native)
    assert chat == before
    assert 1 <= json.dumps(marked).count('"cache_control"') <= 4
    assert [_unmarked(message) for message in marked] == [_unmarked(message) for message in before]
    marked[0]["content"][0]["text"] = marked[-1]["role"] = "changed"
    assert chat == before, "the result is a copy"


def _unmarked(message: Json) -> Json:
    """Return the messages without breakpoints, with plain text instead of a single text part."""
    content = message["content"]
    if isinstance(content, list):
        parts = [{key: value for key, value in part.items() if key != "cache_control"} for part in content]
        content = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    return {key: value for key, value in message.items() if key != "cache_control"} | {"content": content}


# --- when breakpoints are on


@pytest.mark.parametrize(
    ("name", "protocol", "host", "is_on"),
    [
        ("claude-sonnet-5", "anthropic", "api.anthropic.com", True),
        ("Claude-Opus-5", "anthropic", "proxy.example", True),
        ("minimax-m3", "anthropic", "api.minimax.example", False),
        ("anthropic/claude-sonnet-5", "chat_completions", "openrouter.ai", True),
        ("anthropic/claude-sonnet-5", "chat_completions", "eu.OpenRouter.ai", True),
        ("anthropic/claude-sonnet-5", "chat_completions", "openrouter.ai.evil.example", False),
        ("anthropic/claude-sonnet-5", "chat_completions", "notopenrouter.ai", False),
        ("openai/gpt-5", "chat_completions", "openrouter.ai", False),
        ("claude-sonnet-5", "chat_completions", None, False),
        ("claude-sonnet-5", "responses", "openrouter.ai", False),
        ("offline", "offline", None, False),
    ],
)
def test_breakpoints_are_on_for_claude_where_supported(name: str, protocol: str, host: str | None, is_on: bool) -> None:
    route = protocol if host is None else f"{protocol}:{host}"
    assert marks_prompts(name, route) is is_on


# --- over a long conversation

TOOL = ToolSchema(name="look", description="Look. " * 40, parameters={"type": "object", "properties": {}})
SYSTEM = "You are Hermes. " * 300


def request(*rows: Message, **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {
        "system": SYSTEM,
        "transcript": rows,
        "tools": (TOOL,),
        "max_output_tokens": 500,
        "cache_key": "c",
    }
    return ModelRequest(**(values | changes))


@pytest.fixture
async def claude(server: Server) -> AsyncIterator[AnthropicModel]:
    model = AnthropicModel(Endpoint(model="claude-lab-200k", api_key="lab-key", base_url=server.url))
    yield model
    await model.close()


def long_chat(turns: int) -> list[tuple[Message, ...]]:
    """Yield the transcript before each model call of some turns with tools."""
    rows: tuple[Message, ...] = ()
    seen = []
    for turn in range(turns):
        rows = (*rows, human(f"question {turn} " * 20))
        seen.append(rows)
        for step in ("a", "b"):
            called = [f"{step}{turn}_{n}" for n in range(3)]
            rows = (*rows, answer(None, *called), *(result(call, f"{call} found " * 40) for call in called))
            seen.append(rows)
        rows = (*rows, answer(f"answer {turn} " * 30))
    return seen


async def test_each_call_reads_the_cache_of_the_call_before(claude: AnthropicModel, llm: LLM) -> None:
    for rows in long_chat(12):
        await claude.complete(request(*rows), lambda _: None)
    calls = llm.requests.rows
    assert all(call["cache_breakpoints"] <= 4 for call in calls)
    for before, call in itertools.pairwise(calls):
        assert call["cached_tokens"] == before["cached_tokens"] + before["cache_written"]
        assert call["cached_tokens"] + call["cache_written"] >= 0.99 * call["prompt_tokens"]
    assert sum(call["cached_tokens"] for call in calls) > 0.9 * sum(call["prompt_tokens"] for call in calls)


async def test_after_a_compression_tools_and_system_prompt_are_still_cached(claude: AnthropicModel, llm: LLM) -> None:
    chats = long_chat(12)
    await claude.complete(request(*chats[-1]), lambda _: None)
    fixed = llm.requests.rows[-1]["message_tokens"][0] + llm.requests.rows[-1]["tool_tokens"]
    compressed = (human("A summary of what came before."), *chats[-1][-9:])
    for extra in range(3):
        tail = [row for n in range(extra) for row in (answer(f"reply {n}"), human(f"more {n}"))]
        await claude.complete(request(*compressed, *tail), lambda _: None)
    after, again, last = llm.requests.rows[-3:]
    assert 0.99 * fixed <= after["cached_tokens"] <= fixed
    assert again["cached_tokens"] == after["cached_tokens"] + after["cache_written"]
    assert last["cached_tokens"] == again["cached_tokens"] + again["cache_written"]


async def test_other_models_and_single_prompts_get_no_marks(claude: AnthropicModel, server: Server, llm: LLM) -> None:
    other = AnthropicModel(Endpoint(model="lab-200k", api_key="lab-key", base_url=server.url))
    await other.complete(request(human("hi")), lambda _: None)
    await other.close()
    await claude.complete(request(human("Summarise."), cache_key=""), lambda _: None)
    assert "cache_control" not in json.dumps([row["body"] for row in llm.requests.rows])
    assert b"cache_control" not in encoded_request("anthropic/claude-sonnet-5", request(human("hi")))


@examples(40)
@given(rows=histories())
def test_the_native_list_stays_legal_with_breakpoints(rows: tuple[Message, ...]) -> None:
    asked = request(*rows)
    parts = body_parts(wire.chat_messages(asked.system, asked.transcript, asked.style), asked)
    body = orjson.loads(orjson.dumps(with_cache_control(parts, "1h")))
    if body["messages"]:
        assert check_anthropic(body) == []
        assert json.dumps(body).count('"cache_control"') <= 4
        for message in body["messages"]:
            assert set(message) == {"role", "content"}
            assert all("cache_control" not in block for block in message["content"][:-1])
