"""Agents that were removed from the configuration: their tools, and reports about their work."""

from pathlib import Path

from structlog.testing import capture_logs

from gateway.config import load_config
from gateway.daemon.reload import warn_removed_agents
from hermes_state.store.writer import Store


async def test_without_a_database_the_report_about_removed_agents_is_left_out(store: Store, tmp_path: Path) -> None:
    loaded = load_config({"HERMES_HOME": str(tmp_path)})
    await store.close()
    with capture_logs() as said:
        await warn_removed_agents(store, loaded)
    assert [one["event"] for one in said] == ["agent.removed_unknown"]
