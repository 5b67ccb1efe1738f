"""Turns from stored rows: thoughts in whichever protocol's form, and texts that cannot end a tag."""

import json

import pytest

from agent.trajectories.export import joined, thoughts
from agent.trajectories.format import TurnRole

ENCRYPTED = "ZW5jcnlwdGVk"


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([{"reasoning_content": "I look."}], ["I look."]),
        ([{"reasoning": "I look."}, {"tool_calls": {"0": {"text": ENCRYPTED}}}], ["I look."]),
        (
            [
                {
                    "reasoning_details": [
                        {"type": "reasoning.text", "text": "I look.", "signature": ENCRYPTED, "index": 0},
                        {"type": "reasoning.encrypted", "data": ENCRYPTED},
                        {"type": "reasoning.summary", "summary": "Then I say."},
                    ]
                }
            ],
            ["I look.", "Then I say."],
        ),
        ([{"thinking": [{"type": "text", "text": "I look."}]}], ["I look."]),
        (
            [
                [0, {"summary": [{"type": "summary_text", "text": "I look."}], "encrypted_content": ENCRYPTED}],
                [1, {"summary": [], "content": [{"type": "reasoning_text", "text": "Then I say."}]}],
            ],
            ["I look.", "Then I say."],
        ),
        (
            {
                "behind": ENCRYPTED,
                "blocks": [
                    {"type": "thinking", "thinking": "I look.", "signature": ENCRYPTED},
                    {"type": "redacted_thinking", "data": ENCRYPTED},
                ],
            },
            ["I look."],
        ),
        ([{"reasoning_content": " \n"}], []),
    ],
)
def test_thoughts_that_can_be_read_are_found_in_every_stored_form(blocks: object, said: list[str]) -> None:
    assert list(thoughts(json.dumps(blocks))) == said


def test_what_is_no_json_holds_no_thoughts() -> None:
    assert list(thoughts("{cut")) == []


def test_turns_of_one_role_that_follow_each_other_become_one() -> None:
    said = [(TurnRole.GPT, "a"), (TurnRole.TOOL, "b"), (TurnRole.TOOL, "c"), (TurnRole.GPT, "d")]
    assert list(joined(said)) == [(TurnRole.GPT, "a"), (TurnRole.TOOL, "b\nc"), (TurnRole.GPT, "d")]
    assert list(joined([])) == []
