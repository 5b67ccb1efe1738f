import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

import psycopg
import pytest

from hermes_state.chats import ensure_chat
from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.engines.postgres.reads import run_pipelined
from hermes_state.sessions import start_session
from hermes_state.store.sql import nested, scalar
from hermes_state.values import ChatId, ChatKey, ChatKind, Millis
from tests.postgres import Postgres, count_trips

pytestmark = pytest.mark.cluster

Step: TypeAlias = Callable[[str, int], Callable[[], None]]
_STORE = "INSERT INTO meta (key, value) VALUES (?, ?)"


@pytest.fixture
def db(postgres_url: str) -> Iterator[PostgresConnection]:
    with contextlib.closing(PostgresConnection.open(postgres_url)) as connection:
        connection.execute("CREATE TEMPORARY TABLE meta (key text PRIMARY KEY, value text NOT NULL)")
        connection.execute("BEGIN")
        yield connection


@pytest.fixture
def told() -> list[str]:
    """Events of the functions, in order."""
    return []


@pytest.fixture
def step(db: PostgresConnection, told: list[str]) -> Step:
    """Return a function that needs this many results in sequence and records each."""

    def make(name: str, results: int) -> Callable[[], None]:
        def run() -> None:
            for number in range(results):
                db.execute(_STORE, (f"{name}{number}", ""))
                assert scalar(db, str, "SELECT ?", (f"{name}{number}",)) == f"{name}{number}"
                told.append(f"{name}{number}")

        return run

    return make


def stored(db: PostgresConnection) -> list[str]:
    return [key for (key,) in db.execute("SELECT key FROM meta ORDER BY key").fetchall()]


def test_pipelined_functions_take_the_round_trips_of_the_longest(
    db: PostgresConnection, step: Step, told: list[str]
) -> None:
    functions = [step("a", 1), step("b", 3), step("c", 2), step("d", 0)]
    assert count_trips(db.raw, lambda: run_pipelined(db, functions)) == 3
    assert told == ["a0", "b0", "c0", "b1", "c1", "b2"]
    assert stored(db) == sorted(told)


@pytest.mark.parametrize("count", [0, 1])
def test_zero_or_one_functions_run_directly(db: PostgresConnection, step: Step, told: list[str], count: int) -> None:
    run_pipelined(db, [step("a", 2)] * count)
    assert told == ["a0", "a1"][: 2 * count]


def test_a_savepoint_contains_one_function_only(db: PostgresConnection, step: Step, told: list[str]) -> None:
    def careful(name: str) -> Callable[[], None]:
        def run() -> None:
            step(name, 1)()
            with contextlib.suppress(psycopg.errors.NotNullViolation), nested(db):
                db.execute(_STORE, (f"{name}!", None))
            step(f"{name}-later", 1)()

        return run

    run_pipelined(db, [careful("a"), step("b", 3), careful("c")])
    assert told == ["a0", "b0", "c0", "b1", "b2", "a-later0", "c-later0"]
    assert stored(db) == sorted(told)


def test_sessions_of_several_chats_start_side_by_side(postgres: Postgres) -> None:
    keys = [ChatKey(platform="local", account="local", chat_ref=str(number)) for number in range(3)]
    with ExitStack() as stack:
        url = stack.enter_context(postgres.fresh_database())
        db, other = (stack.enter_context(contextlib.closing(PostgresConnection.open(url))) for _ in range(2))
        chats = [ensure_chat(db, key, ChatKind.LOCAL, None, Millis(0)) for key in keys]
        db.execute("BEGIN")

        def start(chat_id: ChatId) -> None:
            start_session(db, chat_id, Millis(0))

        run_pipelined(db, [partial(start, chat_id) for chat_id in chats[:2]])
        other.execute("SET lock_timeout = '5s'")
        start_session(other, chats[2], Millis(0))  # another writer does not wait for the open transaction
        db.execute("COMMIT")
        assert scalar(db, int, "SELECT count(*) FROM sessions WHERE lineage_id = id") == len(chats)


def test_a_swallowed_error_does_not_end_the_other_functions(
    db: PostgresConnection, step: Step, told: list[str]
) -> None:
    def fail() -> None:
        db.execute("SELECT ?", (1,)).fetchone()
        with contextlib.suppress(LookupError):
            raise LookupError

    run_pipelined(db, [fail, step("a", 3)])
    assert told == ["a0", "a1", "a2"]


def test_an_error_ends_all_functions(db: PostgresConnection, step: Step, told: list[str]) -> None:
    def fail() -> None:
        db.execute("SELECT ?", (1,)).fetchone()
        raise LookupError("mine")

    def told_at_the_end() -> None:
        try:
            step("a", 3)()
        finally:
            told.append("ended")

    with pytest.raises(LookupError, match="mine"):
        run_pipelined(db, [told_at_the_end, fail, step("b", 3)])
    assert told == ["a0", "ended"]
    db.execute("ROLLBACK")
    assert scalar(db, int, "SELECT ?", (1,)) == 1, "the connection is nobody's any more"


def test_a_server_error_reaches_all_waiting_functions(db: PostgresConnection, step: Step, told: list[str]) -> None:
    def catching(run: Callable[[], None]) -> Callable[[], None]:
        def caught() -> None:
            with pytest.raises(psycopg.errors.NotNullViolation):
                run()
            told.append("caught")

        return caught

    def fail() -> None:
        db.execute("SELECT ?", (1,)).fetchone()
        db.execute(_STORE, ("x", None))
        db.execute("SELECT ?", (2,)).fetchone()

    run_pipelined(db, [catching(step("a", 3)), catching(fail), step("b", 1)])
    assert told == ["a0", "b0", "caught", "caught"]
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        db.execute("COMMIT")


def test_a_lost_connection_reaches_all_functions_and_is_raised_once(
    db: PostgresConnection, postgres: Postgres, step: Step, told: list[str]
) -> None:
    def lose() -> None:
        postgres.run(f"SELECT pg_terminate_backend({db.raw.info.backend_pid}, 10000)")
        db.execute("SELECT ?", (1,)).fetchone()

    with pytest.raises(psycopg.OperationalError):
        run_pipelined(db, [step("a", 2), lose, step("b", 2)])
    assert told == []
    assert db.is_over
