import asyncio
import threading
import time
from collections.abc import AsyncIterator

import psycopg
import pytest

from hermes_state.engines.postgres.nodes import is_one_session
from hermes_state.engines.postgres.offline import open_target
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.errors import LockUnavailable, StoreUnavailable
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note, save_note, scalar
from hermes_state.store.writer import READ_SECONDS
from tests.cluster.proxy import Proxy
from tests.hermes_state.helpers import closed_after, connected_nowhere, locked_by_another_process, noting
from tests.postgres import PASSWORD, Postgres

pytestmark = pytest.mark.cluster

_END_OTHERS = """SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = '{}' AND application_name LIKE 'hermes-gateway%'"""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with closed_after(PostgresStore.open(postgres_url, readers=1)) as opened:
        yield opened


def count_notes(db: Connection) -> int:
    return scalar(db, int, "SELECT count(*) FROM meta WHERE key LIKE 'n%'")


async def test_written_data_survives_a_close_and_cut_connections(store: PostgresStore) -> None:
    await store.write(save_note, "n", "1")
    assert await store.read(load_note, "n") == "1"
    store.break_off()
    assert await store.read(load_note, "n") == "1"
    await asyncio.gather(*(store.write(save_note, f"n{number}", "again") for number in range(4)))
    assert await store.read(count_notes) == 5
    await store.close()
    async with closed_after(PostgresStore.open(store.url)) as again:
        assert await again.read_short(load_note, "n") == "1"


async def test_parallel_writes_get_their_results_and_a_failing_one_undoes_only_itself(store: PostgresStore) -> None:
    def fail(db: Connection, key: str) -> None:
        save_note(db, key, "half")
        raise ValueError(key)

    def reject(db: Connection, key: str) -> None:
        save_note(db, key, "half")
        db.execute("INSERT INTO meta (key, value) VALUES (?, NULL)", (key,))

    def write(number: int) -> asyncio.Future[None]:
        fn = {3: fail, 4: reject}.get(number)
        done = store.write(fn, f"n{number}") if fn else store.write(save_note, f"n{number}", "whole")
        return asyncio.ensure_future(done)

    outcomes = await asyncio.gather(*map(write, range(300)), return_exceptions=True)
    assert [type(one) for one in outcomes if one is not None] == [ValueError, psycopg.errors.NotNullViolation]
    assert await store.read(count_notes) == 298


async def test_a_deferred_constraint_fails_only_its_own_function(store: PostgresStore) -> None:
    writes = map(store.write, (noting("n1"), connected_nowhere, noting("n2")))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(one) for one in outcomes] == [type(None), psycopg.errors.ForeignKeyViolation, type(None)]
    assert await store.read(count_notes) == 2


async def test_deadlocked_writers_are_retried(store: PostgresStore) -> None:
    both, begun = asyncio.Barrier(2), asyncio.Event()
    loop = asyncio.get_running_loop()
    runs: list[str] = []

    def cross(db: Connection, first: str, second: str) -> None:
        runs.append(first)
        loop.call_soon_threadsafe(begun.set)
        save_note(db, first, "")
        load_note(db, first)  # an unread result would wait for the other statement
        if len(runs) < 3:  # the third run is the aborted one
            asyncio.run_coroutine_threadsafe(both.wait(), loop).result(10)
        save_note(db, second, "")

    @locks("one")
    def one(db: Connection) -> None:
        cross(db, "n1", "n2")

    @locks("two")
    def two(db: Connection) -> None:
        cross(db, "n2", "n1")

    first = asyncio.ensure_future(store.write(one))
    await begun.wait()  # otherwise they would share a batch
    await asyncio.gather(first, store.write(two))
    assert len(runs) >= 3  # the retried function may come first and block the other again
    assert await store.read(count_notes) == 2


async def write_side_by_side(store: PostgresStore) -> None:
    """Start two writes that wait for each other, so that each has a writer."""
    both = threading.Barrier(2, timeout=10)

    @locks("one")
    def one(db: Connection) -> None:
        both.wait()

    @locks("two")
    def two(db: Connection) -> None:
        both.wait()

    await asyncio.gather(store.write(one), store.write(two))


async def test_a_lost_connection_is_reported_and_replaced(postgres_url: str, postgres: Postgres) -> None:
    async with closed_after(PostgresStore.open(postgres_url, writers=1, readers=1)) as store:
        await store.write(save_note, "n1", "")
        await store.read(count_notes)
        postgres.run(_END_OTHERS.format(store.url.rpartition("/")[2]))
        with pytest.raises(StoreUnavailable, match=r"PostgreSQL database \w+ at 127\.0\.0\.1"):
            await store.write(save_note, "n2", "")
        assert store.trouble is not None
        assert PASSWORD not in store.trouble
        await store.write_with_retry(save_note, "n2", "")
        assert store.trouble is None
        with pytest.raises(StoreUnavailable):
            await store.read(count_notes)
        assert await store.read(count_notes) == 2


async def test_a_write_waits_for_locks_at_most_its_limit(postgres_url: str) -> None:
    opening = PostgresStore.open(postgres_url, writers=1, readers=1, busy_seconds=0.2)
    async with closed_after(opening) as store:
        with locked_by_another_process(postgres_url, 60):
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                await store.write(save_note, "n1", "")
            assert await store.read(count_notes) == 0
        await store.write(save_note, "n1", "")


async def test_writes_fail_while_a_copy_holds_the_database(
    postgres_url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_state.engines.postgres.store.TAKEOVER_SECONDS", 0.1)
    async with closed_after(PostgresStore.open(postgres_url, writers=1, readers=1)) as gateway:
        postgres.run(_END_OTHERS.format(gateway.url.rpartition("/")[2]))
        with open_target(postgres_url):
            for _ in range(2):  # the first write notices the lost connection
                with pytest.raises(StoreUnavailable):
                    await gateway.write(save_note, "n", "")
            assert gateway.trouble is not None
            assert "being copied" in gateway.trouble
        await gateway.write(save_note, "n", "")


@pytest.mark.parametrize("order", ["ASC", "DESC"])
async def test_a_copy_cannot_begin_while_a_writer_is_connected(
    store: PostgresStore, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr("hermes_state.engines.postgres.store.TAKEOVER_SECONDS", 0.1)
    await write_side_by_side(store)
    writer = f"""SELECT pid FROM pg_stat_activity
        WHERE datname = '{store.url.rpartition("/")[2]}' AND query = 'COMMIT' ORDER BY backend_start {order} LIMIT 1"""
    postgres.run(f"SELECT pg_terminate_backend(pid, 5000) FROM ({writer}) AS writer")
    with pytest.raises(LockUnavailable), open_target(store.url):
        pass


async def test_each_read_has_its_own_time_limit(store: PostgresStore) -> None:
    def limit(db: Connection) -> str:
        return scalar(db, str, "SELECT current_setting('statement_timeout')")

    with pytest.raises(StoreUnavailable, match="statement timeout"):
        await store.read_within(0.05, lambda db: db.execute("SELECT pg_sleep(20)").fetchall())
    bounds = [await store.read_within(seconds, limit) for seconds in (READ_SECONDS, 0.25, READ_SECONDS)]
    assert bounds == ["5s", "250ms", "5s"]
    assert await store.read(is_one_session)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await store.read(save_note, "n", "")
    assert await store.read(count_notes) == 0


async def test_short_statements_together_have_a_time_limit(store: PostgresStore) -> None:
    done: list[float] = []

    def slow(db: Connection) -> None:
        for _ in range(100):
            db.execute("SELECT pg_sleep(?)", (0.05,)).fetchone()
            done.append(time.monotonic())

    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.read_within(0.4, slow)
    assert done
    assert done[-1] - began < 0.8


async def test_a_late_statement_has_less_time(store: PostgresStore) -> None:
    def limits(db: Connection) -> list[str]:
        found = []
        for seconds in (0.0, 0.3):
            db.execute("SELECT pg_sleep(?)", (seconds,)).fetchone()
            found.append(scalar(db, str, "SELECT current_setting('statement_timeout')"))
        return found

    first, later = await store.read_within(0.5, limits)
    assert first == "500ms"
    assert 0 < int(later.removesuffix("ms")) <= 200


async def test_a_connection_of_a_cancelled_caller_is_still_busy(postgres_url: str) -> None:
    async with closed_after(PostgresStore.open(postgres_url, readers=2)) as store:
        reading = asyncio.create_task(store.read(lambda db: db.execute("SELECT pg_sleep(?)", (30,)).fetchall()))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert store.readers.busy == 1
        for _ in range(4):
            assert await asyncio.wait_for(store.read(count_notes), 4) == 0


async def test_session_defaults_of_the_role_break_no_promise(postgres: Postgres, postgres_url: str) -> None:
    @locks("isolation")
    def isolation(db: Connection) -> str:
        return scalar(db, str, "SELECT current_setting('transaction_isolation')")

    role = f"ALTER ROLE hermes IN DATABASE {postgres_url.rpartition('/')[2]}"
    defaults = ("default_transaction_isolation = 'repeatable read'", "idle_session_timeout = 100")
    postgres.run(*(f"{role} SET {default}" for default in defaults))
    try:
        async with closed_after(PostgresStore.open(postgres_url, writers=1, readers=1)) as store:
            assert await store.write(isolation) == "read committed"
            assert await store.read(count_notes) == 0
            await asyncio.sleep(0.3)  # longer than the role's idle limit
            await store.write(save_note, "n", "")
            assert await store.read(count_notes) == 1
    finally:
        postgres.run(f"{role} RESET ALL")


async def test_gateways_share_a_database_unless_held_exclusively(store: PostgresStore) -> None:
    async with closed_after(PostgresStore.open(store.url)) as other:
        await asyncio.gather(store.write(save_note, "n", ""), other.write(save_note, "n2", ""))
        assert await other.read(count_notes) == 2
        with pytest.raises(LockUnavailable, match="another gateway"), open_target(store.url):
            pass


async def test_closing_ends_reads_and_stores_queued_writes(store: PostgresStore) -> None:
    reading = asyncio.ensure_future(store.read_within(60, lambda db: db.execute("SELECT pg_sleep(60)").fetchall()))
    await asyncio.sleep(0)
    writing = asyncio.ensure_future(store.write(save_note, "n", ""))
    await asyncio.sleep(0)
    await store.close()
    await writing
    with pytest.raises(StoreUnavailable):
        await reading
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.write(save_note, "n", "")


async def test_closing_does_not_wait_for_a_silent_server(
    postgres_url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_state.engines.postgres.store.CLOSE_SECONDS", 0.2)
    async with Proxy(postgres.port) as proxy, asyncio.timeout(60):
        store = await PostgresStore.open(proxy.address_of(postgres_url), writers=1, readers=1)
        await asyncio.gather(store.write(save_note, "n1", ""), store.read(count_notes))
        proxy.hang()
        work = [store.write(save_note, f"n{number}", "") for number in range(300)]
        asked = [asyncio.ensure_future(one) for one in (*work, store.read(count_notes))]
        await asyncio.sleep(0)
        await store.close()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in outcomes} == {StoreUnavailable}
