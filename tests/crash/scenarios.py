"""Scenarios for crash tests: what happens, what is checked, and how the daemon is configured."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.crash import (
    approving,
    compressing,
    compressing_invariants,
    delegating,
    gathering,
    giving,
    invariants,
    previewing,
    scenario,
    scheduling,
    speaking,
    together,
)
from tests.crash.invariants import Label
from tests.crash.world import World

Judge = Callable[[World], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A use of the gateway, and the promises that must hold wherever the daemon is killed."""

    name: str
    play: Callable[[World], Awaitable[None]]
    problems_of: Judge
    """Returns broken promises after any run."""
    untouched_problems_of: Judge
    """Returns additional problems of a run without a kill."""
    environ: Mapping[str, str] = field(default_factory=dict)
    labels: frozenset[Label] = frozenset()
    """Labels that at least one kill makes visible to people or the model."""
    samples: int
    """Number of kill points in an ordinary test run over the main protocol."""
    other_samples: int
    """Number of kill points over each of the other protocols."""
    pairs: int
    """Number of pairs of kill points. The second kill happens during recovery. All pairs would be ten thousand."""


SCENARIOS = {
    one.name: one
    for one in (
        Scenario(
            name="talking",
            play=scenario.play,
            problems_of=invariants.problems_of,
            untouched_problems_of=invariants.untouched_problems_of,
            labels=frozenset(Label),
            samples=8,
            other_samples=2,
            pairs=60,
        ),
        Scenario(
            name="compressing",
            play=compressing.play,
            problems_of=compressing_invariants.problems_of,
            untouched_problems_of=compressing_invariants.untouched_problems_of,
            environ=compressing.ENVIRON,
            labels=frozenset({Label.POSSIBLE_REPEAT}),
            samples=5,
            other_samples=0,
            pairs=40,
        ),
        Scenario(
            name="background",
            play=compressing.play,
            problems_of=compressing_invariants.problems_in_background_of,
            untouched_problems_of=compressing_invariants.untouched_background_problems_of,
            environ=compressing.IN_BACKGROUND,
            samples=4,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="together",
            play=together.play,
            problems_of=together.problems_of,
            untouched_problems_of=together.untouched_problems_of,
            samples=4,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="approving",
            play=approving.play,
            problems_of=approving.problems_of,
            untouched_problems_of=invariants.unknown_runs,
            labels=frozenset(Label),
            samples=4,
            other_samples=1,
            pairs=20,
        ),
        Scenario(
            name="asking_admins",
            play=approving.play_with_admin,
            problems_of=approving.problems_with_admin_of,
            untouched_problems_of=invariants.unknown_runs,
            environ=approving.ASKS_ADMIN,
            labels=frozenset(Label),
            samples=5,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="giving",
            play=giving.play,
            problems_of=giving.problems_of,
            untouched_problems_of=giving.untouched_problems_of,
            environ=giving.ENVIRON,
            labels=frozenset(Label),
            samples=4,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="delegating",
            play=delegating.play,
            problems_of=delegating.problems_of,
            untouched_problems_of=invariants.unknown_runs,
            environ=delegating.ENVIRON,
            labels=frozenset(Label),
            samples=5,
            other_samples=1,
            pairs=20,
        ),
        Scenario(
            name="previewing",
            play=previewing.play,
            problems_of=previewing.problems_of,
            untouched_problems_of=previewing.untouched_problems_of,
            environ=previewing.ENVIRON,
            samples=4,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="gathering",
            play=gathering.play,
            problems_of=gathering.problems_of,
            untouched_problems_of=gathering.untouched_problems_of,
            environ=gathering.ENVIRON,
            samples=4,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="speaking",
            play=speaking.play,
            problems_of=speaking.problems_of,
            untouched_problems_of=speaking.untouched_problems_of,
            environ=speaking.ENVIRON,
            labels=frozenset({Label.POSSIBLE_REPEAT}),
            samples=4,
            other_samples=0,
            pairs=20,
        ),
        Scenario(
            name="scheduling",
            play=scheduling.play,
            problems_of=scheduling.problems_of,
            untouched_problems_of=scheduling.untouched_problems_of,
            labels=frozenset({Label.POSSIBLE_REPEAT}),
            samples=4,
            other_samples=0,
            pairs=20,
        ),
    )
}
