"""Every kill point, and pairs of them: `make crash`. One again: `KILL=commit:17:before make crash`.

Two kills are separated by a comma: `KILL=commit:12:before,request:5:after make crash`.
"""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.invariants import Label
from tests.crash.kills import Census, Kill
from tests.crash.runs import run_with, take_census
from tests.crash.seed import CRASH_SEED

AT_ONCE = 2
"""Runs side by side: more make each other slow, not the whole faster."""

PAIRS = 60
"""Of kills, the second while the daemon recovers from the first: all of them would be ten thousand."""


class Runs:
    """Many runs, a few at a time; every failure is told at once, with the words that repeat it."""

    def __init__(self, census: Census, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._census = census
        self._folder = folder
        self._capsys = capsys
        self._room = asyncio.Semaphore(AT_ONCE)
        self._failures: list[str] = []
        self.labels: set[Label] = set()

    async def judge(self, kills: Sequence[Sequence[Kill]]) -> None:
        """Raises `AssertionError` with everything that went wrong."""
        self._tell(f"{len(self._census.commits)} commits, {len(self._census.requests)} requests: {len(kills)} runs")
        async with asyncio.TaskGroup() as group:
            for number, some in enumerate(kills):
                group.create_task(self._judge(number, some), name=f"run-{number}")
        assert not self._failures, f"{len(self._failures)} of {len(kills)} runs broke a promise:\n\n" + "\n\n".join(
            self._failures
        )

    async def _judge(self, number: int, kills: Sequence[Kill]) -> None:
        async with self._room:
            name = self._census.name_of(kills[0])
            try:
                self.labels |= await run_with(kills, self._folder / str(number), name)
            except AssertionError as error:
                self._failures.append(str(error))
                self._tell(f"FAILED {name}; again: KILL={','.join(map(str, kills))} make crash")

    def _tell(self, words: str) -> None:
        with self._capsys.disabled():
            print(f"\n{words}", end="", flush=True)


@pytest.mark.crash
@pytest.mark.timeout(3600)
async def test_a_kill_at_any_point_leaves_every_promise_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    census = await take_census(tmp_path / "census")
    runs = Runs(census, tmp_path, capsys)
    chosen = os.environ.get("KILL")
    if chosen:
        await runs.judge([[Kill.parse(one) for one in chosen.split(",")]])
        return
    await runs.judge([[kill] for kill in census.kills()])
    assert runs.labels == set(Label), f"no kill led to: {', '.join(set(Label) - runs.labels)}"


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.skipif("KILL" in os.environ, reason="one run was asked for")
async def test_a_second_kill_during_recovery_leaves_every_promise_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    census = await take_census(tmp_path / "census")
    chance = random.Random(pytestconfig.stash[CRASH_SEED])
    kills = census.kills()
    early = [kill for kill in kills if kill.number <= 12]  # what a life begins with is its recovery
    pairs = [[chance.choice(kills), chance.choice(early)] for _ in range(PAIRS)]
    await Runs(census, tmp_path, capsys).judge(pairs)
