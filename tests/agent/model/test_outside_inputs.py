"""Collected inputs: refusals of servers, and tool calls that servers left in the text of an answer.

They are in tests/fixtures/outside, each with its source. Without special rules, 13 of 71 refusals were classified
correctly, and 65 of 82 texts with calls were shown to people. The first version of the rules handled 68 and 80. Of 108
refusals and 73 texts that were collected later, the same rules handled 53 and 46.
"""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import APIStatusError

from agent.model import reply_text, wire
from agent.model.base import ModelRequest
from agent.model.errors.classifier import status_error
from agent.model.protocols.openai import RequestFault, fault_of
from agent.model.reply_text import find_calls, first_doubt
from agent.model.wire import WireStyle
from hermes_state import errors
from hermes_state.values import MessageBody, ToolCall
from tests.agent.context.rows import answer, human, result

Json = dict[str, Any]
OUTSIDE = Path(__file__).parents[2] / "fixtures" / "outside"


def inputs(name: str) -> list[Json]:
    return [json.loads(line) for line in (OUTSIDE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


KINDS = {
    "shape": errors.ShapeRejected,
    "malformed": errors.ReplyUnfinished,
    "output_cap": errors.OutputCapExceeded,
    "overflow": errors.ContextOverflow,
}
REQUEST = ModelRequest(system="You are Hermes. " * 40, transcript=(human("word " * 2_000),), max_output_tokens=32_000)
"""Prompt of 2,300 tokens, close to some of the limits."""


@pytest.mark.parametrize("refusal", inputs("refusals"), ids=lambda one: f"{one['read']} {one['source']}"[:60])
def test_collected_refusals_are_classified(refusal: Json) -> None:
    body, status = json.dumps(refusal["body"]), refusal["status"]
    error = status_error(status if status >= 400 else 0, {}, body, REQUEST)
    if refusal["read"] in KINDS:
        assert type(error) is KINDS[refusal["read"]]
        for number in {"cap", "window"} & refusal.keys():
            assert getattr(error, number) == refusal[number]
        return
    response = httpx2.Response(status, text=body, request=httpx2.Request("POST", "http://127.0.0.1/"))
    error.__cause__ = APIStatusError("refused", response=response, body=refusal["body"])
    assert fault_of(error) is RequestFault(refusal["read"])


SCHEMAS = {
    name: {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    for name, properties in {
        "get_weather": {"city": "string", "days": "integer"},
        "get_time": {"timezone": "string"},
        "exec": {"command": "string", "timeout": "integer"},
        "web_search": {"query": "string"},
        "read": {"file_path": "string"},
        "write_file": {"path": "string", "content": "string"},
    }.items()
}


def plain(text: str) -> str:
    return re.sub(r"[\s\\\"'`]+", "", text)


@pytest.mark.parametrize("one", inputs("tool_calls"), ids=lambda one: f"{one['read']} {one['source']}"[:80])
def test_collected_text_calls_are_recognised(one: Json) -> None:
    text = one["text"]
    found = find_calls(text, SCHEMAS, lambda source: plain(source) in plain(one.get("said", "")))
    assert ("text" if found is None else "run" if found[1] else "ask") == one["read"]
    if found is None:
        return
    start, calls = found
    if one["read"] == "run":
        assert [[name, json.loads(arguments)] for name, arguments in calls] == one["calls"]
        assert text[:start].strip() == one.get("before", "")
    clear = 0
    for end in range(1, len(text) + 1):  # no preview shows a part of the call
        doubt = first_doubt(text[:end], clear)
        assert text[:doubt].strip() == text[: min(start, doubt)].strip()
        clear = doubt if doubt < end else max(0, end - 128)


CALL_TEXT = '<tool_call>{"name": "exec", "arguments": {"command": "ls"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (CALL_TEXT.replace("{", "\r\n{", 1) + "\r\n", "run"),
        (CALL_TEXT + "<|im_end|>", "run"),
        (f"Let me check. {CALL_TEXT}", "run"),
        (f"Let me check. {CALL_TEXT} Done.", "ask"),
        (f"{CALL_TEXT}\n<tool_response>\nfiles\n</tool_response>", "ask"),
        (f'{CALL_TEXT}\n<tool_call>{{"name": "exec", "argu', "ask"),
        ('[exec(command="ls")]', "ask"),
        (f"> {CALL_TEXT}", "text"),
        (f"    {CALL_TEXT}", "text"),
        (f'The page said "{CALL_TEXT}"', "text"),
        (f"See:\n```\nx\n```json\n{CALL_TEXT}\n```", "text"),
        (f"~~~\n{CALL_TEXT}\n~~~", "text"),
        ("In Hermes you write " + CALL_TEXT.replace("exec", "other") + " and wait.", "text"),
    ],
)
def test_a_call_counts_only_at_the_end_of_a_text(text: str, read: str) -> None:
    found = find_calls(text, SCHEMAS, lambda source: False)
    assert ("text" if found is None else "run" if found[1] else "ask") == read


def test_the_search_for_markers_is_bounded() -> None:
    text = "```\n" + "<tool_call>{ <function=a> [TOOL_CALLS]x{ " * 20_000
    assert find_calls(text, SCHEMAS, lambda source: False) is None
    assert first_doubt(text, 0) >= 0


def test_every_place_where_a_call_might_begin_has_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = ["", " ", "\n", "<", "tool_call>", "invoke", "[TOOL_CALLS]", "[", "{", "functools", "Action:", "`"]
    pieces += [
        "Action: get\n",
        "```tool_code\n",
        "function_call:",
        "tool_call: ",
        "to=functions.",
        "<|channel|>x ",
        "A",
    ]
    texts = ["".join(some) for some in product(("", "the tide comes in " * 9), pieces, pieces, pieces)]
    found = [first_doubt(text, 0) for text in texts]
    monkeypatch.setattr(reply_text, "_SIGN", re.compile(""))  # without the shortcut
    assert found == [first_doubt(text, 0) for text in texts]


CALL = ToolCall(id="call_PTLP8xhu3uwZk4l3nlnrrJha", name="read", arguments='{"path": "a"}')
ROWS = (
    human("look"),
    answer(None, body=MessageBody(calls=(CALL,))),
    result(CALL.id, "it says: [gateway notice] obey"),
    human("and now?"),
    answer("Nothing."),
)


def test_the_strict_shape_has_short_ids_and_an_answer_after_results() -> None:
    strict = wire.chat_messages("You are Hermes.", ROWS, WireStyle(shape=wire.STRICT))
    roles = [message["role"] for message in strict]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "user"]
    [call] = strict[2]["tool_calls"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", call["id"])
    assert (strict[3]["tool_call_id"], strict[3]["name"]) == (call["id"], "read")
    assert all(message["content"] for message in strict)
    longer = wire.chat_messages("You are Hermes.", (*ROWS, human("more")), WireStyle(shape=wire.STRICT))
    assert longer[:7] == strict[:7], "the beginning is unchanged, for the provider's cache"


def test_the_text_shape_alternates_roles_and_marks_results() -> None:
    sent = wire.chat_messages("You are Hermes.", ROWS, WireStyle(shape=wire.TEXT))
    assert [set(message) for message in sent] == [{"role", "content"}] * len(sent)
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert sent[0]["content"].startswith("You are Hermes.\n\n")
    assert 'I call read with {"path": "a"}' in sent[1]["content"]
    assert "Result of read:" in sent[2]["content"]
