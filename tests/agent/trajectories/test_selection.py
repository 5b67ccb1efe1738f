"""The turns that a summary replaces, compared with a literal version of the rules."""

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.trajectories.compressor import HEAD_SHARE, TrajectorySettings, select
from agent.trajectories.format import TurnRole

SYSTEM, HUMAN, GPT, TOOL = TurnRole.SYSTEM, TurnRole.HUMAN, TurnRole.GPT, TurnRole.TOOL

any_turns = st.lists(st.tuples(st.sampled_from(TurnRole), st.integers(1, 60)), max_size=24)
calls = st.tuples(st.just(GPT), st.integers(0, 3)).map(lambda call: [call[0], *[TOOL] * call[1]])
likely_turns = st.lists(st.one_of(st.just([HUMAN]), calls), max_size=12).flatmap(
    lambda units: st.tuples(*(st.tuples(st.just(role), st.integers(1, 60)) for role in [SYSTEM, *chain(*units)]))
)
turns_of_any_kind = st.one_of(any_turns, likely_turns.map(list))
any_settings = st.builds(
    TrajectorySettings,
    target_max_tokens=st.integers(1, 600),
    summary_target_tokens=st.integers(0, 120),
    protect_last=st.integers(0, 8),
)


def selected(turns: list[tuple[TurnRole, int]], wanted: TrajectorySettings) -> tuple[int, int]:
    return select([role for role, _ in turns], [size for _, size in turns], wanted)


def may_be_split_at(roles: list[TurnRole], index: int) -> bool:
    """Return True if no result after the split has lost its call."""
    return index >= len(roles) or roles[index] is not TOOL


def tail_by_the_rules(roles: list[TurnRole], protect_last: int) -> int:
    """The longest beginning that excludes the last turns and separates no call from its results."""
    most = max(0, len(roles) - protect_last)
    return max((index for index in range(most + 1) if index == 0 or may_be_split_at(roles, index)), default=0)


def head_by_the_rules(roles: list[TurnRole], sizes: list[int], tail: int, room: int) -> int:
    """The first turn of each role stays if it is before the tail, with few other turns before it."""
    firsts = {next(index for index, one in enumerate(roles) if one is role) for role in set(roles)}
    kept = [
        first
        for first in firsts
        if first < tail and sum(size for index, size in enumerate(sizes[:first]) if index not in firsts) <= room
    ]
    # A later first turn stays only if the earlier ones stay. This is automatic, because the sum only grows.
    least = max(kept) + 1 if kept else 0
    return next(index for index in range(least, len(roles) + 1) if index >= tail or may_be_split_at(roles, index))


def by_the_rules(turns: list[tuple[TurnRole, int]], wanted: TrajectorySettings) -> tuple[int, int]:
    roles, sizes = [role for role, _ in turns], [size for _, size in turns]
    tail = tail_by_the_rules(roles, wanted.protect_last)
    start = min(tail, head_by_the_rules(roles, sizes, tail, wanted.target_max_tokens // HEAD_SHARE))
    enough = sum(sizes) - wanted.target_max_tokens + wanted.summary_target_tokens
    for end in range(start, tail + 1):
        is_whole = end in (tail, start) or may_be_split_at(roles, end)
        if is_whole and (sum(sizes[start:end]) >= enough or end == tail):
            return start, end
    return start, start


@settings(max_examples=1_000)
@given(turns=turns_of_any_kind, wanted=any_settings)
def test_the_selection_follows_the_rules(turns: list[tuple[TurnRole, int]], wanted: TrajectorySettings) -> None:
    if sum(size for _, size in turns) > wanted.target_max_tokens:
        assert selected(turns, wanted) == by_the_rules(turns, wanted)
