"""Unusual replies of compatible servers over the real SDK: tool calls, content parts, bodies."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agent.model.base import ModelReply
from hermes_state.errors import ModelError, ReplyMalformed
from hermes_state.values import Message, MessageBody
from tests.agent.conftest import Chat
from tests.agent.context.rows import answer, human, result
from tests.agent.model.asking import TOOL, Dial, ask, request, script
from tests.agent.model.ways import ASKED, WAYS, Talk, Way
from tests.fakes.fake_llm import LLM
from tests.fakes.labkit import Server

Json = dict[str, Any]


def sse(*chunks: Json) -> str:
    """Script for the exact events of a stream."""
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def streamed(*deltas: Json, finish: str = "tool_calls") -> str:
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return sse(*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})


def whole(message: Json, finish: str = "tool_calls") -> str:
    return json.dumps({"object": "chat.completion", "choices": [{"message": message, "finish_reason": finish}]})


def piece(name: str | None = None, arguments: object = "", call_id: str | None = None, index: int | None = 0) -> Json:
    """Return a delta with a piece of one call, without fields that are None."""
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    call: Json = {"type": "function", "function": function}
    call |= {} if call_id is None else {"id": call_id}
    call |= {} if index is None else {"index": index}
    return {"tool_calls": [call]}


def called(reply: ModelReply) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in reply.calls]


# ---- streamed calls

TWICE: dict[str, Sequence[Json]] = {
    "index 0 for all, each call in one piece": [piece("look", '{"at": 1}', "a"), piece("look", '{"at": 2}', "b")],
    "index 0 for all, later pieces with an empty id": [
        *(piece("look", "", "a"), piece(None, '{"at"', ""), piece(None, ": 1}", "")),
        *(piece("look", "", "b"), piece(None, '{"at"', ""), piece(None, ": 2}", "")),
    ],
    "index 0 for all, the id in every piece": [
        *(piece("look", "", "0"), piece(None, '{"at": 1}', "0")),
        *(piece("look", "", "1"), piece(None, '{"at": 2}', "1")),
    ],
    "index 0 for all, pieces of two calls in turn": [
        *(piece("look", "", "a"), piece("look", "", "b")),
        *(piece(None, '{"at"', "a"), piece(None, '{"at"', "b"), piece(None, ": 1}", "a"), piece(None, ": 2}", "b")),
    ],
    "index 0 for all and no id": [piece("look", '{"at": 1}'), piece("look", '{"at": 2}')],
    "index 0 for all and one id, in pieces": [
        *(piece("look", "", "x"), piece(None, '{"at": 1}', "x")),
        *(piece("look", '{"at"', "x"), piece(None, ": 2}", "x")),
    ],
    "index 0 for all and one id": [piece("look", '{"at": 1}', "x"), piece("look", '{"at": 2}', "x")],
    "no index at all": [piece("look", '{"at": 1}', "a", index=None), piece("look", '{"at": 2}', "b", index=None)],
}
"""Shapes of two calls."""
ONCE: dict[str, Sequence[Json]] = {
    "no index, in pieces": [
        piece("look", "", "a", index=None),
        piece(None, '{"at"', index=None),
        piece(None, ": 1}", index=None),
    ],
    "the name in every piece": [
        piece("look", "", "a"),
        piece("look", '{"at"', "a"),
        piece("look", ": 1}", "a"),
        piece("look", "", "a"),
    ],
    "the name in every piece, without the id": [piece("look", "", "a"), piece("look", '{"at"'), piece("look", ": 1}")],
    "the name in pieces": [piece("lo", "", "a"), piece("ok", ""), piece(None, '{"at": 1}')],
    "the name growing": [piece("lo", "", "a"), piece("look", ""), piece("look", '{"at": 1}')],
    "another id in every piece": [piece("look", "", "a"), piece(None, '{"at"', "b"), piece(None, ": 1}", "c")],
    "another id in every piece, with the name": [
        piece("look", '{"at"', "a"),
        piece("look", ": ", "b"),
        piece("look", "1}", "c"),
    ],
    "the whole call once more in the end": [
        piece("look", "", "a"),
        piece(None, '{"at": 1}'),
        piece("look", '{"at": 1}', "a"),
    ],
    "empty arguments before the real ones": [piece("look", "{}", "a"), piece(None, '{"at": 1}')],
    "arguments as an object": [piece("look", {"at": 1}, "a")],
    "a name that runs on into the next channel": [piece("look<|channel|>commentary", '{"at": 1}', "a")],
    "a signature apart from its call": [
        piece("look", '{"at": 1}', "a"),
        {"tool_calls": [{"index": 0, "id": "a", "extra_content": {"x": {}}}]},
    ],
}
"""Shapes of the first of them."""
TWO = [("look", '{"at": 1}'), ("look", '{"at": 2}')]
SHAPES: dict[str, tuple[Sequence[Json], Sequence[tuple[str, str]]]] = {
    **{shape: (deltas, TWO) for shape, deltas in TWICE.items()},
    **{shape: (deltas, TWO[:1]) for shape, deltas in ONCE.items()},
    "index 0 for all, in one event": (
        [{"tool_calls": piece("look", '{"at": 1}', "a")["tool_calls"] + piece("note", "{}", "b")["tool_calls"]}],
        [("look", '{"at": 1}'), ("note", "{}")],
    ),
    "index 0 for all and no id, in pieces": (
        [piece("look", '{"at": 1}'), piece("note", ""), piece(None, '{"text": 2}')],
        [("look", '{"at": 1}'), ("note", '{"text": 2}')],
    ),
    "arguments as nothing": ([piece("look", None, "a")], [("look", "")]),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_streamed_calls_are_separated_and_assembled(dial: Dial, llm: LLM, shape: str) -> None:
    deltas, expected = SHAPES[shape]
    script(llm, raw=streamed(*deltas))
    reply, _ = await ask(dial(), request(tools=(TOOL,)))
    assert (called(reply), len({call.id for call in reply.calls})) == (list(expected), len(expected))


@pytest.mark.parametrize("streams", [True, False])
async def test_arguments_may_be_sent_as_an_object(dial: Dial, llm: LLM, streams: bool) -> None:
    calls = piece("look", {"at": 1}, None, index=None)["tool_calls"] + piece("look", {"at": 2}, "", None)["tool_calls"]
    script(llm, raw=whole({"content": None, "tool_calls": calls}))
    reply, _ = await ask(dial(streams=streams), request(tools=(TOOL,)))
    assert [(name, json.loads(arguments)) for name, arguments in called(reply)] == [
        ("look", {"at": 1}),
        ("look", {"at": 2}),
    ]


@pytest.mark.parametrize("arguments", [7, [1], True])
async def test_arguments_that_are_not_an_object_are_malformed(dial: Dial, llm: LLM, arguments: object) -> None:
    script(llm, raw=streamed(piece("look", arguments, "a")))
    with pytest.raises(ReplyMalformed):
        await ask(dial(), request(tools=(TOOL,)))


# ---- content parts


@pytest.mark.parametrize("streams", [True, False])
async def test_content_in_parts_is_text(dial: Dial, llm: LLM, streams: bool) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "SECRETLY"}]}
    parts: list[Any] = [thought, {"type": "text", "text": "Hel"}, {"type": "reference", "ids": [1]}]
    script(
        llm,
        raw=streamed({"content": parts}, {"content": ["l"]}, {"content": {"type": "text", "text": "o"}}, finish="stop")
        if streams
        else whole({"content": [*parts, "l", {"type": "output_text", "text": "o"}]}, "stop"),
    )
    reply, shown = await ask(dial(streams=streams))
    assert reply.text == shown[-1] == "Hello"
    assert "SECRETLY" not in "".join(shown)


async def test_thinking_parts_are_sent_back_before_the_text(dial: Dial, llm: LLM) -> None:
    model = dial()
    script(
        llm,
        raw=streamed(
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "let me "}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "see"}]}]},
            {"content": "Looking."},
            piece("look", "{}", "a"),
        ),
    )
    reply, _ = await ask(model, request(tools=(TOOL,)))
    assert (reply.text, len(reply.calls)) == ("Looking.", 1)
    script(llm, text="done")
    await ask(model, request(transcript=steps(reply), tools=(TOOL,)))
    assert sent_answer(llm)["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "let me see"}]},
        {"type": "text", "text": "Looking."},
    ]


def steps(reply: ModelReply, *more: Message) -> tuple[Message, ...]:
    """Return a question, the reply with its calls, and their results."""
    row = answer(reply.text or None, body=MessageBody(calls=reply.calls, reasoning=reply.reasoning))
    return (human("go"), row, *(result(call.id) for call in reply.calls), *more)


def sent_answer(llm: LLM) -> Json:
    """Return the only answer in the newest request."""
    (sent,) = [one for one in llm.requests.rows[-1]["body"]["messages"] if one["role"] == "assistant"]
    assert isinstance(sent, dict)
    return sent


# ---- a body instead of a stream, and a stream instead of a body


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/plain"])
@pytest.mark.parametrize("before", ["", "\n\n  \n", "\ufeff"])
async def test_a_body_is_accepted_instead_of_a_stream(dial: Dial, llm: LLM, content_type: str, before: str) -> None:
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 1}}
    body = before + json.dumps(json.loads(whole({"content": "hello"}, "stop")) | usage, indent=1)
    script(llm, raw=body, content_type=content_type)
    reply, shown = await ask(dial())
    assert reply.text == shown[-1] == "hello"
    assert reply.usage.prompt == 7


async def test_a_stream_is_accepted_instead_of_a_body(dial: Dial, llm: LLM) -> None:
    script(llm, raw=streamed({"content": "hel"}, {"content": "lo"}, finish="stop"), content_type="text/event-stream")
    assert (await ask(dial(streams=False)))[0].text == "hello"


async def test_an_error_in_a_body_instead_of_a_stream_is_raised(dial: Dial, llm: LLM) -> None:
    script(llm, raw=json.dumps({"error": {"message": "slow down", "code": 429}}))
    with pytest.raises(ModelError) as raised:
        await ask(dial())
    assert type(raised.value).__name__ == "ModelRateLimited"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_events_allow_any_line_break_and_several_lines(dial: Dial, llm: LLM, end: str) -> None:
    lines = [
        *(": a comment", "", "event: message", "id: 7", "retry: 10", ""),
        *('data: {"choices": [{"delta":', 'data: {"content": "hello"}}]}', ""),
        *("data:", "", "data: ", ""),
        *('data:{"choices": [{"delta": {}, "finish_reason": "stop"}]}', "", "data: [DONE]", "", "data: {broken", ""),
    ]
    script(llm, raw=end.join(lines) + end, content_type="text/event-stream")
    assert (await ask(dial()))[0].text == "hello"


async def test_a_last_event_needs_no_line_break(dial: Dial, llm: LLM) -> None:
    raw = streamed({"content": "hello"}, finish="stop").removesuffix("data: [DONE]\n\n").rstrip("\n")
    script(llm, raw=raw, content_type="text/event-stream")
    assert (await ask(dial()))[0].text == "hello"


# ---- fields that are sent back with a call

SIGNATURES = [
    {"extra_content": {"google": {"thought_signature": "c2ln"}}},
    {"extra_content": {"vertex": {"thought_signature": "c2ln"}}},
    {"provider_specific_fields": {"thought_signature": "c2ln"}},
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
@pytest.mark.parametrize("streams", [True, False])
async def test_the_signature_of_a_call_is_sent_back(dial: Dial, llm: LLM, streams: bool, signature: Json) -> None:
    model = dial(streams=streams)
    calls = piece("look", "{}", "a")["tool_calls"] + piece("look", "{}", "b", 1)["tool_calls"]
    calls[1] |= signature
    message = {"content": None, "tool_calls": calls, "reasoning_content": "hm"}
    script(llm, raw=streamed(message) if streams else whole(message))
    reply, _ = await ask(model, request(tools=(TOOL,)))
    script(llm, text="done")
    await ask(model, request(transcript=steps(reply), tools=(TOOL,)))
    sent = sent_answer(llm)
    (key,) = signature
    assert [call.get(key) for call in sent["tool_calls"]] == [None, signature[key]]
    assert (sent["reasoning_content"], llm.requests.rows[-1]["violations"]) == ("hm", [])


async def test_a_separate_signature_is_added_to_its_call(dial: Dial, llm: LLM) -> None:
    model = dial()
    extra = {"tool_calls": [{"index": 0, "extra_content": {"google": {"thought_signature": "c2ln"}}}]}
    script(llm, raw=streamed(piece("look", "{}", "a"), extra))
    reply, _ = await ask(model, request(tools=(TOOL,)))
    script(llm, text="done")
    await ask(model, request(transcript=steps(reply), tools=(TOOL,)))
    (sent,) = sent_answer(llm)["tool_calls"]
    assert sent["extra_content"] == {"google": {"thought_signature": "c2ln"}}


@pytest.mark.parametrize("way", [way for way in WAYS if way.protocol == "chat_completions"], ids=str)
async def test_signatures_and_reasoning_return_at_every_step(server: Server, llm: LLM, chat: Chat, way: Way) -> None:
    signature = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    first = {"content": "<think>SECRETLY</think>Noting.", "tool_calls": piece("note", {"text": "a"}, "a")["tool_calls"]}
    first["tool_calls"][0] |= signature
    for message, finish in ((first, "tool_calls"), ({"content": "Done."}, "stop")):
        raw = streamed(message, finish=finish) if way.streams else whole(message, finish)
        llm.scripts.append({"times": 1, "reply": {"raw": raw}})
    async with way.dialled(server.url) as model:
        talk = Talk(chat, model)
        left = await talk.say("go")
        assert talk.noted == ["a"]
        assert left.rows == [ASKED, ("assistant", "Noting."), ("tool", "noted"), ("assistant", "Done.")]
        assert left.told == [("final", "Done.")]
        await talk.say("and now?")
    for row in llm.requests.rows[1:]:
        sent, *_ = [one for one in row["body"]["messages"] if one["role"] == "assistant"]
        (call,) = sent["tool_calls"]
        assert call["extra_content"] == signature["extra_content"]
        assert (sent["content"], sent["reasoning_content"]) == ("Noting.", "SECRETLY")


async def test_calls_of_another_model_get_a_placeholder_signature(dial: Dial, llm: LLM) -> None:
    refusal = "Function call is missing a thought_signature in functionCall parts. See thought-signatures for details."
    body = [{"error": {"code": 400, "message": refusal, "status": "INVALID_ARGUMENT"}}]
    llm.scripts.append({"times": 1, "reply": {"error": {"status": 400, "body": body}}})
    model = dial()
    asked = request(transcript=(human("go"), answer(None, "a", "b"), result("a"), result("b")), tools=(TOOL,))
    await ask(model, asked)
    await ask(model, asked)
    stand_in = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    for row, expected in zip(llm.requests.rows, ([None, None], [stand_in, None], [stand_in, None]), strict=True):
        (sent,) = [one for one in row["body"]["messages"] if one["role"] == "assistant"]
        assert [call.get("extra_content") for call in sent["tool_calls"]] == expected


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("text", ["", " \n", None])
async def test_an_empty_result_is_not_sent_as_empty_text(server: Server, llm: LLM, way: Way, text: str | None) -> None:
    rows = (human("go"), answer(None, "a"), msgspec.structs.replace(result("a"), text=text))
    async with way.dialled(server.url) as model:
        await ask(model, request(transcript=rows, tools=(TOOL,)))
    sent = json.dumps(llm.requests.rows[-1]["body"])
    assert "(the tool returned nothing)" in sent
