"""Approval requests: expiry, answers, and turns that continue afterwards."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from agent.tools.registry import Tool, ToolContext, tool
from gateway.turns.runner import MAX_RESTARTS
from hermes_state import inbox
from hermes_state.chats import load_chat
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import Connection
from hermes_state.tools import approvals
from hermes_state.tools.approvals import ApprovalState, PendingApproval
from hermes_state.values import ChatId, Millis, ToolCall, ToolEffect
from tests.clocks import TurnedClock
from tests.gateway.helpers import BOSS, GROUP, Serve, TestGateway, answer, calls, eventually
from tests.hermes_state.rows import LONG_CALL_ID

ASKS = {"approval": {"writes": "ask"}}


def writing(ran: list[str]) -> Tool:
    @tool(name="write_down", description="Writes.", parameters={"type": "object"}, effect=ToolEffect.WRITES)
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        ran.append("ran")
        return "written"

    return run


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def ran() -> list[str]:
    """The runs of the tool."""
    return []


@pytest.fixture
async def gateway(serve: Serve, ran: list[str], clock: TurnedClock) -> AsyncIterator[TestGateway]:
    async with serve(tools=[writing(ran)], clock=clock, tools_block=ASKS) as running:
        yield running


async def ask(gateway: TestGateway) -> None:
    """Let the agent request approval for a write. If approved, it answers `done`."""
    gateway.model.script += [calls("write_down"), answer("done")]
    await gateway.say("write it down")
    await eventually(lambda: any("May I use" in text for text in gateway.adapter.texts()), "it asks")


async def test_a_request_can_be_answered_for_an_hour(gateway: TestGateway) -> None:
    await ask(gateway)
    assert await gateway.rows("SELECT expires_at - asked_at FROM approvals") == [(3_600_000,)]


async def test_continuing_after_many_approvals_does_not_count_as_a_restart(gateway: TestGateway) -> None:
    gateway.model.script += [calls("write_down") for _ in range(MAX_RESTARTS + 1)]
    await gateway.say("write it down")
    for number in range(1, MAX_RESTARTS + 2):
        await gateway.until_rows(
            f"SELECT 1 FROM turns WHERE state = 'waiting' AND (SELECT max(id) FROM approvals) = {number}"
        )
        [asked] = await gateway.store.read(approvals.load_pending, ChatId(1))
        await gateway.store.write(_say_yes, asked)  # at another node: this one finds the turn by its next look
        await gateway.lanes.sweep()
    assert (await gateway.replies(MAX_RESTARTS + 2))[-1] == "echo: write it down"
    assert await gateway.rows("SELECT state, restarts FROM turns") == [("finished", 0)]


def _say_yes(db: Connection, asked: PendingApproval) -> None:
    approvals.decide(db, asked, ApprovalState.APPROVED, "telegram:1", None, Millis(0))


async def test_a_call_with_a_long_id_is_approved_and_run(gateway: TestGateway, ran: list[str]) -> None:
    called = ToolCall(id=LONG_CALL_ID, name="write_down", arguments="{}")
    asking = replace(calls("write_down"), calls=(called,))
    gateway.model.script += [asking, answer("done")]
    await gateway.say("write it down")
    await eventually(lambda: any("May I use" in text for text in gateway.adapter.texts()), "it asks")
    await gateway.say("/approve a1")
    await eventually(lambda: "done" in gateway.adapter.texts(), "the turn goes on")
    assert ran == ["ran"]
    *_, question, result = gateway.model.requests[-1].transcript
    assert (question.body.calls[0].id, result.tool_call_id) == (LONG_CALL_ID, LONG_CALL_ID)
    gateway.model.script += [answer("gladly")]
    assert await gateway.ask("and now?") == "gladly"


async def test_a_bare_approve_covers_only_requests_shown_before_it(gateway: TestGateway, ran: list[str]) -> None:
    await ask(gateway)
    late = "UPDATE outbox SET first_tried_at = 9999999999999 WHERE dedupe_key = 'approval:1'"
    await gateway.store.write(lambda db: db.execute(late).rowcount)
    await gateway.say("/approve all")
    await eventually(lambda: any("`/approve a1` or" in text for text in gateway.adapter.texts()), "it is refused")
    assert ran == []
    await gateway.say("/approve a1")
    await eventually(lambda: "done" in gateway.adapter.texts(), "the turn goes on")
    assert ran == ["ran"]


async def test_after_a_clock_change_a_bare_approve_gets_the_request_number(
    gateway: TestGateway, ran: list[str], clock: TurnedClock
) -> None:
    await ask(gateway)
    clock.offset = -3_600_000
    await gateway.say("/approve")
    await eventually(lambda: any("name the request" in text for text in gateway.adapter.texts()), "it is told")
    await gateway.say("/approve a1")
    await eventually(lambda: "done" in gateway.adapter.texts(), "the turn goes on")
    assert ran == ["ran"]


@pytest.mark.parametrize("which", [inbox.load, load_chat])
@pytest.mark.parametrize("line", ["/approve", "/deny", "/stop"])
async def test_a_delayed_approval_takes_effect_when_the_database_recovers(
    gateway: TestGateway, ran: list[str], monkeypatch: pytest.MonkeyPatch, line: str, which: Any
) -> None:
    await ask(gateway)
    read, faults = gateway.store.read, iter(range(1))

    async def fail_once(fn: Any, *args: Any) -> Any:
        if fn is which and next(faults, None) is not None:
            raise StoreUnavailable("disk I/O error")
        return await read(fn, *args)

    monkeypatch.setattr(gateway.store, "read", fail_once)
    await gateway.say(line)
    await gateway.until_rows("SELECT 1 FROM turns WHERE state IN ('finished', 'stopped')")
    assert next(faults, None) is None
    assert ran == (["ran"] if line == "/approve" else [])
    assert await gateway.inbox_states() == ["done", "done"]


async def test_in_a_group_a_member_can_approve_only_a_single_call(gateway: TestGateway) -> None:
    gateway.model.script += [calls("write_down"), answer("done")]
    await gateway.say("write it down", chat=GROUP)
    await eventually(lambda: any("May I use" in text for text in gateway.adapter.texts(GROUP)), "it asks")
    await gateway.say("/approve a1 always", chat=GROUP)
    await eventually(
        lambda: any("can approve more than a single call" in text for text in gateway.adapter.texts(GROUP)),
        "it is refused",
    )
    await gateway.say("/approve a1 always", chat=GROUP, sender=BOSS)
    await eventually(lambda: "done" in gateway.adapter.texts(GROUP), "the turn goes on")
    assert await gateway.rows("SELECT granted_by FROM tool_grants") == [(BOSS.ref,)]
