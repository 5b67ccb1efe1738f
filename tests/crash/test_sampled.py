"""Some kill points of each scenario, drawn by a seed that the head of the test run shows.

`HERMES_CRASH_SEED` draws the same again.
"""

import asyncio
import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from tests.crash.kills import Census
from tests.crash.runs import run_with, take_census
from tests.crash.scenarios import SCENARIOS
from tests.crash.seed import CRASH_SEED
from tests.e2e.protocols import CHAT_COMPLETIONS, OPTION, PROTOCOLS, ModelProtocol, chosen

CensusOf: TypeAlias = Callable[[str, ModelProtocol], Census]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Most of the draws are over the protocol of this run; without `--protocol` some are over the others."""
    if "draw" not in metafunc.fixturenames:
        return
    option = chosen(metafunc.config)
    draws = [
        pytest.param(scenario.name, protocol, draw, id=f"{scenario.name}-{protocol}-{draw}")
        for scenario in SCENARIOS.values()
        for protocol in ([option] if option else PROTOCOLS.values())
        for draw in range(scenario.samples if protocol in (option, CHAT_COMPLETIONS) else scenario.other_samples)
    ]
    metafunc.parametrize(("name", "protocol", "draw"), draws)


@pytest.fixture(scope="session")
def census_of(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str, worker_id: str) -> CensusOf:
    """What can be killed: taken once, by whichever worker comes first, so that all draw from the same list."""
    base = tmp_path_factory.getbasetemp()

    def census_of(name: str, protocol: ModelProtocol) -> Census:
        shared = (base if worker_id == "master" else base.parent) / f"census-{name}-{protocol}-{testrun_uid}.json"
        with shared.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not shared.exists():
                taken = asyncio.run(take_census(SCENARIOS[name], protocol, tmp_path_factory.mktemp("census"), 1))
                shared.write_bytes(msgspec.json.encode(taken))
        return msgspec.json.decode(shared.read_bytes(), type=Census)

    return census_of


def test_a_kill_anywhere_leaves_every_promise_kept(
    name: str, protocol: ModelProtocol, draw: int, census_of: CensusOf, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed, scenario, census = pytestconfig.stash[CRASH_SEED], SCENARIOS[name], census_of(name, protocol)
    kill = census.sample(scenario.samples, seed)[draw]
    one = f'KILL={kill} make crash ARGS="-k {name} {OPTION} {protocol}"'
    again = f"again: {one}; all of them: HERMES_CRASH_SEED={seed} make test"
    print(f"{kill} ({census.name_of(kill)}); {again}")
    asyncio.run(run_with(scenario, protocol, [kill], tmp_path, census.name_of(kill)))
