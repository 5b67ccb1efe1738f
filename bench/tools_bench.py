"""Measure the overhead of tools: `make bench ARGS=tools`.

It runs calls with a real runner on a real store. It measures the time of a call beyond the bare function, and a turn
whose tools return 100 MB.
"""

import asyncio
import gc
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.context.limits import LimitSettings, limits_of
from agent.settings import TerminalSettings
from agent.tool_calls import ResultBudget, ToolCallRunner
from agent.tools.offers import OfferRegistry, offer, schema_tokens
from agent.tools.registry import ToolContext, ToolRegistry, tool
from agent.tools.terminal.running_command import RunningCommand
from agent.tools.terminal.sandbox import probe_sandbox
from agent.tools.web.fetching import FetchSettings, fetch_tool
from bench.built_in import agent_with_all_tools
from bench.compression_bench import heartbeat
from bench.measure import Measure, percentile, resident_mb
from bench.turn_bench import started_turn
from hermes_state import journal
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.journal import ModelAnswer
from hermes_state.models.ledger import ModelCall
from hermes_state.store.writer import Store
from hermes_state.turns import RunningTurn
from hermes_state.values import SystemClock, ToolCall, ToolEffect

DISPATCH_BAR = 1.0
"""Maximum time of a tool call beyond the bare function, in milliseconds."""
MEMORY_BAR = 64.0
"""Maximum memory that a turn with large results adds, in MB."""
IDLE_BAR = 3.0
"""Maximum memory of unused tools, in MB."""
LAG_BAR = 50.0
"""Maximum delay of the event loop (99th percentile), in milliseconds."""
SANDBOX_BAR = 15.0
"""Maximum time that the sandbox adds to a command, in milliseconds."""
PAGE = 2_000_000
"""Number of characters in a web page."""
RESULT = 1_000_000
"""Number of characters in one large result."""
_CALL = ModelCall(purpose="turn", route="bench", model="bench", outcome="ok", usage=None, took_ms=0)
_WORDS = "the register names a boat and the day on which it came in, and what it brought; "


@tool(description="Looks.", parameters={"type": "object"}, effect=ToolEffect.READ_ONLY)
async def look(arguments: dict[str, Any], context: ToolContext) -> str:
    """Return at once."""
    return "fine"


@tool(description="Reads much.", parameters={"type": "object"}, effect=ToolEffect.READ_ONLY)
async def read_much(arguments: dict[str, Any], context: ToolContext) -> str:
    """Return a large new result."""
    return (f"{arguments['n']} {_WORDS}" * (RESULT // len(_WORDS) + 1))[:RESULT]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    store: Store
    turn: RunningTurn
    runner: ToolCallRunner

    @property
    def context(self) -> ToolContext:
        return ToolContext.of(self.turn, self.store)

    async def round(self, calls: Sequence[ToolCall]) -> float:
        """Run the calls of one answer. Return the seconds from the stored answer to the stored results."""
        step = ModelAnswer(text="", call=_CALL, reported_prompt_tokens=None, calls=tuple(calls))
        message = await self.store.write(journal.append_calls, self.turn, step, self.runner.clock.now())
        began = time.perf_counter()
        await self.runner.run(self.turn, message, calls, self.context)
        await self.runner.end_round(self.turn, self.context.input_window)
        return time.perf_counter() - began


@asynccontextmanager
async def _bench() -> AsyncIterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix="tools-bench-") as folder:
        store = await SqliteStore.open(Path(folder) / "tools.db", synchronous="NORMAL")
        try:
            turn = await store.write(started_turn, ())
            runner = ToolCallRunner(
                store=store,
                clock=SystemClock(),
                offers=OfferRegistry(ToolRegistry([look, read_much]), store),
                budget=ResultBudget(),
            )
            yield _Bench(store=store, turn=turn, runner=runner)
        finally:
            await store.close()


async def run(quick: bool) -> list[Measure]:
    """Measure the dispatch of one call, a turn with large results, and the other costs of tools."""
    measures = [
        await _dispatch(50 if quick else 300),
        *await _flood(3 if quick else 10),
        *await _page(3 if quick else 10),
    ]
    if (fault := probe_sandbox().fault) is not None:
        print(f"Commands in a sandbox are not measured: {fault}")
        return measures
    return [
        *measures,
        await _schemas(),
        await _idle_memory(),
        await _sandbox(20 if quick else 100),
        *await _command_output("100M" if quick else "1G"),
    ]


async def _schemas() -> Measure:
    """Measure the share of the threshold that tool schemas use, and print their sizes for three windows."""
    with tempfile.TemporaryDirectory(prefix="tools-bench-") as folder:
        async with agent_with_all_tools(Path(folder)) as agent:
            tools, shares = agent.offers.registry.available(), []
        for window in (8_192, 32_768, 131_072):
            threshold = limits_of(window, window // 8, LimitSettings()).threshold
            listed = offer(tools, {}, threshold)
            taken = sum(map(schema_tokens, listed))
            shares.append(taken / threshold)
            print(f"window of {window:,}: schemas of {len(listed)} tools, {taken:,} of {threshold:,} tokens")
    return Measure(name="schemas of tools, share of the threshold", ours=max(shares[1:]) * 100, unit="%", bar=10.0)


async def _idle_memory() -> Measure:
    """Measure the memory that unused tools, notes and skills take in a process."""
    command = (sys.executable, "-m", "bench.tools_memory")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return Measure(name="idle memory of all tools, notes and skills", ours=float(output), unit="MB", bar=IDLE_BAR)


async def _dispatch(rounds: int) -> Measure:
    async with _bench() as bench:
        took = []
        for number in range(rounds):
            whole = await bench.round([ToolCall(id=f"c{number}", name=look.name, arguments="{}")])
            began = time.perf_counter()
            await look.run({}, bench.context)
            took.append(whole - (time.perf_counter() - began))
    ours = percentile(took, 0.5) * 1e3
    return Measure(name="a tool call, above the bare function, p50", ours=ours, unit="ms", bar=DISPATCH_BAR)


async def _flood(rounds: int) -> list[Measure]:
    """Measure `rounds` rounds of ten results of 1 MB each, in one turn."""
    async with _bench() as bench:
        await bench.round([ToolCall(id="first", name=read_much.name, arguments='{"n": 0}')])
        gc.collect()
        before = resident_mb("VmRSS:", is_reset=True)
        async with heartbeat() as lags:
            for number in range(rounds):
                ids = [f"{number}-{one}" for one in range(10)]
                await bench.round([ToolCall(id=one, name=read_much.name, arguments='{"n": 1}') for one in ids])
        grown = resident_mb("VmHWM:") - before
    size = f"{rounds * 10} MB of tool output in one turn"
    return [
        Measure(name=f"{size}: memory gained at most", ours=grown, unit="MB", bar=MEMORY_BAR),
        Measure(name=f"{size}: lag of the loop, p99", ours=percentile(lags, 0.99) * 1e3, unit="ms", bar=LAG_BAR),
    ]


async def _page(rounds: int) -> list[Measure]:
    """Measure fetching a page of 2 MB from a separate process.

    The first call loads the HTTP client and does not count.
    """
    rest = f"{_WORDS * 4}<a href='/next'>the day</a> on which it came in."
    paragraphs = "\n".join(f"<p>{number}: {rest}</p>" for number in range(PAGE // len(rest)))
    page = f"<html><head><title>Boats</title></head><body><article>{paragraphs}</article></body></html>"
    spent: list[float] = []
    async with _bench() as bench, _served(page) as url:
        settings = FetchSettings(is_public=lambda address: True)
        tool = fetch_tool(lambda: settings, lambda text: False, lambda: None)
        await tool.run({"url": url}, bench.context)
        for _ in range(rounds):  # not during the heartbeat, which uses more CPU time than the fetch
            began = time.thread_time()
            await tool.run({"url": url}, bench.context)
            spent.append(time.thread_time() - began)
        async with heartbeat() as lags:
            text = await tool.run({"url": url}, bench.context)
    assert isinstance(text, str)
    assert len(text) > 100_000
    name = "web_fetch of a 2 MB page"
    ours = percentile(spent, 0.5) * 1e3
    return [
        Measure(name=f"{name}: the loop's own time, p50", ours=ours, unit="ms", bar=LAG_BAR),
        Measure(name=f"{name}: lag of the loop, p99", ours=percentile(lags, 0.99) * 1e3, unit="ms", bar=LAG_BAR),
    ]


@asynccontextmanager
async def _served(page: str) -> AsyncIterator[str]:
    """Yield the loopback address of a page."""
    with tempfile.TemporaryDirectory(prefix="tools-bench-") as folder:
        (Path(folder) / "page.html").write_text(page)
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", folder),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            assert server.stdout is not None
            port = re.search(rb"port (\d+)", await server.stdout.readline())
            assert port is not None
            yield f"http://127.0.0.1:{int(port[1])}/page.html"
        finally:
            server.kill()
            await server.wait()


async def _sandbox(rounds: int) -> Measure:
    """Measure a command that does nothing, with and without a sandbox, in turns."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory(prefix="tools-bench-") as folder:
        for _ in range(rounds):
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec("bash", "-c", "true")
            await process.wait()
            between = time.perf_counter()
            command = await RunningCommand.start("true", Path(folder), TerminalSettings(enabled=True))
            await command.finish(None)
            bare.append(between - began)
            ours.append(time.perf_counter() - between)
    took = (percentile(ours, 0.5) - percentile(bare, 0.5)) * 1e3
    return Measure(name="a command in its sandbox, above a bare one, p50", ours=took, unit="ms", bar=SANDBOX_BAR)


async def _command_output(size: str) -> list[Measure]:
    """Measure a command that writes output as fast as it can."""
    with tempfile.TemporaryDirectory(prefix="tools-bench-") as folder:
        gc.collect()
        before = resident_mb("VmRSS:", is_reset=True)
        async with heartbeat() as lags:
            command = await RunningCommand.start(
                f"head -c {size} /dev/zero", Path(folder), TerminalSettings(enabled=True)
            )
            await command.finish(None)
            command.report()
        grown = resident_mb("VmHWM:") - before
    name = f"{size}B of a command's output"
    return [
        Measure(name=f"{name}: memory gained at most", ours=grown, unit="MB", bar=MEMORY_BAR),
        Measure(name=f"{name}: lag of the loop, p99", ours=percentile(lags, 0.99) * 1e3, unit="ms", bar=LAG_BAR),
    ]
