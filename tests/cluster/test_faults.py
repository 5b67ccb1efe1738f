import asyncio
import signal
import time
from pathlib import Path

import pytest

from gateway.turns.lanes import DEAD_LETTER_SENTENCE
from gateway.turns.runner import MAX_RESTARTS, RESTART_SENTENCE
from hermes_state.aio import cancel_all
from hermes_state.engines.postgres.migrate import shipped_migrations
from tests.cluster.faulty import NOTE, SEAT_SECONDS, faulty_cluster, fill_disk, make_room
from tests.cluster.nodes import Cluster
from tests.cluster.program import POISON, run_next_version
from tests.cluster.proxy import Proxy, all_but_the_end
from tests.cluster.traffic import Place, Traffic
from tests.cluster.waits import Report
from tests.e2e.world import Gateway
from tests.postgres import Postgres, private_server

pytestmark = pytest.mark.cluster
CLUSTER = faulty_cluster

PEOPLE = [Place(number) for number in range(101, 107)]
PLACES = [*PEOPLE, Place(-100), Place(0)]
NOTE_AND_STOP = '[[tool:note {"line": "{}", "stops": true}]]'


@pytest.fixture
def traffic(cluster: Cluster) -> Traffic:
    return Traffic(cluster)


async def keep_saying(traffic: Traffic) -> asyncio.Task[None]:
    """People who write while something happens; await the task."""
    task = asyncio.create_task(traffic.run(PLACES, 5, 0.5, ["", NOTE, "[[sleep:0.3]]"]))
    await asyncio.sleep(1.0)
    return task


async def resume_later(node: Gateway) -> None:
    """Let a stopped node go on when others have long had its work."""
    await asyncio.sleep(2.5 * SEAT_SECONDS)
    node.signal(signal.SIGCONT)


async def wait_everywhere(cluster: Cluster, traffic: Traffic) -> None:
    """Begin a turn in every chat, most of them at workers, that lasts until `release`."""
    await cluster.start("owner", HERMES_SESSIONS__MAX_TURNS="3")
    await cluster.start("worker", "other", role="worker")
    for place in PLACES:
        await cluster.hold(match="wait")
        await traffic.say(place, "wait")
    await cluster.asked(len(PLACES))


async def test_a_busy_worker_is_killed(cluster: Cluster, traffic: Traffic, report: Report) -> None:
    await wait_everywhere(cluster, traffic)
    await traffic.run(PLACES, 1, 0, [NOTE])
    busiest = next(name for name in cluster.ranking() if name != "owner")
    killed_at = time.monotonic()
    await cluster.nodes.pop(busiest).kill()
    await cluster.release()
    report("a node killed", await traffic.check(faults=1, since=killed_at))


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("admit:3:after,admit_all:3:after", id="commit-and-acknowledgement"),
        pytest.param("_finish_turn:3:after", id="answer-and-send"),
        pytest.param("begin_send:1:after", id="commit-and-send"),
        pytest.param("mark_sent:3:before", id="send-and-mark"),
    ],
)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
async def test_a_node_ends_or_stops_between_two_steps(
    cluster: Cluster, traffic: Traffic, report: Report, point: str, how: str, tmp_path: Path
) -> None:
    once = {"CRASH_KILL": point, "CRASH_SIGNAL": how, "CRASH_ONCE": str(tmp_path / "once")}
    # One that has little room leaves turns to the other, whose answers it sends.
    nodes = [*await cluster.start("one", HERMES_SESSIONS__MAX_TURNS="2", **once), *await cluster.start("two", **once)]
    saying = await keep_saying(traffic)
    if how == "SIGSTOP":
        await resume_later(await cluster.stopped())
    await saying
    report(f"{how} at {point.partition(':')[0]}", await traffic.check(faults=1))
    assert [node.process.returncode for node in nodes if node.process].count(-9) == (how == "SIGKILL")


async def test_a_node_stops_in_the_middle_of_a_tool_that_writes(
    cluster: Cluster, traffic: Traffic, report: Report
) -> None:
    await cluster.start("owner")
    await cluster.start("worker", role="worker")
    for place in PLACES:
        await traffic.say(place, NOTE_AND_STOP)
    stopped = await cluster.stopped()
    saying = await keep_saying(traffic)
    await resume_later(stopped)
    await saying
    report("stopped in a tool", await traffic.check(faults=1))


async def test_a_node_stops_in_the_middle_of_a_model_call(cluster: Cluster, traffic: Traffic, report: Report) -> None:
    await wait_everywhere(cluster, traffic)
    stopped, stopped_at = cluster.nodes[cluster.ranking()[0]], time.monotonic()
    stopped.signal(signal.SIGSTOP)
    await cluster.release()
    await resume_later(stopped)
    report("a node stopped", await traffic.check(faults=1, since=stopped_at))


async def test_a_node_that_is_told_to_end_hands_everything_over(
    cluster: Cluster, traffic: Traffic, report: Report
) -> None:
    one, _ = await cluster.start("one", "two")
    saying = await keep_saying(traffic)
    assert await one.stop() == 0
    await saying
    report("a node told to end", await traffic.check(faults=0))


@pytest.mark.parametrize("how", ["cut", "hang", "in a batch"])
async def test_the_network_between_a_node_and_the_database_fails(
    cluster: Cluster, traffic: Traffic, report: Report, postgres: Postgres, how: str
) -> None:
    async with Proxy(postgres.port) as proxy:
        [owner] = await cluster.start("owner", HERMES_STORE__URL=proxy.address_of(cluster.address))
        await cluster.start("other")
        if how == "in a batch":
            await traffic.run(PLACES, 1, 0)
            await traffic.settle()
            proxy.hang_within(all_but_the_end)
        saying = await keep_saying(traffic)
        if how != "in a batch":
            getattr(proxy, how)()
            await asyncio.sleep(2.5 * SEAT_SECONDS)
            proxy.mend()
        await saying
        report(f"network: {how}", await traffic.check(faults=1))
        assert "seat.lost" in owner.log_text()


async def test_nodes_are_upgraded_one_after_the_other(cluster: Cluster, traffic: Traffic, report: Report) -> None:
    nodes = await cluster.start("one", "two")
    saying = await keep_saying(traffic)
    for node in nodes:
        assert await node.stop() == 0
        node.program = run_next_version
        await node.start()
    await cluster.start("late")  # of the version before, on the schema of the next
    await nodes[0].kill()
    await saying
    report("an upgrade of one node after the other", await traffic.check(faults=2))
    versions = cluster.query("SELECT CAST(value AS bigint) FROM meta WHERE key = 'schema_version'")
    assert versions == [(shipped_migrations()[-1].number + 1,)]


async def test_the_database_is_stopped_at_once_and_started_again(tmp_path: Path, report: Report) -> None:
    with private_server() as server, server.fresh_database() as address:
        async with faulty_cluster(tmp_path, address) as cluster:
            traffic = Traffic(cluster)
            await cluster.start("one", "two")
            saying = await keep_saying(traffic)
            server.stop_at_once()
            await asyncio.sleep(SEAT_SECONDS)
            server.start_again()
            await saying
            report("the database stopped", await traffic.check(faults=1))


async def test_a_turn_outlasts_any_number_of_outages_of_the_database(tmp_path: Path) -> None:
    with private_server() as server, server.fresh_database() as address:
        async with faulty_cluster(tmp_path, address) as cluster:
            await cluster.start("one", "two")
            for _ in range(MAX_RESTARTS + 2):
                await cluster.hold(match="wait")
            await cluster.say("wait for it")
            for outage in range(1, MAX_RESTARTS + 3):
                assert len(await cluster.asked(outage, wait=30)) == outage
                server.stop_at_once()
                server.start_again()
            assert await cluster.replies(1, match="wait for it")
            assert cluster.query("SELECT state FROM turns") == [("finished",)]


async def test_a_turn_that_kills_every_node_that_works_on_it_is_given_up(cluster: Cluster) -> None:
    nodes = await cluster.start("one", "two", CRASH_KILL="append_calls:1:before")
    await cluster.say(NOTE)
    for _ in range(MAX_RESTARTS + 1):
        ends = {asyncio.create_task(node.wait()): node for node in nodes}
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await cancel_all(ends)
        for end in ended:
            await ends[end].spawn()
    assert await cluster.replies(1) == [RESTART_SENTENCE]
    assert cluster.query("SELECT state, restarts FROM turns") == [("failed", MAX_RESTARTS)]


async def test_the_database_s_disk_is_full_for_a_while(
    cluster: Cluster, traffic: Traffic, report: Report, postgres: Postgres
) -> None:
    await cluster.start("one", "two")
    saying = await keep_saying(traffic)
    fill_disk(postgres, cluster.database)
    await asyncio.sleep(2.0)
    make_room(postgres, cluster.database)
    await saying
    report("a full disk", await traffic.check(faults=1))


async def test_a_message_that_crashes_its_lane_on_every_node_is_put_aside(cluster: Cluster, traffic: Traffic) -> None:
    await cluster.start("one", "two")
    [poisoned, *others] = PEOPLE
    await cluster.say(POISON, chat_id=poisoned.number)
    await cluster.stored(1)
    await cluster.say("and then?", chat_id=poisoned.number)
    await traffic.run(others, 2, 0.1)
    first, second = await cluster.replies(2, chat_id=poisoned.number, wait=30)
    assert first == DEAD_LETTER_SENTENCE
    assert second.endswith("and then?")
    assert len(await cluster.replies(2, chat_id=others[0].number)) == 2


async def test_a_chat_that_floods_holds_up_nobody_else(cluster: Cluster, traffic: Traffic, report: Report) -> None:
    await cluster.start("one", "two")
    flooding, others = Place(1000), [Place(number) for number in range(1001, 1201)]
    await traffic.run([flooding], 60, 0)
    await traffic.run(others, 1, 0)
    report("one chat floods", await traffic.check(faults=0))
    report("one of 200 others", max([await traffic.longest_wait(place) for place in others]))
