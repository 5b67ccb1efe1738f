"""The scenarios that are killed: what happens, what must hold, and how the daemon is set up."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.crash import (
    approving,
    compressing,
    compressing_invariants,
    delegating,
    giving,
    invariants,
    previewing,
    scenario,
    scheduling,
    together,
)
from tests.crash.invariants import Label
from tests.crash.world import World

Judge = Callable[[World], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Something that people do with the gateway, and what is promised of it wherever it is killed."""

    name: str
    play: Callable[[World], Awaitable[None]]
    problems_of: Judge
    """What is not as promised, whatever was killed."""
    untouched_problems_of: Judge
    """What is not as promised beside that when nothing was killed."""
    environ: Mapping[str, str] = field(default_factory=dict)
    labels: frozenset[Label] = frozenset()
    """What some kill makes people or the model be told."""
    samples: int
    """Kill points of an ordinary test run, over the protocol that it is for."""
    other_samples: int
    """Kill points over each of the other protocols."""
    pairs: int
    """Pairs of them, the second while the daemon recovers from the first: all of them would be ten thousand."""


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
            untouched_problems_of=approving.untouched_problems_of,
            labels=frozenset(Label),
            samples=4,
            other_samples=1,
            pairs=20,
        ),
        Scenario(
            name="asking_admins",
            play=approving.play_with_admin,
            problems_of=approving.problems_with_admin_of,
            untouched_problems_of=approving.untouched_problems_of,
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
            untouched_problems_of=delegating.untouched_problems_of,
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
