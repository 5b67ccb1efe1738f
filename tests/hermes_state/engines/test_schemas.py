import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hermes_state.engines.sqlite.migrate import migrate
from hermes_state.store.sql import scalars
from tests.hermes_state.helpers import opened_as_ours
from tests.postgres import PlainConnection, connect

pytestmark = pytest.mark.cluster

OWN = ("messages_fts", "message_words", "nodes")
"""Prefixes of tables that only one engine has, for full text and for nodes."""
HASHED = re.compile(r"hashtextextended\((\w+), .*\)")
"""Column that PostgreSQL indexes by its hash, because only SQLite indexes texts of any length."""
NAMED = {"tool_runs_call", "approvals_call"}
"""Indexes over hashes. SQLite has unnamed constraints instead."""
_TYPES = {"INTEGER": "bigint", "TEXT": "text"}
_NOT_COMPARED = {"any", "array", "bigint", "check", "in", "integer", "text", "where"}  # equivalent spellings


@dataclass(frozen=True, kw_only=True)
class Table:
    columns: list[tuple[str, str, bool, str]]
    """Name, type in PostgreSQL, not null, default; in order."""
    primary_key: list[str]
    indexes: set[tuple[str, bool, tuple[str, ...], tuple[str, ...]]]
    """Name (none if a constraint created it), unique, columns, words of the condition."""
    foreign_keys: set[tuple[str, str, str, str]]
    """Column, table and column it refers to, ON DELETE."""
    deferred: int
    checks: list[tuple[str, ...]]
    """Words of each constraint."""


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with opened_as_ours(tmp_path / "state.db") as db:
        migrate(db, tmp_path / "state.db")
        yield db


@pytest.fixture
def postgresql(postgres_url: str) -> Iterator[PlainConnection]:
    with connect(postgres_url) as db:
        yield db


def test_both_engines_have_the_same_tables(sqlite: sqlite3.Connection, postgresql: PlainConnection) -> None:
    ours, theirs = sqlite_tables(sqlite), postgres_tables(postgresql)
    assert ours.keys() == theirs.keys()
    for name, table in ours.items():
        assert theirs[name] == table, name


def test_text_is_compared_byte_by_byte_in_any_locale(postgresql: PlainConnection) -> None:
    other = """SELECT table_name || '.' || column_name FROM information_schema.columns
        WHERE table_schema = 'public' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"""
    assert scalars(postgresql, str, other) == []


def test_every_id_is_generated_by_the_database(postgresql: PlainConnection) -> None:
    given = "SELECT table_name FROM information_schema.columns WHERE table_schema = 'public' AND is_identity = 'YES'"
    with_id = {name for name, table in postgres_tables(postgresql).items() if table.primary_key == ["id"]}
    assert set(scalars(postgresql, str, given)) == with_id


def sqlite_tables(db: sqlite3.Connection) -> dict[str, Table]:
    made = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()
    return {name: _sqlite_table(db, name, sql) for name, sql in made if not name.startswith(OWN)}


def _sqlite_table(db: sqlite3.Connection, name: str, sql: str) -> Table:
    sql = re.sub(r"--[^\n]*", "", sql)
    columns = db.execute("SELECT name, type, [notnull], dflt_value, pk FROM pragma_table_info(?)", (name,)).fetchall()
    indexes = set()
    for index, is_unique in db.execute(
        "SELECT name, [unique] FROM pragma_index_list(?) WHERE origin <> 'pk'", (name,)
    ).fetchall():
        over = db.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (index,)).fetchall()
        (made,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,)).fetchone()
        condition = (made or "").partition(" WHERE ")[2]
        indexes.add((index if made else "", bool(is_unique), tuple(column for (column,) in over), words(condition)))
    keys = 'SELECT "from", "table", "to", on_delete FROM pragma_foreign_key_list(?)'
    return Table(
        columns=[
            (c, _TYPES[kind], bool(not_null or pk), default_of(default)) for c, kind, not_null, default, pk in columns
        ],
        primary_key=[c for c, *_, pk in sorted(columns, key=lambda column: int(column[4])) if pk],
        indexes=indexes,
        foreign_keys=set(db.execute(keys, (name,)).fetchall()),
        deferred=sql.count("DEFERRABLE INITIALLY DEFERRED"),
        checks=sorted(words(check) for check in re.findall(r"CHECK (\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))", sql)),
    )


def postgres_tables(db: PlainConnection) -> dict[str, Table]:
    names = scalars(db, str, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {name: _postgres_table(db, name) for name in names if not name.startswith(OWN)}


def _postgres_table(db: PlainConnection, name: str) -> Table:
    columns = """SELECT column_name, data_type, is_nullable = 'NO', column_default FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name = ? ORDER BY ordinal_position"""
    indexes = """SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid AND contype = 'u')
          THEN '' ELSE relname END, indisunique, indisprimary, pg_get_expr(indpred, indrelid),
          ARRAY(SELECT pg_get_indexdef(indexrelid, n, true) FROM generate_series(1, indnkeyatts) AS n)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = CAST(? AS regclass)"""
    keys = """SELECT a.attname, b.relname, c.attname,
          CASE confdeltype WHEN 'a' THEN 'NO ACTION' WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' END
        FROM pg_constraint JOIN pg_attribute a ON a.attrelid = conrelid AND a.attnum = conkey[1]
          JOIN pg_attribute c ON c.attrelid = confrelid AND c.attnum = confkey[1] JOIN pg_class b ON b.oid = confrelid
        WHERE contype = 'f' AND conrelid = CAST(? AS regclass)"""
    constraints = "FROM pg_constraint WHERE conrelid = CAST(? AS regclass) AND"
    checks = scalars(db, str, f"SELECT pg_get_constraintdef(oid) {constraints} contype = 'c'", (name,))
    found = db.execute(indexes, (name,)).fetchall()
    return Table(
        columns=[
            (column, kind, not_null, default_of(default))
            for column, kind, not_null, default in db.execute(columns, (name,)).fetchall()
        ],
        primary_key=next(over for *_, is_primary, _, over in found if is_primary),
        indexes={
            ("" if index in NAMED else index, is_unique, columns_of(over), words(condition or ""))
            for index, is_unique, is_primary, condition, over in found
            if not is_primary
        },
        foreign_keys=set(db.execute(keys, (name,)).fetchall()),
        deferred=sum(scalars(db, int, f"SELECT condeferred {constraints} contype = 'f'", (name,))),
        checks=sorted(words(check.removesuffix(" NOT VALID")) for check in checks),  # it applies to new rows
    )


def columns_of(over: list[str]) -> tuple[str, ...]:
    """Return the columns of an index, plain or hashed."""
    return tuple(HASHED.sub(r"\1", one) for one in over)


def words(condition: str) -> tuple[str, ...]:
    """Return the names, values and comparisons of a condition, independent of spelling."""
    found = re.findall(r"'[^']*'|\w+|<>|[<>]=?", condition)
    return tuple(word for word in found if word.lower() not in _NOT_COMPARED)


def default_of(default: str | None) -> str:
    """Return a default without quotes and casts."""
    return re.sub(r"::\w+|'", "", default or "")
