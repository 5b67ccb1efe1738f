"""Measure a gateway from its start: first poll, first answer, memory, half-open connections."""

import asyncio
import os
import socket
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.measure import Measure, in_turns
from bench.subjects import ROOT, Lab, Subject, gateway, lab
from bench.traffic import CHATS, sequence

SETTLE_SECONDS = 2.0
"""Seconds to wait until memory use has settled, because there is no event for that."""
SLICE = 100
"""Number of messages after which memory is measured."""
HALF_OPEN = 1_000


async def start(quick: bool) -> list[Measure]:
    """Measure starts: time to the first poll, the first answer, and memory.

    "Cold" means that the disk cache holds no file of Python, its packages or the product. Files that another running
    process maps into its memory stay in the cache.
    """
    sides = (_start, partial(_start, is_cold=True), partial(_memory, has_discord=False), _memory)
    warm, cold, telegram, both = await in_turns(3 if quick else 7, *sides)
    polled, answered = zip(*warm, strict=True)
    idle, used = zip(*both, strict=True)
    return [
        Measure(name="start to first poll", ours=polled, unit="s", bar=0.62),
        Measure(name="start to first poll, cold disk cache", ours=[poll for poll, _ in cold], unit="s", bar=0.9),
        Measure(name="first answer right after a start", ours=answered, unit="ms", bar=60),
        Measure(name="idle memory, Telegram", ours=[one for one, _ in telegram], unit="MB", bar=90),
        Measure(name="idle memory, both platforms", ours=idle, unit="MB", bar=96),
        Measure(name="memory after the first answer", ours=used, unit="MB", bar=115),
    ]


async def _start(_: int, *, is_cold: bool = False) -> tuple[float, float]:
    """Write to a gateway when it first polls. Return the seconds to the poll, and the milliseconds to the answer."""
    with tempfile.TemporaryDirectory() as name:
        async with lab() as here:
            await here.speak()
            if is_cold:
                await asyncio.to_thread(_empty_cache)
            async with gateway(here, Path(name)) as subject:
                [poll] = await here.telegram.get("calls", method="getUpdates", count=1, wait=30)
                began = await here.say(1, "message")
                [row] = await here.answers(1)
                return poll["t"] - subject.started_at, (row["t"] - began) * 1e3


async def _memory(_: int, *, has_discord: bool = True) -> tuple[float, float]:
    """Return the memory of an idle gateway, and its memory after an answer."""
    async with _idle(has_discord=has_discord) as (here, subject):
        idle = subject.memory_mb
        await here.say(1, "message")
        await here.answers(1)
        await asyncio.sleep(SETTLE_SECONDS)
        return idle, subject.memory_mb


def _empty_cache() -> None:
    """Remove the files of Python, its packages and the product from the disk cache."""
    product = (ROOT / name for name in ("gateway", "platforms", "agent", "hermes_state"))
    libraries = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    for folder in (*libraries, *product):
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
async def _idle(*, has_discord: bool = True) -> AsyncIterator[tuple[Lab, Subject]]:
    """Yield an idle gateway with Telegram, and with Discord unless `has_discord` is False."""
    with tempfile.TemporaryDirectory() as name:
        async with lab() as here, gateway(here, Path(name), has_discord=has_discord) as subject:
            await here.speak()
            if has_discord:
                await here.discord.get("gateway_log", event="op2", wait=10)
            await asyncio.sleep(SETTLE_SECONDS)
            yield here, subject
