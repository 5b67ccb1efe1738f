import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.errors import StoreBroken, StoreUnavailable
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note, save_note, scalar
from tests.hermes_state.helpers import closed_after
from tests.postgres import Postgres

pytestmark = pytest.mark.cluster

CODES = sorted(
    {one.sqlstate for one in vars(psycopg.errors).values() if isinstance(getattr(one, "sqlstate", None), str)}
)
SERVERS = ("08", "28", "40", "53", "55", "57", "58", "72", "F0")
"""Error classes that fail the whole batch."""
LIKE_THEM = ("0A000", "25006", "25P03", "25P04", "26000", "42P05")
OWN = (
    *("02", "03", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23", "24", "25", "26", "27", "2B"),
    *("2D", "2F", "34", "38", "39", "3B", "3D", "3F", "42", "44", "54", "HV", "P0", "XX"),
)
"""Error classes that only fail the function."""
TOLD = {"42501": StoreUnavailable, "XX001": StoreBroken, "XX002": StoreBroken}
"""Errors of the function that its caller cannot handle."""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with closed_after(PostgresStore.open(postgres_url, writers=1, readers=1)) as opened:
        yield opened


def fail_with(db: Connection, code: str) -> None:
    save_note(db, f"n{code}", "half")
    db.execute(f"DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '{code}'; END $$")


def test_every_error_class_is_classified() -> None:
    assert {code[:2] for code in CODES} == {*SERVERS, *OWN}
    assert len(CODES) > 250


async def test_only_server_errors_fail_the_whole_batch(store: PostgresStore) -> None:
    wrong = []
    for code in CODES:
        failing, beside = await asyncio.gather(
            store.write(fail_with, code), store.write(save_note, f"beside{code}", "whole"), return_exceptions=True
        )
        is_trouble = code[:2] in SERVERS or code in LIKE_THEM
        expected = StoreUnavailable if is_trouble else TOLD.get(code, psycopg.Error)
        is_told = type(failing) is expected if code in TOLD or is_trouble else isinstance(failing, psycopg.Error)
        if not is_told or type(beside) is not (StoreUnavailable if is_trouble else type(None)):
            wrong.append((code, failing, beside))
    assert wrong == []
    assert await store.read(lambda db: scalar(db, int, "SELECT count(*) FROM meta WHERE value = 'half'")) == 0


@pytest.mark.parametrize("code", LIKE_THEM)
async def test_errors_that_last_with_the_session_end_it(store: PostgresStore, code: str) -> None:
    @locks()
    def pid(db: Connection) -> int:
        return scalar(db, int, "SELECT pg_backend_pid()")

    before = await store.write(pid)
    with pytest.raises(StoreUnavailable):
        await store.write(fail_with, code)
    # the server itself ends the session for these
    assert (await store.write(pid) == before) == (code in ("25P03", "25P04"))


async def test_a_session_with_a_read_only_server_is_replaced(store: PostgresStore, postgres: Postgres) -> None:
    database = store.url.rpartition("/")[2]
    settings = f"ALTER ROLE hermes IN DATABASE {database}"
    postgres.run(f"{settings} SET default_transaction_read_only = on")
    try:
        store.break_off()  # like a failover: the next session has a read-only server
        with pytest.raises(StoreUnavailable, match="read-only transaction"):
            await store.write(save_note, "n", "1")
        assert store.trouble is not None
    finally:
        postgres.run(f"{settings} RESET ALL")
    await store.write(save_note, "n", "2")
    assert await store.read(load_note, "n") == "2"
    assert store.trouble is None
