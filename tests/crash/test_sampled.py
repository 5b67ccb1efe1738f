"""Sixty kill points, drawn by a seed that the head of the test run shows; `HERMES_CRASH_SEED` draws the same again."""

import asyncio
import fcntl
from pathlib import Path

import msgspec
import pytest

from tests.crash.kills import Census
from tests.crash.runs import run_with, take_census
from tests.crash.seed import CRASH_SEED

SAMPLES = 60


@pytest.fixture(scope="session")
def census(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str, worker_id: str) -> Census:
    """What can be killed: taken once, by whichever worker comes first, so that all draw from the same list."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / f"census-{testrun_uid}.json"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            taken = asyncio.run(take_census(tmp_path_factory.mktemp("census")))
            shared.write_bytes(msgspec.json.encode(taken))
    return msgspec.json.decode(shared.read_bytes(), type=Census)


@pytest.mark.parametrize("draw", range(SAMPLES))
def test_a_kill_anywhere_leaves_every_promise_kept(
    draw: int, census: Census, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    seed = pytestconfig.stash[CRASH_SEED]
    kill = census.sample(SAMPLES, seed)[draw]
    again = f"again: KILL={kill} make crash; all sixty: HERMES_CRASH_SEED={seed} make test"
    print(f"{kill} ({census.name_of(kill)}); {again}")
    asyncio.run(run_with([kill], tmp_path, census.name_of(kill)))
