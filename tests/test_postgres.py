"""The server that the tests share."""

import os
import select
import subprocess
from pathlib import Path

import pytest

from tests.postgres import USERS, Postgres, connect, running_server


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
