"""What people notice of several nodes: nothing."""

import pytest

from hermes_state.store.seats import LockKind
from tests.cluster.nodes import Cluster

pytestmark = pytest.mark.cluster


async def test_two_nodes_answer_a_message_once(cluster: Cluster) -> None:
    one, two = await cluster.start("one", "two")
    await cluster.converse("hello", "again", "and again")
    assert "turn.finished" in one.log_text() + two.log_text()
    assert [await node.stop() for node in (one, two)] == [0, 0]


async def test_another_node_serves_the_bot_when_its_owner_is_killed(cluster: Cluster) -> None:
    one, two = await cluster.start("one", "two")
    await cluster.converse("hello")
    await one.kill()
    await cluster.say("are you there?")
    assert len(await cluster.replies(2)) == 2
    assert await two.stop() == 0


async def test_a_worker_answers_what_the_owner_of_the_bot_has_no_room_for(cluster: Cluster) -> None:
    [one] = await cluster.start("one", HERMES_SESSIONS__MAX_TURNS="1")
    [two] = await cluster.start("two", role="worker")
    await cluster.hold(match="wait")
    await cluster.say("wait for it", chat_id=42)
    await cluster.asked(1)
    await cluster.say("quick", chat_id=43)
    assert len(await cluster.replies(1, chat_id=43)) == 1
    assert "turn.finished" in two.log_text()
    await cluster.release()
    assert len(await cluster.replies(1, chat_id=42)) == 1
    assert "turn.finished" in one.log_text()


async def test_a_turn_of_a_killed_node_is_finished_by_another(cluster: Cluster) -> None:
    await cluster.start("one", "two")
    await cluster.hold(match="wait")
    await cluster.say("wait for it")
    await cluster.asked(1)
    [busy] = cluster.holders(LockKind.CHAT)
    await cluster.nodes.pop(busy).kill()
    await cluster.asked(2)
    await cluster.release()
    assert len(await cluster.replies(1)) == 1
    assert cluster.query("SELECT state, restarts, epoch FROM turns") == [("finished", 1, 2)]
