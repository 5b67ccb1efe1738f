"""Reasoning that is streamed in tens of thousands of pieces."""

import gc
import json
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from agent.model.protocols.chat_completions import ChatReplyBuilder
from agent.model.replies import MAX_CHARACTERS
from hermes_state.errors import ReplyMalformed

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
