"""Bots and cluster nodes as processes, connected to fake services that are separate processes."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.cpu import cpu_seconds, family_cpu_seconds, parent_of
from bench.replay import Recorded, chat_completions, replaying
from bench.subjects import WORDS, Lab, Subject, gateway, lab
from tests.postgres import connect

AT_ONCE = chat_completions(WORDS)
"""Replay of a model that answers at once."""
POSTGRESQL = "PostgreSQL"
POLL_SECONDS = 60.0
"""Longest wait for a bot's first poll, in seconds. hermes-agent starts slowly."""

Meter = Callable[[], float]
"""Returns a value that only grows, such as the CPU seconds that a process has used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A bot with its own fake services."""

    name: str
    here: Lab
    model_url: str
    folder: Path
    stack: AsyncExitStack
    meters: dict[str, Meter] = field(default_factory=dict)
    """CPU time of each process."""

    async def start(self, name: str, make: Callable[[Path], Subject]) -> None:
        """Start a process of the bot in its own folder, and wait until the bot polls for messages."""
        folder = self.folder / name
        folder.mkdir()
        process = await self.stack.enter_async_context(make(folder))
        await self.here.telegram.get("calls", method="getUpdates", count=1, wait=POLL_SECONDS)
        self.meters[name] = lambda: process.cpu_seconds

    async def start_gateway(self, name: str, **changes: str) -> None:
        """Start our gateway with changes to its environment."""
        environ = {"HERMES_MODEL__BASE_URL": self.model_url, **changes}
        await self.start(name, lambda folder: gateway(self.here, folder, changes=environ))


@asynccontextmanager
async def side(name: str, folder: Path, model: Mapping[str, Recorded] = AT_ONCE) -> AsyncIterator[Side]:
    """Yield a side that has no bot yet. `model`: the answers to replay."""
    async with AsyncExitStack() as stack:
        place = folder / name.replace(" ", "-")
        place.mkdir()
        provider = await stack.enter_async_context(replaying(place, model))
        here = await stack.enter_async_context(lab())
        made = Side(name=name, here=here, model_url=f"{provider.url}/v1", folder=place, stack=stack)
        made.meters["Telegram"] = partial(cpu_seconds, here.processes["telegram"])
        made.meters["model"] = partial(cpu_seconds, provider.pid)
        made.meters["bench"] = time.process_time
        yield made


@asynccontextmanager
async def nodes(count: int, folder: Path, address: str, model: Mapping[str, Recorded] = AT_ONCE) -> AsyncIterator[Side]:
    """Yield `count` nodes that share one database. The first node serves the bot."""
    async with side(f"{count} nodes", folder, model) as made:
        made.meters[POSTGRESQL] = partial(family_cpu_seconds, server_pid(address))
        for number in range(1, count + 1):
            name = f"node {number}"
            await made.start_gateway(name, HERMES_STORE__URL=address, HERMES_CLUSTER__NAME=name)
        yield made


def server_pid(address: str) -> int:
    """Return the id of the server process for this database."""
    with connect(address) as db:
        return parent_of(db.execute("SELECT pg_backend_pid()").fetchone()[0])
