import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing

import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.nodes import (
    end_left_transactions,
    find_differences,
    find_faults,
    forget_gone,
    forget_node,
    load_cluster,
    load_nodes,
    save_settings,
    session_name,
)
from hermes_state.engines.postgres.seat import PostgresSeat
from hermes_state.store.seats import NodeInfo
from hermes_state.store.sql import scalar
from hermes_state.values import Millis, SystemClock
from tests.gateway.helpers import eventually
from tests.hermes_state.rows import make_chat

pytestmark = pytest.mark.cluster
NOW = SystemClock().now()
DAY = 86_400_000


def node(name: str, number: int = 1, **settings: str) -> NodeInfo:
    return NodeInfo(id=f"{name}{number}", name=name, version="1", role="node", settings=json.dumps(settings))


@asynccontextmanager
async def seat(url: str, info: NodeInfo, now: Millis = NOW) -> AsyncIterator[PostgresSeat]:
    opened = await PostgresSeat.open(url, 5.0, info, lambda hint: None, now)
    try:
        yield opened
    finally:
        await opened.close()


async def gone(db: PostgresConnection, name: str) -> None:
    """Wait until the server has noticed the end of a closed seat."""
    await eventually(lambda: not any(one.is_alive for one in load_nodes(db) if one.name == name), "the session's end")


@pytest.fixture
def db(postgres_url: str) -> Iterator[PostgresConnection]:
    with closing(PostgresConnection.open(postgres_url)) as connection:
        yield connection


async def test_the_server_load_counts_lock_waits(postgres_url: str, db: PostgresConnection) -> None:
    chat_id = make_chat(db)
    assert load_cluster(db).load.lock_waits == 0
    with (
        closing(PostgresConnection.open(postgres_url)) as first,
        closing(PostgresConnection.open(postgres_url)) as second,
    ):
        for one in (first, second):
            one.execute("BEGIN")
        update = "UPDATE chats SET title = 'x' WHERE id = ?"
        first.execute(update, (chat_id,)).fetchall()
        waiting = asyncio.ensure_future(asyncio.to_thread(lambda: second.execute(update, (chat_id,)).rowcount))
        await eventually(lambda: load_cluster(db).load.lock_waits == 1, "the second one waits")
        load = load_cluster(db).load
        assert (load.connections, load.busy) == (2, 2)
        assert load.longest_seconds > 0
        assert load.connections < load.server_connections <= load.max_connections
        first.execute("ROLLBACK")
        assert await waiting == 1


async def test_a_node_is_gone_with_its_session_and_its_name_is_free(postgres_url: str, db: PostgresConnection) -> None:
    async with seat(postgres_url, node("one")):
        assert [one.is_alive for one in load_nodes(db)] == [True]
    await gone(db, "one")
    assert [(one.id, one.is_alive) for one in load_nodes(db)] == [("one1", False)]
    async with seat(postgres_url, node("one", 2), Millis(NOW + 1)):
        assert [(one.id, one.is_alive) for one in load_nodes(db)] == [("one2", True)]


async def test_a_gone_node_is_deleted_after_a_day_unless_it_returns(postgres_url: str, db: PostgresConnection) -> None:
    async with seat(postgres_url, node("one")):
        async with seat(postgres_url, node("two")):
            pass
        await gone(db, "two")
        assert forget_gone(db, NOW) == 0
        async with seat(postgres_url, node("two")):
            assert forget_gone(db, Millis(NOW + 2 * DAY)) == 0
            assert [one.seats for one in load_nodes(db) if one.name == "two"] == [2]
        await gone(db, "two")
        assert [forget_gone(db, Millis(NOW + after)) for after in (0, DAY, DAY + 1)] == [0, 0, 1]
        assert [one.name for one in load_nodes(db)] == ["one"]


async def test_differing_settings_are_reported_with_values_and_names(postgres_url: str, db: PostgresConnection) -> None:
    async with seat(postgres_url, node("one", **{"costs.daily_cap": "5", "telegram.token": "a", "old.key": "x"})):
        two = node("two", **{"costs.daily_cap": "not set", "telegram.token": "b", "new.key": "y"})
        assert find_differences(db, two, SystemClock().now()) == [
            "costs.daily_cap is not set on two and 5 on one, which uses the same database: set the same value on all "
            "nodes",
            "telegram.token is b on two and a on one, which uses the same database: each bot needs its own database",
        ]
    await gone(db, "one")
    assert find_differences(db, two, SystemClock().now()) == []


async def test_current_settings_are_compared(postgres_url: str, db: PostgresConnection) -> None:
    async with seat(postgres_url, node("one", zone="UTC")):
        save_settings(db, node("one", zone="CET"))
        assert len(find_differences(db, node("two", zone="UTC"), SystemClock().now())) == 1
        assert find_differences(db, node("two", zone="CET"), SystemClock().now()) == []
        forget_node(db, node("one"))
        assert load_nodes(db) == []


async def test_a_server_with_too_few_connections_for_all_nodes_is_a_fault(
    postgres_url: str, db: PostgresConnection
) -> None:
    db.execute("BEGIN")
    [fault] = find_faults(db, node("one"), 1_000, SystemClock().now())
    assert "but 1 node with 1000 each need 1000: raise its max_connections" in fault
    async with seat(postgres_url, node("two")):
        [fault] = find_faults(db, node("one"), 100, SystemClock().now())
        assert "2 nodes with 100 each need 200" in fault
        assert find_faults(db, node("one"), 5, SystemClock().now()) == []
    db.execute("ROLLBACK")


@pytest.mark.parametrize(("seconds", "said"), [(-62, "behind"), (62, "ahead of"), (-50, None), (50, None)])
def test_a_clock_may_differ_by_a_minute(db: PostgresConnection, seconds: int, said: str | None) -> None:
    found = find_differences(db, node("one"), Millis(SystemClock().now() + seconds * 1000))
    assert len(found) == (said is not None)
    assert all("the clock of one is 6" in one and f"seconds {said} the PostgreSQL server's" in one for one in found)


def lock_without_end(db: PostgresConnection, key: int) -> None:
    """Begin a batch that locks `key` without sending the rest, like a process that is stopped meanwhile."""
    server = db.raw.pgconn
    server.enter_pipeline_mode()
    for statement in ("BEGIN", f"SELECT pg_advisory_xact_lock({key})"):
        server.send_query_params(statement.encode(), None)
    server.send_flush_request()
    server.flush()
    for _ in range(2):  # the statements' answers, each with its end
        assert db._next() is not None
        assert db._next() is None


async def test_an_unfinished_batch_of_a_node_without_a_seat_is_ended(postgres_url: str, db: PostgresConnection) -> None:
    take = "SELECT CAST(pg_try_advisory_xact_lock(?) AS integer)"
    ids = ["left1", "there1", "other1"]  # the last one is not a node
    with ExitStack() as opened:
        for key, node_id in enumerate(ids):
            one = opened.enter_context(closing(PostgresConnection.open(postgres_url, session_name(node_id))))
            one.execute("SET idle_in_transaction_session_timeout = 1")
            lock_without_end(one, key)
        async with seat(postgres_url, node("left")), seat(postgres_url, node("there")):
            assert end_left_transactions(db, 0) == 0
        async with seat(postgres_url, node("there")):
            await gone(db, "left")
            db.execute("SELECT pg_sleep(0.1)")  # longer than any limit of the server
            assert [scalar(db, bool, take, (key,)) for key in range(3)] == [False, False, False]
            assert end_left_transactions(db, 3600) == 0
            assert end_left_transactions(db, 0) == 1
            await eventually(lambda: scalar(db, bool, take, (0,)), "the lock is free")
            assert [scalar(db, bool, take, (key,)) for key in range(3)] == [True, False, False]


def test_the_server_probes_silent_machines(db: PostgresConnection) -> None:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    settings = [scalar(db, int, "SELECT setting FROM pg_settings WHERE name = ?", (name,)) for name in names]
    assert settings == [10, 5, 4, 30_000]  # the values of the socket
