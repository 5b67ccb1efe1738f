import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hermes_state.store.sql import nested, scalar, scalar_or_none, scalars, select, select_one
from hermes_state.values import Button, ChatKey, ChatKind, Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    kind: ChatKind
    is_open: bool
    at: Millis | None
    button: Button | None
    chat: ChatKey | None
    note: str = "none"


KEY = """'local' AS "chat.platform", 'local' AS "chat.account", 'main' AS "chat.chat_ref\""""


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
        yield connection


def test_columns_fill_fields_by_name_in_any_order(db: sqlite3.Connection) -> None:
    query = f"""SELECT {KEY}, '{{"label":"Yes","command":"/yes"}}' AS button, 7 AS at, 1 AS is_open, 'group' AS kind"""
    button, chat = Button(label="Yes", command="/yes"), ChatKey(platform="local", account="local", chat_ref="main")
    [row] = select(db, Sample, query)
    assert row == Sample(kind=ChatKind.GROUP, is_open=True, at=Millis(7), button=button, chat=chat)
    nothing = """SELECT 'direct' AS kind, 0 AS is_open, NULL AS at, NULL AS button, NULL AS "chat.platform",
    NULL AS "chat.account", NULL AS "chat.chat_ref\""""
    empty = Sample(kind=ChatKind.DIRECT, is_open=False, at=None, button=None, chat=None)
    assert select_one(db, Sample, nothing) == empty


@pytest.mark.parametrize("columns", ["1 AS unknown", "'x' AS platform, 'y' AS account"])
def test_unmatched_columns_and_fields_raise(db: sqlite3.Connection, columns: str) -> None:
    with pytest.raises(TypeError):
        select(db, ChatKey, f"SELECT {columns}")


def test_scalars_are_converted(db: sqlite3.Connection) -> None:
    db.executemany("INSERT INTO numbers VALUES (?)", [(1,), (2,)])
    assert scalars(db, Millis, "SELECT n FROM numbers ORDER BY n") == [1, 2]
    assert scalar(db, bool, "SELECT EXISTS (SELECT 1 FROM numbers WHERE n = ?)", (2,)) is True
    assert scalar_or_none(db, int, "SELECT n FROM numbers WHERE n = :n", {"n": 3}) is None
    assert scalar_or_none(db, int, "SELECT NULL") is None
    assert select_one(db, ChatKey, "SELECT 'a' AS platform, 'b' AS account, 'c' AS chat_ref WHERE 0") is None


def insert(db: sqlite3.Connection, number: int, nested_number: int, then: str) -> None:
    db.execute("INSERT INTO numbers VALUES (?)", (number,))
    with nested(db):
        db.execute("INSERT INTO numbers VALUES (?)", (nested_number,))
    db.execute(then)


def test_a_savepoint_undoes_only_its_block(db: sqlite3.Connection) -> None:
    db.execute("BEGIN")
    db.execute("INSERT INTO numbers VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError), nested(db):
        insert(db, 2, nested_number=3, then="INSERT INTO numbers VALUES (1)")
    with nested(db):
        db.execute("INSERT INTO numbers VALUES (4)")
    db.execute("COMMIT")
    assert scalars(db, int, "SELECT n FROM numbers ORDER BY n") == [1, 4]
    db.execute("BEGIN")
    with pytest.raises(sqlite3.IntegrityError), nested(db):
        insert(db, 5, nested_number=6, then="INSERT OR ROLLBACK INTO numbers VALUES (1)")
    assert not db.in_transaction
