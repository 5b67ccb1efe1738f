import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from platforms.local.access import KEY_HEADER, TOKEN_HEADER
from tests.cluster.nodes import Cluster
from tests.e2e.world import Gateway
from tests.gateway.helpers import eventually

pytestmark = pytest.mark.cluster
ADMIN = {"HERMES_ACCESS__ADMINS": "telegram:42"}


async def asked(cluster: Cluster, node: Gateway, *words: str) -> Any:
    """The JSON document that a command of a node's command line prints."""
    code, output = await cluster.command_line(*words, "--json", node=node)
    assert code == 0, output
    return json.loads(output)


async def test_cluster_status_tells_who_has_what(cluster: Cluster) -> None:
    [one] = await cluster.start("one")
    [two] = await cluster.start("two", role="worker")
    await cluster.hold(match="wait")
    await cluster.say("wait for it")
    await cluster.asked(1)
    found = await asked(cluster, two, "cluster", "status")
    nodes = {node["name"]: node for node in found["nodes"]}
    assert {name: (node["role"], node["is_alive"]) for name, node in nodes.items()} == {
        "one": ("node", True),
        "two": ("worker", True),
    }
    assert nodes["one"]["accounts"] == ["telegram"]
    assert nodes["one"]["is_keeper"]
    assert nodes["one"]["chats"] + nodes["two"]["chats"] == ["telegram:42"]
    assert (found["waiting"], found["load"]["lock_waits"]) == (0, 0)
    assert found["load"]["connections"] >= 6
    await one.kill()
    code, lines = await cluster.command_line("cluster", "status", node=two)
    assert (code, "Not served by any node: telegram." in lines) == (0, True), lines
    await cluster.release()
    assert await two.stop() == 0


async def test_status_names_the_node_and_its_seat(cluster: Cluster) -> None:
    [one] = await cluster.start("one", **ADMIN)
    said = await asked(cluster, one, "status")
    assert said["node"]["name"] == "one"
    assert said["node"]["has_seat"]
    assert set(said["node"]["duties"]) == {"telegram", "housekeeping"}
    assert said["node"]["chats"] == 0
    assert (said["vitals"]["writers"], said["vitals"]["readers"]) == (2, 2)
    assert (said["vitals"]["writes_waiting"], said["vitals"]["reads_waiting"]) == (0, 0)
    await cluster.say("/status")
    [reply] = await cluster.replies(1)
    assert "Node: one, active" in reply


async def test_a_gateway_that_runs_knows_the_address_that_its_unit_was_given(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "store.url").write_text(cluster.address)
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials"), "HERMES_STORE__URL": ""}
    [one] = await cluster.start("one", **given)
    del one.environ["CREDENTIALS_DIRECTORY"]  # which a shell is not told
    assert [node["name"] for node in (await asked(cluster, one, "cluster", "status"))["nodes"]] == ["one"]


async def sign_in(url: URL) -> dict[str, str]:
    """Headers of a browser that has used an address."""
    headers = {"Origin": str(url.origin()), TOKEN_HEADER: url.query["token"], "User-Agent": "Firefox"}
    async with aiohttp.ClientSession() as browser, browser.post(url.with_path("/sign-in"), headers=headers) as answer:
        cookies = "; ".join(f"{one.key}={one.value}" for one in answer.cookies.values())
        return {"Cookie": cookies, KEY_HEADER: await answer.text()}


async def shown(url: URL, headers: dict[str, str]) -> int:
    """Status of a look into the chat."""
    page = url.with_path("/chat/main/earlier").with_query(before=9)
    async with aiohttp.ClientSession() as browser, browser.get(page, headers=headers) as answer:
        return answer.status


async def test_the_web_chat_of_one_node_is_looked_after_from_every_machine(cluster: Cluster) -> None:
    local = {"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": "0"}
    [one] = await cluster.start("one", **local)
    [two] = await cluster.start("two", **local)
    [worker] = await cluster.start("three", role="worker")
    away = cluster.add("away")  # where none runs
    url = URL((await asked(cluster, one, "url"))["url"])
    for node in (two, worker, away):
        code, said = await cluster.command_line("url", node=node)
        assert code == 1
        assert "The node one serves the web chat. Run `hermes-gateway url` on its machine" in said
    for node in (one, two, worker, away):
        browser = await sign_in(URL((await asked(cluster, one, "url"))["url"]))
        assert await shown(url, browser) == 200
        [listed] = await asked(cluster, node, "url", "--list")
        assert listed["agent"] == "Firefox"
        assert await asked(cluster, node, "url", "--revoke", listed["id"]) == {"signed_out": 1}
        assert await shown(url, browser) == 401, "signed out at once"
    assert await asked(cluster, two, "url", "--revoke") == {"signed_out": 0}


async def test_nodes_of_one_name_are_told_apart(cluster: Cluster) -> None:
    [one] = await cluster.start("one", HERMES_CLUSTER__NAME="same")
    two = cluster.add("two", HERMES_CLUSTER__NAME="same")
    await two.start()
    rows = (await asked(cluster, one, "cluster", "status"))["nodes"]
    assert [row["name"] for row in rows] == ["same", "same"]
    _, said = await cluster.command_line("cluster", "status", node=one)
    assert [f"same ({row['id'][:8]})" in said for row in rows] == [True, True], said
    _, said = await cluster.command_line("doctor", node=two)
    assert "another node is also called same: set cluster.name on each" in said
    three = cluster.add("three", HERMES_CLUSTER__NAME="same", HERMES_COSTS__DAILY_CAP="7")
    await three.spawn()
    assert await three.wait() == 78
    assert f"costs.daily_cap is 7 on same (this one) and not set on same ({rows[0]['id'][:8]})" in three.log_text()


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
    assert "configuration: costs.daily_cap is not set on two and 5 on one, which uses the same database" in said
    assert "configuration: sessions.groups is shared on two and per_user on one" in said
    assert cluster.query("SELECT name FROM nodes") == [("one",)]


async def test_nodes_that_differ_in_agents_or_routes_do_not_start(cluster: Cluster) -> None:
    agents, routes = '{"ops": {"persona": "Be brief."}}', '[{"agent": "ops", "role": "admin"}]'
    await cluster.start("one", HERMES_AGENTS=agents, HERMES_ROUTES=routes)
    other = cluster.add("two", HERMES_AGENTS=agents.replace("brief", "kind"), HERMES_ROUTES=routes)
    assert "agents is {ops: {persona: Be kind.}} on two and {ops: {persona: Be brief.}} on one" in await refused(other)
    other = cluster.add("three", HERMES_AGENTS=agents, HERMES_ROUTES="[]")
    assert "routes is [] on three and [ops (role admin)] on one" in await refused(other)


async def test_two_clusters_on_one_database_are_told_apart_by_a_digest(cluster: Cluster) -> None:
    await cluster.start("one")
    said = await refused(cluster.add("two", HERMES_TELEGRAM__TOKEN="654321:OTHERTOKEN"))
    assert "telegram.token is a value with digest " in said
    assert "each bot needs its own database" in said
    assert "OTHERTOKEN" not in said


async def test_a_reload_that_takes_agreement_away_is_warned_of(cluster: Cluster, tmp_path: Path) -> None:
    one, two = await cluster.start("one", "two")
    for node in (one, two):
        home = tmp_path / node.environ["HERMES_CLUSTER__NAME"] / "home"
        (home / "config.yaml").write_text("costs: {daily_cap: 7}")
        before = len(node.log_text())
        node.signal(signal.SIGHUP)
        await node.wait_for_log("config.reloaded")
        if node is one:
            await node.wait_for_log("costs.daily_cap is 7 on one and not set on two")
    agreed = """SELECT count(*) FROM nodes WHERE settings LIKE '%"costs.daily_cap":"7"%'"""
    await eventually(lambda: cluster.query(agreed) == [(2,)], "both have the new cap")
    await cluster.start("three", HERMES_COSTS__DAILY_CAP="7")
    assert "node.settings_differ" not in two.log_text()[before:]
