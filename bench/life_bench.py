"""Measure a gateway with both platforms from its start: first poll, first answer, memory, half-open connections."""

import asyncio
import socket
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measure import Measure
from bench.subjects import Lab, Subject, gateway, lab
from bench.traffic import CHATS, sequence

SETTLE_SECONDS = 2.0
"""Seconds to wait until memory use has settled, because there is no event for that."""
SLICE = 100
"""Number of messages after which memory is measured."""
HALF_OPEN = 1_000


async def start(quick: bool) -> list[Measure]:
    """Start the gateway several times. Measure the time to its first poll, its idle memory, and ten answers."""
    polled, idle, answered, first, tenth = [], [], [], [], []
    for _ in range(2 if quick else 5):
        async with _idle() as (here, subject):
            polls = await here.telegram.get("calls", method="getUpdates", count=1, wait=30)
            polled.append(polls[0]["t"] - subject.started_at)
            idle.append(subject.memory_mb)
            times = []
            for number in range(10):
                began = await here.say(1, f"message {number}")
                [row] = await here.answers(1)
                times.append((row["t"] - began) * 1e3)
                if number == 0:
                    await asyncio.sleep(SETTLE_SECONDS)
                    answered.append(subject.memory_mb)
            first.append(times[0])
            tenth.append(times[-1])
    return [
        Measure(name="start to first poll", ours=statistics.median(polled), unit="s", bar=0.85),
        Measure(name="idle memory, both platforms", ours=statistics.median(idle), unit="MB", bar=100),
        Measure(name="memory after the first answer", ours=statistics.median(answered), unit="MB", bar=115),
        Measure(
            name="first answer after a start, against the tenth",
            ours=statistics.median(first),
            unit="ms",
            yardstick=statistics.median(tenth),
            bar=1,
            slack=150,
        ),
    ]


async def growth(quick: bool) -> list[Measure]:
    """Measure how much memory grows while 50 chats write: over the first half, and over the last fifth."""
    slices = 10 if quick else 100
    async with _idle() as (here, subject):
        memory = [subject.memory_mb]
        for number in range(slices):
            await here.write([(5_000 + n % CHATS, f"message {number} {n}") for n in range(SLICE)])
            await here.answers(SLICE)
            memory.append(subject.memory_mb)
    messages = slices * SLICE
    half, last = slices // 2, slices // 5
    return [
        Measure(name=f"memory gained over {messages // 2:,} messages", ours=memory[half] - memory[0], unit="MB", bar=7),
        Measure(
            name=f"memory gained over the last {last * SLICE:,} of {messages:,} messages",
            ours=memory[-1] - memory[-1 - last],
            unit="MB",
            bar=1,
        ),
    ]


async def half_open(quick: bool) -> list[Measure]:
    """Measure answers on Telegram while clients send the web chat requests that never end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    web_chat = {"HERMES_LOCAL__ENABLED": "true", "HERMES_LOCAL__PORT": str(port)}
    with tempfile.TemporaryDirectory() as name:
        async with lab() as here, gateway(here, Path(name), changes=web_chat) as subject:
            await here.speak()
            async with asyncio.TaskGroup() as group:
                holders = [group.create_task(_hold_open(port)) for _ in range(HALF_OPEN)]
                await asyncio.sleep(SETTLE_SECONDS)
                found = await sequence(here, subject, 40 if quick else 200)
                for holder in holders:
                    holder.cancel()
    return [Measure(name=f"answer with {HALF_OPEN:,} half-open connections, p99", ours=found.p99, unit="ms", bar=2_000)]


async def _hold_open(port: int) -> None:
    """Open a connection and begin a request. Repeat whenever the server has closed the connection."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            await reader.read()
        except ConnectionError:
            continue
        writer.close()
        await asyncio.sleep(0.1)


@asynccontextmanager
async def _idle() -> AsyncIterator[tuple[Lab, Subject]]:
    """Yield an idle gateway with both platforms."""
    with tempfile.TemporaryDirectory() as name:
        async with lab() as here, gateway(here, Path(name), has_discord=True) as subject:
            await here.speak()
            await here.discord.get("gateway_log", event="op2", wait=10)
            await asyncio.sleep(SETTLE_SECONDS)
            yield here, subject
