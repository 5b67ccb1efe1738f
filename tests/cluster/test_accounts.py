"""Two Telegram bots of one cluster, each served by another node."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.store.seats import account_lock
from tests.cluster.nodes import Cluster
from tests.e2e.test_accounts import OTHER_TOKEN
from tests.fakes import fake_telegram
from tests.fakes.labkit import Control, Server

pytestmark = pytest.mark.cluster

FURTHER = "telegram/operations"


class BotCluster(Cluster):
    """A cluster with a second Telegram bot, which has a server of its own."""

    tg2: Control

    def accounts(self, token: str = OTHER_TOKEN) -> dict[str, str]:
        """Return the setting that adds the second bot."""
        rows = [{"name": "support"}, {"name": "operations", "token": token, "base_url": self.tg2.url}]
        return {"HERMES_TELEGRAM__ACCOUNTS": json.dumps(rows), "HERMES_CLUSTER__SEAT_SECONDS": "30"}

    async def ask2(self, text: str) -> None:
        """Send a message to the second bot, and wait for its answer."""
        await self.tg2.post("message", {"chat_id": 42, "user_id": 42, "text": text})
        query = {"method": "sendMessage", "chat_id": 42, "wait": 20, "count": 1, "match": text}
        assert await self.tg2.get("sent", **query), text

    async def owners(self) -> dict[str, list[str]]:
        """Return the Telegram accounts that each running node serves."""
        code, said = await self.command_line("cluster", "status", "--json", node=next(iter(self.nodes.values())))
        assert code == 0, said
        return {one["name"]: one["accounts"] for one in json.loads(said)["nodes"] if one["is_alive"]}


@asynccontextmanager
async def bot_cluster(folder: Path, address: str) -> AsyncIterator[BotCluster]:
    cluster = BotCluster(folder, address)
    await cluster.open()
    try:
        async with Server(fake_telegram.make_app(username="operations_bot")) as server:
            cluster.tg2 = Control(server.url, cluster.http)
            yield cluster
    finally:
        await cluster.close()


CLUSTER = bot_cluster


async def test_two_nodes_serve_one_account_each_and_take_over_from_each_other(cluster: BotCluster) -> None:
    lock = account_lock(FURTHER)
    with closing(
        PostgresConnection.open(cluster.address)
    ) as other:  # keeps the second account free for the second node
        other.execute("SELECT pg_advisory_lock(CAST(? AS int), CAST(? AS int))", (int(lock.kind), lock.key))
        [one] = await cluster.start("one", **cluster.accounts())
        one.signal(signal.SIGSTOP)
    two = cluster.add("two", **cluster.accounts())
    await two.start()
    await two.wait_for_log("telegram.signed_in")
    one.signal(signal.SIGCONT)
    assert await cluster.owners() == {"one": ["telegram"], "two": [FURTHER]}

    await cluster.ask("to support", "to support")
    await cluster.ask2("to operations")
    assert await cluster.replies(0, wait=0, match="operations") == []

    await two.kill()
    await cluster.ask2("after the takeover")
    await cluster.ask("still here", "still here")
    assert await cluster.owners() == {"one": ["telegram", FURTHER]}
    assert cluster.query("SELECT account, epoch FROM accounts ORDER BY account") == [("telegram", 1), (FURTHER, 2)]


@pytest.mark.parametrize("is_other_token", [False, True], ids=["one account less", "another token"])
async def test_a_node_with_other_accounts_does_not_start(cluster: BotCluster, is_other_token: bool) -> None:
    await cluster.start("one", **cluster.accounts())
    two = cluster.add("two", **(cluster.accounts("654321:ANOTHER") if is_other_token else {}))
    await two.spawn()
    assert await two.wait() == 78
    said = two.log_text()
    mine = f"{FURTHER} with a value with digest" if is_other_token else "not set"
    assert f"telegram.accounts is {mine}" in said
    assert f"on two and {FURTHER} with a value with digest" in said
    assert "on one, which uses the same database: set the same value on all nodes" in said
    assert OTHER_TOKEN not in said
    await cluster.ask2("still here")
