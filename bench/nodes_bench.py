"""Turns per second of three nodes between the fake services, beside one gateway on SQLite in the same run.

Everything is a process: a fake Telegram and a model that answers at once (`replay.py`) for each side, the gateways,
PostgreSQL with its settings as they are delivered. The sides are measured in turns, and what an answer costs each
process is printed: all of them share the machine's processors, those that only measure, too.
"""

import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.cpu import cpu_seconds, family_cpu_seconds, parent_of
from bench.measure import Measure, aligned
from bench.replay import Recorded, kind_of, replaying
from bench.subjects import WORDS, Lab, Subject, gateway, lab
from bench.traffic import Conversations, conversations
from tests.postgres import Postgres, connect, running_server

NODES = 3
CHATS = 100

_CHUNKS: list[dict[str, Any]] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": WORDS}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 17, "total_tokens": 917}},
]
_ANSWER = Recorded(
    content_type="text/event-stream",
    frames=["".join(f"data: {json.dumps(chunk)}\n\n" for chunk in _CHUNKS) + "data: [DONE]\n\n"],
)
_PATH = "/v1/chat/completions"

Meter = Callable[[], float]
"""Seconds of processor time that something has used so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A bot, and the processes behind it."""

    name: str
    here: Lab
    meters: Mapping[str, Meter]


async def run(quick: bool) -> list[Measure]:
    """The sides in turns, several times. `quick`: once, and shorter."""
    rounds, seconds = (1, 4.0) if quick else (3, 8.0)
    with (
        tempfile.TemporaryDirectory(prefix="nodes-bench-", ignore_cleanup_errors=True) as name,
        running_server(Path(name) / "postgres", {}) as server,
    ):
        async with nodes(Path(name), server) as several, _on_sqlite(Path(name)) as single:
            found: dict[str, list[Conversations]] = {side.name: [] for side in (several, single)}
            for number in range(rounds):
                for side in (several, single):
                    chats = range(10_000 * (number + 1), 10_000 * (number + 1) + CHATS)
                    found[side.name].append(await conversations(side.here, side.meters, seconds, chats))
    middle = [sorted(each, key=lambda one: one.per_second)[rounds // 2] for each in found.values()]
    print(_described(dict(zip(found, middle, strict=True))))
    ours, theirs = (one.per_second for one in middle)
    return [
        Measure(
            name=f"turns of {CHATS} chats on {NODES} nodes, against one gateway on SQLite",
            ours=ours,
            yardstick=theirs,
            unit="turns/s",
            bar=0.5,
            at_least=True,
        )
    ]


@asynccontextmanager
async def nodes(folder: Path, server: Postgres, count: int = NODES) -> AsyncIterator[Side]:
    """So many nodes on a database of their own; the first one serves the bot."""
    async with AsyncExitStack() as stack:
        here, meters, model = await stack.enter_async_context(_services(folder / "several"))
        url = stack.enter_context(server.fresh_database())
        for number in range(1, count + 1):
            home = folder / f"node-{number}"
            home.mkdir()
            changes = {"HERMES_STORE__URL": url, "HERMES_CLUSTER__NAME": home.name, **model}
            node = await stack.enter_async_context(gateway(here, home, changes=changes))
            await here.telegram.get("calls", method="getUpdates", count=1, wait=30)  # the first node has the bot
            meters[home.name] = partial(_cpu_seconds_of, node)
        meters["PostgreSQL"] = partial(family_cpu_seconds, server_pid(url))
        yield Side(name=f"{count} nodes", here=here, meters=meters)


@asynccontextmanager
async def _on_sqlite(folder: Path) -> AsyncIterator[Side]:
    home = folder / "single"
    async with _services(home) as (here, meters, model), gateway(here, home, changes=model) as single:
        yield Side(name="SQLite", here=here, meters={**meters, home.name: partial(_cpu_seconds_of, single)})


@asynccontextmanager
async def _services(folder: Path) -> AsyncIterator[tuple[Lab, dict[str, Meter], dict[str, str]]]:
    """The fake services of a side, meters of them, and the settings that name the model."""
    (home := folder / "model").mkdir(parents=True)
    async with lab() as here, replaying(home, {kind_of(_PATH, streams=True): _ANSWER}) as model:
        telegram = partial(cpu_seconds, here.processes["telegram"])
        meters = {"telegram": telegram, "model": partial(cpu_seconds, model.pid), "bench": time.process_time}
        yield here, meters, {"HERMES_MODEL__BASE_URL": f"{model.url}/v1"}


def server_pid(url: str) -> int:
    """Process of the server that has this database."""
    with connect(url) as db:
        return parent_of(db.execute("SELECT pg_backend_pid()").fetchone()[0])


def _cpu_seconds_of(subject: Subject) -> float:
    return subject.cpu_seconds


def _described(found: Mapping[str, Conversations]) -> str:
    """What an answer took, and what it cost each process."""
    names = list(dict.fromkeys(name for one in found.values() for name in one.cpu_ms))
    rows = [["", "turns/s", "p50, ms", *(f"{name}, ms" for name in names)]]
    for side, one in found.items():
        costs = (f"{one.cpu_ms[name]:.2f}" if name in one.cpu_ms else "" for name in names)
        rows.append([side, f"{one.per_second:.0f}", f"{one.p50:.0f}", *costs])
    return aligned(rows)
