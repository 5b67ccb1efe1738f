"""Tools of a sub-agent, and its behaviour with a broken database."""

import asyncio
from typing import Any, cast

import pytest

from agent.context.model_handle import ModelHandle
from agent.subagents import NEEDS_A_YES, NOT_GIVEN, OF_THE_CONVERSATION, SubagentAccess, SubagentRunner
from agent.tools.offers import OpenAccess, Policy
from agent.tools.planning import delegate_tool, todo_tool
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool, ToolRegistry
from hermes_state.errors import StoreBroken
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import (
    ChatId,
    ChatKey,
    ChatKind,
    LineageId,
    MessageId,
    Millis,
    SystemClock,
    ToolEffect,
    TurnId,
    UserRef,
)

ADMIN, PERSON = UserRef("telegram:1"), UserRef("telegram:42")
CHAT = ChatKey(platform="telegram", account="telegram", chat_ref="42")


class Rules(OpenAccess):
    """Access rules with one policy for all calls, and one tool for admins."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def policy(self, effect: ToolEffect, chat: ChatKey) -> Policy:
        return self._policy

    def refusal(self, tool: Tool, chat: ChatKey, kind: ChatKind, person: UserRef | None) -> str | None:
        return "for admins" if tool.name == "secret" and person != ADMIN else None


async def _run(arguments: dict[str, Any], context: object) -> str:
    return ""


def made(name: str, effect: ToolEffect) -> Tool:
    return Tool(name=name, description=name, parameters={"type": "object"}, effect=effect, run=_run)


def refusal(tool: Tool, policy: Policy = Policy.ALLOW, person: UserRef = PERSON, **names: frozenset[str]) -> str | None:
    return SubagentAccess(access=Rules(policy), person=person, **names).refusal(tool, CHAT, ChatKind.DIRECT, None)


@pytest.mark.parametrize("policy", Policy)
def test_a_subagent_writes_only_without_an_approval_policy(policy: Policy) -> None:
    assert refusal(made("look", ToolEffect.READ_ONLY), policy) is None
    expected = None if policy is Policy.ALLOW else NEEDS_A_YES
    for effect in (ToolEffect.WRITES, ToolEffect.EXECUTES):
        assert refusal(made("act", effect), policy) == expected
    access = SubagentAccess(access=Rules(policy), person=PERSON)
    wanted = Policy.ALLOW if policy is Policy.ALLOW else Policy.DENY
    assert access.policy(ToolEffect.WRITES, CHAT) is wanted, "a sub-agent never asks for approval"


def test_a_subagent_gets_the_named_tools_and_the_recall_tools() -> None:
    names, look = frozenset({"look"}), ToolEffect.READ_ONLY
    assert (refusal(made("look", look), names=names), refusal(made("other", look), names=names)) == (None, NOT_GIVEN)
    assert [refusal(tool, names=names) for tool in recall_tools()] == [None, None]
    for tool in (todo_tool(SystemClock()), delegate_tool, made("schedule", ToolEffect.WRITES)):
        assert refusal(tool) == OF_THE_CONVERSATION
    assert (refusal(made("secret", look)), refusal(made("secret", look), person=ADMIN)) == ("for admins", None)


async def test_a_broken_database_fails_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*args: object) -> None:
        raise StoreBroken("database disk image is malformed")

    monkeypatch.setattr(store, "write", fail)
    runner = SubagentRunner(store=store, clock=SystemClock(), tools=ToolRegistry(), access=OpenAccess())
    turn = RunningTurn(
        id=TurnId(1),
        epoch=1,
        chat_id=ChatId(1),
        lineage_id=LineageId(1),
        started_by=PERSON,
        chat=CHAT,
        chat_kind=ChatKind.DIRECT,
        restarts=0,
        preview_ref=None,
        started_at=Millis(1),
    )
    with pytest.raises(StoreBroken):
        async with asyncio.timeout(0.5):
            await runner.run(turn, cast("ModelHandle", None), (MessageId(1), "c1"), "count", None)
