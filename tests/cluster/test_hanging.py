"""A node whose database says nothing any more: it gives up what it has, and ends when it is told to."""

import pytest

from tests.cluster.nodes import Cluster
from tests.cluster.proxy import Proxy
from tests.e2e.world import Gateway
from tests.postgres import Postgres

pytestmark = pytest.mark.cluster


async def begin_answer(cluster: Cluster, proxy: Proxy) -> Gateway:
    """A node that answers somebody when its database begins to hang: the placeholder shows, and is not stored."""
    await cluster.tg.post("faults", {"kind": "404", "match": "sendMessageDraft", "times": -1})
    [node] = await cluster.start("one", HERMES_STORE__URL=cluster.address_by(proxy.port))
    await cluster.hold(match="hang please", text="one two three " * 9, chunk_chars=10, hang_after=6)
    await cluster.say("hang please")
    assert await cluster.asked(1)
    proxy.hang()
    await cluster.release()
    assert await cluster.replies(1, match="one")
    return node


async def test_it_gives_its_seat_up(cluster: Cluster, postgres: Postgres) -> None:
    async with Proxy(postgres.port) as proxy:
        node = await begin_answer(cluster, proxy)
        await node.wait_for_log("seat.lost", seconds=60)
        proxy.mend()
        await node.wait_for_log("turn.resumed", seconds=60)


async def test_it_ends_when_it_is_told_to(cluster: Cluster, postgres: Postgres) -> None:
    async with Proxy(postgres.port) as proxy:
        node = await begin_answer(cluster, proxy)
        assert await node.stop() == 0
