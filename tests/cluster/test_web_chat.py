"""The web chat, served by one node while another works in its chats."""

import pytest

from tests.cluster.nodes import Cluster
from tests.e2e.test_approvals import delivered
from tests.e2e.test_compression import page_of
from tests.e2e.test_files import FREELY
from tests.e2e.world import Gateway

pytestmark = pytest.mark.cluster

STORY = "once upon a time " * 10


async def start_apart(cluster: Cluster, **changes: str) -> Gateway:
    """A node that serves the page and has no room for another turn, and a worker, which is returned."""
    page = {"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": str(cluster.free_port())}
    [cluster.gateway] = await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **page, **changes)
    await cluster.hold(match="keep busy")
    await cluster.say("keep busy", chat_id=43)
    await cluster.asked(1)
    [worker] = await cluster.start("worker", role="worker", **changes)
    return worker


async def test_a_page_shows_an_answer_of_another_node_as_it_grows(cluster: Cluster) -> None:
    worker = await start_apart(cluster, **FREELY)
    writes = [{"name": "write_file", "arguments": {"path": "plan.md", "content": "# Plan"}}]
    await cluster.script(match="a story", last_role="user", tool_calls=writes, times=1)
    await cluster.script(
        match_any="Wrote 6 bytes", last_role="tool", text=STORY, chunk_chars=20, pause_after=4, times=1
    )
    async with page_of(cluster) as page:
        await page.write("tell me a story")
        await page.until("write_file")
        await page.until("once upon a time")
        assert STORY.strip() not in await page.html()
        await cluster.release()
        await page.until(STORY.strip())
        await page.write("/whoami")
        await page.until("local:owner")
        await delivered(cluster)
        assert (await page.html()).count(STORY.strip()) == 1
    assert "turn.finished" in worker.log_text()


async def test_what_waits_behind_a_turn_of_another_node_is_shown_and_answered(cluster: Cluster) -> None:
    await start_apart(cluster)
    await cluster.hold(match="wait")
    async with page_of(cluster) as page:
        await page.write("wait for it")
        await cluster.asked(2)
        await page.write("and then?")
        await page.until("and then?")
        await cluster.release()
        await page.until_answered(2)
        await delivered(cluster)


async def test_a_turn_of_another_node_is_stopped_from_the_page(cluster: Cluster) -> None:
    await start_apart(cluster)
    await cluster.script(match="a story", text=STORY, chunk_chars=20, hang_after=4)
    async with page_of(cluster) as page:
        await page.write("tell me a story")
        await page.until("once upon a time")
        await page.write("/stop")
        await page.until("Stopped.")
        await delivered(cluster)
        assert await cluster.asked(1, outcome="client_gone")
