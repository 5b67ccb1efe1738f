import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from hermes_state import journal
from hermes_state.engines.opening import open_seat
from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.seat import PostgresSeat
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.errors import StoreUnavailable
from hermes_state.models.profiles import learn_output_cap
from hermes_state.store.seats import KEEPER, Hint, HintKind, NodeInfo, SeatLost, account_lock, chat_lock
from hermes_state.values import ChatId, Millis
from tests.cluster.proxy import Proxy, first_message
from tests.gateway.helpers import eventually
from tests.hermes_state.engines.postgres import relay as relay_program
from tests.hermes_state.helpers import closed_after
from tests.hermes_state.rows import START, exchange, make_chat, receive, received
from tests.postgres import Postgres, connect

pytestmark = pytest.mark.cluster
CHATS = [chat_lock(ChatId(number)) for number in range(1, 4)]


@asynccontextmanager
async def seat(
    url: str, name: str = "one", seconds: float = 5.0, hints: list[Hint] | None = None
) -> AsyncIterator[PostgresSeat]:
    node = NodeInfo(id=name, name=name, version="1", role="node")
    opened = await PostgresSeat.open(url, seconds, node, (hints if hints is not None else []).append, Millis(1))
    try:
        yield opened
    finally:
        await opened.close()


async def test_a_lock_belongs_to_one_seat_until_released(postgres_url: str) -> None:
    many = [chat_lock(ChatId(number)) for number in range(1, 301)]
    async with seat(postgres_url) as one, seat(postgres_url, "two") as two:
        assert await one.take(many, 0) == set()
        assert await one.take(many[:200]) == set(many[:200])
        assert await two.take(many, 3) == set(many[200:203]), "in order"
        assert await one.take(many[203:], 1) == {many[203]}
        assert await two.take([]) == set()
        assert await two.take([*many[:3], KEEPER, account_lock("telegram")]) == {KEEPER, account_lock("telegram")}
        await one.let_go(many[1])
        assert await two.take(many[:3]) == {many[1]}


async def test_a_cancelled_request_leaves_no_lock(postgres_url: str) -> None:
    async with seat(postgres_url) as one, seat(postgres_url, "two") as two:
        task = asyncio.create_task(one.take(CHATS))
        await asyncio.sleep(0)  # the request was sent
        task.cancel()
        await asyncio.wait({task})
        await one.take([KEEPER])  # answered after the cancelled requests
        await one.let_go(KEEPER)
        assert await two.take(CHATS) == set(CHATS)


async def test_an_idle_seat_stays_alive(postgres_url: str) -> None:
    async with seat(postgres_url, seconds=1) as one:
        await asyncio.sleep(1.5)
        assert one.is_certain
        assert not one.lost.is_set()
        assert await one.take(CHATS) == set(CHATS)


async def test_a_session_ended_by_the_server_loses_the_seat_at_once(postgres: Postgres, postgres_url: str) -> None:
    async with seat(postgres_url) as one:
        assert await one.take(CHATS) == set(CHATS)
        seats = "SELECT pid FROM pg_stat_activity WHERE application_name = 'hermes-gateway seat one'"
        postgres.run(f"SELECT pg_terminate_backend(pid) FROM ({seats}) AS seats")
        await eventually(one.lost.is_set, "the loss shows")
        assert not one.is_certain
        with pytest.raises(SeatLost):
            await one.take(CHATS)
        async with seat(postgres_url, "two") as two:
            assert await two.take(CHATS) == set(CHATS)


async def test_a_lost_seat_cuts_the_stores_connections_first(postgres: Postgres, postgres_url: str) -> None:
    async with closed_after(PostgresStore.open(postgres_url, writers=1, readers=1)) as store:
        hanging = asyncio.ensure_future(store.read_within(60, lambda db: db.execute("SELECT pg_sleep(60)").fetchall()))
        node = NodeInfo(id="one", name="one", version="1", role="node")
        one = await open_seat(store, 5.0, lambda: node, lambda hint: None, Millis(1))
        running = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
        with connect(postgres_url) as db:
            await eventually(lambda: db.execute(running).fetchone() is not None, "the read runs")
        seats = "SELECT pg_terminate_backend(CAST(pid AS integer)) FROM nodes"
        postgres.run(seats, database=postgres_url.rpartition("/")[2])
        await one.lost.wait()
        with pytest.raises(StoreUnavailable):
            await hanging
        await one.close()


async def test_a_seat_without_answers_is_given_up(postgres: Postgres, postgres_url: str) -> None:
    async with Proxy(postgres.port) as proxy, seat(proxy.address_of(postgres_url), seconds=1) as one:
        assert await one.take(CHATS) == set(CHATS)
        proxy.hang()
        waiting = asyncio.create_task(one.take([KEEPER]))
        await eventually(lambda: not one.is_certain, "it doubts")
        await eventually(one.lost.is_set, "the loss shows")
        with pytest.raises(SeatLost):
            await waiting


async def test_a_seat_cut_off_inside_a_request_ends_in_time(postgres: Postgres, postgres_url: str) -> None:
    async with (
        Proxy(postgres.port) as proxy,
        seat(proxy.address_of(postgres_url), seconds=1) as one,
        seat(postgres_url, "two") as two,
    ):
        assert await one.take(CHATS) == set(CHATS)
        proxy.hang_within(first_message)
        await eventually(one.lost.is_set, "it is given up")
        async with asyncio.timeout(10):
            while await two.take(CHATS) != set(CHATS):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the server sends no notice


async def test_an_answer_that_arrived_while_the_loop_was_blocked_counts(postgres_url: str) -> None:
    async with seat(postgres_url, seconds=1) as one:
        asyncio.get_running_loop().remove_reader(one._socket)  # as if the loop were blocked
        assert await one.take(CHATS) == set(CHATS)


async def test_an_answer_in_two_pieces_does_not_block_the_loop(postgres: Postgres, postgres_url: str) -> None:
    relay = await asyncio.create_subprocess_exec(
        *(sys.executable, relay_program.__file__, str(postgres.port)), stdin=PIPE, stdout=PIPE
    )
    assert relay.stdin is not None
    assert relay.stdout is not None
    try:
        port = int(await relay.stdout.readline())
        async with seat(postgres_url.replace(f":{postgres.port}/", f":{port}/")) as one:
            relay.stdin.write(b"keep\n")
            taking = asyncio.create_task(one.take(CHATS))
            assert await relay.stdout.readline() == b"holds\n"
            await asyncio.sleep(0.1)  # the forwarded part has arrived
            relay.stdin.write(b"go\n")
            assert await relay.stdout.readline() == b"free\n"
            assert await taking == set(CHATS)
    finally:
        relay.kill()
        await relay.wait()


async def test_changes_are_announced_to_every_seat(postgres_url: str) -> None:
    heard: list[Hint] = []
    async with seat(postgres_url, hints=heard) as one:
        with connect(postgres_url) as db:
            db.execute("INSERT INTO previews VALUES (7, 'so far', 1)")
            for payload in (f"later {os.getpid()}", "work", "work x", "work 7 8", "work ٧", f"work {'9' * 5_000}", ""):
                db.execute(f"NOTIFY hermes_gateway, '{payload}'")
            db.execute("DELETE FROM pairings")
            learn_output_cap(db, "lab", "model", 4_096, Millis(1))
        told = {Hint(HintKind.PREVIEW, 7), Hint(HintKind.ACCESS, 0), Hint(HintKind.LEARNED, 0)}
        await eventually(lambda: set(heard) == told, "the hints")
        assert await one.take(CHATS) == set(CHATS)


async def test_a_message_stored_with_its_turn_sends_no_work_hint(postgres_url: str) -> None:
    heard: list[Hint] = []
    async with seat(postgres_url, hints=heard):
        with closing(PostgresConnection.open(postgres_url)) as db:
            chat_id = make_chat(db)
            exchange(db, chat_id, "one", "a1")
            await eventually(lambda: len(heard) == 2, "the hints of a message and of its answer")
            assert journal.start_at_once(db, received(chat_id, "two"), START) is not None
            receive(db, chat_id, "three")
        await eventually(lambda: len(heard) == 3, "one more")
        assert [hint.kind for hint in heard] == [HintKind.WORK, HintKind.OWED, HintKind.WORK]
