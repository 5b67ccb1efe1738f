"""Every kill point of every scenario, and pairs of them: `make crash`.

One again: `KILL=commit:17:before make crash ARGS="-k talking"`. Two kills are separated by a comma:
`KILL=commit:12:before,request:5:after make crash ARGS="-k compressing"`. With `--protocol` the model is spoken to
otherwise than over chat completions.
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
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.seed import CRASH_SEED
from tests.e2e.protocols import OPTION, ModelProtocol

AT_ONCE = 2
"""Runs side by side: more make each other slow, not the whole faster."""


class Runs:
    """Many runs, a few at a time; every failure is told at once, with the words that repeat it."""

    def __init__(
        self,
        scenario: Scenario,
        protocol: ModelProtocol,
        census: Census,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._scenario = scenario
        self._protocol = protocol
        self._census = census
        self._folder = folder
        self._capsys = capsys
        self._room = asyncio.Semaphore(AT_ONCE)
        self._failures: list[str] = []
        self.labels: set[Label] = set()

    async def judge(self, kills: Sequence[Sequence[Kill]]) -> None:
        """Raises `AssertionError` with everything that went wrong."""
        commits, requests = len(self._census.commits), len(self._census.requests)
        self._tell(
            f"{self._scenario.name} over {self._protocol}: {commits} commits, {requests} requests: {len(kills)} runs"
        )
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
                self.labels |= await run_with(self._scenario, self._protocol, kills, self._folder / str(number), name)
            except AssertionError as error:
                self._failures.append(str(error))
                args = f"-k {self._scenario.name} {OPTION} {self._protocol}"
                again = f'KILL={",".join(map(str, kills))} make crash ARGS="{args}"'
                self._tell(f"FAILED {name}; again: {again}")

    def _tell(self, words: str) -> None:
        with self._capsys.disabled():
            print(f"\n{words}", end="", flush=True)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_kill_at_any_point_leaves_every_promise_kept(
    name: str, protocol: ModelProtocol, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = SCENARIOS[name]
    census = await take_census(scenario, protocol, tmp_path / "census")
    runs = Runs(scenario, protocol, census, tmp_path, capsys)
    chosen = os.environ.get("KILL")
    if chosen:
        await runs.judge([[Kill.parse(one) for one in chosen.split(",")]])
        return
    await runs.judge([[kill] for kill in census.kills()])
    missing = scenario.labels - runs.labels
    assert not missing, f"no kill led to: {', '.join(missing)}"


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.skipif("KILL" in os.environ, reason="one run was asked for")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_second_kill_during_recovery_leaves_every_promise_kept(
    name: str, protocol: ModelProtocol, tmp_path: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    scenario = SCENARIOS[name]
    census = await take_census(scenario, protocol, tmp_path / "census")
    chance = random.Random(pytestconfig.stash[CRASH_SEED])
    kills = census.kills()
    early = [kill for kill in kills if kill.number <= 12]  # what a life begins with is its recovery
    pairs = [[chance.choice(kills), chance.choice(early)] for _ in range(scenario.pairs)]
    await Runs(scenario, protocol, census, tmp_path, capsys).judge(pairs)
