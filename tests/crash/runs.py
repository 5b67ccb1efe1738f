"""One run of a scenario with its checks, and the census from which the kill points are chosen."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.crash.invariants import Label, labels_of
from tests.crash.kills import Census, Kill
from tests.crash.scenarios import Scenario
from tests.crash.world import Stuck, World
from tests.e2e.protocols import ModelProtocol

LOG_LINES = 40


CENSUS_RUNS = 2
"""Number of runs for a census. Two commits that are batched in one run can be separate in the next. Most runs reach all
points of the shorter list."""

ATTEMPTS = 5
"""Maximum number of runs until one reaches its kill point."""


async def take_census(
    scenario: Scenario, protocol: ModelProtocol, folder: Path, run_count: int = CENSUS_RUNS
) -> Census:
    """Run without a kill. Raises `AssertionError` if a promise is broken even then."""
    found: list[tuple[list[str], list[str]]] = []
    for number in range(run_count):
        async with World(folder / str(number), (), protocol, scenario.environ) as world:
            await _play_and_judge(scenario, world, f"{scenario.name} over {protocol}, no kill")
            found.append((world.commits(), world.requests))
    assert all(commits and requests for commits, requests in found), f"{scenario.name}: nothing is counted"
    return Census(
        commits=min((commits for commits, _ in found), key=len),
        requests=min((requests for _, requests in found), key=len),
    )


async def run_with(
    scenario: Scenario, protocol: ModelProtocol, kills: Sequence[Kill], folder: Path, name: str
) -> set[Label]:
    """Run with a kill in the first process, and optionally in the next one. Return the labels for unknown outcomes.

    A run can be shorter than the census, because commits are batched on a busy machine. It is then repeated with the
    kill at its last commit or request. Processes after the first kill have less to do, so a later kill point might
    never be reached.

    Raises `AssertionError` with all problems found, or if no run reached the first kill.
    """
    what = f"{scenario.name} over {protocol}, {' then '.join(map(str, kills))} ({name})"
    for attempt in range(ATTEMPTS):
        async with World(folder / str(attempt), kills, protocol, scenario.environ) as world:
            await _play_and_judge(scenario, world, what)
            labels, has_come_to_it = await labels_of(world), world.kill_count > 0 or world.is_kept_waiting
            length = len(world.commits() if kills[0].place == "commit" else world.requests)
        shutil.rmtree(world.folder)  # otherwise hundreds of unused databases remain
        if has_come_to_it:
            return labels
        kills = [replace(kills[0], number=min(kills[0].number, length)), *kills[1:]]
    raise AssertionError(f"{what}: no run came to the first kill")


async def _play_and_judge(scenario: Scenario, world: World, what: str) -> None:
    try:
        await scenario.play(world)
        problems = await scenario.problems_of(world)
        if not world.kills:
            problems += await scenario.untouched_problems_of(world)
    except Stuck as error:
        problems = [str(error)]
    if problems:
        raise AssertionError("\n".join([f"{what}:", *(f"- {problem}" for problem in problems), _log_of(world)]))


def _log_of(world: World) -> str:
    log = world.folder / "gateway.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    steps = [f"commits of life {life}: {' '.join(world.commits(life))}" for life in range(world.kill_count + 1)]
    steps.append(f"requests of the last life: {', '.join(world.requests)}")
    return "\n".join([*steps, "the log ends:", *lines[-LOG_LINES:]])
