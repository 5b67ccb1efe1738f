"""Random schedules of faults, drawn by a seed that the head of the test run shows.

`HERMES_CRASH_SEED` draws the same again, `HERMES_CHAOS_RUNS` says how many.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.faulty import NOTE, faulty_cluster, fill_disk, make_room
from tests.cluster.nodes import Cluster
from tests.cluster.proxy import Proxy
from tests.cluster.traffic import Place, Traffic
from tests.cluster.waits import Report
from tests.crash.seed import CRASH_SEED
from tests.postgres import Postgres, PrivateServer, private_server

pytestmark = pytest.mark.cluster

RUNS = int(os.environ.get("HERMES_CHAOS_RUNS", "10"))
NAMES = ("one", "two", "worker")
PLACES = [*(Place(number) for number in range(101, 106)), Place(-100), Place(0)]
STEPS = ("admit", "_start_turn", "append_calls", "finish_tool", "_finish_turn", "begin_send", "mark_sent")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Everything that faults happen to."""

    cluster: Cluster
    server: Postgres
    proxies: dict[str, Proxy]


Fault = Callable[[Scene, str, float], Awaitable[None]]
"""Something that happens to a node, or to all of them, for so many seconds."""


async def kill(scene: Scene, name: str, seconds: float) -> None:
    await scene.cluster.nodes[name].kill()
    await asyncio.sleep(seconds)
    await scene.cluster.nodes[name].start()


async def drain(scene: Scene, name: str, seconds: float) -> None:
    await scene.cluster.nodes[name].stop()
    await asyncio.sleep(seconds)
    await scene.cluster.nodes[name].start()


async def stop(scene: Scene, name: str, seconds: float) -> None:
    scene.cluster.nodes[name].signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    scene.cluster.nodes[name].signal(signal.SIGCONT)


async def cut(scene: Scene, name: str, seconds: float) -> None:
    scene.proxies[name].cut()
    await asyncio.sleep(seconds)
    scene.proxies[name].mend()


async def hang(scene: Scene, name: str, seconds: float) -> None:
    scene.proxies[name].hang()
    await asyncio.sleep(seconds)
    scene.proxies[name].mend()


async def end_sessions(scene: Scene, name: str, seconds: float) -> None:
    scene.server.run(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'hermes-gateway %' "
        f"AND application_name NOT LIKE 'hermes-gateway seat %' AND datname = '{scene.cluster.database}'"
    )


async def fill(scene: Scene, name: str, seconds: float) -> None:
    """On a thread: it waits for transactions of a node that stands still, and the proxies run here."""
    await asyncio.to_thread(fill_disk, scene.server, scene.cluster.database)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(make_room, scene.server, scene.cluster.database)


async def crash_database(scene: Scene, name: str, seconds: float) -> None:
    assert isinstance(scene.server, PrivateServer)
    scene.server.stop_at_once()
    await asyncio.sleep(seconds)
    scene.server.start_again()


FAULTS: list[Fault] = [kill, drain, stop, stop, cut, hang, end_sessions, fill, crash_database]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Faults one after the other, each with its node, its length and the pause before it."""

    faults: list[tuple[Fault, str, float, float]]
    step: str
    """Step of a node's work at which it is killed or stopped, as `CRASH_KILL`."""

    @classmethod
    def draw(cls, rng: random.Random) -> "Schedule":
        faults = [
            (rng.choice(FAULTS), rng.choice(NAMES), round(rng.uniform(0.1, 2.5), 2), round(rng.uniform(0.2, 1.2), 2))
            for _ in range(rng.randint(1, 3))
        ]
        step = f"{rng.choice(STEPS)}:{rng.randint(1, 8)}:{rng.choice(['before', 'after'])}"
        return cls(faults=faults, step=step if rng.random() < 0.5 else "")

    def lines(self) -> Iterator[str]:
        """What happens, for people."""
        if self.step:
            yield f"a kill at {self.step}"
        for fault, name, seconds, pause in self.faults:
            yield f"after {pause} s: {fault.__name__} {name} for {seconds} s"

    @property
    def crashes_database(self) -> bool:
        return any(fault is crash_database for fault, *_ in self.faults)


@pytest.mark.parametrize("number", range(RUNS))
async def test_a_random_schedule_of_faults_leaves_every_promise_kept(
    number: int, postgres: Postgres, tmp_path: Path, pytestconfig: pytest.Config, report: Report
) -> None:
    seed = pytestconfig.stash[CRASH_SEED]
    schedule = Schedule.draw(random.Random(f"{seed}:{number}"))
    again = f"HERMES_CRASH_SEED={seed} make chaos RUNS={number + 1} ARGS='-k [{number}]'"
    print(f"again: {again}", *schedule.lines(), sep="\n")
    with ExitStack() as stack:
        server = stack.enter_context(private_server()) if schedule.crashes_database else postgres
        address = stack.enter_context(server.fresh_database())
        async with AsyncExitStack() as opened:
            proxies = {name: await opened.enter_async_context(Proxy(server.port)) for name in NAMES}
            cluster = await opened.enter_async_context(faulty_cluster(tmp_path, address))
            scene = Scene(cluster=cluster, server=server, proxies=proxies)
            report("; ".join(schedule.lines()), await play(scene, schedule))


async def play(scene: Scene, schedule: Schedule) -> float:
    """Let people write while it happens, check that nothing shows in the end, and return the longest wait."""
    cluster, traffic = scene.cluster, Traffic(scene.cluster)
    once = {"CRASH_KILL": schedule.step, "CRASH_ONCE": str(cluster.notebook.with_suffix(".killed"))}
    for name in NAMES:
        url, role = scene.proxies[name].address_of(cluster.address), "worker" if name == "worker" else "node"
        await cluster.start(name, role=role, HERMES_STORE__URL=url, **once)
    saying = asyncio.create_task(traffic.run(PLACES, 6, 0.6, ["", NOTE, "[[sleep:0.5]]"]))
    for fault, name, seconds, pause in schedule.faults:
        await asyncio.sleep(pause)
        await fault(scene, name, seconds)
    await saying
    kills = [fault for fault, *_ in schedule.faults if fault is kill]
    seats_lost = sum(node.log_text().count('"seat.lost"') for node in cluster.nodes.values())
    return await traffic.check(faults=1 + len(kills) + seats_lost)
