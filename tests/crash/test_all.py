"""Every kill point, one after the other: `make crash`. One of them: `KILL=commit:17:before make crash`."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.crash.invariants import Label
from tests.crash.kills import Kill
from tests.crash.runs import run_with, take_census

AT_ONCE = 2
"""Runs side by side: more make each other slow, not the whole faster."""


@pytest.mark.crash
@pytest.mark.timeout(3600)
async def test_every_kill_point_leaves_every_promise_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    census = await take_census(tmp_path / "census")
    chosen = os.environ.get("KILL", "")
    kills = [Kill.parse(chosen)] if chosen else census.kills()
    with capsys.disabled():
        print(f"\n{len(census.commits)} commits and {len(census.requests)} requests: {len(kills)} runs with a kill")
    room = asyncio.Semaphore(AT_ONCE)
    failures: list[str] = []
    labels: set[Label] = set()

    async def judge(kill: Kill) -> None:
        async with room:
            try:
                labels.update(await run_with(kill, tmp_path / str(kill).replace(":", "-"), census.name_of(kill)))
            except AssertionError as error:
                failures.append(str(error))
                with capsys.disabled():
                    print(f"FAILED {kill} ({census.name_of(kill)}); again: KILL={kill} make crash", flush=True)

    async with asyncio.TaskGroup() as group:
        for kill in kills:
            group.create_task(judge(kill), name=str(kill))
    assert not failures, f"{len(failures)} of {len(kills)} runs broke a promise:\n\n" + "\n\n".join(failures)
    assert chosen or labels == set(Label), f"no kill led to: {', '.join(set(Label) - labels)}"
