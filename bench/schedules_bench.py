"""Measure ten thousand schedules: the cost at start, and the delay until a due schedule is answered."""

import asyncio
import tempfile
import time
from pathlib import Path
from sqlite3 import Connection

from bench.life_bench import SETTLE_SECONDS
from bench.measure import Measure
from bench.subjects import Lab, gateway, lab
from hermes_state.chats import ensure_chat
from hermes_state.engines.sqlite.store import SqliteStore
from hermes_state.tools.schedules import NewSchedule, insert_schedule
from hermes_state.values import ChatId, ChatKey, ChatKind, Millis, UserRef

COUNT = 10_000
CHATS = 1_000
FIRST_CHAT = 7_000
DUE_SECONDS = 10.0
"""Seconds from creating the schedules until one is due. The gateway has started by then."""


async def run(quick: bool) -> list[Measure]:
    """Start the gateway with and without schedules, in turns."""
    polled: dict[int, list[float]] = {0: [], COUNT: []}
    memory: dict[int, list[float]] = {0: [], COUNT: []}
    answered: list[float] = []
    for _ in range(2 if quick else 5):
        for count in (0, COUNT):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                due = await _seed(folder / "home" / "state.db", count)
                async with lab() as here, gateway(here, folder) as subject:
                    await here.speak()
                    await here.telegram.post("chat", {"chat_id": FIRST_CHAT})
                    [poll, *_] = await here.telegram.get("calls", method="getUpdates", count=1, wait=30)
                    polled[count].append(poll["t"] - subject.started_at)
                    await asyncio.sleep(SETTLE_SECONDS)
                    memory[count].append(subject.memory_mb)
                    if count:
                        answered.append(await _answer_after(here, due))
    return [
        Measure(
            name=f"start to first poll, {COUNT:,} schedules, against none",
            ours=polled[COUNT],
            unit="s",
            yardstick=polled[0],
            bar=1,
            slack=0.3,
        ),
        Measure(
            name=f"memory at rest, {COUNT:,} schedules, against none",
            ours=memory[COUNT],
            unit="MB",
            yardstick=memory[0],
            bar=1,
            slack=3,
        ),
        Measure(name=f"due to answered, one of {COUNT:,} schedules", ours=max(answered), unit="s", bar=1),
    ]


async def _answer_after(here: Lab, due: Millis) -> float:
    """Return the seconds from a schedule's due time to its answer."""
    due_at = time.monotonic() + due / 1_000 - time.time()
    [row] = await here.answers(1)
    return float(row["t"] - due_at)


async def _seed(path: Path, count: int) -> Millis:
    """Create a database with `count` schedules in `CHATS` chats.

    Return the time at which the first schedule is due. All others are due at least an hour later.
    """
    store = await SqliteStore.open(path, synchronous="NORMAL")
    try:
        now = Millis(time.time_ns() // 1_000_000)
        due = Millis(now + round(DUE_SECONDS * 1_000))
        await store.write(_insert, count, due)
    finally:
        await store.close()
    return due


def _insert(db: Connection, count: int, due: Millis) -> None:
    chats: list[ChatId] = []
    for number in range(CHATS):
        key = ChatKey(platform="telegram", account="telegram", chat_ref=str(FIRST_CHAT + number))
        chats.append(ensure_chat(db, key, ChatKind.DIRECT, None, due))
    for number in range(count):
        schedule = NewSchedule(
            chat_id=chats[number % CHATS],
            creator_ref=UserRef(f"telegram:{FIRST_CHAT + number % CHATS}"),
            creator_name="Ada",
            spec=f"{number % 60} {number % 24} * * *",
            zone="Europe/Berlin",
            text="What is new?",
            next_at=due if number == 0 else Millis(due + 3_600_000 + number * 1_000),
            created_at=due,
        )
        insert_schedule(db, schedule)
