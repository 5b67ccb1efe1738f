"""State of a conversation's compressions, from one state to the next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.compressor import PASSING_OUTCOMES
from agent.context.limits import LimitSettings, limits_of
from agent.context.state import LASTING_FAILURES, ContextState, state_of, stored_form
from agent.model.errors import REMEDIES
from hermes_state.values import Millis

NOW = Millis(1_767_225_600_000)
ROUTE = "loop:lab:model"


def seconds_cooling(state: ContextState) -> float:
    return (state.cooldowns[ROUTE].until - NOW) / 1_000


def test_a_compression_helps_if_it_frees_a_tenth_and_ends_a_tenth_below_the_threshold() -> None:
    state = ContextState(strikes=1).compressed(50_000)
    assert state.judged(45_000, threshold=50_000).strikes == 0
    assert state.judged(45_001, threshold=50_000).strikes == 2, "less than a tenth was freed"
    assert state.judged(40_000, threshold=44_000).strikes == 2, "the next compression would follow at once"
    assert state.judged(39_600, threshold=44_000).strikes == 0
    assert state.judged(44_000, threshold=50_000).awaited is None
    assert (told := ContextState(strikes=1)).judged(90_000, threshold=50_000) is told, "nothing to judge"


LIMITS = limits_of(100_000, 20_000, LimitSettings(threshold=0.4))
"""Limits with a threshold of 40,000 tokens and an input window of 80,000."""


def test_two_strikes_in_a_row_block() -> None:
    once = ContextState().compressed(50_000).judged(49_000, threshold=40_000)
    assert not once.is_blocked
    twice = once.compressed(50_000).judged(48_000, threshold=40_000)
    assert twice.is_blocked
    assert twice.rearmed(79_999, LIMITS) is twice
    assert twice.rearmed(80_000, LIMITS).is_blocked, "people are not told again"


def test_compressions_that_end_just_below_the_threshold_block() -> None:
    """Otherwise each large message would cause a compression, and each would seem to help."""
    blocked = ContextState().compressed(42_000).judged(37_000, 40_000).compressed(42_000).judged(37_000, 40_000)
    assert blocked.is_blocked
    assert blocked.rearmed(40_000, LIMITS).is_blocked


def test_a_block_ends_with_a_higher_threshold() -> None:
    """The block came from a smaller window, or from too many small messages."""
    blocked = ContextState(strikes=2, blocked_at=20_000)
    assert blocked.rearmed(39_999, LIMITS).is_blocked
    assert blocked.rearmed(40_000, LIMITS) == ContextState()


def test_any_compression_that_helps_lifts_a_block() -> None:
    blocked = ContextState(strikes=2, blocked_at=90_000)
    helped = blocked.compressed(99_000).judged(30_000, threshold=50_000)
    assert (helped.strikes, helped.is_blocked) == (0, False)


def test_after_an_undo_nothing_is_compressed_while_the_prompt_fits() -> None:
    held = ContextState(strikes=2, blocked_at=1).undone(60_000)
    assert (held.held_at, held.is_blocked) == (60_000, False)
    assert held.rearmed(79_999, LIMITS).held_at
    assert not held.rearmed(80_000, LIMITS).held_at


def test_the_next_outcome_drops_cooldowns_of_other_settings() -> None:
    state = ContextState().failed("loop:lab:model:a1", "timeout", NOW).failed("hygiene:lab:model:a1", "timeout", NOW)
    assert len(state.cooldowns) == 2
    assert set(state.failed("loop:other:model:b2", "timeout", NOW).cooldowns) == {"loop:other:model:b2"}
    assert state.answered("loop:other:model:b2").cooldowns == {}
    assert set(state.answered("loop:lab:model:a1").cooldowns) == {"hygiene:lab:model:a1"}
    assert state.answered("loop:third:model:a1") is state


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [
        *((outcome, [60, 300, 900, 900]) for outcome in ("timeout", "unavailable", "rate_limited", "truncated")),
        *((outcome, [600, 600]) for outcome in ("auth", "quota")),
    ],
)
def test_a_route_that_fails_again_cools_down_longer_unless_the_failure_lasts(outcome: str, seconds: list[int]) -> None:
    state, rests = ContextState(), []
    for _ in seconds:
        state = state.failed(ROUTE, outcome, NOW)
        rests.append(seconds_cooling(state))
    assert rests == seconds
    assert state.is_cooling(ROUTE, NOW)
    assert not state.is_cooling(ROUTE, Millis(NOW + seconds[-1] * 1_000))
    assert not state.is_cooling("hygiene:lab:model", NOW)
    assert not state.is_cooling(ROUTE, Millis(NOW - 86_400_000)), "the clock was set back"


def test_a_manual_compression_clears_all_holds() -> None:
    held = ContextState(strikes=2, blocked_at=9, held_at=9).failed(ROUTE, "auth", NOW)
    assert held.asked_by_hand() == ContextState()


@given(
    st.builds(
        ContextState,
        strikes=st.integers(0, 9),
        blocked_at=st.integers(0, 10**7),
        held_at=st.integers(0, 10**7),
        pressure_level=st.integers(0, 10**7),
    )
)
def test_a_state_survives_storage(state: ContextState) -> None:
    full = state.failed(ROUTE, "timeout", NOW).compressed(7).failed(ROUTE, "auth", NOW)
    assert state_of(stored_form(full)) == full


@pytest.mark.parametrize("stored", [None, "", "{", "[]", '{"strikes": "many"}', '{"engine": "other"}'])
def test_an_unreadable_state_counts_as_new(stored: str | None) -> None:
    assert state_of(stored) == ContextState()


def test_failure_names_are_outcomes_of_the_ledger() -> None:
    assert {remedy.outcome for remedy in REMEDIES.values()} >= PASSING_OUTCOMES | LASTING_FAILURES
