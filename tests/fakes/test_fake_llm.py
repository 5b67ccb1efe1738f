"""The fake model server notices a message list that no provider would take."""

import pytest
from aiohttp import ClientSession

from tests.fakes import fake_llm
from tests.fakes.labkit import Control, Server
from tests.fakes.llm_http import FINDINGS
from tests.fakes.llm_legality import untidy

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKED = {"role": "user", "content": "hi"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "done"}


@pytest.mark.parametrize(
    ("messages", "rule", "status"),
    [
        ([ASKED, TOLD], "orphan_tool_result", 400),
        ([ASKED, CALLED, ASKED], "unanswered_tool_calls", 400),
        ([ASKED, {**ASKED, "_id": 7}], "private_key", 200),
        ([ASKED, ASKED], "alternation", 200),
    ],
)
async def test_a_list_that_is_not_legal_or_not_tidy_fails_the_test_that_sent_it(
    messages: list[object], rule: str, status: int
) -> None:
    async with Server(fake_llm.make_app()) as server, ClientSession() as session:
        body = {"model": "lab-128k", "messages": messages}
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == status
        control = Control(server.url, session)
        assert rule in {row["rule"] for row in await control.get("violations")}
        await control.post("reset")
    assert rule in {row["rule"] for row in untidy(FINDINGS)}, "a reset forgets nothing of this"
    FINDINGS.clear()


async def test_a_steer_behind_a_tools_result_is_no_fault() -> None:
    async with Server(fake_llm.make_app()) as server, ClientSession() as session:
        body = {"model": "lab-128k", "messages": [ASKED, CALLED, TOLD, ASKED]}
        async with session.post(f"{server.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
    assert [row["rule"] for row in FINDINGS] == ["user_after_tool"]
