"""Requests in the form of the Messages API: always valid, stable and complete."""

import json
import re
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model import wire
from agent.model.base import ModelRequest, ToolSchema
from agent.model.protocols.anthropic import body_parts, stored_reasoning
from agent.model.wire import GO_ON, NOTHING_RETURNED, WireStyle
from hermes_state.values import Image, Message, MessageBody, ToolCall
from tests.agent.context.histories import histories
from tests.agent.context.rows import answer, human, result, row
from tests.fakes.llm_legality import check_anthropic
from tests.sampling import examples

MAKER = "anthropic:claude"
TOOLS = (ToolSchema(name="look", description="Look.", parameters={"type": "object"}),)
PNG = "data:image/png;base64,iVBORw0KGgo="


def parts_of(rows: tuple[Message, ...], **changes: Any) -> dict[str, Any]:
    """Return the parts of a body as they are sent."""
    return orjson.loads(orjson.dumps(raw_parts(rows, **changes)))  # type: ignore[no-any-return]  # JSON


def raw_parts(rows: tuple[Message, ...], **changes: Any) -> dict[str, Any]:
    style = WireStyle(reasoning_of=MAKER, image_urls=changes.pop("image_urls", {}))
    values: dict[str, Any] = {
        "system": "Be.",
        "transcript": rows,
        "tools": TOOLS,
        "max_output_tokens": 9,
        "style": style,
    }
    request = ModelRequest(**(values | changes))
    return body_parts(wire.chat_messages(request.system, request.transcript, request.style), request)


def messages_of(*rows: Message, **changes: Any) -> list[Any]:
    messages: list[Any] = parts_of(rows, **changes)["messages"]
    return messages


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def shape(messages: list[Any]) -> list[tuple[str, list[str]]]:
    return [(message["role"], [block["type"] for block in message["content"]]) for message in messages]


# --- properties


@examples(60)
@given(rows=histories(), has_tools=st.booleans())
def test_the_list_is_legal_for_any_rows(rows: tuple[Message, ...], has_tools: bool) -> None:
    images = {1: PNG, 2: "data:image/jpeg;base64,AAAA"}
    parts = parts_of(rows, tools=TOOLS if has_tools else (), image_urls=images)
    messages = parts["messages"]
    if not messages:
        return
    assert (check_anthropic(parts), messages[-1]["role"]) == ([], "user")
    for message in messages:
        kinds = [block["type"] for block in message["content"]]
        assert kinds, "no message is empty"
        if message["role"] == "user":
            assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result"), "results come first"
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"])
                assert isinstance(block["input"], dict)
                assert block["name"] in {tool["name"] for tool in parts["tools"]} or has_tools
            if block["type"] == "tool_result":
                assert block["content"].strip()
    ids = [block["id"] for message in messages for block in message["content"] if block["type"] == "tool_use"]
    assert len(ids) == len(set(ids))


@examples(40)
@given(rows=histories(), cut=st.integers(0, 40))
def test_a_new_row_changes_nothing_before_the_last_message(rows: tuple[Message, ...], cut: int) -> None:
    before, after = messages_of(*rows[:cut]), messages_of(*rows)
    if any(one.role.value == "tool" for one in rows[cut:]):
        return  # a late result replaces the stub after its call
    if before and before[-1]["content"] == [text(GO_ON)]:
        before.pop()
    kept = max(0, len(before) - 1)
    assert after[:kept] == before[:kept]


@examples(40)
@given(rows=histories())
def test_no_content_of_the_neutral_list_is_lost(rows: tuple[Message, ...]) -> None:
    neutral = wire.chat_messages("", rows, WireStyle())
    before = orjson.dumps(neutral)
    body_parts(neutral, ModelRequest(system="", transcript=rows, tools=TOOLS, max_output_tokens=9))
    assert orjson.dumps(neutral) == before, "the neutral list stays as it is"
    kept = json.dumps(messages_of(*rows, system=""), ensure_ascii=False)
    for message in neutral:
        content = message["content"]
        for words in [content] if isinstance(content, str) else [part.get("text") for part in content or ()]:
            if words and words.strip():
                assert json.dumps(words, ensure_ascii=False)[1:-1] in kept


# --- examples


def test_the_system_prompt_is_a_separate_field() -> None:
    parts = parts_of((human("hi"),))
    assert (parts["system"], shape(parts["messages"])) == ([text("Be.")], [("user", ["text"])])
    assert "system" not in parts_of((human("hi"),), system="")


def test_calls_and_results_are_blocks_and_results_come_first() -> None:
    rows = (human("look"), answer("Let me.", "a", "b"), result("b", "two"), result("a", "one"), human("and?"))
    messages = messages_of(*rows)
    assert shape(messages) == [
        ("user", ["text"]),
        ("assistant", ["text", "tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result", "text"]),
    ]
    assert messages[1]["content"][1] == {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    assert messages[2]["content"][0] == {"type": "tool_result", "tool_use_id": "a", "content": "one"}


def test_arguments_keep_their_bytes() -> None:
    arguments = '{"b": 12345678901234567890123,"a":  1.10}'
    step = answer(None, body=MessageBody(calls=(ToolCall(id="a", name="look", arguments=arguments),)))
    assert arguments.encode() in orjson.dumps(raw_parts((human("look"), step, result("a"))))


def test_an_empty_result_says_so() -> None:
    messages = messages_of(human("look"), answer(None, "a"), result("a", " \n"))
    assert messages[2]["content"][0]["content"] == NOTHING_RETURNED


def test_ids_of_other_providers_become_legal_and_stay_unique() -> None:
    messages = messages_of(human("look"), answer(None, "a.b", "a_b", "a:b"), result("a:b", "third"), result("a_b"))
    calls = [block["id"] for block in messages[1]["content"]]
    assert calls == ["a_b", "a_b_", "a_b__"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == calls
    assert messages[2]["content"][2]["content"] == "third"


def test_images_are_sent_as_blocks() -> None:
    body = MessageBody(images=tuple(Image(attachment_id=n, mime="image/png", path="x") for n in (1, 2)))
    content = messages_of(human("see", body=body), image_urls={1: PNG})[0]["content"]
    assert content[1] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    assert "cannot see" in content[2]["text"]


def test_images_of_a_result_follow_all_results() -> None:
    images = MessageBody(images=(Image(attachment_id=1, mime="image/png", path="x"),))
    shown = msgspec.structs.replace(result("a"), body=images)
    messages = messages_of(human("go"), answer(None, "a", "b"), shown, result("b"), image_urls={1: PNG})
    assert shape(messages)[-1] == ("user", ["tool_result", "tool_result", "text", "image"])


def test_an_answer_at_the_end_is_followed_by_a_user_message() -> None:
    messages = messages_of(human("hi"), answer("Hello. \n"))
    assert shape(messages) == [("user", ["text"]), ("assistant", ["text"]), ("user", ["text"])]
    assert messages[2]["content"] == [text(GO_ON)]


def test_tools_of_earlier_calls_are_declared() -> None:
    parts = parts_of((human("look"), answer(None, "a"), result("a")), tools=())
    assert parts["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert parts["tool_choice"] == {"type": "none"}
    assert "tools" not in parts_of((human("hi"),), tools=())


# --- reasoning


def thinking_step(before: tuple[Message, ...], *calls: str, **changes: Any) -> Message:
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "sig"}]
    reasoning = stored_reasoning(blocks, raw_parts(before, **changes), MAKER)
    asked = tuple(ToolCall(id=call, name="look", arguments="{}") for call in calls)
    return answer(None, body=MessageBody(calls=asked, reasoning=reasoning))


def thoughts(*rows: Message, **changes: Any) -> list[bool]:
    """Return True for each answer whose reasoning is sent."""
    answers = [message["content"] for message in messages_of(*rows, **changes) if message["role"] == "assistant"]
    return [content[0]["type"] == "thinking" for content in answers]


def test_reasoning_is_sent_back_at_every_step_and_turn() -> None:
    rows: tuple[Message, ...] = (human("look"),)
    for call in ("a", "b"):
        rows = (*rows, thinking_step(rows, call), result(call))
    assert thoughts(*rows) == [True, True]
    later = (*rows, answer("Done."), human("again"))
    later = (*later, thinking_step(later, "c"), result("c"), human("a steer"))
    assert thoughts(*later) == [True, True, False, True]


@pytest.mark.parametrize("change", ["system", "earlier message", "result", "tools"])
def test_reasoning_is_left_out_after_a_changed_prompt(change: str) -> None:
    first = human("look")
    step = thinking_step((first,), "a")
    second = thinking_step((first, step, result("a", "one")), "b")
    rows = [first, step, result("a", "one"), second, result("b")]
    assert thoughts(*rows) == [True, True]
    match change:
        case "system":
            assert thoughts(*rows, system="Be quick.") == [False, False]
        case "earlier message":
            assert thoughts(human("look!"), *rows[1:]) == [False, False]
        case "result":
            assert thoughts(first, step, result("a", "pruned"), second, result("b")) == [True, False]
        case "tools":
            assert thoughts(*rows, tools=(*TOOLS, ToolSchema(name="x", description="", parameters={}))) == [False] * 2


def test_reasoning_stored_in_another_form_is_left_out() -> None:
    step = thinking_step((human("look"),), "a")
    assert step.body.reasoning is not None
    for blocks in ("[]", "7", '{"behind": 1}', "{}"):
        reasoning = type(step.body.reasoning)(made_by=MAKER, blocks=blocks)
        odd = row(step.role, None, body=MessageBody(calls=step.body.calls, reasoning=reasoning))
        assert thoughts(human("look"), odd, result("a")) == [False]
