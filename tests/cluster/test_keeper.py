"""What one node does for all is done once, whoever that node is by then."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_state.store.seats import LockKind
from tests.cluster.faulty import faulty_cluster
from tests.cluster.nodes import Cluster
from tests.e2e.test_approvals import delivered
from tests.postgres import Postgres

pytestmark = pytest.mark.cluster

TEXT = "tell us the weather of the harbour"
FREELY = {"HERMES_TOOLS__APPROVAL__WRITES": "allow", "HERMES_AGENT__TIME_ZONE": "UTC"}


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    """Telegram, Discord, a model and a database, no node started yet."""
    async with faulty_cluster(tmp_path, postgres_url) as made:
        yield made


async def start_two(cluster: Cluster, point: str, folder: Path) -> None:
    """A keeper that ends at a commit, and another node, which would end there, too, if the keeper had not."""
    once = {"CRASH_KILL": point, "CRASH_ONCE": str(folder / "once")}
    await cluster.start("one", "two", **FREELY, **once)
    assert cluster.holders(LockKind.KEEPER) == ["one"]


async def have_tool_called(cluster: Cluster, name: str, **arguments: object) -> None:
    await cluster.script(match="please", last_role="user", times=1, tool_calls=[{"name": name, "arguments": arguments}])
    await cluster.say("please")


@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_schedule_comes_once_although_its_keeper_ends_in_the_middle(
    cluster: Cluster, postgres: Postgres, tmp_path: Path, side: str
) -> None:
    await start_two(cluster, f"fire_due:1:{side}", tmp_path)
    await have_tool_called(cluster, "schedule", action="add", text=TEXT, cron="*/5 * * * *")
    await cluster.say("/approve")
    assert await cluster.replies(1, match="Schedule 1 is set")
    await cluster.script(match="weather of the harbour", last_role="user", text="Sunny, as ever.")
    postgres.run("UPDATE schedules SET next_at = next_at - 300000", database=cluster.database)
    assert await cluster.replies(1, match="Sunny, as ever")
    await cluster.converse("and now?")
    await delivered(cluster)
    assert cluster.query("SELECT count(*) FROM inbox WHERE event_ref LIKE 'schedule:%'") == [(1,)]
    assert len(await cluster.replies(0, wait=0, match="Sunny, as ever")) == 1
    assert cluster.holders(LockKind.KEEPER) == ["two"]


async def test_a_question_that_was_asked_at_another_node_expires_once(cluster: Cluster, postgres: Postgres) -> None:
    [keeper] = await cluster.start("keeper", HERMES_AGENT__TIME_ZONE="UTC")
    await cluster.start("other", HERMES_AGENT__TIME_ZONE="UTC")
    await have_tool_called(cluster, "write_file", path="plan.md", content="# Plan")
    assert await cluster.replies(1, match="May I use")
    postgres.run("UPDATE approvals SET expires_at = 0", database=cluster.database)
    await keeper.kill()
    assert await cluster.asked(2), "the turn goes on with a no"
    assert await cluster.replies(2)
    await cluster.converse("and now?")
    await delivered(cluster)
    assert cluster.query("SELECT state FROM approvals") == [("expired",)]
    assert cluster.query("SELECT state FROM turns ORDER BY id") == [("finished",), ("finished",)]
    assert cluster.holders(LockKind.KEEPER) == ["other"]
