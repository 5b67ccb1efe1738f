"""What one text for both engines must not see of PostgreSQL."""

import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from hermes_state.store.sql import scalar, scalar_or_none

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
def test_parameters_stand_where_sqlite_has_them(
    db: PostgresConnection, sql: str, parameters: object, value: object
) -> None:
    assert db.execute(sql, parameters).fetchone() == (value,)


@pytest.mark.parametrize("value", [0, 1, -1, 2**31, 2**62, True, False])
def test_every_integer_and_truth_value_is_a_bigint(db: PostgresConnection, value: int) -> None:
    assert db.execute("SELECT pg_typeof(?), ?", (value, value)).fetchone() == ("bigint", int(value))


def test_a_sum_of_integers_is_one(db: PostgresConnection) -> None:
    total = scalar(db, lambda found: found, "SELECT sum(n) FROM generate_series(1, 3) n")
    assert (total, type(total)) == (6, int)
    assert scalar(db, float, "SELECT avg(n) FROM generate_series(1, 2) n") == 1.5
    assert scalar_or_none(db, int, "SELECT sum(n) FROM generate_series(1, 0) n") is None


def test_a_text_with_a_nul_is_stored_with_a_sign_for_it(db: PostgresConnection) -> None:
    db.execute("INSERT INTO meta (key, value) VALUES (?, ?)", ("a", "one\0two"))
    assert scalar(db, str, "SELECT value FROM meta WHERE key = ?", ("a",)) == "one\N{REPLACEMENT CHARACTER}two"


def test_a_transaction_that_failed_is_still_one_and_does_not_pass_for_stored(db: PostgresConnection) -> None:
    db.execute("BEGIN")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.execute("SELECT * FROM nothing")
    assert db.in_transaction
    with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="nothing was stored"):
        db.execute("COMMIT")
    assert not db.in_transaction


def test_a_statement_runs_for_each_of_many_parameters_and_for_none(db: PostgresConnection) -> None:
    insert = "INSERT INTO meta (key, value) VALUES (?, '50 %')"
    db.executemany(insert, ((key,) for key in ("a", "b")))
    db.executemany(insert, [])
    assert scalar(db, int, "SELECT count(*) FROM meta WHERE value = '50 %'") == 2


def test_json_is_read_as_sqlite_reads_it(db: PostgresConnection) -> None:
    document = '{"text": "a \\" b", "number": 5, "empty": null}'
    read = [
        scalar_or_none(db, str, "SELECT json_extract(?, ?)", (document, f"$.{name}")) for name in ("text", "number")
    ]
    assert read == ['a " b', "5"]
    assert scalar_or_none(db, str, "SELECT json_extract(?, '$.empty')", (document,)) is None
    assert scalar_or_none(db, str, "SELECT json_extract(?, '$.missing')", (document,)) is None
