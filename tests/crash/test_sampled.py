"""Some kill points of each scenario, drawn by a seed that the head of the test run shows.

`HERMES_CRASH_SEED` draws the same again.
"""

import asyncio
import fcntl
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.crash.kills import Census
from tests.crash.runs import run_with, take_census
from tests.crash.scenarios import SCENARIOS
from tests.crash.seed import CRASH_SEED

DRAWS = [(scenario.name, draw) for scenario in SCENARIOS.values() for draw in range(scenario.samples)]


@pytest.fixture(scope="session")
def census_of(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str, worker_id: str) -> Callable[[str], Census]:
    """What can be killed: taken once, by whichever worker comes first, so that all draw from the same list."""
    base = tmp_path_factory.getbasetemp()

    def census_of(name: str) -> Census:
        shared = (base if worker_id == "master" else base.parent) / f"census-{name}-{testrun_uid}.json"
        with shared.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not shared.exists():
                taken = asyncio.run(take_census(SCENARIOS[name], tmp_path_factory.mktemp("census")))
                shared.write_bytes(msgspec.json.encode(taken))
        return msgspec.json.decode(shared.read_bytes(), type=Census)

    return census_of


@pytest.mark.parametrize(("name", "draw"), DRAWS)
def test_a_kill_anywhere_leaves_every_promise_kept(
    name: str, draw: int, census_of: Callable[[str], Census], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed, scenario, census = pytestconfig.stash[CRASH_SEED], SCENARIOS[name], census_of(name)
    kill = census.sample(scenario.samples, seed)[draw]
    again = f'again: KILL={kill} make crash ARGS="-k {name}"; all of them: HERMES_CRASH_SEED={seed} make test'
    print(f"{kill} ({census.name_of(kill)}); {again}")
    asyncio.run(run_with(scenario, [kill], tmp_path, census.name_of(kill)))
