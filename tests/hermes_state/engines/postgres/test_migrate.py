import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from msgspec.structs import replace

from hermes_state.chats import load_chat
from hermes_state.engines.postgres.migrate import (
    FIRST,
    READABLE_FROM,
    Server,
    check_server,
    migrate,
    shipped_migrations,
)
from hermes_state.engines.postgres.store import PostgresStore
from hermes_state.engines.sqlite.migrate import shipped_migrations as sqlite_migrations
from hermes_state.errors import DatabaseRejected, StoreUnavailable
from hermes_state.store.migrations import Migration
from hermes_state.store.sql import load_note, save_note, scalar, scalars
from tests.hermes_state.helpers import closed_after
from tests.hermes_state.rows import make_chat
from tests.postgres import PASSWORD, PlainConnection, Postgres, connect

SHIPPED = shipped_migrations()
NEXT = SHIPPED[-1].number + 1
SERVER = Server(
    database="hermes",
    role="hermes",
    schema="public",
    version=140000,
    encoding="UTF8",
    is_read_only=False,
    may_create=True,
)
cluster = pytest.mark.cluster


def further(sql: str) -> list[Migration]:
    return [*SHIPPED, Migration(number=NEXT, name=f"{NEXT:04d}_further.sql", sql=sql)]


def tables(db: PlainConnection) -> list[str]:
    return scalars(db, str, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")


@pytest.fixture
def empty(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture
def db(empty: str) -> Iterator[PlainConnection]:
    with connect(empty) as connection:
        yield connection


def test_migrations_above_the_first_have_the_numbers_of_sqlite_s() -> None:
    both = [
        [migration.number for migration in shipped if migration.number >= FIRST]
        for shipped in (SHIPPED, sqlite_migrations())
    ]
    assert both[0] == both[1]


@cluster
def test_every_migration_runs_once(db: PlainConnection) -> None:
    migrate(db)
    before = content(db)
    assert {"messages", "inbox", "outbox", "turns"} <= set(tables(db))
    migrate(db)
    assert content(db) == before
    assert not db.in_transaction
    save_note(db, "n", "from before")
    for _ in range(2):
        migrate(db, further("CREATE TABLE further (id bigint); INSERT INTO further VALUES (7);"))
    assert scalars(db, int, "SELECT id FROM further") == [7]
    assert load_note(db, "n") == "from before"


def content(db: PlainConnection) -> list[str]:
    """Return the notes and the names of the tables."""
    return [*scalars(db, str, "SELECT key || value FROM meta ORDER BY key"), *tables(db)]


@cluster
@pytest.mark.parametrize(
    "broken", ["CREATE TABLE further (id bigint); INSERT INTO nowhere VALUES (1);", "CREATE TABLE a ("]
)
def test_a_migration_that_fails_leaves_the_version_before_it(db: PlainConnection, broken: str) -> None:
    migrate(db)
    before = content(db)
    with pytest.raises((psycopg.Error, StoreUnavailable)):
        migrate(db, further(broken))
    assert not db.in_transaction
    assert content(db) == before
    migrate(db, further("CREATE TABLE further (id bigint);"))
    assert "further" in tables(db)


@cluster
def test_nodes_that_start_together_migrate_once(empty: str) -> None:
    nodes = 4
    at_once = threading.Barrier(nodes)

    def start(_: int) -> list[str]:
        with connect(empty) as node:
            at_once.wait()
            migrate(node)
            return tables(node)

    with ThreadPoolExecutor(nodes) as pool:
        seen = list(pool.map(start, range(nodes)))
    assert seen == [seen[0]] * nodes
    assert "messages" in seen[0]


@cluster
def test_waiting_too_long_for_another_node_is_an_error(db: PlainConnection, empty: str) -> None:
    with connect(empty) as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_advisory_xact_lock(1212634969, 0)")
        with pytest.raises(StoreUnavailable, match=r"another node or a query locked it for 0\.01 seconds"):
            migrate(db, lock_seconds=0.01)
        assert not db.in_transaction
        other.execute("COMMIT")
        migrate(db)


@cluster
@pytest.mark.parametrize("is_breaking", [False, True])
def test_only_a_schema_one_version_ahead_is_used_as_it_is_unless_it_is_breaking(
    db: PlainConnection, is_breaking: bool
) -> None:
    note = f"INSERT INTO meta (key, value) VALUES ('{READABLE_FROM}', '{NEXT}')"
    breaking = f"{note} ON CONFLICT (key) DO UPDATE SET value = excluded.value;"
    one_ahead = further(breaking if is_breaking else "CREATE TABLE further (id bigint);")
    for _ in range(2):
        migrate(db, one_ahead)
    if not is_breaking:
        before = everything(db)
        migrate(db)
        assert everything(db) == before
        assert load_note(db, "schema_version") == str(NEXT)
        migrate(db, [*one_ahead, Migration(number=NEXT + 1, name="last.sql", sql="CREATE TABLE last (id bigint);")])
    with pytest.raises(DatabaseRejected, match="newer version") as refused:
        migrate(db)
    assert_one_sentence(refused.value)


@cluster
async def test_a_running_node_continues_while_a_newer_one_migrates(empty: str) -> None:
    more = further("ALTER TABLE chats ADD COLUMN mood text; ALTER TABLE meta ADD COLUMN further bigint;")
    async with closed_after(PostgresStore.open(empty)) as running:
        chat_id = await running.write(make_chat)
        assert await running.read(load_chat, chat_id) is not None
        with connect(empty) as newer:
            migrate(newer, more)
        await running.write(save_note, "n", "after it")
        assert await running.read(load_note, "n") == "after it"
        assert await running.read(load_chat, chat_id) is not None


@cluster
def test_a_different_migration_with_the_same_number_is_refused(db: PlainConnection) -> None:
    migrate(db, further("CREATE TABLE further (id bigint);"))
    with pytest.raises(DatabaseRejected, match=r"a different \d{4}_further"):
        migrate(db, further("CREATE TABLE otherwise (id bigint);"))


@cluster
@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE wp_posts (id bigint)",
        "CREATE VIEW wp_posts AS SELECT 1 AS id",
        "CREATE TABLE meta (name text, wp_posts text)",
        "CREATE TABLE meta (key text, value text)",
    ],
)
def test_a_database_of_another_program_is_refused_untouched(db: PlainConnection, made: str) -> None:
    db.execute(made)
    before = everything(db)
    with pytest.raises(DatabaseRejected, match="belongs to another program") as refused:
        migrate(db)
    assert everything(db) == before
    assert_one_sentence(refused.value)


@cluster
def test_tables_of_an_extension_are_not_another_program(postgres: Postgres, empty: str, db: PlainConnection) -> None:
    database = scalar(db, str, "SELECT current_database()")
    postgres.run("CREATE EXTENSION pg_stat_statements", database=database)  # a view in the schema public
    migrate(db)
    assert "messages" in tables(db)


@cluster
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_an_encoding_other_than_utf_8_is_refused(postgres: Postgres, encoding: str) -> None:
    with postgres.database(f"TEMPLATE template0 ENCODING '{encoding}'") as url, connect(url) as db:
        with pytest.raises(DatabaseRejected, match=f"encoding {encoding}") as refused:
            migrate(db)
        assert everything(db) == []
    assert_one_sentence(refused.value)


@cluster
@pytest.mark.parametrize(("taken", "schema"), [("CREATE", "schema public"), ("ALL", "any schema")])
def test_a_role_without_the_right_to_create_tables_is_an_error(postgres: Postgres, taken: str, schema: str) -> None:
    with postgres.database(owner="postgres") as url, connect(url) as db:
        database = scalar(db, str, "SELECT current_database()")
        postgres.run(f"REVOKE {taken} ON SCHEMA public FROM public", database=database)
        with pytest.raises(DatabaseRejected, match=f"role hermes cannot create tables in {schema}") as refused:
            migrate(db)
        assert everything(db) == []
        assert_one_sentence(refused.value)
        postgres.run("GRANT ALL ON SCHEMA public TO hermes", database=database)
        migrate(db)


@cluster
def test_a_role_that_cannot_read_and_a_read_only_server_are_errors(postgres: Postgres, db: PlainConnection) -> None:
    db.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="read-only") as refused:
        migrate(db)
    assert everything(db) == []
    assert_one_sentence(refused.value)
    db.execute("SET default_transaction_read_only = off")
    migrate(db)
    database = scalar(db, str, "SELECT current_database()")
    postgres.run("ALTER TABLE meta OWNER TO postgres", database=database)
    with pytest.raises(DatabaseRejected, match="role hermes cannot read the tables") as rejected:
        migrate(db)
    assert_one_sentence(rejected.value)


def test_a_server_before_14_is_refused() -> None:
    check_server(SERVER)
    with pytest.raises(DatabaseRejected, match=r"needed, but the server of hermes has 13\.22") as refused:
        check_server(replace(SERVER, version=130022))
    assert_one_sentence(refused.value)


def everything(db: PlainConnection) -> list[str]:
    """Return the names of all relations created by users."""
    return scalars(db, str, "SELECT oid::regclass::text FROM pg_class WHERE oid >= 16384 ORDER BY 1")


def assert_one_sentence(error: Exception) -> None:
    assert "\n" not in str(error)
    assert PASSWORD not in str(error)
