"""Turns of a worker that has no bot at all: what they ask for, say and send leaves through the owner of the bot."""

from pathlib import Path

import pytest

from tests.cluster.nodes import Cluster
from tests.e2e.test_approvals import delivered
from tests.e2e.test_files import FREELY, on_telegram
from tests.e2e.world import Gateway

pytestmark = pytest.mark.cluster

PLAN = {"path": "plan.md", "content": "# Plan"}


async def with_worker(cluster: Cluster, **changes: str) -> Gateway:
    """A worker without tokens that has all the turns, and the owner of the bot, which has no room for one more."""
    await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **changes)
    await cluster.hold(match="keep busy")
    await cluster.say("keep busy", chat_id=43)
    await cluster.asked(1)
    worker = cluster.add("worker", "worker", **changes)
    del worker.environ["HERMES_TELEGRAM__TOKEN"]
    await worker.start()
    return worker


async def write_and_send(cluster: Cluster) -> None:
    """The model writes a file and gives it to the chat."""
    writes = [{"name": "write_file", "arguments": PLAN}]
    sends = [{"name": "send_file", "arguments": {"path": PLAN["path"], "caption": "as you asked"}}]
    await cluster.script(match="a plan", last_role="user", tool_calls=writes)
    await cluster.script(match_any="Wrote 6 bytes", last_role="tool", times=1, tool_calls=sends)
    await cluster.say("make a plan")


async def test_a_worker_gives_a_file_to_the_chat(cluster: Cluster, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    worker = await with_worker(cluster, **FREELY, HERMES_ATTACHMENTS__URL=f"file://{shared}")
    await write_and_send(cluster)
    assert await on_telegram(cluster, "document") == [("as you asked", "plan.md", b"# Plan")]
    assert await cluster.replies(1, match="is on its way to the chat")
    assert "delivery.no_adapter" not in worker.log_text(), "its owner sends it"


async def test_where_files_are_not_shared_people_are_told_of_one_that_cannot_be_sent(cluster: Cluster) -> None:
    await with_worker(cluster, **FREELY)
    await write_and_send(cluster)
    [told] = await cluster.replies(1, match="could not be sent")
    assert told == "as you asked\n(The file “plan.md” could not be sent here.)"


async def test_a_worker_asks_and_a_button_lets_it_go_on(cluster: Cluster) -> None:
    worker = await with_worker(cluster)
    await cluster.script(match="a plan", last_role="user", tool_calls=[{"name": "write_file", "arguments": PLAN}])
    await cluster.say("make a plan")
    assert len(await cluster.replies(1, match="May I use")) == 1
    await cluster.tg.post("callback", {"chat_id": 42, "user_id": 42, "button": "Yes, once"})
    assert await cluster.replies(1, match="Wrote 6 bytes")
    await delivered(cluster)
    assert "turn.waiting" in worker.log_text()
    assert len(await cluster.replies(0, wait=0, match="May I use")) == 1
