"""Full messages: readable thoughts from every protocol, and no secrets in any field."""

import json

import msgspec
import pytest

from agent.context.summary import asking_row
from gateway.operator.lookups import MessagesRequest
from hermes_state.redaction import Redactor
from hermes_state.text import thoughts
from hermes_state.values import MessageBody, MessageRole, Millis, Reasoning, ToolCall

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
def test_readable_thoughts_are_found_in_every_stored_form(blocks: object, said: list[str]) -> None:
    assert list(thoughts(json.dumps(blocks))) == said


def test_invalid_json_has_no_thoughts() -> None:
    assert list(thoughts("{cut")) == []


SECRET = "zq7Kx9Lm2Vt4Wd"


@pytest.mark.parametrize(
    "body",
    [
        MessageBody(calls=(ToolCall(id="1", name="run", arguments='{"key": "zq7\\u004bx9Lm2Vt4Wd"}'),)),
        MessageBody(calls=(ToolCall(id="1", name="run", arguments='{"zq7Kx9L\\u006d2Vt4Wd": {"a": 1}}'),)),
        MessageBody(reasoning=Reasoning(blocks='[{"thinking": "zq7Kx</think>9Lm2Vt4Wd"}]', made_by="m")),
        MessageBody(reasoning=Reasoning(blocks='[{"text": "zq7Kx</think>9Lm2Vt4Wd"}]', made_by="m")),
    ],
)
def test_a_secret_is_removed_in_every_notation(body: MessageBody) -> None:
    row = msgspec.structs.replace(asking_row("", Millis(0)), role=MessageRole.ASSISTANT, text=None, body=body)
    said = msgspec.json.encode(MessagesRequest(lineage=1).redacted((row, [], []), Redactor([SECRET]))).decode()
    assert SECRET not in said
    assert "[redacted]" in said
