"""Messages to a bot, one after the other or many at once, and what they take it."""

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.measure import percentile
from bench.subjects import Lab, Subject

CHATS = 50
WARM_UP = 5
"""Messages of a chat that do not count: they open connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What some messages came to."""

    took: Sequence[float]
    """Milliseconds from writing to the answer: of messages that were written one after the other."""
    per_second: float
    cpu_ms: float
    """Processor time of the bot for each."""
    switches: float
    """Context switches of the bot for each."""

    @property
    def p50(self) -> float:
        return statistics.median(self.took)

    @property
    def p99(self) -> float:
        return percentile(self.took, 0.99)


async def sequence(here: Lab, subject: Subject, rounds: int, *, chat_id: int = 1) -> Traffic:
    """Messages of one chat, each after the answer to the one before."""
    took = []
    for number in range(rounds + WARM_UP):
        if number == WARM_UP:
            meter = _Meter(subject)
        began = await here.say(chat_id, f"message {number}")
        [row] = await here.answers(1)
        took.append((row["t"] - began) * 1000)
    return meter.read(took[WARM_UP:], row["t"])


async def burst(here: Lab, subject: Subject, per_chat: int, *, chats: int = CHATS, first_chat: int = 1_000) -> Traffic:
    """Messages of many chats at once; each chat gets as many answers as it has written messages."""
    meter = _Meter(subject)
    numbers = range(first_chat, first_chat + chats)
    await here.write([(chat, f"message {number}") for number in range(per_chat) for chat in numbers])
    rows = await here.answers(chats * per_chat)
    answered = Counter(row["chat"] for row in rows)
    if sorted(answered.values()) != [per_chat] * chats:
        raise RuntimeError(f"not each of {chats} chats got {per_chat} answers: {answered}")
    return meter.read([0.0] * len(rows), rows[-1]["t"])


async def bursts(here: Lab, subject: Subject, rounds: int, *, per_chat: int = 10, chats: int = CHATS) -> Traffic:
    """The middle of several bursts, in chats of their own each."""
    found = [
        await burst(here, subject, per_chat, chats=chats, first_chat=10_000 * (number + 1)) for number in range(rounds)
    ]
    return sorted(found, key=lambda one: one.per_second)[rounds // 2]


class _Meter:
    """What a bot has taken since now."""

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
