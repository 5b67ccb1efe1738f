import os
from pathlib import Path

import pytest

from hermes_state.engines.opening import check_place
from hermes_state.errors import DatabaseRejected
from hermes_state.store.seats import NodeInfo
from hermes_state.values import SystemClock
from tests.cluster.nodes import Cluster
from tests.cluster.proxy import Proxy, renumbered
from tests.e2e.world import Gateway, World
from tests.postgres import PASSWORD, Postgres, connect
from tests.processes import run_gateway

pytestmark = pytest.mark.cluster

TABLES = """SELECT relname FROM pg_class WHERE relkind IN ('r', 'v') AND relnamespace NOT IN
(SELECT oid FROM pg_namespace WHERE nspname IN ('pg_catalog', 'information_schema', 'pg_toast'))"""


async def refused(folder: Path, url: str, code: int = 78) -> str:
    """What a gateway says that does not start, in one line; it never shows the password."""
    environ = {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "HERMES_HOME": str(folder / "home"),
        "HERMES_STORE__URL": url,
        "HERMES_LOCAL__PORT": "0",
    }
    gateway = Gateway(environ, folder / "gateway.log", run_gateway)
    await gateway.spawn()
    code_of_it = await gateway.wait()
    said = gateway.log_bytes()[gateway.started_from :].decode()
    assert code_of_it == code, said
    [line] = [line for line in said.splitlines() if line.startswith("hermes-gateway: ")]
    assert PASSWORD not in said
    assert "Traceback" not in said
    assert not (folder / "home").exists()
    return line


def command_of(pid: int) -> str:
    """Command line of a process, as any user sees it."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def tables(url: str) -> list[str]:
    with connect(url) as db:
        return [name for (name,) in db.execute(TABLES)]


async def test_a_wrong_password_and_a_wrong_name_are_configuration(tmp_path: Path, postgres: Postgres) -> None:
    with postgres.database() as url:
        wrong = url.replace(PASSWORD, "not-the-password")
        said = await refused(tmp_path, wrong)
        assert said.startswith("hermes-gateway: configuration: ")
        assert "password authentication failed" in said
        assert "not-the-password" not in said
        assert "no password supplied" in await refused(tmp_path, url.replace(f":{PASSWORD}", ""))
        assert tables(url) == []
    assert "does not exist" in await refused(tmp_path, url)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("?sslmode=sometimes", "invalid sslmode value"),
        ("?sslmode=verify-full", "SSL was required"),
        ("?connect_timeout=5&port=70000", "invalid port number"),
        ("?options=-c%20nonsense%3D1", "unrecognized configuration parameter"),
    ],
)
async def test_what_no_waiting_mends_is_configuration(
    tmp_path: Path, postgres: Postgres, change: str, reason: str
) -> None:
    with postgres.database() as url:
        said = await refused(tmp_path, url + change)
    assert said.startswith("hermes-gateway: configuration: ")
    assert reason in said
    assert said.endswith("check store.url, and see docs/reference/operations.md, PostgreSQL")


async def test_a_server_that_does_not_answer_may_come_back(tmp_path: Path) -> None:
    nobody = f"postgresql://hermes:{PASSWORD}@127.0.0.1:{World.free_port()}/hermes"
    assert "hermes-gateway: failed: PostgreSQL database hermes at 127.0.0.1" in await refused(tmp_path, nobody, 1)


async def test_a_database_that_is_not_ours_to_use_stays_as_it_is(tmp_path: Path, postgres: Postgres) -> None:
    with postgres.database() as url:
        with connect(url) as db:
            db.execute("CREATE TABLE wp_posts (id bigint)")
        assert "belongs to another program (tables: wp_posts)" in await refused(tmp_path, url)
        assert tables(url) == ["wp_posts"]
        postgres.run(f"REVOKE CONNECT ON DATABASE {url.rpartition('/')[2]} FROM public, hermes")
        assert 'permission denied for database "test_' in await refused(tmp_path, url)


async def test_a_seat_behind_a_pooler_is_refused(tmp_path: Path, postgres: Postgres) -> None:
    with postgres.database() as address:
        async with Proxy(postgres.port, renumbered) as pooler:
            assert "store.url points to a pooler" in await refused(tmp_path, pooler.address_of(address))
        assert tables(address) == []


async def test_an_empty_database_beside_a_file_stays_empty(tmp_path: Path, postgres: Postgres) -> None:
    made = tmp_path / "home" / "state.db"
    made.parent.mkdir()
    made.write_bytes(b"something")
    node = NodeInfo(id="", name="one", version="1", role="node")
    with postgres.database() as url:
        with pytest.raises(DatabaseRejected, match=r"is empty, but .*state\.db"):
            check_place(made, url, node, SystemClock().now(), is_fresh=False)
        assert tables(url) == []
        check_place(made, url, node, SystemClock().now(), is_fresh=True)


async def test_the_password_of_the_database_is_in_no_list_and_no_log(cluster: Cluster) -> None:
    [one] = await cluster.start("one")
    await cluster.converse("hello")
    assert one.process is not None
    assert PASSWORD not in command_of(one.process.pid)
    with connect(cluster.address) as db:
        shown = db.execute("SELECT application_name || query FROM pg_stat_activity").fetchall()
    assert PASSWORD not in str(shown)
    for words in (("config", "show"), ("config", "show", "--json"), ("status",), ("cluster", "status"), ("doctor",)):
        code, output = await cluster.command_line(*words, node=one)
        assert (code, PASSWORD in output) == (0, False), output
    assert PASSWORD not in one.log_text()
