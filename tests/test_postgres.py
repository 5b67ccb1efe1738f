"""The server that the tests share."""

import contextlib
import os
import select
import subprocess
from pathlib import Path

import pytest

from hermes_state.engines.postgres.connection import PostgresConnection
from tests.hermes_state.rows import exchange, make_chat
from tests.postgres import USERS, Postgres, connect, running_server
from tests.reused_databases import ReusedDatabases


@pytest.mark.cluster
def test_the_server_ends_with_the_last_who_uses_it_even_if_it_is_killed(postgres: Postgres, tmp_path: Path) -> None:
    with running_server(tmp_path / "shared") as server:
        assert server.port != postgres.port
        with (server.folder / USERS).open("r+b", buffering=0) as pipe:
            worker = subprocess.Popen(["cat"], stdin=pipe)
    with connect(server.url("postgres", "postgres")) as db:
        (data,) = db.execute("SHOW data_directory").fetchone() or ()
        ended = os.pidfd_open(int(Path(data, "postmaster.pid").read_text().split()[0]))
    worker.kill()
    worker.wait()
    try:
        assert select.select([ended], [], [], 30) == ([ended], [], [])
    finally:
        os.close(ended)


@pytest.mark.cluster
def test_a_database_is_emptied_for_the_next_test_unless_more_than_rows_has_changed(postgres: Postgres) -> None:
    databases = ReusedDatabases(postgres)

    def use() -> tuple[str, int, str]:
        with databases.database() as url, contextlib.closing(PostgresConnection.open(url)) as db:
            turn = exchange(db, make_chat(db), "one", "two")
            db.execute("UPDATE meta SET value = 'changed'")
            [(kept,)] = db.execute("SELECT string_agg(key, ',' ORDER BY key) FROM meta").fetchall()
            return url, turn.id, kept

    first = use()
    assert [use(), use()] == [first, first]
    with databases.database() as url, contextlib.closing(PostgresConnection.open(url)) as db:
        assert url == first[0]
        assert db.execute("SELECT count(*) FROM meta WHERE value = 'changed'").fetchone() == (0,)
        db.execute("ALTER TABLE messages ALTER COLUMN text SET NOT NULL")
    assert use()[0] != first[0]
