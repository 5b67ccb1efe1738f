"""The Messages protocol with the real SDK and a scripted server."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web

from agent.model.base import FinishReason, ModelLimits
from agent.model.protocols.anthropic import AnthropicModel
from agent.model.replies import MAX_CALLS, MAX_CHARACTERS
from hermes_state.errors import (
    AuthRejected,
    ContentRejected,
    ContextOverflow,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelUnavailable,
    OutputCapExceeded,
    QuotaExceeded,
    ReplyMalformed,
)
from hermes_state.values import CanonicalUsage, MessageBody, ToolCall
from tests.agent.context.rows import answer, human, result
from tests.agent.model.asking import TOOL, ask, dialling, request, script
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

Dial = Callable[..., AnthropicModel]


@pytest.fixture
async def dial(server: Server) -> AsyncIterator[Dial]:
    """Factory for models on the fake server with custom settings."""
    async with dialling(AnthropicModel, server.url, "claude-lab-128k") as make:
        yield make


@pytest.fixture(params=[True, False], ids=["streamed", "whole"])
def how(request: pytest.FixtureRequest) -> bool:
    """True if replies are streamed."""
    return bool(request.param)


@pytest.fixture
def model(dial: Dial, how: bool) -> AnthropicModel:
    return dial(streams=how)


# --- replies


async def test_a_call_without_arguments_has_an_empty_object(model: AnthropicModel, llm: LLM) -> None:
    script(llm, tool_calls=[{"name": "look", "arguments": "{}"}])
    assert (await ask(model, request(tools=(TOOL,))))[0].calls[0].arguments == "{}"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("pause_turn", FinishReason.LENGTH),
    ],
)
async def test_stop_reasons_are_translated(model: AnthropicModel, llm: LLM, reason: str, finish: FinishReason) -> None:
    script(llm, text="as far as it got", finish=reason)
    reply, _ = await ask(model)
    assert (reply.text, reply.finish) == ("as far as it got", finish)


@pytest.mark.parametrize(
    ("said", "finish", "kind"),
    [("I beg", "refusal", ContentRejected), ("", "model_context_window_exceeded", ContextOverflow)],
)
async def test_a_refusal_and_a_full_window_are_errors(
    model: AnthropicModel, llm: LLM, said: str, finish: str, kind: type[ModelError]
) -> None:
    script(llm, text=said, finish=finish)
    with pytest.raises(kind):
        await ask(model)


# --- failures


def failure(status: int, kind: str, message: str = "", **more: Any) -> dict[str, Any]:
    body = {"type": "error", "error": {"type": kind, "message": message, **more}}
    return {"error": {"status": status, "body": body}}


SPENT = {"details": {"error_code": "enforced_spend_limit_reached"}}
POOR = "Your credit balance is too low to access the Anthropic API."


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ({"error": {"kind": "429", "retry_after": 3}}, ModelRateLimited),
        (failure(404, "not_found_error"), ModelNotFound),
        (failure(402, "billing_error"), QuotaExceeded),
        (failure(400, "invalid_request_error", POOR), QuotaExceeded),
        (failure(429, "rate_limit_error", "No more this month.", **SPENT), QuotaExceeded),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_failures_have_the_right_kind_for_their_remedy(
    dial: Dial, llm: LLM, reply: dict[str, Any], kind: type[ModelError]
) -> None:
    script(llm, **reply)
    with pytest.raises(ModelError) as raised:
        await ask(dial())
    assert type(raised.value) is kind
    assert kind is not ModelRateLimited or raised.value.retry_after == 3
    assert len(llm.requests.rows) == 1, "only the client retries calls"


async def test_only_the_configured_credential_is_used(dial: Dial, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(name, "https://elsewhere.example" if name.endswith("URL") else "lab-key")
    llm.config["api_key"] = "lab-key"
    with pytest.raises(AuthRejected):
        await ask(dial(api_key=""))
    assert dial(base_url=None).route == "anthropic:api.anthropic.com"


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
async def test_an_address_may_end_in_the_version(dial: Dial, server: Server, tail: str) -> None:
    assert (await ask(dial(base_url=f"{server.url}{tail}")))[0].text == "echo: [2026-01-01 00:00] hello"


# --- requests


async def test_tools_stay_listed_when_an_answer_is_forced(model: AnthropicModel, llm: LLM) -> None:
    await ask(model, request(tools=(TOOL,), may_call_tools=False))
    body = llm.requests.rows[-1]["body"]
    assert (body["tool_choice"], [tool["name"] for tool in body["tools"]]) == ({"type": "none"}, ["look"])


def asked_for(llm: LLM) -> list[int]:
    return [row["body"]["max_tokens"] for row in llm.requests.rows]


async def test_a_request_without_limit_uses_the_models_maximum(dial: Dial, llm: LLM) -> None:
    await ask(dial(default_max_tokens=4_000), request(max_output_tokens=None))
    assert asked_for(llm) == [4_000]


@pytest.mark.parametrize("is_stated", [False, True], ids=["learned", "stated by the provider"])
async def test_a_request_without_limit_uses_the_known_maximum(dial: Dial, llm: LLM, is_stated: bool) -> None:
    llm.models["claude-small"] = {"context": 50_000, "max_output": 2_000, "style": "openai"}
    model = dial(model="claude-small")
    if is_stated:
        assert (await model.fetch_limits()).max_output_tokens == 2_000
    assert (await ask(model, request(max_output_tokens=None)))[0].text
    assert asked_for(llm) == ([2_000] if is_stated else [32_000, 2_000])
    with pytest.raises(OutputCapExceeded) as raised:
        await ask(model, request(max_output_tokens=3_000))
    assert raised.value.cap == 2_000


async def test_a_request_without_limit_uses_the_room_that_the_prompt_leaves(dial: Dial, llm: LLM) -> None:
    llm.models["claude-tiny"] = {"context": 3_000, "max_output": 2_500, "style": "openai"}
    assert (await ask(dial(model="claude-tiny"), request("word " * 1_000, max_output_tokens=None)))[0].text
    wanted = asked_for(llm)
    assert (wanted[:2], len(wanted)) == ([32_000, 2_500], 3)
    assert 1_500 < wanted[2] < 1_750


# --- events that the fake server does not send


class Playback:
    """Server that answers each request with a given list of events, and records the bodies."""

    def __init__(self) -> None:
        self.answers: list[list[Mapping[str, Any]] | web.Response] = []
        self.bodies: list[Any] = []
        self.url = ""
        self.headers: Mapping[str, str] = {}
        self.app = web.Application()
        self.app.router.add_post("/v1/messages", self._answer)

    async def _answer(self, asked: web.Request) -> web.Response:
        self.headers = asked.headers
        self.bodies.append(await asked.json())
        events = self.answers.pop(0)
        if isinstance(events, web.Response):
            return events
        if not self.bodies[-1]["stream"]:
            return web.json_response(_whole(events))
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")


def _whole(events: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the complete message for a stream of events."""
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            if delta.pop("type") == "input_json_delta":
                blocks[event["index"]]["input"] = json.loads(delta["partial_json"])
            else:
                for key, value in delta.items():
                    blocks[event["index"]][key] += value
    ends = [event for event in events if event["type"] == "message_delta"]
    stop = ends[0]["delta"]["stop_reason"] if ends else None
    return {"type": "message", "content": list(blocks.values()), "stop_reason": stop, "usage": {"input_tokens": 7}}


def stream(*blocks: Mapping[str, Any], stop: str = "end_turn") -> list[Mapping[str, Any]]:
    """Return the events of a message. The deltas of a block are separate events."""
    events: list[Mapping[str, Any]] = [{"type": "message_start", "message": {"usage": {"input_tokens": 7}}}]
    for index, block in enumerate(blocks):
        deltas = block.get("deltas", ())
        start = {key: value for key, value in block.items() if key != "deltas"}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 3}})
    return [*events, {"type": "message_stop"}]


def thinking(text: str, signature: str) -> dict[str, Any]:
    deltas = [{"type": "thinking_delta", "thinking": text}, {"type": "signature_delta", "signature": signature}]
    return {"type": "thinking", "thinking": "", "signature": "", "deltas": deltas}


def call(call_id: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": '{"at": 1}'}
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}, "deltas": [delta]}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": "", "deltas": [{"type": "text_delta", "text": words}]}


@pytest.fixture
async def playback() -> AsyncIterator[Playback]:
    played = Playback()
    running = await Server(played.app).start()
    played.url = running.url
    yield played
    await running.stop()


@pytest.fixture
def player(playback: Playback, dial: Dial, how: bool) -> AnthropicModel:
    return dial(base_url=playback.url, streams=how)


async def test_reasoning_is_sent_back_before_the_calls(player: AnthropicModel, playback: Playback) -> None:
    secret = {"type": "redacted_thinking", "data": "0pAq/ue=="}
    playback.answers = [stream(thinking("Hm.", "sig1"), secret, text("Wait."), call("t1"), stop="tool_use")]
    playback.answers += [stream(text("Done."))] * 3
    asked = request(tools=(TOOL,))
    reply, shown = await ask(player, asked)
    assert (shown, reply.reasoning.made_by) == (["Wait."], "anthropic:claude-lab-128k")

    step = answer(reply.text, body=MessageBody(calls=reply.calls, reasoning=reply.reasoning))
    rows = (*asked.transcript, step, result("t1"))
    await ask(player, request(transcript=rows, tools=(TOOL,)))
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "sig1"}, secret]
    blocks = playback.bodies[-1]["messages"][1]["content"]
    assert (blocks[:2], [block["type"] for block in blocks[2:]]) == (thought, ["text", "tool_use"])

    await ask(player, request(transcript=rows, tools=(TOOL,), may_call_tools=False))
    assert playback.bodies[-1]["messages"][1]["content"][:2] == thought, (
        "the prompt is the same, even if calls are no longer allowed"
    )

    for changes in ({"system": "You are another."}, {"tools": ()}, {"transcript": (human("hey"), step, result("t1"))}):
        playback.answers.append(stream(text("Done.")))
        await ask(player, request(**({"transcript": rows, "tools": (TOOL,)} | changes)))
        kinds = [block["type"] for block in playback.bodies[-1]["messages"][1]["content"]]
        assert kinds == ["text", "tool_use"], "the prompt before the reasoning has changed"


async def test_reasoning_of_another_model_is_not_sent(dial: Dial, playback: Playback) -> None:
    playback.answers = [stream(thinking("Hm.", "sig1"), call("t1"), stop="tool_use"), stream(text("Done."))]
    asked = request(tools=(TOOL,))
    reply, _ = await ask(dial(base_url=playback.url), asked)
    step = answer(None, body=MessageBody(calls=reply.calls, reasoning=reply.reasoning))
    other = dial(base_url=playback.url, model="claude-other")
    await ask(other, request(transcript=(*asked.transcript, step, result("t1")), tools=(TOOL,)))
    assert [block["type"] for block in playback.bodies[-1]["messages"][1]["content"]] == ["tool_use"]


BOUND = "Invalid `signature` in `thinking` block. The block is bound to a different conversation."
LATEST = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."


@pytest.mark.parametrize("message", [f"messages.1.content.0: {why}" for why in (BOUND, LATEST)])
async def test_refused_reasoning_is_left_out(player: AnthropicModel, playback: Playback, message: str) -> None:
    playback.answers = [stream(thinking("Hm.", "sig1"), call("t1"), stop="tool_use")]
    asked = request(tools=(TOOL,))
    reply, _ = await ask(player, asked)
    step = answer(None, body=MessageBody(calls=reply.calls, reasoning=reply.reasoning))
    refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    playback.answers = [web.json_response(refusal, status=400), stream(text("Done."))]
    again, _ = await ask(player, request(transcript=(*asked.transcript, step, result("t1")), tools=(TOOL,)))
    assert again.text == "Done."
    kinds = [[block["type"] for block in body["messages"][1]["content"]] for body in playback.bodies[1:]]
    assert kinds == [["thinking", "tool_use"], ["tool_use"]]


@pytest.mark.parametrize(
    "blocks",
    [
        [thinking("Hm.", "sig1"), text("No calls.")],
        [thinking("Hm.", ""), call("t1")],
        [text("First."), thinking("Hm.", "sig1"), call("t1")],
        [thinking("half \ud83d", "sig1"), call("t1")],
    ],
    ids=["no calls", "unsigned", "between text and calls", "not text"],
)
async def test_reasoning_that_cannot_be_sent_back_is_not_stored(
    player: AnthropicModel, playback: Playback, blocks: list[dict[str, Any]]
) -> None:
    playback.answers = [stream(*blocks)]
    reply, _ = await ask(player)
    assert reply.reasoning is None
    assert "Hm." not in reply.text


async def test_the_headers_are_those_of_the_api(player: AnthropicModel, playback: Playback) -> None:
    playback.answers = [stream(text("Done."))]
    await ask(player)
    sent = playback.headers
    assert (sent["authorization"], sent["content-type"]) == ("Bearer lab-key", "application/json")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", sent["anthropic-version"])


async def test_arguments_may_be_complete_at_once(dial: Dial, playback: Playback) -> None:
    playback.answers = [stream({"type": "tool_use", "id": "t1", "name": "look", "input": {"at": [1]}}, stop="tool_use")]
    reply, _ = await ask(dial(base_url=playback.url))
    assert reply.calls == (ToolCall(id="t1", name="look", arguments='{"at": [1]}'),)


async def test_counts_at_the_end_win_over_those_at_the_beginning(dial: Dial, playback: Playback) -> None:
    events = stream(text("Done."))
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7, "output_tokens": 1}
    events[0] = {"type": "message_start", "message": {"usage": usage}}
    details = {"thinking_tokens": 2}
    events[-2] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 30}}
    events[-2] |= {"usage": {"output_tokens": 30, "input_tokens": None, "output_tokens_details": details}}
    playback.answers = [events]
    reply, _ = await ask(dial(base_url=playback.url))
    assert (reply.usage.input, reply.usage.cache_read, reply.usage.cache_write) == (5, 90, 7)
    assert (reply.usage.output, reply.usage.reasoning) == (30, 2)


async def test_a_failed_call_has_the_reported_usage(dial: Dial, playback: Playback) -> None:
    playback.answers = [stream(text("I beg"), stop="refusal")]
    with pytest.raises(ContentRejected) as raised:
        await ask(dial(base_url=playback.url))
    assert raised.value.usage == CanonicalUsage(input=7, output=3)


async def test_unknown_events_and_blocks_are_ignored(dial: Dial, playback: Playback) -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web", "input": {}}
    search["deltas"] = [{"type": "input_json_delta", "partial_json": "{"}, {"type": "citations_delta", "citation": {}}]
    events = stream(search, text("Done."))
    events.insert(1, {"type": "brand_new", "index": 4})
    playback.answers = [events]
    assert (await ask(dial(base_url=playback.url)))[0].text == "Done."


_STRANGE = [
    {"type": "message_start"},
    {"type": "message_start", "message": {"usage": "none"}},
    {"type": "content_block_start", "index": 0},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": 7}},
    {"type": "content_block_start", "index": [0], "content_block": {"type": "tool_use", "id": "a", "name": "look"}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": 7, "name": "look"}},
    {"type": "content_block_delta", "index": 9, "delta": {"type": "thinking_delta", "thinking": "x"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": None}},
    {"type": "message_delta", "delta": {"stop_reason": {"is": "end_turn"}}},
    {"type": "message_delta"},
]


@pytest.mark.parametrize("event", _STRANGE)
async def test_an_event_of_another_shape_is_malformed(dial: Dial, playback: Playback, event: Mapping[str, Any]) -> None:
    playback.answers = [[event, *stream(text("Done."))]]
    with pytest.raises(ReplyMalformed):
        await ask(dial(base_url=playback.url))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b'{"content": [7]}', b'{"type": "message", "content": []}', b"\xff\xfe{}"]
)
@pytest.mark.parametrize("streams", [True, False])
async def test_garbage_is_malformed(dial: Dial, playback: Playback, body: bytes, streams: bool) -> None:
    playback.answers = [web.Response(body=body, content_type="application/json")]
    with pytest.raises(ReplyMalformed):
        await ask(dial(base_url=playback.url, streams=streams))


@pytest.mark.parametrize("streams", [True, False])
async def test_errors_with_a_success_status_are_classified(dial: Dial, playback: Playback, streams: bool) -> None:
    kinds = {
        "overloaded_error": ModelUnavailable,
        "rate_limit_error": ModelRateLimited,
        "authentication_error": AuthRejected,
        "billing_error": QuotaExceeded,
        "request_too_large": ContextOverflow,
        "invalid_request_error": ModelError,
        "brand_new_error": ModelUnavailable,
    }
    model = dial(base_url=playback.url, streams=streams)
    for name, kind in kinds.items():
        error = {"type": "error", "error": {"type": name, "message": "No."}}
        shown = f"event: error\ndata: {json.dumps(error)}\n\n" if streams else json.dumps(error)
        playback.answers = [
            web.Response(text=shown, content_type="text/event-stream" if streams else "application/json")
        ]
        with pytest.raises(ModelError) as raised:
            await ask(model)
        assert type(raised.value) is kind, name


async def test_replies_are_bounded(player: AnthropicModel, playback: Playback) -> None:
    too_much = "x" * (MAX_CHARACTERS + 1)
    for blocks in (
        [text(too_much)],
        [thinking(too_much, "sig"), call("t1")],
        [{"type": "redacted_thinking", "data": too_much}, call("t1")],
        [call(f"t{number}") for number in range(MAX_CALLS + 1)],
        [{"type": "redacted_thinking", "data": "x"}] * (MAX_CALLS + 1),
    ):
        playback.answers = [stream(*blocks)]
        with pytest.raises(ReplyMalformed):
            await ask(player)


# --- sizes


async def test_the_provider_states_the_models_sizes(dial: Dial, playback: Playback) -> None:
    said = [{"max_input_tokens": 200_000, "max_tokens": 64_000}, {"max_input_tokens": None}, [], {"max_tokens": "7"}]

    async def tell(_: web.Request) -> web.Response:
        return web.json_response(said.pop(0)) if said else web.Response(status=404)

    app = web.Application()
    app.router.add_get("/v1/models/claude-lab-128k", tell)
    async with Server(app) as running:
        model = dial(base_url=running.url)
        limits = [await model.fetch_limits() for _ in range(5)]
    assert (limits[0].context_length, limits[0].max_output_tokens) == (200_000, 64_000)
    assert limits[1:] == [ModelLimits()] * 4
