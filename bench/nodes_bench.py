"""Compare the turns per second of three nodes with one gateway on SQLite, in the same run.

Everything is a separate process: the gateways, PostgreSQL with default settings, and, for each side, a fake Telegram
and a model that answers at once (`replay.py`). The sides take turns. The CPU time of each process per answer is
printed, because all processes, even the benchmark's own, share the machine's CPUs.
"""

import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from bench.measure import PEER, Measure, aligned
from bench.nodes import Side, nodes, side
from bench.peer_gateway import MISSING, PEER_NAME, peer
from bench.traffic import Conversations, conversations
from tests.postgres import running_server

NODES = 3
CHATS = 100
PEER_CHATS = 20
"""Number of chats that write to hermes-agent. It works on ten at a time, so a hundred would need minutes to get going.
"""
SQLITE = "one gateway on SQLite"
BARS = {SQLITE: 0.55, PEER_NAME: 3.0}


async def run(quick: bool) -> list[Measure]:
    """Measure the sides in turns, several times. `quick`: once, for a shorter time."""
    with tempfile.TemporaryDirectory(prefix="nodes-bench-", ignore_cleanup_errors=True) as name:
        async with AsyncExitStack() as stack:
            sides = await _started(stack, Path(name))
            found = await _in_turns(sides, *((1, 4.0) if quick else (5, 8.0)))
    print(_described(found))
    (name, ours), *others = found.items()
    return [
        Measure(
            name=f"turns of {CHATS} chats on {name}, against {other}",
            ours=[one.per_second for one in ours],
            yardstick=[one.per_second for one in theirs],
            unit="turns/s",
            bar=BARS[other],
            at_least=True,
        )
        for other, theirs in others
    ]


async def _started(stack: AsyncExitStack, folder: Path) -> list[Side]:
    """Start the sides and return them, ours first."""
    server = stack.enter_context(running_server(folder / "postgres", {}))
    address = stack.enter_context(server.fresh_database())
    several = await stack.enter_async_context(nodes(NODES, folder, address))
    single = await stack.enter_async_context(side(SQLITE, folder))
    await single.start_gateway("gateway")
    interpreter = os.environ.get(PEER)
    if interpreter is None:
        print(MISSING)
        return [several, single]
    other = await stack.enter_async_context(side(PEER_NAME, folder))
    await other.start("gateway", partial(peer, interpreter, other.here, other.model_url))
    return [several, single, other]


async def _in_turns(sides: Sequence[Side], rounds: int, seconds: float) -> dict[str, list[Conversations]]:
    """Return each side's rounds."""
    found: dict[str, list[Conversations]] = {one.name: [] for one in sides}
    for number, one in itertools.product(range(1, rounds + 1), sides):
        chats = range(10_000 * number, 10_000 * number + (PEER_CHATS if one.name == PEER_NAME else CHATS))
        try:
            found[one.name].append(await conversations(one.here, one.meters, seconds, chats))
        except RuntimeError as error:
            raise RuntimeError(f"{one.name}: {error}") from error
    return found


def _described(rounds: Mapping[str, Sequence[Conversations]]) -> str:
    """Return a table of each side's median round: time per answer, and CPU time of each process per answer."""
    found = {name: sorted(each, key=lambda one: one.per_second)[len(each) // 2] for name, each in rounds.items()}
    names = list(dict.fromkeys(name for one in found.values() for name in one.cpu_ms))
    rows = [["processor time of an answer", "turns/s", "p50, ms", *(f"{name}, ms" for name in names)]]
    for name, one in found.items():
        costs = (f"{one.cpu_ms[process]:.2f}" if process in one.cpu_ms else "" for process in names)
        rows.append([name, f"{one.per_second:.0f}", f"{one.p50:.0f}", *costs])
    return f"{aligned(rows)}\n"
