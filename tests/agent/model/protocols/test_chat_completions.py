"""The chat completions protocol with the real SDK and a scripted server."""

import gc
import json
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from agent.model.base import ChatModel
from agent.model.errors import sentence_for
from agent.model.errors.classifier import status_error
from agent.model.protocols.chat_completions import ChatReplyBuilder
from agent.model.replies import MAX_CALLS, MAX_CHARACTERS
from hermes_state.errors import ContentRejected, ModelRateLimited, ReplyMalformed
from hermes_state.values import CanonicalUsage, Message, MessageBody, Reasoning
from tests.agent.context.rows import answer, human, result
from tests.agent.model.asking import TOOL, Dial, ask, request, script
from tests.fakes.fake_llm import LLM

USAGE = {"prompt_tokens": 81, "completion_tokens": 2, "cached_tokens": 60}


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [{"delta": {}, "finish_reason": "stop", "usage": USAGE}]},  # Moonshot
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"id": "r", "usage": USAGE}},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None, "x_groq": {"usage": USAGE}},
    ],
    ids=str,
)
async def test_usage_is_found_in_every_known_field(model: ChatModel, llm: LLM, last: dict[str, Any]) -> None:
    chunks = [{"choices": [{"delta": {"content": "ok"}}], "usage": None}, last]
    script(llm, raw="".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks))
    assert (await ask(model))[0].usage == CanonicalUsage(input=21, output=2, cache_read=60)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_reported_cost_is_kept(dial: Dial, llm: LLM, streams: bool) -> None:
    script(llm, text="ok", usage={"cost": 0.002})
    assert (await ask(dial(streams=streams)))[0].cost == 2_000
    script(llm, text="I must not", finish="content_filter", usage={"cost": 0.002})
    with pytest.raises(ContentRejected) as raised:
        await ask(dial(streams=streams))
    assert raised.value.usage is not None
    assert raised.value.reported_cost == 2_000


async def test_a_long_text_is_shown_in_growing_steps(model: ChatModel, llm: LLM) -> None:
    llm.models["lab-128k"] = {"context": 1_000_000, "max_output": 100_000}
    script(llm, text="0123456789" * 20_000, chunk_chars=100)
    reply, shown = await ask(model, request(max_output_tokens=100_000))
    assert shown[-1] == reply.text
    assert len(shown) < 1_000
    assert [len(text) for text in shown[:3]] == [100, 200, 300]


@pytest.mark.parametrize(
    "refusal",
    [
        {"message": "Unsupported parameter", "code": "unsupported_parameter", "param": "max_tokens"},
        {"message": "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "code": 400},
    ],
)
async def test_the_newer_output_limit_is_remembered(model: ChatModel, llm: LLM, refusal: dict[str, Any]) -> None:
    llm.scripts.append({"times": 1, "reply": {"error": {"status": 400, "body": {"error": refusal}}}})
    await ask(model)
    await ask(model)
    limits = [sorted(set(sent["body"]) & {"max_tokens", "max_completion_tokens"}) for sent in llm.requests.rows]
    assert limits == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": {"message": "Unrecognized request argument supplied: stream_options", "param": None}},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are forbidden"}
            ]
        },
    ],
)
async def test_refused_stream_options_are_not_sent_again(model: ChatModel, llm: LLM, refusal: dict[str, Any]) -> None:
    llm.scripts.append({"times": 1, "reply": {"error": {"status": 422, "body": refusal}}})
    await ask(model)
    await ask(model)
    assert ["stream_options" in sent["body"] for sent in llm.requests.rows] == [True, False, False]


# ---- servers that do not stream


# ---- reasoning


def steps(reasoning: Reasoning | None, *more: Message) -> tuple[Message, ...]:
    """Request of a conversation with reasoning before a tool call."""
    asked = answer(None, body=MessageBody(calls=answer(None, "a").body.calls, reasoning=reasoning))
    return (human("go"), asked, result("a"), *more)


def sent_answers(llm: LLM) -> list[dict[str, Any]]:
    """Return the answers in the newest request."""
    return [message for message in llm.requests.rows[-1]["body"]["messages"] if message["role"] == "assistant"]


async def test_reasoning_before_calls_is_sent_back_with_their_results(model: ChatModel, llm: LLM) -> None:
    script(llm, reasoning="let me think", tool_calls=[{"id": "a", "name": "look"}], chunk_chars=5)
    reply, shown = await ask(model, request(tools=(TOOL,)))
    assert (reply.text, shown) == ("", [])
    assert reply.reasoning is not None
    script(llm, text="done")
    await ask(model, request(transcript=steps(reply.reasoning), tools=(TOOL,)))
    assert [message["reasoning_content"] for message in sent_answers(llm)] == ["let me think"]


async def test_pieces_of_signed_reasoning_are_joined_and_sent_back(model: ChatModel, llm: LLM) -> None:
    kind = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    sealed = {"type": "reasoning.encrypted", "data": "gAAA", "id": "rs_1", "index": 1}
    call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}]}
    raw = stream(
        {"reasoning": "Let", "reasoning_details": [kind | {"text": "Let"}]},
        {"reasoning": " me", "reasoning_details": [kind | {"text": " me"}]},
        {"reasoning_details": [kind | {"signature": "c2ln"}]},
        {"reasoning_details": [kind | {"text": "", "signature": None}, sealed]},
        {"reasoning_details": [sealed | {"data": "gBBB", "id": "rs_2"}]},
        call,
    )
    script(llm, raw=raw)
    reply, _ = await ask(model, request(tools=(TOOL,)))
    script(llm, text="done")
    await ask(model, request(transcript=steps(reply.reasoning), tools=(TOOL,)))
    (sent,) = sent_answers(llm)
    assert sent["reasoning_details"] == [
        kind | {"text": "Let me", "signature": "c2ln"},
        sealed,
        sealed | {"data": "gBBB", "id": "rs_2"},
    ]
    assert not {"reasoning", "reasoning_content"} & set(sent)


async def test_complete_blocks_are_not_joined(dial: Dial, llm: LLM) -> None:
    details = [{"type": "reasoning.text", "index": 0, "text": text} for text in ("one", "two")]
    asked = {"id": "a", "function": {"name": "look", "arguments": "{}"}}
    message = {"content": None, "tool_calls": [asked], "reasoning_details": details}
    script(llm, raw=json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}))
    reply, _ = await ask(dial(streams=False), request(tools=(TOOL,)))
    assert json.loads(reply.reasoning.blocks) == [{"reasoning_details": details}]


async def test_refused_reasoning_is_not_sent_again(model: ChatModel, llm: LLM) -> None:
    thought = Reasoning(made_by="chat_completions:lab-128k", blocks='[{"reasoning_content": "well"}]')
    refusal = {"message": "Extra inputs are not permitted: reasoning_content", "type": "invalid_request_error"}
    llm.scripts.append({"times": 1, "reply": {"error": {"status": 422, "body": {"error": refusal}}}})
    await ask(model, request(transcript=steps(thought), tools=(TOOL,)))
    await ask(model, request(transcript=steps(thought), tools=(TOOL,)))
    went = ["reasoning_content" in json.dumps(sent["body"]) for sent in llm.requests.rows]
    assert went == [True, False, False]


async def test_a_server_that_requires_reasoning_gets_a_placeholder(model: ChatModel, llm: LLM) -> None:
    message = "The `reasoning_content` in the thinking mode must be passed back to the API."
    refusal = {"error": {"status": 400, "body": {"error": {"message": message, "code": "invalid_request_error"}}}}
    llm.scripts.append({"times": 1, "reply": refusal})
    await ask(model, request(transcript=steps(None, human("and now?")), tools=(TOOL,)))
    assert [message["reasoning_content"] for message in sent_answers(llm)] == [" "]


async def test_a_refusal_by_the_model_is_its_answer(model: ChatModel, llm: LLM) -> None:
    script(llm, raw=stream({"refusal": "I cannot "}, {"refusal": "help with that."}))
    assert (await ask(model))[0].text == "I cannot help with that."


# ---- the key of the prompt cache


@pytest.mark.parametrize(
    ("base_url", "chosen", "is_sent"),
    [
        (None, None, True),
        ("https://api.openai.com/v1", None, True),
        ("https://models.example/v1", None, False),
        ("https://models.example/v1", True, True),
        (None, False, False),
    ],
)
def test_the_cache_key_is_sent_to_openai_and_where_configured(
    dial: Dial, base_url: str | None, chosen: bool | None, is_sent: bool
) -> None:
    assert dial(base_url=base_url, sends_cache_key=chosen).sends_cache_key is is_sent


async def test_the_cache_key_is_a_field_of_the_request(dial: Dial, llm: LLM) -> None:
    for sends, key in ((True, "conversation-7"), (True, ""), (None, "conversation-7"), (True, "x" * 99)):
        await ask(dial(sends_cache_key=sends), request(cache_key=key))
    sent = [row["body"].get("prompt_cache_key") for row in llm.requests.rows]
    assert sent == ["conversation-7", None, None, "x" * 64]


# ---- failures


def stream(*deltas: dict[str, Any], finish: str = "stop") -> str:
    """Script the exact bytes of the events of a reply."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


async def test_an_emoji_split_into_two_chunks_is_joined(model: ChatModel, llm: LLM) -> None:
    script(llm, raw=stream({"content": "a\ud83d"}, {"content": "\ude00b"}, {"content": "\ud83d"}))
    reply, shown = await ask(model)
    assert (reply.text, shown[0]) == ("a😀b\ufffd", "a😀b")


async def test_text_that_cannot_be_stored_is_repaired(model: ChatModel, llm: LLM) -> None:
    bad = {"id": "\ud83d", "function": {"name": "lo\0ok", "arguments": '{"a": "\ude00"}'}}
    script(llm, raw=stream({"content": "a\0b"}, {"tool_calls": [bad]}))
    reply, _ = await ask(model, request(tools=(TOOL,)))
    assert reply.text == "ab"
    (call,) = reply.calls
    assert (call.name, call.arguments) == ("look", '{"a": "\ufffd"}')
    assert call.id.encode()


@pytest.mark.parametrize(
    "delta",
    [
        {"content": 5},
        {"content": [{"type": "text"}]},
        {"tool_calls": [{"id": 123, "function": {"name": "look"}}]},
        {"tool_calls": [{"id": "a", "function": {"name": ["look"]}}]},
        {"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": ["a"]}}]},
        {"tool_calls": [{"index": "0", "id": "a", "function": {"name": "look"}}]},
        {"tool_calls": [{"index": n, "id": f"c{n}", "function": {"name": "look"}} for n in range(MAX_CALLS + 1)]},
        {"content": "x" * (MAX_CHARACTERS + 1)},
    ],
)
async def test_reasoning_that_could_not_be_read_again_is_malformed(
    model: ChatModel, llm: LLM, delta: dict[str, Any]
) -> None:
    script(llm, raw=stream(delta))
    with pytest.raises(ReplyMalformed):
        await ask(model, request(tools=(TOOL,)))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (7, 7.0),
        ("0.5", 0.5),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("inf", None),
        ("nan", None),
        ("1e300", None),
        (-1, None),
    ],
)
async def test_a_rate_limit_states_the_pause(model: ChatModel, llm: LLM, header: object, seconds: float | None) -> None:
    script(llm, error={"kind": "429", "retry_after": header})
    with pytest.raises(ModelRateLimited) as raised:
        await ask(model)
    assert raised.value.retry_after == seconds
    assert len(sentence_for(raised.value)) < 120


async def test_an_error_code_that_may_be_a_secret_is_not_quoted() -> None:
    for code in ("key sk-lab-1234567890 is wrong", "x" * 5_000, "a\nb"):
        assert str(status_error(400, {}, {"code": code})) == "HTTP 400"
    assert str(status_error(400, {}, {"code": "bad_thing.v2"})) == "HTTP 400 bad_thing.v2"


async def test_only_the_configured_address_is_called(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example/v1")
    assert dial(base_url=None).route == "chat_completions:api.openai.com"


# ---- reasoning in tens of thousands of pieces


KIND = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}


def pieces() -> tuple[ChatReplyBuilder, Callable[[Mapping[str, Any]], None]]:
    """Return a reply builder, and a function that adds a piece of reasoning."""
    reply = ChatReplyBuilder(lambda _text: None, "chat_completions:m")
    return reply, partial(reply.add_reasoning, is_piece=True)


def test_only_the_text_of_long_reasoning_is_counted() -> None:
    (reply, add), count = pieces(), 64_000
    began = time.perf_counter()
    for _ in range(count):
        add({"reasoning": " word", "reasoning_details": [KIND | {"text": " word"}]})
    add({"reasoning_details": [KIND | {"signature": "c2ln"}]})
    stored = reply.stored_reasoning("")
    assert json.loads(stored.blocks) == [{"reasoning_details": [KIND | {"text": " word" * count, "signature": "c2ln"}]}]
    assert time.perf_counter() - began < 5, "no piece copies the earlier pieces"


@pytest.mark.parametrize("name", ["text", "signature", "something new"])
def test_every_field_of_a_piece_is_bounded(name: str) -> None:
    _, add = pieces()
    add({"reasoning_details": [KIND | {"text": "I"}]})
    with pytest.raises(ReplyMalformed):
        add({"reasoning_details": [KIND | {name: "x" * MAX_CHARACTERS}]})


def test_reasoning_that_is_not_text_is_refused() -> None:
    for first, second in ((7, "I"), ("I", 7)):
        _, add = pieces()
        add({"reasoning_details": [KIND | {"text": first}]})
        with pytest.raises(TypeError):
            add({"reasoning_details": [KIND | {"text": second}]})


def test_a_finished_reply_leaves_no_reference_cycle() -> None:
    reply = ChatReplyBuilder(lambda _text: None, "")
    gc.disable()
    try:
        reply.add({"choices": [{"delta": {"content": "Hi", "reasoning": "hm"}, "finish_reason": "stop"}]})
        assert reply.finished().text == "Hi"
        known = weakref.ref(reply)
        del reply
        assert known() is None
    finally:
        gc.enable()
