"""Measure the cost of MCP servers for the gateway: `make bench ARGS=mcp`.

Compares the idle memory with one server and without, and measures the duration of a call.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from agent.settings import ServerSettings
from agent.tools.mcp.servers import ImageStore, ServerRegistry
from agent.tools.mcp.settings import ServerState
from bench.life_bench import SETTLE_SECONDS
from bench.measure import Measure, percentile
from bench.subjects import gateway, lab
from hermes_state.files.folder import AttachmentFolder
from hermes_state.values import SystemClock

SERVER = Path(__file__).parents[1] / "tests" / "fakes" / "mcp_server.py"
MEMORY_BAR = 30.0
"""Maximum memory that one server adds, in MB."""
CALL_BAR = 10.0
"""Maximum duration of a call, in milliseconds."""
START_SECONDS = 20.0


async def run(quick: bool) -> list[Measure]:
    """Measure the memory that one server adds to the gateway, and the duration of a call."""
    none, one = [], []
    for _ in range(2 if quick else 5):
        none.append(await _at_rest({}))
        one.append(await _at_rest({"harbour": {"command": sys.executable, "args": [str(SERVER)]}}))
    print(f"at rest: {statistics.median(none):.1f} MB without a server, {statistics.median(one):.1f} MB with one")
    grown = statistics.median(one) - statistics.median(none)
    return [
        Measure(name="one MCP server: memory at rest above none", ours=grown, unit="MB", bar=MEMORY_BAR),
        await _call(50 if quick else 300),
    ]


async def _at_rest(servers: dict[str, Any]) -> float:
    """Return the memory in MB of a gateway that is connected to these servers."""
    with tempfile.TemporaryDirectory(prefix="mcp-bench-") as name:
        log = Path(name) / "mcp.log"
        for block in servers.values():
            block["env"] = {"FAKE_MCP_LOG": str(log)}
        changes = {"HERMES_MCP__SERVERS": json.dumps(servers)}
        async with lab() as here, gateway(here, Path(name), changes=changes) as subject:
            await here.telegram.get("calls", method="getUpdates", count=1, wait=30)
            async with asyncio.timeout(START_SECONDS):
                while servers and not await asyncio.to_thread(log.exists):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)  # the file is written by another process
            await asyncio.sleep(2 * SETTLE_SECONDS)
            return subject.memory_mb


async def _call(rounds: int) -> Measure:
    """Measure a call to a server that uses standard input and output and answers at once."""
    with tempfile.TemporaryDirectory(prefix="mcp-bench-") as name:
        clock, took = SystemClock(), []
        registry = ServerRegistry(ImageStore(files=AttachmentFolder(Path(name)), clock=clock), clock, lambda text: text)
        async with asyncio.TaskGroup() as group:
            registry.configure([ServerSettings(name="a", command=sys.executable, args=(str(SERVER),))], group)
            async with asyncio.timeout(START_SECONDS):
                while registry.statuses()[0].state is not ServerState.CONNECTED:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)  # no turn waits for a server
            look = registry.by_name["a__look"]
            for _ in range(rounds):
                began = time.perf_counter()
                await look.run({"boat": "Anna"}, cast(Any, None))  # text results need no context
                took.append((time.perf_counter() - began) * 1e3)
            await registry.close()
    return Measure(name="a call at an MCP server, p50", ours=percentile(took, 0.5), unit="ms", bar=CALL_BAR)
