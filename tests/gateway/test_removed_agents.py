"""Agents that were removed from the configuration: their tools, and reports about their work."""

from pathlib import Path

from msgspec.structs import replace
from structlog.testing import capture_logs

from agent.tools.offers import Policy
from agent.tools.recall import recall_tools
from gateway.access.permissions import AccessControl, AgentAccess
from gateway.config import LiveConfig, load_config
from gateway.daemon.reload import warn_removed
from gateway.operator.checks import check_removed
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection
from hermes_state.store.writer import Store
from hermes_state.tools.schedules import NewSchedule, insert_schedule
from hermes_state.values import ChatKey, ChatKind, Millis, UserRef
from tests.hermes_state.rows import add_chat

CHAT = ChatKey(platform="telegram", account="telegram", chat_ref="42")


async def test_without_a_database_the_report_about_removed_agents_is_left_out(store: Store, tmp_path: Path) -> None:
    loaded = load_config({"HERMES_HOME": str(tmp_path)})
    await store.close()
    with capture_logs() as said:
        await warn_removed(store, loaded)
    assert [one["event"] for one in said] == ["config.removed_unknown"]


def test_the_tools_of_a_removed_agent_are_refused_instead_of_following_the_top_level(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text('agents:\n  ops: {tools: {use: {"*": "off"}}}\n')
    live = LiveConfig(load_config({"HERMES_HOME": str(tmp_path)}))
    access = AgentAccess(AccessControl(None, live), "ops")  # type: ignore[arg-type]  # no pairing is read
    [search, _] = recall_tools()
    assert access.refusal(search, CHAT, ChatKind.DIRECT, None) == "it is disabled in this chat"
    live.loaded = replace(live.loaded, named_agents={})
    assert access.refusal(search, CHAT, ChatKind.DIRECT, None) == "its agent ops is no longer configured"
    assert access.policy(search, CHAT) is Policy.DENY


async def test_work_of_removed_agents_and_accounts_is_reported_with_what_to_do(store: Store, tmp_path: Path) -> None:
    loaded = load_config({"HERMES_HOME": str(tmp_path), "HERMES_TELEGRAM__TOKEN": "1:A"})

    def add(db: Connection, account: str, agent: str) -> None:
        chat = add_chat(db, ChatKey(platform="telegram", account=account, chat_ref="42"), ChatKind.DIRECT)
        db.execute("UPDATE chats SET agent = ? WHERE id = ?", (agent, chat))
        who = {"creator_ref": UserRef("telegram:42"), "creator_name": "Ann"}
        times = {"spec": "0 8 * * *", "zone": "UTC", "next_at": Millis(1), "created_at": Millis(1)}
        insert_schedule(db, NewSchedule(chat_id=chat, text="look", **who, **times))  # type: ignore[arg-type]

    for account, agent in (("telegram", "ops"), ("telegram/operations", "")):
        await store.write(locks(EVERYTHING)(add), account, agent)
    with capture_logs() as said:
        await warn_removed(store, loaded)
    agent, account = (one["reason"] for one in said if one["event"] == "config.removed")
    assert "agents has no ops, but it has 1 active schedule" in agent
    assert (
        "The account telegram/operations is not configured, but its chats have 1 active schedule. They still" in account
    )
    assert [one.text for one in await store.read(check_removed, loaded)] == [agent, account]
