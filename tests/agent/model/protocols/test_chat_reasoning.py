"""Reasoning that a stream brings in tens of thousands of pieces."""

import json
import time

import pytest

from agent.model.protocols.chat_completions import ChatReplyBuilder, ReasoningBuilder
from agent.model.replies import MAX_CHARACTERS
from hermes_state.errors import ReplyMalformed

KIND = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}


def pieces() -> ReasoningBuilder:
    return ReasoningBuilder(ChatReplyBuilder(lambda _text: None, "").counted)


def test_long_reasoning_counts_by_its_text_and_not_by_what_its_pieces_come_in() -> None:
    reasoning, count = pieces(), 64_000
    began = time.perf_counter()
    for _ in range(count):
        reasoning.add({"reasoning": " word", "reasoning_details": [KIND | {"text": " word"}]}, is_piece=True)
    reasoning.add({"reasoning_details": [KIND | {"signature": "c2ln"}]}, is_piece=True)
    stored = reasoning.serialized("chat_completions:m")
    assert stored is not None
    assert json.loads(stored.blocks) == [{"reasoning_details": [KIND | {"text": " word" * count, "signature": "c2ln"}]}]
    assert time.perf_counter() - began < 5, "no piece copies all that came before it"


@pytest.mark.parametrize("name", ["text", "signature", "something new"])
def test_no_field_of_a_piece_can_be_without_an_end(name: str) -> None:
    reasoning = pieces()
    reasoning.add({"reasoning_details": [KIND | {"text": "I"}]}, is_piece=True)
    with pytest.raises(ReplyMalformed):
        reasoning.add({"reasoning_details": [KIND | {name: "x" * MAX_CHARACTERS}]}, is_piece=True)


def test_what_is_no_text_is_refused_while_it_comes() -> None:
    for first, second in ((7, "I"), ("I", 7)):
        reasoning = pieces()
        reasoning.add({"reasoning_details": [KIND | {"text": first}]}, is_piece=True)
        with pytest.raises(TypeError):
            reasoning.add({"reasoning_details": [KIND | {"text": second}]}, is_piece=True)
