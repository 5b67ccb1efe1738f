import time
from typing import Any

import pytest

from hermes_state.store.seats import LockKind
from tests.cluster.nodes import Cluster
from tests.e2e.protocols import conversation_of
from tests.e2e.test_admin_approvals import shown
from tests.e2e.test_approvals import delivered
from tests.e2e.test_compression import FILLER, LAYERS, SMALL
from tests.e2e.test_costs import PRICES
from tests.e2e.world import Gateway

pytestmark = pytest.mark.cluster

GROUP: dict[str, Any] = {"chat_id": -100200, "chat_type": "supergroup", "title": "Harbour"}
ADMIN = 1


async def start_apart(cluster: Cluster, **changes: str) -> tuple[Gateway, Gateway]:
    """A node that serves the bot and has no room for another turn, and a worker."""
    [one] = await cluster.start("one", HERMES_SESSIONS__MAX_TURNS="1", **changes)
    await cluster.script(match="fill it", text="full", hang_after=0)
    await cluster.say("fill it", chat_id=43)
    await cluster.asked(1)
    [two] = await cluster.start("two", role="worker", **changes)
    return one, two


async def begin_elsewhere(cluster: Cluster, text: str, **message: object) -> None:
    """Say something that the worker works on. It has begun to answer when this returns."""
    seen = await cluster.asked(0, wait=0)
    await cluster.tg.post("message", {"chat_id": 42, "user_id": 42, "text": text, **message})
    assert await cluster.asked(1, since=seen[-1]["seq"])
    assert sorted(cluster.holders(LockKind.CHAT)) == ["one", "two"]


async def hang_elsewhere(cluster: Cluster, text: str = "hang please", **message: object) -> None:
    """Begin a turn at the worker whose model call does not end."""
    await cluster.script(match="hang please", text="one two three", hang_after=1)
    await begin_elsewhere(cluster, text, **message)


async def ask_elsewhere(cluster: Cluster) -> None:
    """Begin a turn at the worker that asks for an approval."""
    call = {"name": "write_file", "arguments": {"path": "list.txt", "content": "flour"}}
    await cluster.script(match="write it down", last_role="user", tool_calls=[call])
    await begin_elsewhere(cluster, "write it down")


async def restart(cluster: Cluster, nodes: tuple[Gateway, Gateway]) -> None:
    """Kill both nodes, and start the first one with room."""
    await delivered(cluster)  # what is killed while it is sent may be seen twice
    for node in nodes:
        await node.kill()
    await nodes[0].start(HERMES_SESSIONS__MAX_TURNS="9")
    await cluster.converse("and now again?")


async def gone(cluster: Cluster, **filters: object) -> None:
    """Wait until a node has given up what it asked the model."""
    assert len(await cluster.asked(1, outcome="client_gone", **filters)) == 1


async def said(cluster: Cluster, person: int, text: str, answer: str) -> None:
    """A person says something to the bot in the group, and gets this answer."""
    await cluster.tg.post("message", {**GROUP, "user_id": person, "text": f"@lab_gateway_bot {text}"})
    assert await cluster.replies(1, match=answer, chat_id=GROUP["chat_id"]), answer


async def test_stop_ends_a_turn_of_another_node_for_good(cluster: Cluster) -> None:
    nodes = await start_apart(cluster)
    await hang_elsewhere(cluster)
    asked_at = time.monotonic()
    await cluster.say("/stop")
    assert await cluster.replies(1, match="^Stopped")
    await gone(cluster)
    print(f"stopped at another node {time.monotonic() - asked_at:.3f} s after /stop was given")
    await cluster.converse("and now?")
    await nodes[1].wait_for_log("turn.finished")  # it had no more work to do for the turn
    await restart(cluster, nodes)
    assert cluster.query("SELECT state, restarts FROM turns WHERE chat_id = 2 ORDER BY id") == [
        ("stopped", 0),
        ("finished", 0),
        ("finished", 0),
    ]


async def test_stop_all_ends_a_turn_of_another_node_and_drops_what_waits_behind_it(cluster: Cluster) -> None:
    await start_apart(cluster)
    await hang_elsewhere(cluster)
    await cluster.say("wait behind it")
    await cluster.say("and this")
    await cluster.stored(4)
    await cluster.say("/stop all")
    assert await cluster.replies(1, match="^Stopped. Removed 2 messages from the queue")
    await gone(cluster)
    await cluster.converse("and now?")
    of_the_chat = "SELECT state FROM inbox WHERE chat_id = 2 AND kind = 'message' ORDER BY id"
    assert cluster.query(of_the_chat) == [("done",), ("dropped",), ("dropped",), ("done",)]


@pytest.mark.parametrize(("line", "told"), [("/approve", "Wrote 5 bytes"), ("/deny we have one", "we have one")])
async def test_a_question_of_another_node_is_answered(cluster: Cluster, line: str, told: str) -> None:
    _, two = await start_apart(cluster)
    await ask_elsewhere(cluster)
    assert await cluster.replies(1, match="May I use")
    assert cluster.query("SELECT state FROM turns WHERE chat_id = 2") == [("waiting",)]
    await cluster.say(line)
    assert await cluster.replies(1, match=told)
    await two.wait_for_log("turn.finished")
    assert cluster.query("SELECT state, restarts FROM turns WHERE chat_id = 2") == [("finished", 0)]


async def test_an_admin_is_asked_and_told_about_a_call_of_another_node(cluster: Cluster) -> None:
    _, two = await start_apart(cluster, HERMES_TOOLS__APPROVAL__WRITES="ask_admin")
    await cluster.say("/whoami", chat_id=ADMIN)
    assert await cluster.replies(1, match="your role is admin", chat_id=ADMIN)
    await ask_elsewhere(cluster)
    assert await cluster.replies(1, match="I have asked the admins")
    assert await cluster.replies(1, match=r"\? For ", chat_id=ADMIN)
    await cluster.say("/approve", chat_id=ADMIN)
    assert await cluster.replies(1, match="Wrote 5 bytes")
    await two.wait_for_log("turn.finished")
    for chat_id in (42, ADMIN):
        await shown(cluster, chat_id, r"Approved by .* at \d\d:\d\d")


@pytest.mark.parametrize(
    ("line", "told"),
    [("/undo", "^Undid 1 exchange, .*“wait for it"), ("/new", "new conversation"), ("/retry", "wait for it")],
)
async def test_a_command_comes_in_its_turn_behind_the_work_of_another_node(
    cluster: Cluster, line: str, told: str
) -> None:
    await start_apart(cluster)
    await cluster.hold(match="wait for it")
    await begin_elsewhere(cluster, "wait for it")
    await cluster.say(line)
    assert await cluster.tg.get("sent", method="setMessageReaction", wait=15, count=1)
    before = len(await cluster.replies(0, wait=0, match=told))
    await cluster.release()
    assert len(await cluster.replies(before + 2, match=f"wait for it|{told}")) >= before + 2
    await delivered(cluster)
    await cluster.converse("and now?")
    states = cluster.query("SELECT state FROM turns WHERE chat_id = 2")
    assert states == [("finished",)] * (3 if line == "/retry" else 2)
    *_, request = await cluster.asked(0, wait=0)
    assert ("wait for it" in conversation_of(request)) == (line == "/retry")


async def test_status_tells_of_a_turn_of_another_node(cluster: Cluster) -> None:
    _, two = await start_apart(cluster)
    await hang_elsewhere(cluster)
    for _ in range(5):
        before = len(await cluster.replies(0, wait=0))
        await cluster.say("/status")
        *_, told = await cluster.replies(before + 1)
        assert "Working on an answer" in told
        assert "Connected: telegram" in told
    assert "command.done" not in two.log_text()


async def test_commands_beside_the_queue_are_left_to_the_owner_of_the_bot(cluster: Cluster) -> None:
    await cluster.start("one")
    [two] = await cluster.start("two", role="worker")
    await cluster.converse("hello", *["/status"] * 10)
    assert "command.done" not in two.log_text()
    assert cluster.holders(LockKind.CHAT) == []


async def test_steer_joins_a_turn_of_another_node(cluster: Cluster) -> None:
    await start_apart(cluster)
    await cluster.hold(match="look it up", tool_calls=[{"name": "history_search", "arguments": {"query": "x"}}])
    await begin_elsewhere(cluster, "look it up")
    await cluster.say("/steer use metric units")
    assert await cluster.replies(1, match="I will use this")
    await cluster.release()
    *_, request = await cluster.asked(3)
    assert "use metric units" in conversation_of(request)
    await cluster.replies(2)
    assert cluster.query("SELECT state FROM turns WHERE chat_id = 2") == [("finished",)]


async def test_a_message_interrupts_a_turn_of_another_node(cluster: Cluster) -> None:
    await start_apart(cluster, HERMES_SESSIONS__BUSY_MODE="interrupt")
    await hang_elsewhere(cluster)
    await cluster.say("something else")
    await gone(cluster)
    assert await cluster.replies(1, match="something else")
    assert cluster.query("SELECT state FROM turns WHERE chat_id = 2 ORDER BY id") == [("stopped",), ("finished",)]


async def test_in_a_group_a_bystander_neither_stops_nor_interrupts_a_turn_of_another_node(cluster: Cluster) -> None:
    await start_apart(cluster, HERMES_SESSIONS__BUSY_MODE="interrupt")
    await hang_elsewhere(cluster, "@lab_gateway_bot hang please", **GROUP)
    await said(cluster, 43, "/stop", "Only the person who started this turn, or an admin, can stop it")
    await cluster.tg.post("message", {**GROUP, "user_id": 43, "text": "@lab_gateway_bot and me?"})
    await cluster.stored(3)
    assert cluster.query("SELECT state FROM turns WHERE chat_id = 2") == [("running",)]
    await said(cluster, ADMIN, "/stop", "Stopped.*Still queued: 1 message")
    await gone(cluster)
    assert await cluster.replies(1, match="and me", chat_id=GROUP["chat_id"])


async def test_stop_ends_a_compression_of_another_node(cluster: Cluster) -> None:
    nodes = await start_apart(cluster, **SMALL)
    await cluster.converse(*(f"Message {number}: TICKET-{number}. {FILLER}" for number in range(20)))
    await cluster.script(summary=True, hang=True)
    await cluster.say("/compress")
    await cluster.asked(1, summary="true")
    await cluster.say("what waits behind it")
    await cluster.say("/stop")
    assert await cluster.replies(1, match="^Stopped")
    assert await cluster.replies(1, match="Compression cancelled")
    await gone(cluster, summary="true")
    assert await cluster.replies(1, match="what waits behind it")
    await cluster.converse("and now?")
    assert cluster.query(LAYERS) == []
    await restart(cluster, nodes)
    assert len(await cluster.asked(0, wait=0, summary="true")) == 1


async def test_who_was_let_in_and_turned_away_at_one_node_is_so_at_every_other(cluster: Cluster) -> None:
    _, two = await start_apart(cluster)
    await cluster.say("let me in", chat_id=77)
    [offer] = await cluster.replies(1, chat_id=77)
    await cluster.say(f"/pair approve {offer.split('pair approve ')[1].split()[0].rstrip(',')}", chat_id=ADMIN)
    assert await cluster.replies(1, match="now has access", chat_id=ADMIN)
    await cluster.hold(match="wait for it")
    await begin_elsewhere(cluster, "wait for it", chat_id=77, user_id=77)
    await cluster.say("and then this", chat_id=77)
    await cluster.stored(3)
    seen = len(two.log_bytes())
    await cluster.say("/pair revoke telegram:77", chat_id=ADMIN)
    assert await cluster.replies(1, match="no longer has access", chat_id=ADMIN)
    await two.wait_for_log("access.loaded", since=seen)
    await cluster.release()
    assert await cluster.replies(1, match="wait for it", chat_id=77)
    assert await cluster.replies(1, match="Your access was revoked", chat_id=77)
    of_theirs = "SELECT i.state FROM inbox i JOIN chats c ON c.id = i.chat_id WHERE c.chat_ref = '77' ORDER BY i.id"
    assert cluster.query(of_theirs) == [("done",), ("dropped",)]
    await cluster.say("may I again?", chat_id=77)
    assert await cluster.replies(2, match="pairing code", chat_id=77)


async def test_a_burst_on_three_nodes_exceeds_a_cap_by_no_more_than_the_calls_in_flight(cluster: Cluster) -> None:
    settings = {
        "HERMES_COSTS__PRICES": PRICES,
        "HERMES_COSTS__DAILY_CAP": "0.1",
        "HERMES_SESSIONS__MAX_TURNS": "2",
        "HERMES_ACCESS__ALLOW_ALL": "true",
    }
    nodes = await cluster.start("one", **settings) + await cluster.start("two", "three", role="worker", **settings)
    people = range(100, 140)
    await cluster.script(match="burst", delay=1, text="done")
    for person in people:
        await cluster.say(f"burst {person}", chat_id=person)
    for person in people:
        assert await cluster.replies(1, chat_id=person, wait=40), person
    costs = [cost for (cost,) in cluster.query("SELECT cost_microusd FROM model_calls ORDER BY id")]
    print(f"a cap of $0.1 was exceeded by ${sum(costs) / 1e6 - 0.1:.4f}, one call costs ${max(costs) / 1e6:.4f}")
    assert 100_000 <= sum(costs) < 100_000 + 6 * max(costs)
    assert cluster.query("SELECT count(*) FROM turns WHERE state = 'failed'") == [(len(people) - len(costs),)]
    assert len(await cluster.asked(0, wait=0)) == len(costs) < len(people)
    assert sum("turn.finished" in node.log_text() for node in nodes) >= 2
