"""The API's parts: streams only grow, and only new messages are taken."""

import json

import pytest

from platforms.local.api_bodies import ApiError, read_request, text_of
from platforms.local.api_routes import conversation_name
from platforms.local.api_shapes import ChatShape
from platforms.local.pages import is_name


def test_a_stream_appends_the_text_after_a_tool_call() -> None:
    shape = ChatShape(id="x", created=0)
    texts = ("Let me", "Let me look. ", "", "It is", "It is 5.")
    events = [event for text in texts for event in shape.grow(text)]
    sent = [json.loads(event.decode().removeprefix("data: "))["choices"][0]["delta"]["content"] for event in events]
    assert sent == ["Let me", " look.", "\n\nIt is", " 5."]
    assert shape.text == "Let me look.\n\nIt is 5."


def test_a_new_conversation_takes_all_messages() -> None:
    rows = [("system", "rules"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("user", "d")]
    body = {"messages": [{"role": role, "content": text} for role, text in rows]}
    asked = read_request(body, "", is_chat=True)
    assert text_of(asked.new_messages(is_new=False)) == "c\n\nd"
    assert text_of(asked.new_messages(is_new=True)) == "system: rules\n\nuser: a\n\nassistant: b\n\nuser: c\n\nuser: d"


@pytest.mark.parametrize("text", ["main", "Ann@example.org", "a/b", "x" * 64, "../..", "#", "旅行"])
def test_each_conversation_has_a_chat_of_its_own(text: str) -> None:
    assert is_name(conversation_name(text))
    assert conversation_name(text) != conversation_name(f"{text}?")


@pytest.mark.parametrize("body", [None, [], {}, {"messages": [None]}, {"messages": [{"role": "user", "content": [3]}]}])
def test_a_body_of_another_form_gets_a_sentence(body: object) -> None:
    with pytest.raises(ApiError):
        read_request(body, "", is_chat=True)
