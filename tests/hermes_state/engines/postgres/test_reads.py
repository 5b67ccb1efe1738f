import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from hermes_state.engines.postgres.reads import MOST_TOGETHER
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.errors import StoreUnavailable
from hermes_state.store.sql import Connection, save_note, scalar
from tests.hermes_state.helpers import closed_after
from tests.postgres import Postgres

pytestmark = pytest.mark.cluster


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with closed_after(PostgresStore.open(postgres_url, readers=2)) as opened:
        yield opened


def place(db: Connection, number: int) -> tuple[int, str]:
    """Return a number with the session and transaction that read it."""
    query = "SELECT ? + 0, pg_backend_pid() || ' ' || xact_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    found: tuple[int, str] = db.execute(query, (number,)).fetchone()
    return found


async def test_simultaneous_reads_share_a_transaction(store: PostgresStore) -> None:
    numbers = range(2 * MOST_TOGETHER)
    found = await asyncio.gather(*(store.read_short(place, number) for number in numbers))
    assert [number for number, _ in found] == [*numbers]
    places = [transaction for _, transaction in found]
    assert len({*places[:MOST_TOGETHER]}) == 1
    assert len({*places}) == 2
    assert await store.read_short(place, 7) not in found, "a later one sees what was stored meanwhile"


@pytest.mark.parametrize("readers", [1, 2])
async def test_a_caller_can_read_again_immediately(postgres_url: str, readers: int) -> None:
    async with closed_after(PostgresStore.open(postgres_url, readers=readers)) as store:

        async def read_on(first: int) -> None:
            for number in range(first, first + 50):
                assert (await store.read_short(place, number))[0] == number

        await asyncio.wait_for(asyncio.gather(*(read_on(100 * reader) for reader in range(readers))), 20)


async def test_a_failing_read_does_not_affect_the_others(store: PostgresStore) -> None:
    def broken(db: Connection) -> int:
        return scalar(db, int, "SELECT 1 / ?", (0,))

    def missing(db: Connection) -> int:
        db.execute("SELECT ?", (1,)).fetchone()
        raise LookupError("nothing there")

    reads = [store.read_short(place, 1), *map(store.read_short, (broken, missing)), store.read_short(place, 2)]
    first, *errors, last = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(error) for error in errors] == [psycopg.errors.DivisionByZero, LookupError]
    assert isinstance(first, tuple)
    assert isinstance(last, tuple)
    assert (first[0], last[0]) == (1, 2)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await store.read_short(save_note, "n", "")


async def test_a_cancelled_caller_does_not_delay_others(store: PostgresStore) -> None:
    leaving, staying = (asyncio.create_task(store.read_short(place, number)) for number in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying)[0] == 1
    assert leaving.cancelled()


async def test_a_lost_connection_fails_all_reads_and_is_replaced(store: PostgresStore, postgres: Postgres) -> None:
    _, where = await store.read_short(place, 0)
    postgres.run(f"SELECT pg_terminate_backend({where.split()[0]}, 10000)")
    for error in await asyncio.gather(*(store.read_short(place, n) for n in range(3)), return_exceptions=True):
        assert isinstance(error, StoreUnavailable)
    assert (await store.read_short(place, 3))[0] == 3


async def test_closing_ends_running_reads(store: PostgresStore) -> None:
    def long(db: Connection) -> None:
        db.execute("SELECT pg_sleep(?)", (60,)).fetchone()

    reading = [asyncio.create_task(store.read_short(long)) for _ in range(2 * MOST_TOGETHER)]
    await asyncio.sleep(0.05)
    await asyncio.wait_for(store.close(), 5)
    for error in await asyncio.gather(*reading, return_exceptions=True):
        assert isinstance(error, StoreUnavailable)
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.read_short(place, 1)
