"""Messages that arrive at a fixed rate, even if answers are late."""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.measure import percentile
from bench.subjects import Lab

CHAT_SECONDS = 5.0
"""Seconds between two messages in a chat, if the first is answered in time."""
TICK_SECONDS = 0.05
"""Seconds between two writes. Messages that become due meanwhile are written together."""
LATE_SECONDS = 30.0
"""Seconds to wait for late answers after the last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Results of a run."""

    waits: Sequence[float]
    """Seconds until each complete answer. For unanswered messages, the seconds waited so far."""
    unanswered: int
    answered_per_second: float
    per_second: Mapping[str, float]
    """Increase of each meter per second."""

    @property
    def p50(self) -> float:
        return percentile(self.waits, 0.5)

    @property
    def p95(self) -> float:
        return percentile(self.waits, 0.95)

    @property
    def longest(self) -> float:
        return max(self.waits)


async def arrivals(
    here: Lab,
    meters: Mapping[str, Callable[[], float]],
    rate: float,
    *,
    warm_up: float,
    seconds: float,
    first_chat: int,
) -> Arrivals:
    """Write `rate` messages per second for `seconds`, after a `warm_up`, in as many chats as needed."""
    crowd = _Crowd(here, rate, first_chat)
    await crowd.write_for(warm_up)
    crowd.count_from_now()
    began, before = time.monotonic(), {name: read() for name, read in meters.items()}
    await crowd.write_for(seconds)
    took, answered = time.monotonic() - began, crowd.answered
    gained = {name: read() - before[name] for name, read in meters.items()}
    await crowd.listen_for(LATE_SECONDS)
    return Arrivals(
        waits=crowd.waits,
        unanswered=crowd.unanswered,
        answered_per_second=answered / took,
        per_second={name: value / took for name, value in gained.items()},
    )


class _Crowd:
    """People with one chat each, who wait for an answer before they write again."""

    def __init__(self, here: Lab, rate: float, first_chat: int) -> None:
        self._here = here
        self._rate = rate
        self._numbers = itertools.count(first_chat)
        self._idle = deque(itertools.islice(self._numbers, round(rate * CHAT_SECONDS)))
        self._said: dict[int, float] = {}
        self._counts_from = math.inf
        self._answered: list[float] = []
        self.answered = 0
        """Number of answers since counting started."""

    def count_from_now(self) -> None:
        self._counts_from, self.answered = time.monotonic(), 0

    @property
    def waits(self) -> list[float]:
        """Return the waiting times in seconds of all messages that count."""
        return [*self._answered, *(time.monotonic() - at for at in self._open)]

    @property
    def unanswered(self) -> int:
        return len(self._open)

    @property
    def _open(self) -> list[float]:
        return [at for at in self._said.values() if at >= self._counts_from]

    async def write_for(self, seconds: float) -> None:
        """Write messages at the rate, and collect answers meanwhile."""
        began, written = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * self._rate) + 1 - written
            if due > 0:
                await self._write(due)
                written += due
            await self._look()
            await asyncio.sleep(TICK_SECONDS)

    async def listen_for(self, seconds: float) -> None:
        """Collect answers until all have arrived, but for at most `seconds`."""
        until = time.monotonic() + seconds
        while self._said and time.monotonic() < until:
            await self._look()
            await asyncio.sleep(TICK_SECONDS)

    async def _write(self, count: int) -> None:
        chats = [self._idle.popleft() if self._idle else next(self._numbers) for _ in range(count)]
        self._said.update(dict.fromkeys(chats, time.monotonic()))
        await self._here.write([(chat, "And then?") for chat in chats])

    async def _look(self) -> None:
        for row in await self._here.new_answers():
            began = self._said.pop(row["chat_id"], None)
            if began is None:
                continue  # an edit of an answer that has already been counted
            self.answered += 1
            self._idle.append(row["chat_id"])
            if began >= self._counts_from:
                self._answered.append(row["t"] - began)
