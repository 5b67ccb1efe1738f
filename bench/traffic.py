"""Messages to a bot, one after the other or many at once, and the time and CPU that they cost."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.measure import percentile
from bench.subjects import ANSWER_SECONDS, Lab, Subject

CHATS = 50
WARM_UP = 5
"""Number of messages in a chat that do not count, because they open connections."""
TALK_WARM_UP = 3
"""The same number for many chats that write at once."""
TAKEN, TAKEN_SECONDS = 10, 0.05
"""Maximum number of answers to wait for at a time, and for how many seconds. Each request costs the service CPU time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Results for some messages."""

    took: Sequence[float]
    """Milliseconds from message to answer. Only measured for messages written one after the other."""
    per_second: float
    cpu_ms: float
    """CPU milliseconds of the bot per message."""
    switches: float
    """Context switches of the bot per message."""

    @property
    def p50(self) -> float:
        return statistics.median(self.took)

    @property
    def p99(self) -> float:
        return percentile(self.took, 0.99)


async def sequence(here: Lab, subject: Subject, rounds: int, *, chat_id: int = 1) -> Traffic:
    """Measure messages in one chat. Each is written after the previous answer."""
    took = []
    for number in range(rounds + WARM_UP):
        if number == WARM_UP:
            meter = _Meter(subject)
        began = await here.say(chat_id, f"message {number}")
        [row] = await here.answers(1)
        took.append((row["t"] - began) * 1000)
    return meter.read(took[WARM_UP:], row["t"])


async def burst(here: Lab, subject: Subject, per_chat: int, *, chats: int = CHATS, first_chat: int = 1_000) -> Traffic:
    """Measure messages in many chats at once. Each chat must get an answer to every message."""
    meter = _Meter(subject)
    numbers = range(first_chat, first_chat + chats)
    await here.write([(chat, f"message {number}") for number in range(per_chat) for chat in numbers])
    rows = await here.answers(chats * per_chat)
    answered = Counter(row["chat"] for row in rows)
    if sorted(answered.values()) != [per_chat] * chats:
        raise RuntimeError(f"not each of {chats} chats got {per_chat} answers: {answered}")
    return meter.read([0.0] * len(rows), rows[-1]["t"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Results for chats that write again as soon as they get an answer."""

    count: int
    seconds: float
    p50: float
    """Median milliseconds from message to answer."""
    cpu_ms: Mapping[str, float]
    """CPU milliseconds of each process per answer."""

    @property
    def per_second(self) -> float:
        return self.count / self.seconds


async def conversations(
    here: Lab, meters: Mapping[str, Callable[[], float]], seconds: float, chats: Sequence[int]
) -> Conversations:
    """Write in each chat as soon as it has an answer.

    The measurement takes `seconds`, after some warm-up messages in each chat. `meters` return the CPU seconds that each
    process has used.
    """
    talk = _Talk(here, chats)
    await talk.begin()
    while len(talk.took) < TALK_WARM_UP * len(chats):
        await talk.go_on()
    talk.took.clear()
    began, before = time.monotonic(), {name: read() for name, read in meters.items()}
    while time.monotonic() < began + seconds:
        await talk.go_on()
    took, count = time.monotonic() - began, len(talk.took)
    cpu_ms = {name: (read() - before[name]) * 1e3 / count for name, read in meters.items()}
    await talk.end()
    return Conversations(count=count, seconds=took, p50=statistics.median(talk.took[:count]) * 1e3, cpu_ms=cpu_ms)


class _Talk:
    """Chats that each have one unanswered message."""

    def __init__(self, here: Lab, chats: Sequence[int]) -> None:
        self._here = here
        self._chats = chats
        self._said: dict[int, float] = {}
        self._came_at = time.monotonic()
        self.took: list[float] = []
        """Seconds until each answer that has arrived."""

    async def begin(self) -> None:
        await self._write(self._chats)

    async def go_on(self) -> None:
        """Collect new answers, and write again in their chats."""
        if answered := await self._take():
            await self._write(answered)

    async def end(self) -> None:
        """Collect the remaining answers."""
        while self._said:
            await self._take()

    async def _write(self, chats: Sequence[int]) -> None:
        self._said.update(dict.fromkeys(chats, time.monotonic()))
        await self._here.write([(chat, "And then?") for chat in chats])

    async def _take(self) -> list[int]:
        rows = await self._here.new_answers(min(TAKEN, len(self._said)), TAKEN_SECONDS)
        if rows:
            self._came_at = time.monotonic()
        elif time.monotonic() > self._came_at + ANSWER_SECONDS:
            raise RuntimeError(f"{len(self._said)} chats wait for an answer")
        answered = {row["chat_id"]: row["t"] for row in rows if row["chat_id"] in self._said}
        self.took += [at - self._said.pop(chat) for chat, at in answered.items()]
        return list(answered)


class _Meter:
    """Measures a bot's CPU time and context switches from now on."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._switches, self._cpu, self._began = subject.switches, subject.cpu_seconds, time.monotonic()

    def read(self, took: Sequence[float], until: float) -> Traffic:
        count = len(took)
        return Traffic(
            took=took,
            per_second=count / (until - self._began),
            cpu_ms=(self._subject.cpu_seconds - self._cpu) * 1e3 / count,
            switches=(self._subject.switches - self._switches) / count,
        )
