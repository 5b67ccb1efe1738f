"""Behaviour shared by all protocols, with the real SDK. See `test_model_faults` for failures."""

import asyncio
import json
import logging
import time
from typing import Any

import pytest

from agent.model import http
from agent.model.base import ChatModel, Endpoint, FinishReason, ModelReply, ModelRequest
from agent.model.errors import sentence_for
from agent.model.protocols.anthropic import AnthropicModel
from agent.model.protocols.chat_completions import ChatCompletionsModel
from agent.model.protocols.responses import ResponsesModel
from agent.model.replies import MAX_BODY_BYTES, SLICE_SECONDS, checkpoint
from hermes_state.errors import (
    AuthRejected,
    ContentRejected,
    ContextOverflow,
    ImageRejected,
    ModelError,
    ModelRateLimited,
    ModelUnavailable,
    QuotaExceeded,
    ReplyMalformed,
)
from tests.agent.model.asking import TOOL, ask, request, script
from tests.agent.model.ways import WAYS, Way
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

every_way = pytest.mark.parametrize("way", WAYS, ids=str)


async def asked(way: Way, server: Server, wanted: ModelRequest | None = None) -> tuple[ModelReply, list[str]]:
    async with way.dialled(server.url) as model:
        return await ask(model, wanted)


@every_way
async def test_text_is_streamed_and_usage_is_reported(way: Way, server: Server, llm: LLM) -> None:
    script(llm, text="one two three", chunk_chars=4)
    reply, shown = await asked(way, server)
    steps = ["one ", "one two ", "one two thre", "one two three"]
    assert shown == (steps if way.streams else steps[-1:])
    assert (reply.text, reply.calls, reply.finish) == ("one two three", (), FinishReason.STOP)
    [row] = llm.requests.rows
    assert (bool(row["body"].get("stream")), row["violations"]) == (way.streams, [])
    assert (reply.usage.prompt, reply.usage.output) == (row["prompt_tokens"], row["completion_tokens"])


@every_way
async def test_parallel_tool_calls_are_assembled(way: Way, server: Server, llm: LLM) -> None:
    long = {"path": "a/very/long/path/that/takes/several/chunks.txt"}
    calls = [{"id": "x", "name": "look", "arguments": long}, {"id": "y", "name": "look", "arguments": "{}"}]
    script(llm, text="Looking.", tool_calls=calls, chunk_chars=7)
    reply, shown = await asked(way, server, request(tools=(TOOL,)))
    assert shown[-1] == reply.text == "Looking."
    assert reply.finish is FinishReason.TOOL_CALLS
    assert [(call.id, json.loads(call.arguments)) for call in reply.calls] == [("x", long), ("y", {})]


@every_way
async def test_calls_with_equal_ids_get_unique_ids(way: Way, server: Server, llm: LLM) -> None:
    same = {"id": "same", "name": "look", "arguments": "{}"}
    script(llm, tool_calls=[same, same])
    reply, _ = await asked(way, server, request(tools=(TOOL,)))
    assert len({call.id for call in reply.calls}) == 2


@every_way
async def test_text_that_reached_the_output_limit_is_kept(way: Way, server: Server, llm: LLM) -> None:
    script(llm, text="x" * 9_000)
    reply, _ = await asked(way, server)
    assert reply.finish is FinishReason.LENGTH
    assert (len(reply.text), llm.requests.rows[0]["max_tokens"]) == (4_000, 1_000)


@pytest.mark.parametrize("way", [way for way in WAYS if way.protocol != "anthropic"], ids=str)  # always reports usage
async def test_missing_usage_is_not_a_failure(way: Way, server: Server, llm: LLM) -> None:
    script(llm, text="ok", no_usage=True)
    async with way.dialled(server.url) as model:
        assert (await ask(model))[0].usage is None


@every_way
async def test_an_unreachable_provider_is_unavailable(way: Way) -> None:
    async with way.dialled("http://127.0.0.1:1") as model:
        with pytest.raises(ModelUnavailable):
            await ask(model)


@every_way
async def test_an_error_quotes_neither_the_key_nor_the_providers_text(way: Way, server: Server, llm: LLM) -> None:
    script(llm, error={"kind": "401", "message": "Incorrect API key provided: lab-key."})
    async with way.dialled(server.url) as model:
        with pytest.raises(AuthRejected) as raised:
            await ask(model)
    assert "lab-key" not in f"{raised.value} {sentence_for(raised.value)}"


@every_way
async def test_no_part_of_prompt_or_key_is_logged(way: Way, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with way.dialled(server.url) as model:
        await ask(model, request("a very private matter"))
    assert "private" not in caplog.text
    assert "lab-key" not in caplog.text


@every_way
async def test_any_number_of_calls_run_at_once(way: Way, server: Server, llm: LLM) -> None:
    script(llm, hang=60)
    async with way.dialled(server.url) as model:
        asked = [asyncio.create_task(ask(model)) for _ in range(120)]  # the HTTP client's default limit is a hundred
        assert len(await llm.requests.query({"count": 120, "wait": 30})) == 120
        for one in asked:
            one.cancel()
        assert set(map(type, await asyncio.gather(*asked, return_exceptions=True))) == {asyncio.CancelledError}


@every_way
async def test_the_route_names_protocol_and_host_and_no_credential(way: Way) -> None:
    async with way.dialled("https://user:secret@models.example") as model:
        assert model.route == f"{way.protocol}:models.example"


FAILED_RESPONSES: list[tuple[dict[str, Any], type[ModelError]]] = [
    ({"text": "half of it", "finish": "failed"}, ModelUnavailable),
    ({"finish": "failed", "failure": {"code": "rate_limit_exceeded", "message": "slow down"}}, ModelRateLimited),
    ({"finish": "failed", "failure": {"code": "insufficient_quota", "message": "pay"}}, QuotaExceeded),
    ({"finish": "failed", "failure": {"code": "context_length_exceeded", "message": "long"}}, ContextOverflow),
    ({"finish": "failed", "failure": {"code": "invalid_prompt", "message": "flagged"}}, ContentRejected),
    ({"finish": "failed", "failure": {"code": "invalid_image", "message": "what is it?"}}, ImageRejected),
]
FAILURES: dict[str, list[tuple[dict[str, Any], type[ModelError]]]] = {
    "chat_completions streamed": [
        ({"text": "half of it", "finish": "error"}, ModelUnavailable),
        ({"raw": 'data: ["not", "a", "chunk"]\n\n'}, ReplyMalformed),
        ({"raw": 'data: {"choices": [{"delta": "text"}]}\n\n'}, ReplyMalformed),
        ({"raw": "data: \udcff\n\n"}, ReplyMalformed),
    ],
    "chat_completions whole": [
        ({"text": "half of it", "finish": "error"}, ModelUnavailable),
        ({"no_choices": True}, ReplyMalformed),
        ({"raw": '{"choices": [{"message": "text", "finish_reason": "stop"}]}'}, ReplyMalformed),
        ({"raw": '{"choices": ['}, ReplyMalformed),
        ({"raw": "\udcff"}, ReplyMalformed),
        ({"raw": '["not", "a", "reply"]'}, ReplyMalformed),
        ({"raw": '{"error": {"message": "Provider returned error", "code": 502}}'}, ModelUnavailable),
        ({"raw": '{"error": {"message": "Rate limit exceeded", "code": 429}}'}, ModelRateLimited),
        ({"raw": " " * (MAX_BODY_BYTES + 1)}, ReplyMalformed),
    ],
    "responses streamed": [
        *FAILED_RESPONSES,
        ({"raw": 'data: ["not", "an", "event"]\n\n'}, ReplyMalformed),
        ({"raw": 'data: {"type": "response.output_text.delta", "delta": 7}\n\n'}, ReplyMalformed),
        ({"raw": 'data: {"type": "response.output_item.done", "item": "text"}\n\n'}, ReplyMalformed),
        ({"raw": 'data: {"type": "response.completed"}\n\n'}, ReplyMalformed),
        ({"raw": 'data: {"type": "response.completed", "response": null}\n\n'}, ReplyMalformed),
        ({"raw": 'data: {"type": "error", "code": "server_error", "message": "oh"}\n\n'}, ModelUnavailable),
        ({"raw": 'data: {"type": "error", "code": "rate_limit_exceeded", "message": "oh"}\n\n'}, ModelRateLimited),
        ({"raw": 'data: {"type": "error", "error": {"code": "insufficient_quota"}}\n\n'}, QuotaExceeded),
        ({"raw": "data: \udcff\n\n"}, ReplyMalformed),
    ],
    "responses whole": [
        *FAILED_RESPONSES,
        ({"raw": '{"status": "completed", "output": "text"}'}, ReplyMalformed),
        ({"raw": '{"status": "incomplete", "incomplete_details": {"reason": "tired"}}'}, ReplyMalformed),
        ({"raw": '{"output": []}'}, ReplyMalformed),
        ({"raw": '["not", "a", "response"]'}, ReplyMalformed),
        ({"raw": '{"status": '}, ReplyMalformed),
        ({"raw": "[" * 100_000}, ReplyMalformed),
        ({"raw": " " * (MAX_BODY_BYTES + 1)}, ReplyMalformed),
        ({"raw": '{"error": {"message": "Rate limit exceeded", "code": 429}}'}, ModelRateLimited),
    ],
}


@pytest.mark.parametrize(
    ("way", "reply", "kind"),
    [(way, reply, kind) for way in WAYS for reply, kind in FAILURES.get(str(way), ())],
    ids=lambda value: str(value)[:60],
)
async def test_every_failure_becomes_its_kind(
    way: Way, server: Server, llm: LLM, reply: dict[str, Any], kind: type[ModelError]
) -> None:
    script(llm, **reply)
    async with way.dialled(server.url) as model:
        with pytest.raises(ModelError) as raised:
            await ask(model)
    assert type(raised.value) is kind
    assert len(llm.requests.rows) == 1  # the SDK must not retry
    assert sentence_for(raised.value)


# ---- fast streams let other tasks run in between


@pytest.fixture(params=["chat_completions", "responses", "anthropic"])
def model(request: pytest.FixtureRequest, server: Server) -> ChatModel:
    match request.param:
        case "chat_completions":
            return ChatCompletionsModel(Endpoint(model="lab-128k", api_key="key", base_url=f"{server.url}/v1"))
        case "responses":
            return ResponsesModel(Endpoint(model="lab-128k", api_key="key", base_url=f"{server.url}/v1"))
        case _:
            return AnthropicModel(Endpoint(model="lab-128k", api_key="key", base_url=server.url))


async def test_other_tasks_run_while_a_stream_has_data(model: ChatModel, llm: LLM) -> None:
    """All events arrive at once. Here, each event takes a full slice."""
    script(llm, text="x" * 40, chunk_chars=1)
    rounds = 0
    seen: list[int] = []

    async def somebody_else() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    def show(text: str) -> None:
        seen.append(rounds)
        time.sleep(2 * SLICE_SECONDS)  # busy work, during which no other task can run

    other = asyncio.create_task(somebody_else())
    try:
        await model.complete(request(), show)
    finally:
        other.cancel()
        await model.close()
    assert len(seen) == len(set(seen)) == 40


async def test_waiting_for_an_event_starts_a_new_slice(
    model: ChatModel, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks run during the wait, so another pause after each event would only cost time."""
    script(llm, text="x" * 6, chunk_chars=1, chunk_delay=0.05)
    ends: set[float] = set()

    async def checkpoint(slice_end: float) -> float:
        ends.add(slice_end)
        return slice_end

    monkeypatch.setattr(http, "checkpoint", checkpoint)
    await model.complete(request(), lambda _: None)
    await model.close()
    assert len(ends) > 1


@pytest.mark.parametrize(("slice_seconds", "others"), [(60.0, []), (0.0, ["somebody else"])])
async def test_a_stream_keeps_the_event_loop_for_one_slice(slice_seconds: float, others: list[str]) -> None:
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "somebody else")
    await checkpoint(time.perf_counter() + slice_seconds)
    assert ran == others
