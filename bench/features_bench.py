"""Measure what group context, visible steps and documents cost, and the idle memory of all features of chats.

CPU time is that of the gateway's process. Each round measures both sides of a comparison, and the best round counts,
because other programs on the machine only make a round slower.
"""

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from agent.documents.reading import DocumentReader
from bench.life_bench import SETTLE_SECONDS
from bench.measure import Measure
from bench.subjects import Lab, Subject, gateway, lab
from hermes_state.aio import cancel_all
from hermes_state.values import ChatId
from tests.documents import pdf
from tests.postgres import running_server

GROUPS, CHATS = 50, 20
PAGES, TOOL_CALLS = 300, 6
NEVER, ALWAYS = (
    {
        "HERMES_GROUPS__CONTEXT": switch,
        "HERMES_NOTICES__REACTIONS": switch,
        "HERMES_NOTICES__STEPS": steps,
        **models,
    }
    for switch, steps, models in (
        ("off", "off", {}),
        ("on", "full", {"HERMES_VOICE__MODEL": "lab-tts", "HERMES_TRANSCRIPTION__MODEL": "lab-ears"}),
    )
)


async def run(quick: bool) -> list[Measure]:
    """Measure all features of chats."""
    rounds = 4 if quick else 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document = await _document(folder / "long.pdf", rounds)  # first, while its worker is the only child process
        talk = [await _talk(_made(folder / f"talk-{state}"), state, rounds) for state in ("off", "on")]
        steps = await _steps(_made(folder / "steps"), rounds)
        idle = [
            min([await _idle(_made(folder / f"idle-{which}-{n}"), changes) for n in range(rounds)])
            for which, changes in enumerate((NEVER, ALWAYS))
        ]
    return [
        *_of_talk(*talk, ""),
        Measure(
            name=f"a turn with {TOOL_CALLS} tool calls: processor time with steps, against without",
            ours=steps[1],
            unit="ms",
            yardstick=steps[0],
            bar=1.05,
        ),
        *document,
        Measure(
            name="idle memory with all features of chats, against none",
            ours=idle[1],
            unit="MB",
            yardstick=idle[0],
            bar=1,
            slack=1,
        ),
    ]


async def on_postgres(quick: bool) -> list[Measure]:
    """Measure group messages that do not address the bot, with PostgreSQL."""
    with (
        tempfile.TemporaryDirectory(prefix="talk-bench-", ignore_cleanup_errors=True) as name,
        running_server(Path(name), {}) as server,
    ):
        found = []
        for state in ("off", "on"):
            with server.fresh_database() as url:
                found.append(await _talk(_made(Path(name) / state), state, 2 if quick else 5, url))
    return _of_talk(*found, " with PostgreSQL")


def _of_talk(off: float, on: float, engine: str) -> list[Measure]:
    title = f"a group message to nobody, {GROUPS} groups at once{engine}: processor time, context"
    return [
        Measure(name=f"{title} off", ours=off, unit="ms", bar=0.3),
        Measure(name=f"{title} on", ours=on, unit="ms", bar=1.0),
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _talk(folder: Path, state: str, rounds: int, store: str | None = None, per_group: int = 40) -> float:
    """Return the CPU milliseconds per message that does not address the bot. `store`: the database's address."""
    changes = {"HERMES_GROUPS__CONTEXT": state} | ({"HERMES_STORE__URL": store} if store else {})
    async with lab() as here, gateway(here, folder, changes=changes) as subject:
        await here.speak()
        await _spent(here, subject, 1)
        found = [
            (await _spent(here, subject, per_group) - await _spent(here, subject, 0)) / (GROUPS * per_group)
            for _ in range(rounds)
        ]
    return min(found)


async def _spent(here: Lab, subject: Subject, per_group: int) -> float:
    """Write in all groups, then to the bot, and return the CPU milliseconds until its answer."""
    talk = [
        {"chat_id": -1_000 - group, "chat_type": "supergroup", "user_id": 7, "text": f"see you at {number}"}
        for number in range(per_group)
        for group in range(GROUPS)
    ]
    before = subject.cpu_seconds
    await here.telegram.post("message", [*talk, {"chat_id": 1, "user_id": 1, "text": "hello"}])
    while (await here.answers(1))[0]["chat"] != 1:
        pass  # the notice in a group that its talk is stored
    return (subject.cpu_seconds - before) * 1e3


async def _steps(folder: Path, rounds: int) -> list[float]:
    """Return the CPU milliseconds of a turn with tool calls, each a second after the last, without and with steps.

    Both kinds of chats take turns with the same gateway.
    """
    call = {"name": "history_search", "arguments": {"query": "the tide"}}
    calls = {"match": "look", "tool_calls": [call], "delay": 1.0, "times": CHATS * TOOL_CALLS}
    chats = {level: range(first, first + CHATS) for level, first in (("off", 1_000), ("full", 2_000))}
    found: dict[str, list[float]] = {level: [] for level in chats}
    async with lab() as here, gateway(here, folder) as subject:
        await here.model.post("config", {"log_bodies": False})
        for level, numbers in chats.items():
            await here.write([(chat, f"/steps {level}") for chat in numbers])
        await here.answers(2 * CHATS)
        for _ in range(rounds):
            for level, numbers in chats.items():
                await here.model.delete("script")
                await here.model.post("script", [calls, {"match": "look", "text": "It is high.", "times": -1}])
                before = subject.cpu_seconds
                await here.write([(chat, "look it up") for chat in numbers])
                await here.answers(CHATS)
                found[level].append((subject.cpu_seconds - before) * 1e3 / CHATS)
        lines = await here.telegram.get("sent", method="sendMessageDraft", match="searched this chat")
        if not lines or any(row["chat_id"] in chats["off"] for row in lines):
            raise RuntimeError("the wrong chats show steps")
    print(f"steps: {len(lines) / rounds / CHATS:.1f} lines a turn")
    return [min(one) for one in found.values()]


async def _document(path: Path, rounds: int) -> list[Measure]:
    """Read a long PDF, and return its time, the memory of its worker, and the delay of the event loop."""
    line = "The tide comes in twice every day, and with it all the boats of the bay."
    pages = ["\n".join(f"{page}.{at} {line}" for at in range(45)) for page in range(PAGES)]
    await asyncio.to_thread(path.write_bytes, pdf(*pages))
    took, stalls = list[float](), list[float]()
    for _ in range(rounds):
        began = time.perf_counter()
        async with _beats() as spent:
            with path.open("rb") as file:
                found = await DocumentReader().read(file, path.name, ChatId(1))
        took.append(time.perf_counter() - began)
        stalls.append(max(spent))
        if found.total != PAGES or found.done != PAGES:
            raise RuntimeError(f"read {found.done} of {found.total} pages")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    name = f"a PDF with {PAGES} pages"
    return [
        Measure(name=f"{name}: time", ours=min(took), unit="s", bar=10),
        Measure(name=f"{name}: peak memory of its worker", ours=peak, unit="MB", bar=300),
        Measure(name=f"{name}: longest stall of the event loop", ours=min(stalls) * 1e3, unit="ms", bar=10),
    ]


@asynccontextmanager
async def _beats() -> AsyncIterator[list[float]]:
    """Yield the CPU seconds that this process spends from one beat of the event loop to the next.

    The worker and other programs do not count, although they delay the beats on a busy machine.
    """
    spent: list[float] = []

    async def beat() -> None:
        while True:
            began = time.process_time()
            await asyncio.sleep(0.001)
            spent.append(time.process_time() - began)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0)
    yield spent
    await cancel_all([beating])


async def _idle(folder: Path, changes: Mapping[str, str]) -> float:
    async with lab() as here, gateway(here, folder, has_discord=True, changes=changes) as subject:
        await here.discord.get("gateway_log", event="op2", wait=10)
        await asyncio.sleep(SETTLE_SECONDS)
        return subject.memory_mb
