"""Measure waiting times in a cluster when a node is killed or stopped, and for `/stop` of another node's turn.

Three gateways run as separate processes, with the default `cluster.seat_seconds` and a PostgreSQL that syncs every
commit. The fake services run in this process. After each fault, the benchmark also checks that every message is in
exactly one turn and is answered once, in order.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from bench.measure import Measure
from hermes_state.store.seats import LockKind
from tests.cluster.nodes import Cluster, cluster_in
from tests.cluster.traffic import Place, Traffic
from tests.e2e.world import STARTED_ANEW
from tests.postgres import Postgres, running_server

PLACES = [*(Place(number) for number in range(101, 109)), Place(-100)]
OWNER, WORKERS = "owner", ("two", "three")
STOPPED_SECONDS = 12.0
"""Seconds after which a stopped node continues. Other nodes have taken over its work long before."""
STOPS = 5

Fault = Callable[[Cluster], Awaitable[None]]


async def run(quick: bool) -> list[Measure]:
    """Measure three clusters for each fault. `quick`: one."""
    rounds = 1 if quick else 3
    with _server() as server:
        return [
            Measure(
                name=f"longest wait for an answer after {name}",
                ours=max([await _longest_wait(server, fault) for _ in range(rounds)]),
                unit="s",
                bar=bar,
            )
            for name, fault, bar in (
                ("a node is killed", _kill, 2),
                ("a node is stopped", _stop, 8),
                ("the bot's owner is killed", _kill_owner, 10),
            )
        ]


async def stop(quick: bool) -> list[Measure]:
    """Send `/stop` several times, each time for another turn on the other node."""
    with _server() as server:
        async with _cluster(server) as cluster:
            took = await _stops(cluster, 2 if quick else STOPS)
    return [Measure(name="/stop ends a turn of another node, longest", ours=max(took), unit="s", bar=1)]


@contextmanager
def _server() -> Iterator[Postgres]:
    with (
        tempfile.TemporaryDirectory(prefix="waits-bench-", ignore_cleanup_errors=True) as name,
        running_server(Path(name), {}) as server,
    ):
        yield server


@asynccontextmanager
async def _cluster(server: Postgres, **changes: str) -> AsyncIterator[Cluster]:
    """Yield fake services and a database, without any started node."""
    settings: Mapping[str, str] = {
        "HERMES_ACCESS__ALLOW_ALL": "true",
        "HERMES_SESSIONS__MERGE_SECONDS": "0",
        "HERMES_LOGGING__LEVEL": "info",
    }
    with tempfile.TemporaryDirectory(prefix="waits-bench-") as name, server.fresh_database() as url:
        async with cluster_in(Path(name), url, program=STARTED_ANEW) as cluster:
            cluster.environ |= settings
            yield cluster


# --- faults


async def _longest_wait(server: Postgres, fault: Fault) -> float:
    """Return the longest wait in seconds, from the fault or from a later message to its answer."""
    async with _cluster(server) as cluster:
        await cluster.start(OWNER, HERMES_SESSIONS__MAX_TURNS="3")
        await cluster.start(*WORKERS)
        traffic = Traffic(cluster)
        for place in PLACES:
            await cluster.hold(match="wait")
            await traffic.say(place, "wait")
        await cluster.asked(len(PLACES))
        happened_at = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(fault(cluster))
            await cluster.release()
            await traffic.run(PLACES, 3, 0.5)
        return await traffic.check(faults=1, since=happened_at)


async def _kill(cluster: Cluster) -> None:
    await cluster.nodes.pop(_busiest_worker(cluster)).kill()


async def _stop(cluster: Cluster) -> None:
    node = cluster.nodes[_busiest_worker(cluster)]
    node.signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_SECONDS)
    node.signal(signal.SIGCONT)


async def _kill_owner(cluster: Cluster) -> None:
    await cluster.nodes.pop(OWNER).kill()


def _busiest_worker(cluster: Cluster) -> str:
    return next(name for name in cluster.ranking() if name != OWNER)


# --- /stop


async def _stops(cluster: Cluster, count: int) -> list[float]:
    """Return the seconds from `/stop` until the model call has ended and the person has been told."""
    await cluster.start(OWNER, HERMES_SESSIONS__MAX_TURNS="1")
    await cluster.hold(match="fill it")
    await cluster.say("fill it", chat_id=43)
    [held] = await cluster.asked(1)
    await cluster.start(WORKERS[0], role="worker")
    seen, took = held["seq"], []
    for number in range(1, count + 1):
        await cluster.script(match="go on", text="one two three", hang_after=1)
        await cluster.say("go on")
        await cluster.asked(1, since=seen)
        assert sorted(cluster.holders(LockKind.CHAT)) == sorted((OWNER, WORKERS[0]))
        began = time.monotonic()
        await cluster.say("/stop")
        told = await cluster.tg.get("sent", chat_id=42, match="^Stopped", count=number, wait=15)
        [call] = await cluster.asked(1, since=seen, outcome="client_gone")
        took.append(max(told[-1]["t"], call["t"] + call["seconds"]) - began)
        seen = call["seq"]
    return took
