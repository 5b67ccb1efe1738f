"""Parallel writing functions behave as if one had run before the other.

Each function of an ordered pair has its own transaction, like in the store. The first stops before one of its
statements until the second has ended or waits for a lock of the first. The stored rows and results must equal those of
a serial run in one order or the other. The same must hold if both are in one batch and share round trips.
"""

from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from hermes_state.engines.postgres.store import RULES
from hermes_state.store.sql import TransactionRules, WriteRequest
from hermes_state.values import Millis
from tests.hermes_state.engines.postgres.interleaving import UNLOCKED, Arena, Outcome, opened_arena
from tests.hermes_state.engines.postgres.scenes import SCENES
from tests.hermes_state.rows import START
from tests.postgres import Postgres
from tests.sampling import crossed, sample

pytestmark = [pytest.mark.cluster, pytest.mark.fuzz]

FIRST, SECOND = Millis(START + 100_000), Millis(START + 200_000)
"""Times of the two functions, which identify their rows."""
PAIRS = [(scene, *pair) for scene, (_, writers) in SCENES.items() for pair in crossed(10, writers, list(writers))]
"""Ordered pairs: every tenth of each function, or all of them with `make fuzz`."""
STATEMENTS = sample(1, 100)
"""Statements of a pair before which the first function stops, at most."""

LOST = [
    ("busy", "finish_turn", "stop_turn"),  # a turn is answered twice
    ("busy", "stop_turn", "finish_turn"),
    ("busy", "append_calls", "stop_turn"),  # a stopped turn continues
    ("busy", "finish_tool", "stop_turn"),
    ("idle", "start_turn", "apply_edit"),  # an edit of a message that a turn has just read is lost
    ("idle", "start_turn", "apply_deletion"),
    ("busy", "split", "append_calls"),  # a row after the split is missing in the child
    ("quiet", "reset", "resume"),  # two open conversations
    ("quiet", "resume", "reset"),
    ("people", "approve", "approve"),  # one code for two people
    ("people", "offer", "offer/again"),
]
"""Pairs whose outcome equals neither order without locks."""


@pytest.fixture(scope="module")
def arena(postgres: Postgres) -> Iterator[Arena]:
    with opened_arena(postgres) as opened:
        yield opened


class Pair:
    """Two functions of a scene, and their serial outcomes."""

    def __init__(self, arena: Arena, scene: str, first: str, second: str) -> None:
        self._arena, self._name = arena, f"{scene} {first} {second}"
        build, writers = SCENES[scene]
        state = arena.prepare(build)
        self._calls = partial(writers[first], state, FIRST), partial(writers[second], state, SECOND)
        in_order, last = arena.serial(*self._made())
        assert "TypeError" not in in_order[1] + in_order[2], in_order[1:]  # a call that does not fit its function
        self._serial = in_order, arena.serial(*self._made(), is_swapped=True)[0]
        self._between = range(1, last + 1)

    def stops(self, most: int) -> list[int]:
        """Return the statements of the first function, with the commit, before which it stops."""
        return Random(self._name).sample(self._between, min(most, len(self._between)))

    def delays(self, most: int) -> list[int]:
        """Return round trips of the first function for which the second waits: none, and some more."""
        return [0, *Random(self._name).sample(self._between, min(most - 1, len(self._between)))]

    def mixed(self, at: int, rules: TransactionRules = RULES) -> Outcome | None:
        """Return an outcome that equals neither order when the second function interrupts the first; else None."""
        found = self._arena.interleaved(*self._made(), at, rules)
        return None if found in self._serial else found

    def pipelined(self, late: int) -> Outcome | None:
        """Return an outcome that equals neither order when the second starts later in the same batch; else None."""
        found = self._arena.pipelined(*self._made(), late)
        return None if found in self._serial else found

    def _made(self) -> tuple[WriteRequest, WriteRequest]:
        first, second = self._calls
        return first(), second()


@pytest.mark.parametrize(("scene", "first", "second"), PAIRS)
def test_two_parallel_functions_are_serializable(arena: Arena, scene: str, first: str, second: str) -> None:
    pair = Pair(arena, scene, first, second)
    assert {at: found for at in pair.stops(STATEMENTS) if (found := pair.mixed(at))} == {}


@pytest.mark.parametrize(("scene", "first", "second"), PAIRS)
def test_two_functions_of_one_batch_are_serializable(arena: Arena, scene: str, first: str, second: str) -> None:
    pair = Pair(arena, scene, first, second)
    assert {late: found for late in pair.delays(STATEMENTS) if (found := pair.pipelined(late))} == {}


@pytest.mark.parametrize(("scene", "first", "second"), LOST)
def test_known_pairs_are_not_serializable_without_locks(arena: Arena, scene: str, first: str, second: str) -> None:
    pair = Pair(arena, scene, first, second)
    at = next((at for at in pair.stops(100) if pair.mixed(at, UNLOCKED)), None)
    assert at is not None
    assert pair.mixed(at) is None
