"""Turns per second of three nodes between the fake services, beside one gateway on SQLite in the same run.

Everything is a process: a fake Telegram and a model that answers at once (`replay.py`) for each side, the gateways,
PostgreSQL with its settings as they are delivered. The sides are measured in turns, and what an answer costs each
process is printed: all of them share the machine's processors, those that only measure, too.
"""

import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.cpu import cpu_seconds, family_cpu_seconds, parent_of
from bench.measure import PEER, Measure, aligned
from bench.peer_gateway import MISSING, PEER_NAME, peer
from bench.replay import chat_completions, replaying
from bench.subjects import WORDS, Lab, Subject, gateway, lab
from bench.traffic import Conversations, conversations
from tests.postgres import Postgres, connect, running_server

NODES = 3
CHATS = 100
PEER_CHATS = 20
"""Chats that write to hermes-agent. It works in ten at a time, and a hundred would take it minutes to begin."""
SQLITE = "one gateway on SQLite"

Meter = Callable[[], float]
"""Seconds of processor time that something has used so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A bot, and the processes behind it."""

    name: str
    here: Lab
    meters: Mapping[str, Meter]
    chats: int = CHATS


async def run(quick: bool) -> list[Measure]:
    """The sides in turns, several times. `quick`: once, and shorter."""
    with (
        tempfile.TemporaryDirectory(prefix="nodes-bench-", ignore_cleanup_errors=True) as name,
        running_server(Path(name) / "postgres", {}) as server,
    ):
        async with AsyncExitStack() as stack:
            sides = [await stack.enter_async_context(side) for side in _sides(Path(name), server)]
            found = await _in_turns(sides, *((1, 4.0) if quick else (3, 8.0)))
    print(_described(found))
    ours, *others = found.items()
    bars = {SQLITE: 0.5, PEER_NAME: 3.0}
    return [
        Measure(
            name=f"turns of {CHATS} chats on {ours[0]}, against {name}",
            ours=ours[1].per_second,
            yardstick=theirs.per_second,
            unit="turns/s",
            bar=bars[name],
            at_least=True,
        )
        for name, theirs in others
    ]


def _sides(folder: Path, server: Postgres) -> Iterator[AbstractAsyncContextManager[Side]]:
    """Ours first."""
    yield nodes(folder / "nodes", server)
    yield _on_sqlite(folder / "single")
    if interpreter := os.environ.get(PEER):
        yield _peer(interpreter, folder / "peer")
    else:
        print(MISSING)


async def _in_turns(sides: Sequence[Side], rounds: int, seconds: float) -> dict[str, Conversations]:
    """The middle of several rounds for each side, by its turns per second."""
    found: dict[str, list[Conversations]] = {side.name: [] for side in sides}
    for number, side in itertools.product(range(1, rounds + 1), sides):
        chats = range(10_000 * number, 10_000 * number + side.chats)
        found[side.name].append(await conversations(side.here, side.meters, seconds, chats))
    return {name: sorted(each, key=lambda one: one.per_second)[rounds // 2] for name, each in found.items()}


@asynccontextmanager
async def nodes(folder: Path, server: Postgres, count: int = NODES) -> AsyncIterator[Side]:
    """So many nodes on a database of their own; the first one serves the bot."""
    async with AsyncExitStack() as stack:
        here, meters, model = await stack.enter_async_context(_services(folder))
        url = stack.enter_context(server.fresh_database())
        for number in range(1, count + 1):
            name = f"node {number}"
            changes = {"HERMES_STORE__URL": url, "HERMES_CLUSTER__NAME": name, **_settings(model)}
            node = gateway(here, _made(folder / name), changes=changes)
            meters[name] = await _started(stack, here, node)
        meters["PostgreSQL"] = partial(family_cpu_seconds, server_pid(url))
        yield Side(name=f"{count} nodes", here=here, meters=meters)


@asynccontextmanager
async def _on_sqlite(folder: Path) -> AsyncIterator[Side]:
    async with AsyncExitStack() as stack:
        here, meters, model = await stack.enter_async_context(_services(folder))
        bot = gateway(here, _made(folder / "bot"), changes=_settings(model))
        meters["bot"] = await _started(stack, here, bot)
        yield Side(name=SQLITE, here=here, meters=meters)


@asynccontextmanager
async def _peer(interpreter: str, folder: Path) -> AsyncIterator[Side]:
    async with AsyncExitStack() as stack:
        here, meters, model = await stack.enter_async_context(_services(folder))
        bot = peer(interpreter, here, _made(folder / "bot"), model)
        meters["bot"] = await _started(stack, here, bot)
        yield Side(name=PEER_NAME, here=here, meters=meters, chats=PEER_CHATS)


@asynccontextmanager
async def _services(folder: Path) -> AsyncIterator[tuple[Lab, dict[str, Meter], str]]:
    """The fake services of a side, meters of them, and the address of the model."""
    async with lab() as here, replaying(_made(folder / "model"), chat_completions(WORDS)) as model:
        telegram = partial(cpu_seconds, here.processes["telegram"])
        meters = {"telegram": telegram, "model": partial(cpu_seconds, model.pid), "bench": time.process_time}
        yield here, meters, f"{model.url}/v1"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _settings(model_url: str) -> dict[str, str]:
    return {"HERMES_MODEL__BASE_URL": model_url}


async def _started(stack: AsyncExitStack, here: Lab, bot: Subject) -> Meter:
    """Start a bot until somebody polls; returns what it uses."""
    await stack.enter_async_context(bot)
    await here.telegram.get("calls", method="getUpdates", count=1, wait=60)
    return lambda: bot.cpu_seconds


def server_pid(url: str) -> int:
    """Process of the server that has this database."""
    with connect(url) as db:
        return parent_of(db.execute("SELECT pg_backend_pid()").fetchone()[0])


def _described(found: Mapping[str, Conversations]) -> str:
    """What an answer took, and what it cost each process."""
    names = list(dict.fromkeys(name for one in found.values() for name in one.cpu_ms))
    rows = [["", "turns/s", "p50, ms", *(f"{name}, ms" for name in names)]]
    for side, one in found.items():
        costs = (f"{one.cpu_ms[name]:.2f}" if name in one.cpu_ms else "" for name in names)
        rows.append([side, f"{one.per_second:.0f}", f"{one.p50:.0f}", *costs])
    return aligned(rows)
