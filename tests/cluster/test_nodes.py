"""What people notice of several nodes: nothing."""

import pytest

from hermes_state.store.seats import LockKind
from tests.cluster.nodes import Cluster
from tests.e2e.protocols import conversation_of

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
    await two.wait_for_log("turn.finished")
    await cluster.release()
    assert len(await cluster.replies(1, chat_id=42)) == 1
    await one.wait_for_log("turn.finished")


async def test_a_free_chat_is_found_behind_many_of_a_busy_neighbour(cluster: Cluster) -> None:
    cluster.environ["HERMES_ACCESS__ALLOW_ALL"] = "true"
    people = range(101, 113)
    [one] = await cluster.start("one", HERMES_SESSIONS__MAX_TURNS=str(len(people)))
    for person in people:
        await cluster.hold(match="wait")
        await cluster.say("wait for it", chat_id=person)
    await cluster.asked(len(people))
    await cluster.say("quick", chat_id=113)
    await cluster.stored(len(people) + 1)
    [two] = await cluster.start("two", role="worker", HERMES_SESSIONS__MAX_TURNS="1")
    assert await cluster.replies(1, chat_id=113)
    await two.wait_for_log("turn.finished")
    await cluster.release()
    for person in people:
        assert await cluster.replies(1, chat_id=person)
    await one.wait_for_log("turn.finished")


async def test_whoever_has_waited_for_longest_is_answered_first_on_whichever_node(cluster: Cluster) -> None:
    cluster.environ |= {"HERMES_ACCESS__ALLOW_ALL": "true", "HERMES_SESSIONS__MAX_TURNS": "1"}
    await cluster.start("one")
    people = [107, 102, 110, 104, 101, 109, 103, 108, 106, 105]
    for person in sorted(people):  # in another order than they come in later
        await cluster.say("hello", chat_id=person)
        assert await cluster.replies(1, chat_id=person)
    await cluster.start("two", role="worker")
    for number, person in enumerate((41, 43), start=1):
        await cluster.hold(match="wait")
        await cluster.say("wait for it", chat_id=person)
        await cluster.asked(len(people) + number)
    for number, person in enumerate(people, start=1):
        await cluster.say(f"from {person}", chat_id=person)
        await cluster.stored(len(people) + 2 + number)
    await cluster.release()
    for person in people:
        assert await cluster.replies(2, chat_id=person)
    asked = [conversation_of(request) for request in await cluster.asked(0, wait=0)]
    order = sorted(people, key=lambda person: [f"from {person}" in said for said in asked].index(True))
    print(f"came as {people}, were answered as {order}")
    assert all(abs(order.index(person) - people.index(person)) <= 3 for person in people)


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
