"""The Responses protocol with the real SDK and a scripted server."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent.model.protocols.responses import ResponsesModel
from agent.model.replies import MAX_CALLS, MAX_CHARACTERS
from hermes_state.errors import ContentRejected, ModelError, ModelRateLimited, ReplyMalformed
from hermes_state.values import Message, MessageBody, Reasoning
from tests.agent.context.rows import answer, human, result
from tests.agent.model.asking import TOOL, ask, dialling, request, script
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

CALL = {"id": "a", "name": "look", "arguments": {}}
MAKER = "responses:lab-128k"

Dial = Callable[..., ResponsesModel]


def thoughtful(reasoning: Reasoning | None) -> tuple[Message, ...]:
    """Request of a conversation with reasoning before a tool call."""
    asked = answer(None, body=MessageBody(calls=answer(None, "a").body.calls, reasoning=reasoning))
    return (human("go"), asked, result("a"))


def body(llm: LLM) -> dict[str, Any]:
    """Return the newest request."""
    sent: dict[str, Any] = llm.requests.rows[-1]["body"]
    return sent


@pytest.fixture
async def dial(server: Server) -> AsyncIterator[Dial]:
    """Factory for models on the fake server with custom settings."""
    async with dialling(ResponsesModel, f"{server.url}/v1", "lab-128k") as make:
        yield make


@pytest.fixture
def model(dial: Dial) -> ResponsesModel:
    return dial()


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def either(request: pytest.FixtureRequest, dial: Dial) -> ResponsesModel:
    """Model with and without streaming."""
    return dial(streams=request.param)


# ---- replies


async def test_a_reported_cost_is_kept(either: ResponsesModel, llm: LLM) -> None:
    script(llm, text="ok", usage={"cost": 0.002})
    assert (await ask(either))[0].cost == 2_000
    script(llm, text="I must not", finish="content_filter", usage={"cost": 0.002})
    with pytest.raises(ContentRejected) as raised:
        await ask(either)
    assert raised.value.usage.prompt == llm.requests.rows[1]["prompt_tokens"]
    assert raised.value.reported_cost == 2_000


async def test_a_refusal_by_the_model_is_its_answer(either: ResponsesModel, llm: LLM) -> None:
    script(llm, text="I cannot help with that.", is_refusal=True, chunk_chars=5)
    reply, shown = await ask(either)
    assert (reply.text, shown[-1]) == ("I cannot help with that.",) * 2


async def test_the_request_is_legal_and_nothing_is_stored_at_the_provider(model: ResponsesModel, llm: LLM) -> None:
    rows = (human("go"), answer("Looking.", "a", "b"), result("b"), result("a"), answer("done"), human("again"))
    await ask(model, request(transcript=rows, tools=(TOOL,), cache_key="conversation-7"))
    assert llm.requests.rows[0]["violations"] == []
    assert body(llm)["store"] is False
    assert (body(llm)["prompt_cache_key"], llm.stored_responses) == ("conversation-7", {})


# ---- reasoning


async def test_reasoning_is_hidden_and_sent_back_with_results(either: ResponsesModel, llm: LLM) -> None:
    script(llm, reasoning="let me think", text="Looking.", tool_calls=[CALL], chunk_chars=5)
    reply, shown = await ask(either, request(tools=(TOOL,)))
    assert shown[-1] == reply.text == "Looking."
    assert reply.reasoning.made_by == MAKER
    script(llm, text="done")
    await ask(either, request(transcript=thoughtful(reply.reasoning), tools=(TOOL,)))
    assert [item["type"] for item in body(llm)["input"]] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert body(llm)["input"][1]["encrypted_content"] == "sealed:lab-128k:let me think"


async def test_an_answer_without_calls_keeps_no_reasoning(either: ResponsesModel, llm: LLM) -> None:
    script(llm, reasoning="let me think", text="ok")
    reply, shown = await ask(either)
    assert (reply.text, reply.reasoning, shown) == ("ok", None, ["ok"])


async def test_reasoning_that_cannot_be_decrypted_is_not_sent_again(model: ResponsesModel, llm: LLM) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "of another account"}
    rows = thoughtful(Reasoning(made_by=MAKER, blocks=json.dumps([[0, item]])))
    for _ in range(2):
        await ask(model, request(transcript=rows, tools=(TOOL,)))
    assert [row["outcome"] for row in llm.requests.rows] == ["foreign_reasoning", "ok", "ok"]


async def test_reasoning_is_not_requested_again_from_a_model_without_it(model: ResponsesModel, llm: LLM) -> None:
    refusal = {"message": "Encrypted content is not supported with this model.", "param": "include", "code": None}
    llm.scripts.append({"times": 1, "reply": {"error": {"status": 400, "body": {"error": refusal}}}})
    for _ in range(2):
        await ask(model)
    assert ["include" in row["body"] for row in llm.requests.rows] == [True, False, False]


# ---- failures


async def test_a_rate_limit_inside_a_stream_states_the_pause(model: ResponsesModel, llm: LLM) -> None:
    for message, seconds in (
        ("Rate limit reached. Please try again in 11.5s.", 11.5),
        ("Please try again in 250ms.", 0.25),
        ("Please try again later.", None),
    ):
        script(llm, finish="failed", failure={"code": "rate_limit_exceeded", "message": message})
        with pytest.raises(ModelRateLimited) as raised:
            await ask(model)
        assert raised.value.retry_after == seconds


def stream(*events: dict[str, Any], output: tuple[dict[str, Any], ...] = ()) -> str:
    """Script the exact bytes of the events of a reply."""
    done = {"type": "response.completed", "response": {"status": "completed", "output": list(output)}}
    return "".join(f"data: {json.dumps(event)}\n\n" for event in (*events, done))


def spoken(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "delta": text}


def item(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": fields}


def call(call_id: str, arguments: Any = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": arguments}


def nested(depth: int) -> list[Any]:
    """Nested lists."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
STREAMS = {
    "two messages are two paragraphs": (
        stream(spoken("Let me "), spoken("see."), spoken("Done.", 1)),
        "Let me see.\n\nDone.",
    ),
    "events without indexes": (stream({"type": "response.output_text.delta", "delta": "Hi."}, output=(SAID,)), "Hi."),
    "unknown events": (
        stream({"type": "keepalive"}, spoken("Hi."), {"type": "response.audio.delta", "delta": "x"}),
        "Hi.",
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_the_events_of_a_stream_become_one_text(model: ResponsesModel, llm: LLM, name: str) -> None:
    raw, text = STREAMS[name]
    script(llm, raw=raw)
    assert (await ask(model))[0].text == text


async def test_items_only_in_the_final_event_are_kept(model: ResponsesModel, llm: LLM) -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]}
    script(llm, raw=stream(item(1, **call("a")), output=(said, call("a"), call("b"))))
    reply, _ = await ask(model, request(tools=(TOOL,)))
    assert (reply.text, [call.id for call in reply.calls]) == ("Looking.", ["a", "b"])


async def test_text_that_cannot_be_stored_is_repaired(model: ResponsesModel, llm: LLM) -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "a\0\ud83d"}
    script(llm, raw=stream(item(0, **thought), spoken("a\0b", 1), item(2, **call("\ud83d", '{"a": "\ude00"}'))))
    reply, _ = await ask(model, request(tools=(TOOL,)))
    assert (reply.text, reply.calls[0].arguments) == ("ab", '{"a": "\ufffd"}')
    assert f"{reply.reasoning.blocks}{reply.calls[0].id}".encode()
    script(llm, text="done")
    await ask(model, request(transcript=thoughtful(reply.reasoning), tools=(TOOL,)))


@pytest.mark.parametrize(
    "events",
    [
        [item(0, **call("a", ["a"]))],
        [item(0, **(call("a") | {"name": ""}))],
        [item(0, **(call("a") | {"name": None}))],
        [item(0, **(call("a") | {"call_id": 7}))],
        [item(index, **call(f"c{index}")) for index in range(MAX_CALLS + 1)],
        [spoken("x" * (MAX_CHARACTERS + 1))],
        [{"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "x" * (MAX_CHARACTERS + 1)}],
        [item(0, type="reasoning", encrypted_content="x" * (MAX_CHARACTERS + 1))],
        [item(0, type="reasoning", encrypted_content="x", summary=[float("nan")]), item(1, **call("a"))],
        [item(0, type="reasoning", encrypted_content="x", summary=nested(300)), item(1, **call("a"))],
    ],
    ids=lambda events: str(events)[:60],
)
async def test_reasoning_that_could_not_be_read_again_is_malformed(
    model: ResponsesModel, llm: LLM, events: list[dict[str, Any]]
) -> None:
    script(llm, raw=stream(*events))
    with pytest.raises(ReplyMalformed):
        await ask(model, request(tools=(TOOL,)))


async def test_an_error_quotes_neither_the_key_nor_the_providers_text(model: ResponsesModel, llm: LLM) -> None:
    script(llm, finish="failed", failure={"code": "invalid_image", "message": "lab-key is a key"})
    with pytest.raises(ModelError) as raised:
        await ask(model)
    assert "lab-key" not in str(raised.value)
