"""A test world with several nodes: gateways with separate home folders that share one database and one bot."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hermes_state.store.seats import LockKind
from tests.cluster.program import NOTEBOOK
from tests.e2e.protocols import CHAT_COMPLETIONS
from tests.e2e.world import TOKEN, Gateway, World
from tests.fakes import fake_telegram


class Cluster(World):
    """Fake services, and the nodes that use them. `gateway` is not started."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder, CHAT_COMPLETIONS)
        self.address: str = address
        self.nodes: dict[str, Gateway] = {}

    async def open(self, *, is_further: bool = False, **options: Any) -> None:
        """Start the fake services. If `is_further`, people write to the second of two bots on Telegram."""
        await super().open(**options)
        if is_further:
            first = await self._serve(fake_telegram.make_app(username="first_bot"))
            self.environ["HERMES_TELEGRAM__ACCOUNTS"] = self.bot_list()
            self.environ |= {"HERMES_TELEGRAM__BASE_URL": first, "HERMES_TELEGRAM__TOKEN": "1:FIRST"}

    def bot_list(self, **further: object) -> str:
        """Return the list of two bots. `further` are keys of the second one."""
        return json.dumps([{}, {"name": "operations", "token": TOKEN, "base_url": self.tg.url, **further}])

    def add(self, name: str, role: str = "node", **changes: str) -> Gateway:
        """Add a node without starting it."""
        folder = self._folder / name
        folder.mkdir()
        environ = {
            **self.environ,
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "HERMES_HOME": str(folder / "home"),
            "HERMES_CLUSTER__NAME": name,
            "HERMES_CLUSTER__ROLE": role,
            NOTEBOOK: str(self.notebook),
            **changes,
        }
        self.nodes[name] = Gateway(environ, folder / "gateway.log", self.gateway.program)
        return self.nodes[name]

    @property
    def notebook(self) -> Path:
        """File to which the tools of all nodes write."""
        return self._folder / "notebook.txt"

    @property
    def database(self) -> str:
        """Name of the database."""
        return urlsplit(self.environ["HERMES_STORE__URL"]).path[1:]

    def ranking(self) -> list[str]:
        """Return the names of the nodes that hold chat locks, the node with the most locks first."""
        return [name for name, _ in Counter(self.holders(LockKind.CHAT)).most_common()]

    async def stopped(self) -> Gateway:
        """Wait until a node has stopped itself (SIGSTOP), and return it."""
        async with asyncio.timeout(30):
            while True:
                for node in self.nodes.values():
                    if _is_stopped(node):
                        return node
                await asyncio.sleep(0.02)  # there is no event to wait for

    async def start(self, *names: str, role: str = "node", **changes: str) -> list[Gateway]:
        """Add nodes and start them one after the other, so that the first one gets all free locks."""
        started = [self.add(name, role, **changes) for name in names]
        for node in started:
            await node.start()
        return started

    async def start_with_worker(self, **changes: str) -> tuple[Gateway, Gateway]:
        """Start `owner`, which has no room for another turn until `release`, and `worker`. The owner serves the bot."""
        [owner] = await self.start("owner", HERMES_SESSIONS__MAX_TURNS="1", **changes)
        await self.keep_busy()
        [worker] = await self.start("worker", role="worker", **changes)
        return owner, worker

    async def keep_busy(self) -> None:
        """Begin a turn that lasts until `release`."""
        await self.hold(match="keep busy")
        await self.say("keep busy", chat_id=43)
        await self.asked(1)

    def holders(self, kind: LockKind) -> list[str]:
        """Return the names of the nodes that hold locks of a kind, once for each lock."""
        query = """SELECT n.name FROM pg_locks l JOIN nodes n ON n.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.classid = CAST(? AS bigint)"""
        return [name for (name,) in self.query(query, int(kind))]

    async def close(self) -> None:
        try:
            for node in self.nodes.values():
                if node.process is not None:
                    await node.kill()
        finally:
            await super().close()


def _is_stopped(node: Gateway) -> bool:
    assert node.process is not None
    try:
        return Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False


@asynccontextmanager
async def cluster_in(folder: Path, address: str, **options: Any) -> AsyncIterator[Cluster]:
    """Yield a cluster that is always closed at the end."""
    cluster = Cluster(folder, address)
    await cluster.open(**options)
    try:
        yield cluster
    finally:
        await cluster.close()
