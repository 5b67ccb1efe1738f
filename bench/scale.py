"""Measure the load that one, two and three nodes can handle: `python -m bench.scale [--quick]`.

Messages arrive at 1, 10 and 100 per second, even if answers are late, in as many chats as needed. The model streams
each answer for two seconds, which the waiting times include. Each number of nodes has its own database and fake
services. PostgreSQL has its default settings. Everything runs on this machine. CPU time is a percentage of one CPU. The
last column names the resource that is closest to its limit, and the share of it that is used. A node can use one CPU,
PostgreSQL all of the machine's CPUs. If the whole machine is busy, the column names the machine.
"""

import argparse
import asyncio
import os
import platform
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.arrivals import Arrivals, arrivals
from bench.cpu import machine_cpu_seconds
from bench.measure import aligned
from bench.nodes import POSTGRESQL, Side, nodes
from bench.replay import chat_completions
from bench.subjects import WORDS
from gateway.config.settings import SessionConfig
from tests.postgres import Postgres, connect, running_server

RATES = (1, 10, 100)
MODEL_SECONDS, PIECES = 2.0, 13
BUSY = 0.95
"""Share of the machine's CPU time above which the whole machine counts as busy."""
COUNTED = {"shared_preload_libraries": "pg_stat_statements"}
"""Setting that makes a PostgreSQL server count its statements."""
MACHINE, STATEMENTS, COMMITS = "machine", "statements", "commits"

_STATEMENTS = """SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database()"""
_COMMITS = f"{_STATEMENTS} AND query = 'COMMIT'"
_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Length of a run in seconds."""

    warm_up: float
    measured: float


LENGTH, QUICK_LENGTH = Length(warm_up=8, measured=40), Length(warm_up=3, measured=4)
NODES, QUICK_NODES = (1, 2, 3), (1, 3)


class Watched:
    """Database watched by a user who can see all statistics."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self.meters = {STATEMENTS: lambda: float(ask(_STATEMENTS)), COMMITS: lambda: float(ask(_COMMITS))}

    @property
    def connections(self) -> int:
        return self._ask(_CONNECTIONS)

    @property
    def most_connections(self) -> int:
        return self._ask("SELECT CAST(current_setting('max_connections') AS integer)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Results for a number of nodes and a message rate."""

    nodes: int
    rate: int
    found: Arrivals
    connections: int
    most_connections: int

    def share(self, process: str) -> float:
        """Return the CPU time that a process used, as a share of one CPU."""
        return self.found.per_second[process]

    @property
    def bottleneck(self) -> tuple[float, str]:
        """Return the used share of the resource that is closest to its limit, and its name."""
        turns = self.found.answered_per_second * self.found.p50
        processors = os.cpu_count() or 1
        used = [
            (self.share(_node(1)), "processor of the bot's node"),
            *((self.share(_node(number)), "processor of another node") for number in range(2, self.nodes + 1)),
            (self.share(POSTGRESQL) / processors, "processors of PostgreSQL"),
            (self.connections / self.most_connections, "connections"),
            (turns / (self.nodes * SessionConfig().max_turns), "turns at a time"),
        ]
        busy = self.share(MACHINE) / processors
        return (busy, "processors of this machine") if busy >= BUSY else max(used)


async def run(quick: bool) -> list[Load]:
    """Measure every number of nodes with every rate."""
    length = QUICK_LENGTH if quick else LENGTH
    loads = []
    with (
        tempfile.TemporaryDirectory(prefix="scale-", ignore_cleanup_errors=True) as name,
        running_server(Path(name) / "postgres", COUNTED) as server,
    ):
        for count in QUICK_NODES if quick else NODES:
            async with _watched_nodes(count, Path(name), server) as (side, watched):
                for number, rate in enumerate(RATES, 1):
                    loads.append(await _load(side, watched, count, rate, number, length))
                    print(_line(loads[-1]), flush=True)
    return loads


@asynccontextmanager
async def _watched_nodes(count: int, folder: Path, server: Postgres) -> AsyncIterator[tuple[Side, Watched]]:
    model = chat_completions(WORDS, pieces=PIECES, seconds=MODEL_SECONDS)
    with server.fresh_database() as address, _watched(server, address) as watched:
        async with nodes(count, folder, address, model) as side:
            side.meters[MACHINE] = machine_cpu_seconds
            side.meters.update(watched.meters)
            yield side, watched


@contextmanager
def _watched(server: Postgres, address: str) -> Iterator[Watched]:
    database = address.rpartition("/")[2]
    with connect(server.url(database, "postgres")) as db:
        db.execute("CREATE EXTENSION pg_stat_statements")
        yield Watched(lambda query: int(db.execute(query).fetchone()[0]))


async def _load(side: Side, watched: Watched, count: int, rate: int, number: int, length: Length) -> Load:
    found = await arrivals(
        side.here,
        side.meters,
        rate,
        warm_up=length.warm_up,
        seconds=length.measured,
        first_chat=100_000 * number,
    )
    return Load(
        nodes=count,
        rate=rate,
        found=found,
        connections=watched.connections,
        most_connections=watched.most_connections,
    )


# --- output


def _node(number: int) -> str:
    return f"node {number}"


def _line(load: Load) -> str:
    """Return a progress line for one rate."""
    late = f", {load.found.unanswered} without an answer" if load.found.unanswered else ""
    fakes = sum(load.share(name) for name in ("Telegram", "model", "bench"))
    return (
        f"nodes: {load.nodes}, messages/s: {load.rate}: {len(load.found.waits)} messages{late}; "
        f"{load.share(MACHINE) * 100:.0f} % of a processor in all, {fakes * 100:.0f} of them the fake services'"
    )


def table(loads: list[Load]) -> str:
    """Return the table for docs/figures/performance-tables.md."""
    head = ["nodes", "messages/s", "answered/s", "p50", "p95", "longest", "connections", "statements/s", "commits/s"]
    rows = [[*head, "bot's node", "other nodes", "PostgreSQL", "runs out first"]]
    for load in loads:
        found, (used, what) = load.found, load.bottleneck
        others = [load.share(_node(number)) for number in range(2, load.nodes + 1)]
        rows.append(
            [
                *(str(load.nodes), str(load.rate), f"{found.answered_per_second:.1f}"),
                *(f"{seconds:.1f} s" for seconds in (found.p50, found.p95)),
                f"{'> ' if found.unanswered else ''}{found.longest:.1f} s",
                str(load.connections),
                *(f"{found.per_second[name]:,.0f}" for name in (STATEMENTS, COMMITS)),
                _percent(load.share(_node(1))),
                ", ".join(map(_percent, others)),
                _percent(load.share(POSTGRESQL)),
                f"{what}, {_percent(used)}",
            ]
        )
    return aligned(rows)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def main() -> None:
    """Print the table. This benchmark has no bar."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds of each, and not of two nodes")
    given = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} processors\n")
    print(f"\n{table(asyncio.run(run(given.quick)))}")


if __name__ == "__main__":
    main()
