"""Three bots and three agents in a cluster, with one bot for each node."""

import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.store.seats import account_lock
from tests.cluster.nodes import Cluster
from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.test_accounts import OTHER_TOKEN
from tests.e2e.test_discord import say as say_on_discord
from tests.e2e.test_discord import sent as sent_on_discord
from tests.e2e.world import Gateway
from tests.fakes import fake_telegram
from tests.fakes.labkit import Control, Server

pytestmark = pytest.mark.cluster

FURTHER = "telegram/operations"
AGENTS = {
    "HERMES_AGENTS": json.dumps(
        {
            "support": {"persona": "You help customers."},
            "ops": {"persona": "You look after servers.", "model": {"name": "lab-32k", "context_length": 32_000}},
            "desk": {"persona": "You are at the desk.", "costs": {"daily_cap": 5}},
        }
    ),
    "HERMES_COSTS__PRICES": '{"lab-*": {"input": 1, "output": 1}}',
    "HERMES_ROUTES": json.dumps(
        [
            {"account": "telegram", "agent": "support"},
            {"account": FURTHER, "agent": "ops"},
            {"chat": "discord", "agent": "desk"},
        ]
    ),
}
PERSONAS = {"support": "You help customers.", "operations": "You look after servers.", "discord": "at the desk."}


class BotCluster(Cluster):
    """A cluster with a second Telegram bot, which has a server of its own, and a Discord bot."""

    tg2: Control

    def accounts(self, token: str = OTHER_TOKEN) -> dict[str, str]:
        """Return the settings that add the second bot and three agents."""
        rows = [{"name": "support"}, {"name": "operations", "token": token, "base_url": self.tg2.url}]
        return {"HERMES_TELEGRAM__ACCOUNTS": json.dumps(rows), "HERMES_CLUSTER__SEAT_SECONDS": "30", **AGENTS}

    async def ask2(self, text: str) -> None:
        """Send a message to the second bot, and wait for its answer."""
        await self.tg2.post("message", {"chat_id": 42, "user_id": 42, "text": text})
        query = {"method": "sendMessage", "chat_id": 42, "wait": 20, "count": 1, "match": text}
        assert await self.tg2.get("sent", **query), text

    async def ask_all(self, word: str) -> None:
        """Send a message to each bot, and wait for the answers."""
        await self.ask(f"{word} to support", f"{word} to support")
        await self.ask2(f"{word} to operations")
        await say_on_discord(self, f"{word} to discord")
        assert await sent_on_discord(self, 1, match=f"{word} to discord")

    async def owners(self) -> dict[str, list[str]]:
        """Return the accounts that each running node serves."""
        code, said = await self.command_line("cluster", "status", "--json", node=next(iter(self.nodes.values())))
        assert code == 0, said
        return {one["name"]: one["accounts"] for one in json.loads(said)["nodes"] if one["is_alive"]}

    async def start_apart(self, logs: Mapping[str, str]) -> list[Gateway]:
        """Start a node for each account, and wait for its log to contain the words of `logs`."""
        nodes: list[Gateway] = []
        with ExitStack() as stack:
            others = {name: stack.enter_context(closing(PostgresConnection.open(self.address))) for name in logs}
            for account, other in others.items():  # keeps the account free for its node
                lock = account_lock(account)
                other.execute("SELECT pg_advisory_lock(CAST(? AS int), CAST(? AS int))", (int(lock.kind), lock.key))
            for number, (account, words) in enumerate(logs.items(), start=1):
                others[account].close()
                node = self.add(f"node-{number}", **self.accounts())
                await node.start()
                await node.wait_for_log(words)
                node.signal(signal.SIGSTOP)  # so that it does not get the next account
                nodes.append(node)
        for node in nodes:
            node.signal(signal.SIGCONT)
        return nodes


@asynccontextmanager
async def bot_cluster(folder: Path, address: str) -> AsyncIterator[BotCluster]:
    cluster = BotCluster(folder, address)
    await cluster.open(discord=True)
    try:
        await cluster.dc.post("config", {"rate_limits": False})
        async with Server(fake_telegram.make_app(username="operations_bot")) as server:
            cluster.tg2 = Control(server.url, cluster.http)
            yield cluster
    finally:
        await cluster.close()


CLUSTER = bot_cluster


async def test_each_of_three_bots_has_one_node_and_its_own_agent_also_after_takeovers(cluster: BotCluster) -> None:
    signed_in = {"telegram": "telegram.signed_in", FURTHER: "telegram.signed_in", "discord": "discord running"}
    _, two, three = await cluster.start_apart(signed_in)
    assert await cluster.owners() == {"node-1": ["telegram"], "node-2": [FURTHER], "node-3": ["discord"]}
    await cluster.ask_all("first")
    assert await cluster.replies(0, wait=0, match="operations|discord") == []

    await two.kill()
    await cluster.ask_all("second")
    await three.kill()
    await cluster.ask_all("third")
    assert await cluster.owners() == {"node-1": ["discord", "telegram", FURTHER]}
    epochs = cluster.query("SELECT account, epoch FROM accounts ORDER BY account")
    assert [account for account, _ in epochs] == ["discord", "telegram", FURTHER]
    assert epochs[1][1] == 1, "no other node has had it"

    for request in await cluster.asked(9):
        said = conversation_of(request)
        [bot] = [name for name in PERSONAS if f"to {name}" in said]
        assert PERSONAS[bot] in prompt_of(request)[0].text
        assert request["body"]["model"] == ("lab-32k" if bot == "operations" else "lab-128k")
    assert cluster.query("SELECT agent, count(*) FROM sessions GROUP BY agent ORDER BY agent") == [
        ("desk", 1),
        ("ops", 1),
        ("support", 1),
    ]
    polls = [row for bot in (cluster.tg, cluster.tg2) for row in await bot.get("calls", method="getUpdates")]
    assert not [row for row in polls if "Conflict" in str(row["error"])], "no bot had two nodes at a time"


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
