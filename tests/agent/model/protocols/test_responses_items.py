"""The items of the Responses API: valid for any rows, and stable in their bytes."""

import json
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.base import ModelRequest, ToolSchema
from agent.model.protocols.openai import RequestFault
from agent.model.protocols.responses import (
    MAX_CALL_ID_CHARACTERS,
    Item,
    encoded_request,
    items_of,
    replayed_item,
    stored_reasoning,
)
from agent.model.wire import LOST_RESULT, WireStyle, chat_messages
from hermes_state.values import Image, Message, MessageBody, Reasoning, ToolCall
from tests.agent.context.histories import histories
from tests.agent.context.rows import answer, human, result
from tests.fakes.llm_items import check_items
from tests.sampling import examples

MAKER = "responses:m"
STYLE = WireStyle(reasoning_of=MAKER, image_urls={1: "data:image/png;base64,AA=="})


def items(*rows: Message, system: str = "", style: WireStyle = STYLE) -> list[Item]:
    return items_of(chat_messages(system, rows, style))


def thought(number: int, **changes: Any) -> Item:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"gAAA{number}"} | changes


def thoughtful(text: str | None, calls: tuple[ToolCall, ...], *thoughts: tuple[int, Item]) -> Message:
    """Return an answer with calls, and reasoning before some of its outputs."""
    stored = Reasoning(made_by=MAKER, blocks=json.dumps(thoughts))
    return answer(text, body=MessageBody(calls=calls, reasoning=stored))


CALLS = answer(None, "a", "b").body.calls


def test_the_system_prompt_is_the_instructions() -> None:
    request = ModelRequest(system="You are Hermes.", transcript=(human("hi"),), max_output_tokens=9, style=STYLE)
    sent = json.loads(encoded_request("m", request))
    assert sent["instructions"] == "You are Hermes."
    assert sent["input"] == [{"type": "message", "role": "user", "content": "[2026-01-01 00:00] hi"}]


def test_calls_and_results_are_separate_items() -> None:
    rows = (human("go"), answer("Looking.", "a", "b"), result("b", "two"), result("a", "one"), answer("Done."))
    call = {"type": "function_call", "name": "look", "arguments": "{}"}
    assert items(*rows)[1:] == [
        {"type": "message", "role": "assistant", "content": "Looking."},
        call | {"call_id": "a"},
        call | {"call_id": "b"},
        {"type": "function_call_output", "call_id": "a", "output": "one"},
        {"type": "function_call_output", "call_id": "b", "output": "two"},
        {"type": "message", "role": "assistant", "content": "Done."},
    ]


def test_an_answer_with_only_calls_has_no_text_item() -> None:
    sent = items(human("go"), answer(None, "a"))
    assert [item["type"] for item in sent] == ["message", "function_call", "function_call_output"]
    assert sent[-1]["output"] == LOST_RESULT


def test_an_image_is_an_input_image() -> None:
    body = MessageBody(images=(Image(attachment_id=1, mime="image/png", path="x.png"),))
    assert items(human("what is it?", body=body))[0]["content"] == [
        {"type": "input_text", "text": "[2026-01-01 00:00] what is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
    ]


def test_images_of_a_result_follow_it_as_a_message() -> None:
    images = MessageBody(images=(Image(attachment_id=1, mime="image/png", path="x.png"),))
    sent = items(human("go"), answer(None, "a"), msgspec.structs.replace(result("a"), body=images))
    assert [item["type"] for item in sent[2:]] == ["function_call_output", "message"]
    assert [part["type"] for part in sent[-1]["content"]] == ["input_text", "input_image"]


def test_a_call_id_that_the_api_would_refuse_is_shortened_on_both_sides() -> None:
    long, other = "x" * 100, "x" * 99
    sent = items(human("go"), answer(None, long, other), result(long, "one"), result(other, "two"))
    asked = [item["call_id"] for item in sent if item["type"] == "function_call"]
    answered = {item["call_id"]: item["output"] for item in sent if item["type"] == "function_call_output"}
    assert all(len(call_id) <= MAX_CALL_ID_CHARACTERS for call_id in asked)
    assert [answered[call_id] for call_id in asked] == ["one", "two"]


def names(sent: list[Item]) -> list[str]:
    return [item.get("id") or item.get("call_id") or item["role"] for item in sent]


def test_reasoning_precedes_its_output_in_order_and_is_never_the_last_item() -> None:
    row = thoughtful("Looking.", CALLS, (0, thought(1)), (1, thought(2)), (1, thought(3)), (2, thought(4)))
    sent = items(human("go"), row, result("a"), result("b"))
    assert names(sent)[1:] == ["rs_1", "assistant", "rs_2", "rs_3", "a", "rs_4", "b", "a", "b"]
    sent = items(human("go"), thoughtful(" ", CALLS[:1], (0, thought(1)), (9, thought(2))), result("a"))
    assert names(sent)[1:] == ["rs_1", "rs_2", "a", "a"]


@pytest.mark.parametrize("style", [WireStyle(), WireStyle(reasoning_of="responses:other")])
def test_reasoning_is_not_sent_to_another_model(style: WireStyle) -> None:
    sent = items(human("go"), thoughtful(None, CALLS, (0, thought(1))), style=style)
    assert "rs_1" not in json.dumps(sent)


def test_only_the_replayable_fields_of_reasoning_are_stored() -> None:
    assert replayed_item({"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed"}) is None
    assert replayed_item(thought(1, status="completed", content=None)) == thought(1)
    assert replayed_item({"type": "reasoning", "encrypted_content": "gAAA"}) == {
        "type": "reasoning",
        "encrypted_content": "gAAA",
        "summary": [],
    }


def test_reasoning_after_the_last_call_is_dropped() -> None:
    stored = stored_reasoning([(0, thought(1)), (2, thought(2))], 2, MAKER)
    assert json.loads(stored.blocks) == [[0, thought(1)]]
    assert stored_reasoning([(1, thought(1))], 1, MAKER) is None


def request(*rows: Message, **changes: Any) -> ModelRequest:
    values: dict[str, Any] = {"system": "You are Hermes.", "transcript": rows, "max_output_tokens": 500} | changes
    return ModelRequest(**values)


def body(asked: ModelRequest, *faults: RequestFault, streams: bool = True) -> dict[str, Any]:
    sent: dict[str, Any] = orjson.loads(encoded_request("m", asked, faults, streams=streams))
    return sent


def test_the_provider_stores_nothing_and_returns_encrypted_reasoning() -> None:
    sent = body(request(human("hi"), cache_key="conversation-7"))
    assert {key: sent[key] for key in sent.keys() - {"input"}} == {
        "model": "m",
        "instructions": "You are Hermes.",
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 500,
        "prompt_cache_key": "conversation-7",
    }
    summary = body(request(human("hi"), cache_key="x" * 99, max_output_tokens=None))
    assert (summary["prompt_cache_key"], "max_output_tokens" in summary) == ("x" * 64, False)


def test_a_model_that_may_not_call_tools_still_sees_them() -> None:
    tool = ToolSchema(name="look", description="Look.", parameters={"type": "object", "properties": {}})
    sent = body(request(human("hi"), tools=(tool,), may_call_tools=False))
    assert sent["tool_choice"] == "none"
    assert sent["tools"] == [
        {
            "type": "function",
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    assert "tool_choice" not in body(request(human("hi"), tools=(tool,)))


def test_refused_parts_are_left_out() -> None:
    asked = request(human("go"), thoughtful(None, CALLS, (0, thought(1))), result("a"), result("b"))
    assert "include" not in body(asked, RequestFault.ENCRYPTED_REASONING)
    assert any(item["type"] == "reasoning" for item in body(asked)["input"])
    assert all(item["type"] != "reasoning" for item in body(asked, RequestFault.REPLAYED_REASONING)["input"])


_thoughts = st.lists(st.tuples(st.integers(0, 5), st.builds(thought, st.integers(1, 9))), max_size=3).map(
    lambda found: sorted(found, key=lambda one: one[0])
)


@st.composite
def thoughtful_histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Return random conversations with reasoning before some calls."""
    return tuple(
        thoughtful(row.text, row.body.calls, *draw(_thoughts)) if row.body.calls and draw(st.booleans()) else row
        for row in draw(histories())
    )


@examples(100)
@given(rows=thoughtful_histories(), style=st.sampled_from([STYLE, WireStyle(is_shared=True, max_result_characters=5)]))
def test_any_rows_make_a_legal_input(rows: tuple[Message, ...], style: WireStyle) -> None:
    assert check_items(items(*rows, human("and now?"), style=style)) == []


@examples(40)
@given(rows=thoughtful_histories())
def test_no_reasoning_is_lost_or_repeated_and_the_bytes_are_the_same(rows: tuple[Message, ...]) -> None:
    stored = [item for row in rows if row.body.reasoning for _, item in orjson.loads(row.body.reasoning.blocks)]
    assert [item for item in items(*rows, human("and now?")) if item["type"] == "reasoning"] == stored
    asked = request(*rows, human("and now?"))
    assert encoded_request("m", asked) == encoded_request("m", asked)
