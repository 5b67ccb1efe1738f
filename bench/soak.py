"""Long run of the gateway: `python -m bench.soak [--minutes 120] [--chats 200] [--every 20]`.

In every round, each chat writes a message. One of four answers calls a tool first, and the small context window makes
every conversation compress again and again. In the first half, the gateway is restarted four times in the middle of a
round: twice with SIGTERM and twice with SIGKILL. The second half has no restarts, so it shows whether memory and speed
stay the same.
"""

import argparse
import asyncio
import itertools
import json
import signal
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Measure, table
from bench.months import USUAL, month
from bench.subjects import ANSWER_SECONDS, Lab, Subject, gateway, lab

RESTARTS = {0.1: signal.SIGTERM, 0.2: signal.SIGKILL, 0.3: signal.SIGTERM, 0.4: signal.SIGKILL}
"""Signals that end the gateway, and when: as shares of the whole time."""
SETTINGS = {
    "HERMES_MODEL__NAME": "lab-32k",
    "HERMES_MODEL__CONTEXT_LENGTH": "16000",  # a conversation compresses about every sixth round
    "HERMES_LOGGING__FILE": "true",
    "HERMES_TOOLS__APPROVAL": "allow",
}
MAX_CHARACTERS = 2_800
"""Maximum length of a message. The answer repeats the message, and must fit into one message of Telegram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    at: float
    p50_ms: float
    cpu_ms: float
    """CPU milliseconds per message, including tools and compressions."""
    memory_mb: float


class Soak:
    """The run so far."""

    def __init__(self, here: Lab, folder: Path, chats: int, every: float) -> None:
        self.rounds: list[Round] = []
        self.log_mb = 0.0
        """Largest size of the write-ahead log."""
        self._here, self._folder, self._every = here, folder, every
        self._chats = range(1_000, 1_000 + chats)
        self._waiting: dict[int, float] = {}
        """Chats without an answer to their last message, and when they wrote it."""
        self._took: list[float] = []
        turns = month("ops", 60, USUAL, length=4)
        said = (f"{turn['said']} {turn['document']} {turn['answer']}" for turn in turns)
        self._texts = itertools.cycle([text[:MAX_CHARACTERS] for text in said])

    async def live(self, until: float, end: signal.Signals | None) -> None:
        """Run the gateway until the time `until`. If `end` is given, it ends the gateway in the middle of a round."""
        async with gateway(self._here, self._folder, changes=SETTINGS) as subject:
            await self._collect()  # what the last life still owed
            while time.monotonic() < until:
                await self._round(subject)
            if end is not None:
                await self._write()
                await asyncio.sleep(0.5)  # some turns run now, and others wait
                subject.tell(end)

    async def _round(self, subject: Subject) -> None:
        began, cpu = time.monotonic(), subject.cpu_seconds
        await self._write()
        await self._collect()
        spent = (subject.cpu_seconds - cpu) * 1e3 / len(self._chats)
        one = Round(at=began, p50_ms=statistics.median(self._took) * 1e3, cpu_ms=spent, memory_mb=subject.memory_mb)
        self.rounds.append(one)
        print(f"p50 {one.p50_ms:5.0f} ms, CPU {spent:4.1f} ms a message, {one.memory_mb:5.1f} MB", flush=True)
        await asyncio.sleep(max(0.0, began + self._every - time.monotonic()))

    async def _write(self) -> None:
        await self._take(0.0)  # late repeats of earlier answers
        text, looks = next(self._texts), len(self.rounds) % 4
        self._waiting, self._took = dict.fromkeys(self._chats, time.monotonic()), []
        marked = ((chat, f"[look] {text}" if chat % 4 == looks else text) for chat in self._chats)
        await self._here.write(marked)

    async def _collect(self) -> None:
        """Wait for the answer in every chat. Raises `RuntimeError` if no answer comes for two minutes."""
        came_at = time.monotonic()
        while self._waiting:
            if await self._take(0.5):
                came_at = time.monotonic()
            elif time.monotonic() > came_at + ANSWER_SECONDS:
                raise RuntimeError(f"{len(self._waiting)} chats wait for an answer")

    async def _take(self, seconds: float) -> int:
        query = {"match": "echo: |tool said: ", "since": self._here.seen, "wait": seconds, "count": 1}
        rows = await self._here.telegram.get("sent", method="sendMessage|editMessageText", **query)
        for row in rows:
            self._here.seen = row["seq"]
            if (said_at := self._waiting.pop(row["chat_id"], None)) is not None:
                self._took.append(row["t"] - said_at)
        log = self._folder / "home" / "state.db-wal"
        self.log_mb = max(self.log_mb, log.stat().st_size / 1e6 if log.exists() else 0.0)
        return len(rows)


async def run(minutes: float, chats: int, every: float) -> list[Measure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with lab() as here:
            look = {"name": "history_search", "arguments": {"query": "server"}}
            await here.model.post(
                "script", {"match": r"\[look\]", "last_role": "user", "tool_calls": [look], "times": -1}
            )
            await here.model.post("config", {"log_bodies": False})
            soak, began = Soak(here, folder, chats, every), time.monotonic()
            for share, end in RESTARTS.items():
                await soak.live(began + share * minutes * 60, end)
            restarted = len(soak.rounds)
            await soak.live(began + minutes * 60, None)
        return [*_figures(soak.rounds[restarted:], soak.log_mb), *_stored(folder / "home")]


def _figures(steady: list[Round], log_mb: float) -> list[Measure]:
    """Compare the last third of the steady rounds with the first third. The very first round opens connections."""
    if len(steady) < 3:
        raise SystemExit("Only a longer run has figures: there were fewer than 3 rounds in the second half.")
    third = max(1, (len(steady) - 1) // 3)
    first, last = steady[1 : 1 + third], steady[-third:]

    def both(read: Callable[[Round], float]) -> dict[str, float]:
        return {"ours": statistics.median(map(read, last)), "yardstick": statistics.median(map(read, first))}

    slope = statistics.linear_regression([one.at for one in steady[1:]], [one.memory_mb for one in steady[1:]]).slope
    hours = (steady[-1].at - steady[1].at) / 3_600
    return [
        Measure(name=f"memory gained in {hours * 60:.1f} minutes", ours=slope * hours * 3_600, unit="MB", bar=8),
        Measure(name="answer, p50: end against start", **both(lambda one: one.p50_ms), unit="ms", bar=1.25),
        Measure(
            name="processor time a message: end against start", **both(lambda one: one.cpu_ms), unit="ms", bar=1.25
        ),
        Measure(name="largest write-ahead log", ours=log_mb, unit="MB", bar=64),
    ]


def _stored(home: Path) -> list[Measure]:
    """Count what the log and the database say about the whole run."""
    lines = [json.loads(line) for file in home.glob("logs/*") for line in file.read_text().splitlines()]
    errors = Counter(line["event"] for line in lines if line["level"] in ("error", "critical"))
    print(f"errors in the log: {dict(errors)}" if errors else "no errors in the log")
    with closing(sqlite3.connect(home / "state.db")) as db:
        [(check,)] = db.execute("PRAGMA integrity_check")
        states = dict(db.execute("SELECT state, count(*) FROM turns GROUP BY state"))
        compressed = dict(db.execute("SELECT outcome, count(*) FROM compressions GROUP BY outcome"))
        [(calls,)] = db.execute("SELECT count(*) FROM tool_runs WHERE state = 'done'")
    print(f"turns {states}, compressions {compressed}, database: {check}")
    locked = sum("locked" in str(line) for line in lines)
    unfinished = sum(states.values()) - states.get("finished", 0)
    return [
        Measure(name="lines about locks in the log", ours=locked, unit="", bar=0),
        Measure(name="errors in the log", ours=errors.total(), unit="", bar=0),
        Measure(name="turns that did not finish", ours=unfinished, unit="", bar=0),
        Measure(name="faults of the database", ours=float(check != "ok"), unit="", bar=0),
        Measure(name="tool calls", ours=calls, unit="", bar=1, at_least=True),
        Measure(name="compressions", ours=compressed.get("compressed", 0), unit="", bar=1, at_least=True),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--every", type=float, default=20, help="seconds between two messages of a chat")
    measures = asyncio.run(run(**vars(parser.parse_args())))
    print(table(measures))
    raise SystemExit(0 if all(measure.holds for measure in measures) else 1)
