"""Differences of PostgreSQL that shared SQL must not notice."""

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.store.sql import nested, scalar, scalar_or_none
from tests.cluster.proxy import Proxy
from tests.postgres import Postgres, connect, count_trips

pytestmark = pytest.mark.cluster


@pytest.fixture
def db(postgres_url: str) -> Iterator[PostgresConnection]:
    with contextlib.closing(PostgresConnection.open(postgres_url)) as connection:
        yield connection


@pytest.mark.parametrize(
    ("sql", "parameters", "value"),
    [
        ("SELECT ? || '?' || ':name' || '%s'", ("a",), "a?:name%s"),
        ("SELECT :a_1 || '100 %' || :b", {"a_1": "x", "b": "y"}, "x100 %y"),
        ("SELECT 'it''s ?' || ? -- what? 5 % of :all\n", ("!",), "it's ?!"),
        ("SELECT 7 % ?", (4,), 3),
        ('SELECT a."b:c" FROM (SELECT ? AS "b:c") a', ("d",), "d"),
        ("SELECT '%' || '?'", (), "%?"),
    ],
)
def test_parameters_are_written_as_in_sqlite(
    db: PostgresConnection, sql: str, parameters: object, value: object
) -> None:
    assert db.execute(sql, parameters).fetchone() == (value,)


@pytest.mark.parametrize("value", [0, 1, -1, 2**31, 2**62, True, False])
def test_integers_and_booleans_are_bigints(db: PostgresConnection, value: int) -> None:
    assert db.execute("SELECT pg_typeof(?), ?", (value, value)).fetchone() == ("bigint", int(value))


def test_a_sum_of_integers_is_an_integer(db: PostgresConnection) -> None:
    total = scalar(db, lambda found: found, "SELECT sum(n) FROM generate_series(1, 3) n")
    assert (total, type(total)) == (6, int)
    assert scalar(db, float, "SELECT avg(n) FROM generate_series(1, 2) n") == 1.5
    assert scalar_or_none(db, int, "SELECT sum(n) FROM generate_series(1, 0) n") is None


def test_nul_in_a_text_is_replaced(db: PostgresConnection) -> None:
    db.execute("INSERT INTO meta (key, value) VALUES (?, ?)", ("a", "one\0two"))
    assert scalar(db, str, "SELECT value FROM meta WHERE key = ?", ("a",)) == "one\N{REPLACEMENT CHARACTER}two"


def test_committing_a_failed_transaction_raises(db: PostgresConnection) -> None:
    db.execute("BEGIN")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.execute("SELECT * FROM nothing").fetchall()
    assert db.in_transaction
    with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="nothing was stored"):
        db.execute("COMMIT")
    assert not db.in_transaction


def test_executemany_runs_once_per_parameter_set(db: PostgresConnection) -> None:
    insert = "INSERT INTO meta (key, value) VALUES (?, '50 %')"
    db.executemany(insert, ((key,) for key in ("a", "b")))
    db.executemany(insert, [])
    assert scalar(db, int, "SELECT count(*) FROM meta WHERE value = '50 %'") == 2


def test_statements_without_a_read_result_share_a_round_trip(db: PostgresConnection) -> None:
    def work() -> None:
        db.execute("BEGIN")
        db.executemany("INSERT INTO meta (key, value) VALUES (?, '')", [("a",), ("b",)])
        assert scalar(db, int, "SELECT count(*) FROM meta WHERE key IN (?, 'b')", ("a",)) == 2
        db.execute("UPDATE meta SET value = ? WHERE key = ?", ("x", "a"))
        db.execute("COMMIT")

    assert count_trips(db.raw, work) == 2


def test_an_unread_error_is_raised_with_the_next_result_or_the_commit(db: PostgresConnection) -> None:
    db.execute("BEGIN")
    db.execute("INSERT INTO meta (key, value) VALUES (?, NULL)", ("a",))
    later = db.execute("SELECT ?", (1,))
    with pytest.raises(psycopg.errors.NotNullViolation):
        scalar(db, int, "SELECT 2")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        later.fetchall()
    db.execute("ROLLBACK")
    db.execute("BEGIN")
    for _ in range(2):
        db.execute("INSERT INTO meta (key, value) VALUES (?, '')", ("a",))
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute("COMMIT")
    assert db.in_transaction
    db.execute("SELECT setval('chats_id_seq', ?)", (7,))
    db.execute("ROLLBACK")
    assert not db.in_transaction
    assert scalar(db, int, "SELECT count(*) FROM meta WHERE key = 'a'") == 0
    db.execute("BEGIN")
    db.execute("SELECT setval('chats_id_seq', ?)", (7,))
    db.execute("ROLLBACK")
    assert scalar(db, int, "SELECT last_value FROM chats_id_seq") == 1, "it never ran"


def test_an_error_stays_in_the_savepoint_of_its_statement(db: PostgresConnection) -> None:
    insert = "INSERT INTO meta (key, value) VALUES (?, ?)"
    db.execute("BEGIN")
    db.execute(insert, ("a", ""))
    with pytest.raises(psycopg.errors.NotNullViolation), nested(db):
        db.execute(insert, ("b", None))
    with nested(db):
        db.execute(insert, ("c", ""))
    db.execute("COMMIT")
    assert scalar(db, int, "SELECT count(*) FROM meta WHERE key IN ('a', 'b', 'c')") == 2


_NEXT: dict[str, Callable[[PostgresConnection], object]] = {
    "with parameters": lambda db: scalar(db, int, "SELECT ?", (3,)),
    "without": lambda db: scalar(db, int, "SELECT 3"),
    "a transaction": lambda db: db.execute("BEGIN") and scalar(db, int, "SELECT ?", (3,)),
    "nothing to end": lambda db: db.roll_back_soon() or scalar(db, int, "SELECT ?", (3,)),
}


@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("next_one", _NEXT.values(), ids=_NEXT)
def test_a_read_only_transaction_ends_without_a_wait(
    db: PostgresConnection, postgres: Postgres, next_one: Callable[[PostgresConnection], object], has_failed: bool
) -> None:
    _begin_to_read(db)
    if has_failed:
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.execute("SELECT 1 FROM nothing")
    assert count_trips(db.raw, db.roll_back_soon) == 1
    assert not db.in_transaction
    query = "SELECT state <> 'idle' FROM pg_stat_activity WHERE pid = ?"
    with connect(postgres.url("postgres", "postgres")) as other:
        while scalar(other, bool, query, (db.raw.info.backend_pid,)):
            time.sleep(0.01)  # no event signals the end of a server session
    assert next_one(db) == 3


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
def test_a_connection_lost_at_any_point_of_a_transaction_is_closed(
    db: PostgresConnection, postgres: Postgres, ending: str
) -> None:
    _begin_to_read(db)
    if ending == "ROLLBACK":
        db.roll_back_soon()
    postgres.run(f"SELECT pg_terminate_backend({db.raw.info.backend_pid}, 10000)")
    if ending == "COMMIT":
        db.execute("SELECT ?", (2,))
    last = "SELECT 2" if ending == "ROLLBACK" else ending
    with pytest.raises(psycopg.OperationalError):
        db.execute(last)
    assert db.is_over
    assert db.raw.closed
    assert not db.in_transaction


def _begin_to_read(db: PostgresConnection) -> None:
    db.execute("BEGIN")
    assert scalar(db, int, "SELECT ?", (1,)) == 1


def test_evicted_and_failed_statements_are_prepared_again(
    db: PostgresConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_state.engines.postgres.connection._PREPARED", 2)
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.execute("SELECT ? FROM nothing", (0,))
        db.execute("BEGIN")
        db.execute("SELECT ? FROM nothing", (0,))  # evicted by the following statements before its failure is known
        db.execute("SELECT ? + 10", (0,))
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.execute("SELECT ? + 11", (0,)).fetchall()
        db.execute("ROLLBACK")
        db.execute("BEGIN")
        for number in range(4):
            assert scalar(db, int, f"SELECT ? + {number}", (1,)) == number + 1
        db.execute("COMMIT")


def test_large_parameters_and_results_do_not_deadlock(db: PostgresConnection) -> None:
    text = "x" * 1_000_000
    db.execute("BEGIN")
    echoes = [db.execute("SELECT CAST(? AS text)", (text,)) for _ in range(20)]
    assert all(echo.fetchone() == (text,) for echo in echoes)
    db.execute("ROLLBACK")


def test_json_is_read_as_sqlite_reads_it(db: PostgresConnection) -> None:
    document = '{"text": "a \\" b", "number": 5, "empty": null}'
    paths = ("$.text", "$.number", "$.empty", "$.missing")
    read = [scalar_or_none(db, str, "SELECT json_extract(?, ?)", (document, path)) for path in paths]
    assert read == ['a " b', "5", None, None]


@pytest.mark.parametrize(("is_ended", "is_cut"), [(True, False), (False, True), (True, True)])
def test_a_lost_connection_counts_as_a_server_error(
    db: PostgresConnection, postgres: Postgres, is_ended: bool, is_cut: bool
) -> None:
    db.execute("SELECT ?", (1,)).fetchone()
    if is_ended:
        postgres.run(f"SELECT pg_terminate_backend({db.raw.info.backend_pid}, 5000)")
    if is_cut:
        with socket.socket(fileno=os.dup(db.raw.pgconn.socket)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    for query, parameters in (("SELECT ?", (2,)), ("SELECT 1", ())):
        with pytest.raises(psycopg.OperationalError):
            db.execute(query, parameters).fetchone()


@pytest.mark.parametrize(("query", "parameters"), [("SELECT 1", ()), ("SELECT ?", (1,))])
async def test_a_silent_server_is_given_up(
    postgres_url: str, postgres: Postgres, query: str, parameters: tuple[int, ...]
) -> None:
    async with Proxy(postgres.port) as proxy:
        opening = asyncio.to_thread(PostgresConnection.open, proxy.address_of(postgres_url))
        with contextlib.closing(await opening) as db:
            db.silence_seconds = 0.2
            proxy.hang()
            with pytest.raises(psycopg.OperationalError, match=r"has not answered for 0\.2 seconds"):
                await asyncio.to_thread(db.execute, query, parameters)
            assert db.is_over


def test_connecting_without_a_free_descriptor_fails_cleanly(postgres_url: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest:
        first = lowest.fileno()
    found = set()
    try:
        for count in range(first, first + 12):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, limits[1]))
            try:
                PostgresConnection.open(postgres_url).close()
            except psycopg.OperationalError as error:
                found.add(type(error))
            else:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == {psycopg.OperationalError}
