"""Cluster membership of a node, with a real server."""

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from gateway.cluster.membership import Membership, agreed_settings
from gateway.config.accounts import TelegramConfig
from gateway.config.settings import ClusterConfig, Config, CostConfig
from hermes_state.engines.postgres.nodes import load_nodes
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.errors import ConfigError
from hermes_state.store.seats import Hint
from hermes_state.values import SystemClock
from tests.clocks import TurnedClock
from tests.gateway.helpers import eventually

pytestmark = pytest.mark.cluster


def ignore(_: Hint) -> None:
    pass


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(postgres_url)
    try:
        yield opened
    finally:
        await opened.close()


def config(name: str = "one", cap: float | None = None) -> Config:
    return Config(cluster=ClusterConfig(name=name), costs=CostConfig(daily_cap=cap))


async def test_a_start_with_a_wrong_clock_is_refused_and_leaves_nothing(store: PostgresStore) -> None:
    member = Membership(store, TurnedClock(-75_000), config)
    with pytest.raises(ConfigError, match="the clock of one is 75 seconds behind the PostgreSQL server's"):
        await member.open_seat(ignore)
    assert await store.read(load_nodes) == []


async def test_a_returning_node_gets_its_seat_despite_different_settings(store: PostgresStore) -> None:
    clock = TurnedClock()
    member = Membership(store, clock, config)
    await (await member.open_seat(ignore)).close()
    clock.offset = 75_000
    await (await member.open_seat(ignore)).close()
    assert [node.seats for node in await store.read(load_nodes)] == [2]


async def test_a_new_difference_is_logged_once(store: PostgresStore) -> None:
    caps: dict[str, float | None] = {"one": None, "two": None}
    other = await PostgresStore.open(store.url)
    try:
        one = Membership(store, SystemClock(), lambda: config("one", caps["one"]))
        two = Membership(other, SystemClock(), lambda: config("two", caps["two"]))
        seats = [await member.open_seat(ignore) for member in (one, two)]
        with capture_logs() as logs:
            watching = asyncio.ensure_future(one.run())
            caps["one"] = 5.0
            for _ in range(3):  # a look begins when the one before is over
                one.changed.set()
                await eventually(lambda: not one.changed.is_set(), "it looks")
            watching.cancel()
            await asyncio.wait({watching})
        for seat in seats:
            await seat.close()
    finally:
        await other.close()
    said = [log["reason"] for log in logs if log["event"] == "node.settings_differ"]
    assert said == [
        "costs.daily_cap is 5 on one and not set on two, which uses the same database: set the same value on all nodes"
    ]


def test_every_account_is_compared_with_its_token() -> None:
    accounts = ({"name": "support"}, {"name": "operations", "token": SecretStr("2:b")}, {"name": "idle"})
    settings = json.loads(agreed_settings(Config(telegram=TelegramConfig(token=SecretStr("1:a"), accounts=accounts))))
    assert settings["telegram.token"].startswith("a value with digest ")
    assert re.fullmatch("telegram/operations with a value with digest [0-9a-f]{8}", settings["telegram.accounts"])


def test_a_token_is_compared_by_digest_and_an_unset_token_is_not_compared() -> None:
    token = "123456:LABTOKEN"
    noted = agreed_settings(Config(telegram=TelegramConfig(token=SecretStr(token))))
    assert token not in noted
    settings = json.loads(noted)
    assert settings["telegram.token"].startswith("a value with digest ")
    assert settings["telegram.accounts"] == "not set"
    assert not {"discord.token", "discord.accounts"} & settings.keys()
    assert settings["costs.daily_cap"] == "not set"


def test_agents_and_routes_are_compared_with_secrets_by_digest() -> None:
    agents = {"ops": {"persona": "Be brief.", "model": {"name": "x", "api_key": "sk-12345678abc"}}}
    routes = [{"agent": "ops", "chat": "telegram:43"}]
    settings = json.loads(agreed_settings(Config.model_validate({"agents": agents, "routes": routes})))
    assert settings["routes"] == "[ops (chat telegram:43)]"
    assert settings["agents"].startswith("{ops: {model: {api_key: a value with digest ")
    assert settings["agents"].endswith(", name: x}, persona: Be brief.}}")
    assert "sk-12345678abc" not in settings["agents"]
