"""End to end over the fakes with a model that answers at once: the gateway against the floor, in one run.

The floor (`floor_bot.py`) is a minimal bot with one SQLite commit per message. Every process but this one is the same
for both: the fake services run as processes of their own.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.corpus import Corpus
from bench.measure import Measure, table
from bench.prompt_bench import hand_over
from bench.subjects import Lab, Subject, floor, gateway, lab
from hermes_state.chats import ensure_chat
from hermes_state.sessions import start_session
from hermes_state.store.writer import Store
from hermes_state.transcripts import NewMessage, append
from hermes_state.values import ChatKey, ChatKind, MessageRole, Millis, Origin, SystemClock

CHATS = 50
SEED_SLICE = 2_000


@dataclass(frozen=True, slots=True)
class Burst:
    """What a burst of messages to many chats came to."""

    messages_per_second: float
    cpu_ms_per_message: float


async def run(*, quick: bool) -> list[Measure]:
    """All figures; `quick` takes fewer messages and a smaller database."""
    rounds = 40 if quick else 200
    stored = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with lab() as here, floor(here, folder) as subject:
            yardstick = await _sequential(here, 1, rounds)
            floor_burst = await _burst(here, subject, 10)
            floor_slow = await _slow_model(here)
        async with lab() as here, gateway(here, folder) as subject:
            ours = await _sequential(here, 1, rounds)
            burst = await _burst(here, subject, 10)
            slow = await _slow_model(here)
        measures = [
            Measure(name="one chat, p50", ours=_p50(ours), unit="ms", yardstick=_p50(yardstick), bar=15),
            Measure(name="one chat, p99", ours=_p99(ours), unit="ms", yardstick=_p99(yardstick), bar=25),
            Measure(
                name="50 chats x 10",
                ours=burst.messages_per_second,
                unit="messages/s",
                yardstick=floor_burst.messages_per_second,
                bar=0.1,
                at_least=True,
            ),
            Measure(name="processor time per message", ours=burst.cpu_ms_per_message, unit="ms", bar=10),
            Measure(
                name="50 chats x 2, a model that takes 2 s",
                ours=slow,
                unit="messages/s",
                yardstick=floor_slow,
                bar=0.9,
                at_least=True,
            ),
        ]
        measures += await _with_a_full_database(folder, stored)
        measures += await _long_chat(folder, 100 if quick else 1_000)
        measures.append(await hand_over(2_000))
        measures += await _idle(folder, 500 if quick else 5_000)
    return measures


async def _sequential(here: Lab, chat_id: int, rounds: int) -> list[float]:
    """Milliseconds from writing to the answer, one message after the other."""
    took = []
    since = _last_seq(await here.telegram.get("sent"))
    for number in range(rounds + 5):
        began = await here.say(chat_id, f"message {number}")
        [row] = await here.answers(1, since=since, chat_id=chat_id)
        since = row["seq"]
        took.append((row["t"] - began) * 1000)
    return took[5:]  # the first ones open connections


async def _burst(here: Lab, subject: Subject, per_chat: int, first_chat: int = 1_000) -> Burst:
    total = CHATS * per_chat
    since = _last_seq(await here.telegram.get("sent"))
    cpu, began = subject.cpu_seconds, time.monotonic()
    batch = [
        {"chat_id": first_chat + chat, "user_id": first_chat + chat, "text": f"message {number}"}
        for number in range(per_chat)
        for chat in range(CHATS)
    ]
    await here.telegram.post("message", batch)
    rows = await here.answers(total, since=since)
    seconds = rows[-1]["t"] - began
    return Burst(total / seconds, (subject.cpu_seconds - cpu) * 1000 / total)


async def _slow_model(here: Lab) -> float:
    """Messages a second from 50 chats when the model takes two seconds for each."""
    await here.model.post("config", {"latency": 2.0})
    since = _last_seq(await here.telegram.get("sent"))
    began = time.monotonic()
    batch = [
        {"chat_id": 2_000 + chat, "user_id": 2_000 + chat, "text": f"slow {number}"}
        for number in range(2)
        for chat in range(CHATS)
    ]
    await here.telegram.post("message", batch)
    rows = await here.answers(2 * CHATS, since=since)
    await here.model.post("config", {"latency": 0})
    return 2 * CHATS / (rows[-1]["t"] - began)


async def _with_a_full_database(folder: Path, stored: int) -> list[Measure]:
    """The same burst with an empty database and with one that holds `stored` messages, turn about."""
    full = folder / "full"
    await _fill(full / "home" / "state.db", stored)
    empty_rates, full_rates, empty_times, full_times = [], [], [], []
    for number in range(3):
        for place, rates, times in (
            (folder / f"empty-{number}", empty_rates, empty_times),
            (full, full_rates, full_times),
        ):
            place.mkdir(exist_ok=True)
            async with lab() as here, gateway(here, place) as subject:
                # The same message of a chat is answered once only: every round has chats of its own.
                times.append(_p50(await _sequential(here, 10 + number, 40)))
                rates.append((await _burst(here, subject, 10, first_chat=10_000 * (number + 1))).messages_per_second)
    name = f"with {stored:,} messages stored"
    return [
        Measure(
            name=f"one chat, p50, {name}",
            ours=statistics.median(full_times),
            unit="ms",
            yardstick=statistics.median(empty_times),
            bar=1.2,
        ),
        Measure(
            name=f"seconds per message of a burst, {name}",
            ours=1000 / statistics.median(full_rates),
            unit="ms",
            yardstick=1000 / statistics.median(empty_rates),
            bar=1.2,
        ),
    ]


async def _long_chat(folder: Path, turns: int) -> list[Measure]:
    """Time outside the model call in a chat with many turns behind it, against a fresh chat of the same run."""
    place = folder / "long"
    await _fill(place / "home" / "state.db", 2 * turns, chat_ref="7")
    async with lab() as here, gateway(here, place):
        fresh, long = [], []
        for number in range(12):
            fresh.append(await _outside_model(here, 3_000 + number))
            long.append(await _outside_model(here, 7))
    return [
        Measure(
            name=f"outside the model call, after {turns:,} turns in the chat",
            ours=statistics.median(long[2:]),
            unit="ms",
            yardstick=statistics.median(fresh[2:]),
            bar=1.5,
        )
    ]


async def _outside_model(here: Lab, chat_id: int) -> float:
    since_sent = _last_seq(await here.telegram.get("sent"))
    since_asked = _last_seq(await here.model.get("requests"))
    began = await here.say(chat_id, "how long does this take?")
    [row] = await here.answers(1, since=since_sent, chat_id=chat_id)
    requests = await here.model.get("requests", since=since_asked, count=1, wait=10)
    [request] = [one for one in requests if one["outcome"] == "ok"]  # an unknown output limit is refused once
    return float((row["t"] - began - request["seconds"]) * 1000)


async def _idle(folder: Path, messages: int) -> list[Measure]:
    """Start-up and memory, with both platforms on."""
    place = folder / "idle"
    place.mkdir()
    async with lab() as here, gateway(here, place, has_discord=True) as subject:
        polls = await here.telegram.get("calls", method="getUpdates", count=1, wait=30)
        first = polls[0]["t"] if polls else time.monotonic()
        await here.discord.get("gateway_log", wait=10, count=2)
        await asyncio.sleep(2)  # let what start-up left behind settle: memory has no event
        idle = subject.memory_mb
        batch = [{"chat_id": 5_000, "user_id": 5_000, "text": f"message {number}"} for number in range(100)]
        since = 0
        grown = []
        for _ in range(messages // 100):
            await here.telegram.post("message", [{**one, "chat_id": 5_000 + n % CHATS} for n, one in enumerate(batch)])
            rows = await here.answers(100, since=since)
            since = rows[-1]["seq"]
            grown.append(subject.memory_mb)
    return [
        Measure(name="start to first poll", ours=first - subject.started_at, unit="s", bar=1.5),
        Measure(name="idle memory, both platforms", ours=idle, unit="MB", bar=130),
        Measure(name=f"memory gained over {messages:,} messages", ours=grown[-1] - idle, unit="MB", bar=10),
    ]


async def _fill(path: Path, messages: int, chat_ref: str = "999") -> None:
    """A database with one chat that holds so many messages."""
    store = await Store.open(path)
    try:
        now = SystemClock().now()
        session_id = await store.write(_start, chat_ref, now)
        texts = list(Corpus().messages(messages))
        for at in range(0, messages, SEED_SLICE):
            await store.write(_append_all, session_id, texts[at : at + SEED_SLICE], now)
    finally:
        await store.close()


def _start(db, chat_ref: str, now: Millis) -> int:
    key = ChatKey(platform="telegram", account="telegram", chat_ref=chat_ref)
    return start_session(db, ensure_chat(db, key, ChatKind.DIRECT, None, now), now).id


def _append_all(db, session_id, texts: Sequence[str], now: Millis) -> None:
    for number, text in enumerate(texts):
        is_human = number % 2 == 0
        row = NewMessage(
            role=MessageRole.USER if is_human else MessageRole.ASSISTANT,
            origin=Origin.HUMAN if is_human else Origin.ASSISTANT,
            text=text,
            sender_name="Ada" if is_human else None,
        )
        append(db, session_id, row, now)


def _last_seq(rows: list[dict[str, int]]) -> int:
    return rows[-1]["seq"] if rows else 0


def _p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, round(len(values) * 0.99))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer messages, a smaller database")
    measures = asyncio.run(run(quick=parser.parse_args().quick))
    print(table(measures))
    raise SystemExit(0 if all(measure.holds for measure in measures) else 1)


if __name__ == "__main__":
    main()
