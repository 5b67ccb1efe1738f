"""Tool access by chat and person, and approval policies."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from agent.tools.offers import Policy
from agent.tools.recall import recall_tools
from agent.tools.registry import Tool
from gateway.access.permissions import AccessControl
from gateway.config.settings import Config
from gateway.config.tool_settings import ToolsConfig
from hermes_state.values import ChatKey, ChatKind, ToolEffect, UserRef
from tests.gateway.helpers import live_config

TOPIC = ChatKey(platform="telegram", account="telegram", chat_ref="-100", thread_ref="7", user_ref="42")
OTHER = ChatKey(platform="discord", account="discord", chat_ref="9")
SEARCH = recall_tools()[0]


def control(**settings: object) -> AccessControl:
    config = Config.model_validate({"tools": settings, "access": {"admins": ["telegram:1"]}})
    return AccessControl(None, live_config(config))  # type: ignore[arg-type]  # no pairing is read


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, False),
        ({"use": {"history_search": False}}, True),
        ({"use": {"*": "off"}}, True),
        ({"use": {"history_search": 0, 1: True}}, True),
        ({"use": {"*": "off", "history_search": "on"}}, False),
        ({"use": {"history_search": "off"}, "use_on": {"telegram": {"history_search": "on"}}}, False),
        ({"use_on": {"telegram": {"history_search": "on"}, "telegram:-100": {"history_search": "off"}}}, True),
        ({"use_on": {"telegram:-100/7": {"history_search": "on"}, "telegram:-100": {"*": "off"}}}, False),
        ({"use_on": {"discord": {"*": "off"}}}, False),
    ],
)
def test_the_most_specific_setting_wins(settings: dict[str, object], refused: bool) -> None:
    assert (control(**settings).refusal(SEARCH, TOPIC, ChatKind.GROUP, None) is not None) == refused


def test_an_admin_tool_is_listed_but_runs_only_in_turns_of_admins() -> None:
    made = control(use={"history_search": "admins"})
    assert made.refusal(SEARCH, TOPIC, ChatKind.GROUP, None) is None
    assert made.refusal(SEARCH, TOPIC, ChatKind.GROUP, UserRef("telegram:1")) is None
    assert made.refusal(SEARCH, TOPIC, ChatKind.GROUP, UserRef("telegram:2")) is not None


def test_a_chat_has_a_policy_of_its_own() -> None:
    made = control(approval={"executes": "deny"}, approval_on={"telegram:-100": {"writes": "allow"}})
    assert made.policy(tool(ToolEffect.WRITES), TOPIC) is Policy.ALLOW
    assert made.policy(tool(ToolEffect.EXECUTES), TOPIC) is Policy.ASK_ADMIN
    assert made.policy(tool(ToolEffect.WRITES), OTHER) is Policy.ASK
    assert made.policy(tool(ToolEffect.EXECUTES), OTHER) is Policy.DENY


def test_an_admin_decides_for_a_program() -> None:
    chats = [ChatKey(platform="local", account="local", chat_ref="main", user_ref=person) for person in ("", "api-x")]
    policies = [control().policy(tool(ToolEffect.WRITES), chat) for chat in chats]
    assert policies == [Policy.ASK, Policy.ASK_ADMIN]
    allowed = control(approval={"writes": "allow"})
    assert allowed.policy(tool(ToolEffect.WRITES), chats[1]) is Policy.ALLOW


def tool(effect: ToolEffect, *, is_remote: bool = False) -> Tool:
    return replace(SEARCH, effect=effect, is_remote=is_remote)


@pytest.mark.parametrize(
    ("block", "writes", "executes"),
    [
        ({}, "ask_admin", "ask_admin"),
        ({"mcp": "ask"}, "ask", "ask"),
        ({"writes": "ask", "executes": "ask"}, "ask_admin", "ask_admin"),
        ({"writes": "deny"}, "deny", "ask_admin"),  # what was refused, or needed no question, before there was the key
        ({"writes": "allow", "executes": "deny"}, "allow", "deny"),
        ({"writes": "allow", "mcp": "ASK_ADMIN"}, "ask_admin", "ask_admin"),
    ],
)
def test_mcp_tools_have_a_policy_of_their_own(block: dict[str, str], writes: str, executes: str) -> None:
    made = control(approval=block)
    assert made.policy(tool(ToolEffect.WRITES, is_remote=True), OTHER) == writes
    assert made.policy(tool(ToolEffect.EXECUTES, is_remote=True), OTHER) == executes


@pytest.mark.parametrize("settings", [{"use": {"a": "maybe"}}, {"approval": {"writes": "yes"}}, {"approvals": {}}])
def test_an_invalid_switch_setting_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ToolsConfig.model_validate(settings)
