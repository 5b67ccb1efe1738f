"""Commands on a PostgreSQL database while no daemon runs."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import Result

from hermes_state.engines.opening import COPY_NOTE, open_store
from hermes_state.engines.postgres.migrate import shipped_migrations
from hermes_state.engines.postgres.seat import PostgresSeat
from hermes_state.errors import DatabaseRejected, LockUnavailable
from hermes_state.store.seats import NodeInfo
from hermes_state.store.sql import load_note, save_note
from hermes_state.values import SystemClock
from tests.cluster.proxy import Proxy, renumbered
from tests.gateway.helpers import Run
from tests.hermes_state.rows import make_chat
from tests.postgres import PASSWORD, Postgres, connect

pytestmark = pytest.mark.cluster

CODE = "K7QM4XPA"


@pytest.fixture
def run(run: Run) -> Run:
    """Run a command in this process with a database address. Its password never appears in the output."""

    def runner(url: str, *words: str, **variables: str) -> Result:
        result = run(*words, HERMES_STORE__URL=url, **variables)
        assert PASSWORD not in f"{result.output}{result.exception}"
        return result

    return runner


def test_doctor_shows_server_encoding_role_schema_and_size(run: Run, postgres_url: str) -> None:
    text = run(postgres_url, "doctor").output
    assert "UTF8), role hermes: " in text
    assert f"schema {shipped_migrations()[-1].number}, 0 chats, 0 messages" in text


async def test_doctor_shows_why_a_node_cannot_join_the_cluster(run: Run, postgres: Postgres, postgres_url: str) -> None:
    assert (
        "0 nodes are running in the cluster; this node can join"
        in (await asyncio.to_thread(run, postgres_url, "doctor")).output
    )
    settings = json.dumps({"costs.daily_cap": "5"})
    other = NodeInfo(id="1", name="other", version="1", role="node", settings=settings)
    seat = await PostgresSeat.open(postgres_url, 5.0, other, lambda hint: None, SystemClock().now())
    try:
        said = (await asyncio.to_thread(run, postgres_url, "doctor", HERMES_CLUSTER__NAME="this")).output
        assert "costs.daily_cap is not set on this and 5 on other" in said
        listed = (await asyncio.to_thread(run, postgres_url, "cluster", "status")).output
        assert listed.splitlines()[1].split()[:3] == ["other", "node", "1"]
    finally:
        await seat.close()
    with postgres.database() as empty:
        for database in (postgres_url, empty):
            async with Proxy(postgres.port, renumbered) as pooler:
                done = await asyncio.to_thread(run, pooler.address_of(database), "doctor")
                assert "store.url points to a pooler" in done.output


def test_doctor_explains_a_database_problem_in_one_sentence(run: Run, postgres: Postgres) -> None:
    with postgres.database() as url:
        assert "The database is empty. The next start creates the tables." in run(url, "doctor").output
        wrong = url.replace(PASSWORD, "not-the-password")
        assert "password authentication failed" in run(wrong, "doctor").output
        for words in (("status",), ("sessions",), ("pair", "list"), ("pair", "approve", CODE), ("cluster", "status")):
            assert isinstance(run(wrong, *words).exception, DatabaseRejected), words
        with connect(url) as db:
            db.execute("CREATE TABLE theirs (id bigint)")
        assert "belongs to another program (tables: theirs)" in run(url, "doctor").output
    assert "does not exist" in run(url, "doctor").output
    with postgres.database("ENCODING 'SQL_ASCII' TEMPLATE template0") as ascii_url:
        assert "has the encoding SQL_ASCII" in run(ascii_url, "doctor").output
    with postgres.database(owner="postgres") as foreign:
        assert "cannot create tables" in run(foreign, "doctor").output


def test_doctor_finds_a_read_only_role(run: Run, postgres: Postgres) -> None:
    with postgres.fresh_database() as url:
        name = url.rpartition("/")[2]
        postgres.run("ALTER TABLE messages OWNER TO postgres", "GRANT SELECT ON messages TO hermes", database=name)
        assert "The role hermes cannot read and write all tables, for example messages" in run(url, "doctor").output


def test_an_unreadable_address_is_a_configuration_error(run: Run) -> None:
    result = run(f"postgresql://hermes:{PASSWORD}%zz@db/hermes", "status")
    assert "not a valid PostgreSQL address" in str(result.exception)


def test_status_and_lists_read_the_database_directly(run: Run, postgres_url: str) -> None:
    status = run(postgres_url, "status")
    assert status.exit_code == 3
    assert "messages" in status.output
    assert "No pending requests" in run(postgres_url, "pair", "list").output


def test_backup_and_repair_refer_to_postgresql(run: Run, postgres_url: str, tmp_path: Path) -> None:
    backup, repair = (run(postgres_url, *words) for words in (("backup", "copy.db"), ("doctor", "--repair")))
    assert "pg_dump" in str(backup.exception)
    assert "PostgreSQL, which repairs itself" in str(repair.exception)
    assert not list(tmp_path.rglob("*.db"))


async def test_a_gateway_moves_to_postgresql_and_back(
    run: Run, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path / "home/state.db") as store:
        await store.write(save_note, "greeting", "hello")
    with postgres.database() as url:
        without = url.replace(f":{PASSWORD}", "")
        refused = await asyncio.to_thread(run, "", "store", "copy", "--to", url)
        assert "Leave the password out of --to" in str(refused.exception)
        monkeypatch.setenv("PGPASSWORD", PASSWORD)  # which the library reads from the environment itself
        there = await asyncio.to_thread(run, "", "store", "copy", "--to", without)
        assert there.stderr == "", "progress is shown only on a terminal"
        assert there.stdout.startswith("TABLE ")
        assert "1 row, identical to the source." in there.stdout
        assert "not empty" in str((await asyncio.to_thread(run, "", "store", "copy", "--to", without)).exception)
        back = await asyncio.to_thread(run, url, "store", "copy", "--to", str(tmp_path / "back.db"), "--json")
        assert {one["table"]: one["rows"] for one in json.loads(back.stdout)}["meta"] == 1
    async with open_store(tmp_path / "back.db") as store:
        assert await store.read(load_note, "greeting") == "hello"


def test_an_invalid_target_address_is_refused(run: Run, tmp_path: Path) -> None:
    assert "must be an address such as" in str(run("", "store", "copy", "--to", "mysql://db/hermes").exception)
    assert list(tmp_path.rglob("*.db")) == []


async def test_a_state_directory_has_one_process_with_either_database(postgres_url: str, tmp_path: Path) -> None:
    async with open_store(tmp_path / "state.db"):
        with pytest.raises(LockUnavailable, match="the state directory"):
            async with open_store(tmp_path / "state.db", postgres_url):
                pass


async def test_an_unfinished_copy_is_not_opened(postgres_url: str, tmp_path: Path) -> None:
    for path, url in ((tmp_path / "state.db", None), (tmp_path / "home" / "state.db", postgres_url)):
        async with open_store(path, url) as store:
            await store.write(save_note, COPY_NOTE, "somewhere")
        with pytest.raises(DatabaseRejected, match="unfinished copy"):
            async with open_store(path, url):
                pass


async def test_an_empty_database_is_refused_if_a_copy_was_forgotten(
    run: Run, postgres: Postgres, postgres_url: str, tmp_path: Path
) -> None:
    async with open_store(tmp_path / "state.db"):
        pass
    with pytest.raises(DatabaseRejected, match=r"state\.db has data: copy it with `hermes-gateway store copy`"):
        async with open_store(tmp_path / "state.db", postgres_url):
            pass
    with postgres.database() as empty:
        said = await asyncio.to_thread(run, empty, "doctor", HERMES_HOME=str(tmp_path))
        assert f"is empty, but {tmp_path / 'state.db'}" in said.output
    async with open_store(tmp_path / "state.db", postgres_url, is_fresh=True) as store:
        await store.write(make_chat)
    async with open_store(tmp_path / "state.db", postgres_url):
        pass
