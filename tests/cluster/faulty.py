"""Cluster for failure tests: short time limits, nodes with a tool that writes, and a disk that can be full."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.nodes import Cluster, cluster_in
from tests.cluster.program import run_node
from tests.postgres import Postgres

SEAT_SECONDS = 1.0
"""Seconds after which a silent node loses its locks."""
NOTE = '[[tool:note {"line": "{}"}]]'
SETTINGS = {
    "HERMES_ACCESS__ALLOW_ALL": "true",
    "HERMES_CLUSTER__SEAT_SECONDS": str(SEAT_SECONDS),
    "HERMES_SESSIONS__MERGE_SECONDS": "0",
}
_TABLES = ("inbox", "messages", "outbox")

# Purpose: raise the error that PostgreSQL raises when it cannot extend a table.
_DISK_FULL = """
CREATE OR REPLACE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$
"""


@asynccontextmanager
async def faulty_cluster(folder: Path, address: str) -> AsyncIterator[Cluster]:
    """Yield a cluster with two bots on Telegram, Discord, a model and a database. No node is started yet."""
    async with cluster_in(folder, address, is_further=True, discord=True, program=run_node) as made:
        made.environ |= SETTINGS
        await made.dc.post("config", {"rate_limits": False})
        yield made


def fill_disk(server: Postgres, database: str) -> None:
    """Refuse every new row as if the disk were full. Uses triggers, because no test should fill a real disk."""
    triggers = [f"CREATE TRIGGER full_disk BEFORE INSERT ON {name} EXECUTE FUNCTION full_disk()" for name in _TABLES]
    server.run(_DISK_FULL, *triggers, database=database)


def make_room(server: Postgres, database: str) -> None:
    """Accept new rows again."""
    server.run(*(f"DROP TRIGGER full_disk ON {name}" for name in _TABLES), database=database)
