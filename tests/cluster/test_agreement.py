"""Nodes of one database have the same settings, where that matters, and the same time."""

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster
from tests.e2e.world import Gateway
from tests.gateway.helpers import eventually

pytestmark = pytest.mark.cluster


async def refused(node: Gateway) -> str:
    """What a node says whose start is refused as one of a wrong configuration."""
    await node.spawn()
    assert await node.wait() == 78
    assert "Traceback" not in node.log_text()
    assert "home" not in os.listdir(node.environ["HOME"])
    return node.log_text()


async def test_a_node_with_another_cap_does_not_start(cluster: Cluster) -> None:
    await cluster.start("one", HERMES_COSTS__DAILY_CAP="5", HERMES_SESSIONS__GROUPS="per_user")
    said = await refused(cluster.add("two"))
    assert "configuration: costs.daily_cap is not set at two and 5 at one, which uses the same database" in said
    assert "configuration: sessions.groups is shared at two and per_user at one" in said
    assert cluster.query("SELECT name FROM nodes") == [("one",)]


async def test_two_clusters_on_one_database_are_told_apart_by_a_digest(cluster: Cluster) -> None:
    await cluster.start("one")
    said = await refused(cluster.add("two", HERMES_TELEGRAM__TOKEN="654321:OTHERTOKEN"))
    assert "telegram.token is a value with digest " in said
    assert "each bot needs its own database" in said
    assert "OTHERTOKEN" not in said


async def test_a_worker_needs_no_token(cluster: Cluster) -> None:
    await cluster.start("one")
    await cluster.start("two", role="worker", HERMES_TELEGRAM__TOKEN="")


async def test_a_reload_that_takes_agreement_away_is_warned_of(cluster: Cluster, tmp_path: Path) -> None:
    one, two = await cluster.start("one", "two")
    for node in (one, two):
        home = tmp_path / node.environ["HERMES_CLUSTER__NAME"] / "home"
        (home / "config.yaml").write_text("costs: {daily_cap: 7}")
        before = len(node.log_text())
        node.signal(signal.SIGHUP)
        await node.wait_for_log("config.reloaded")
        if node is one:
            await node.wait_for_log("costs.daily_cap is 7 at one and not set at two")
    agreed = """SELECT count(*) FROM nodes WHERE settings LIKE '%"costs.daily_cap":"7"%'"""
    await eventually(lambda: cluster.query(agreed) == [(2,)], "both have the new cap")
    await cluster.start("three", HERMES_COSTS__DAILY_CAP="7")
    assert "node.settings_differ" not in two.log_text()[before:]
