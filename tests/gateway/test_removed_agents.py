"""Agents that were removed from the configuration: their tools, and reports about their work."""

from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from agent.tools.offers import Policy
from agent.tools.recall import recall_tools
from gateway.access.permissions import AccessControl, AgentAccess
from gateway.config import LiveConfig, load_config
from gateway.daemon.reload import warn_removed_agents
from hermes_state.agents import choose
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, ChatKind
from tests.hermes_state.rows import make_chat

CHAT = ChatKey(platform="telegram", account="telegram", chat_ref="42")


async def test_without_a_database_the_report_about_removed_agents_is_left_out(store: Store, tmp_path: Path) -> None:
    loaded = load_config({"HERMES_HOME": str(tmp_path)})
    await store.close()
    with capture_logs() as said:
        await warn_removed_agents(store, loaded)
    assert [one["event"] for one in said] == ["agent.removed_unknown"]


async def test_without_any_agents_the_report_names_the_file_in_which_they_were(store: Store, tmp_path: Path) -> None:
    await store.write(lambda db: choose(db, make_chat(db), "ops"))
    with capture_logs() as said:
        await warn_removed_agents(store, load_config({"HERMES_HOME": str(tmp_path)}))
    assert [one["reason"] for one in said] == [
        f"{tmp_path}/config.yaml: agents has no ops, but it was chosen in 1 chat: add it again to continue"
    ]


def test_the_tools_of_a_removed_agent_are_refused_instead_of_following_the_top_level(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text('agents:\n  ops: {tools: {use: {"*": "off"}}}\n')
    live = LiveConfig(load_config({"HERMES_HOME": str(tmp_path)}))
    access = AgentAccess(AccessControl(None, live), "ops")  # type: ignore[arg-type]  # no pairing is read
    [search, _] = recall_tools()
    assert access.refusal(search, CHAT, ChatKind.DIRECT, None) == "it is disabled in this chat"
    live.loaded = replace(live.loaded, named_agents={})
    assert access.refusal(search, CHAT, ChatKind.DIRECT, None) == "its agent ops is no longer configured"
    assert access.policy(search, CHAT) is Policy.DENY
