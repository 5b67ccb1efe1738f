"""Limits of a window: worked examples, and properties of every window."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.context.limits import (
    MAX_SUMMARY_TOKENS,
    MIN_INPUT_WINDOW,
    MIN_SUMMARY_CEILING,
    Limits,
    LimitSettings,
    limits_of,
    summary_input_tokens,
)
from agent.model.base import ModelLimits
from agent.model.sizes import model_size
from hermes_state.values import EstimatedTokens, ReportedTokens, Tokens
from tests.sampling import examples

DEFAULT = LimitSettings()


def test_a_window_of_200k_compresses_at_half_keeps_a_fifth_of_that_and_summarises_in_a_twentieth_of_the_window() -> (
    None
):
    limits = limits_of(200_000, 8_192, DEFAULT)
    assert (limits.threshold, limits.tail, limits.summary_ceiling) == (100_000, 20_000, 10_000)
    assert limits.head == 4_000


@pytest.mark.parametrize(
    ("context", "threshold", "hygiene", "urgent", "tail", "ceiling"),
    [
        (8_192, 4_096, 5_530, 5_653, 819, 409),
        (32_768, 16_384, 22_119, 22_610, 3_276, 1_638),
        (128_000, 64_000, 107_828, 110_224, 12_800, 6_400),
        (200_000, 100_000, 170_000, 176_464, 20_000, 10_000),
        (1_000_000, 500_000, 850_000, 912_464, 100_000, 12_000),
    ],
)
def test_common_windows_have_the_limits_of_the_default_reserve(
    context: int, threshold: int, hygiene: int, urgent: int, tail: int, ceiling: int
) -> None:
    size = model_size("some-model", ModelLimits(context_length=Tokens(context)))
    limits = limits_of(context, size.reserved_output, DEFAULT)
    assert (limits.threshold, limits.hygiene, limits.urgent) == (threshold, hygiene, urgent)
    assert (limits.tail, limits.summary_ceiling) == (tail, ceiling)


def test_hygiene_acts_at_85_percent_of_the_context_unless_the_answer_needs_that_room() -> None:
    assert limits_of(200_000, 4_096, DEFAULT).hygiene == 170_000
    assert limits_of(200_000, 64_000, DEFAULT).hygiene == 122_400


def test_the_minimum_threshold_applies_only_up_to_half_of_the_context() -> None:
    low = LimitSettings(threshold=0.20)
    assert limits_of(200_000, 8_192, low).threshold == 64_000
    assert limits_of(128_000, 8_192, low).threshold == 64_000
    assert limits_of(127_999, 8_192, low).threshold == 25_599


def test_without_a_share_only_the_minimum_threshold_counts() -> None:
    floor_alone = LimitSettings(threshold=0.0)
    assert limits_of(200_000, 8_192, floor_alone).threshold == 64_000
    assert limits_of(1_000_000, 8_192, floor_alone).threshold == 64_000
    assert limits_of(32_768, 8_192, floor_alone).threshold == 24_576 * 75 // 100
    assert limits_of(200_000, 8_192, LimitSettings(threshold=0.0, minimum_context_length=20_000)).threshold == 20_000


def test_a_threshold_is_capped_by_the_input_window() -> None:
    assert limits_of(100_000, 20_000, LimitSettings(threshold=1.0)).threshold == 60_000


def test_a_large_reserve_moves_the_threshold_down_so_that_it_can_be_reached() -> None:
    limits = limits_of(200_000, 150_000, DEFAULT)
    assert limits.input_window == 50_000
    assert limits.threshold == 37_500


def test_a_prompt_limit_is_the_input_window_and_leaves_the_context_shares() -> None:
    limits = limits_of(400_000, 8_192, DEFAULT, 272_000)
    assert (limits.context_length, limits.input_window, limits.longest_prompt) == (400_000, 272_000, 272_000)
    assert (limits.threshold, limits.hygiene) == (200_000, 244_800)
    beyond = limits_of(200_000, 8_192, DEFAULT, 272_000)
    assert beyond == limits_of(200_000, 8_192, DEFAULT)
    assert beyond.longest_prompt == 200_000


def test_a_prompt_counts_with_its_cached_part_and_without_reasoning() -> None:
    of_81k, of_100k = limits_of(160_000, 8_192, DEFAULT), limits_of(100_000, 8_192, DEFAULT)
    assert of_81k.is_over_threshold(ReportedTokens(10_000 + 50_000 + 20_000 + 1_000))
    assert not of_100k.is_over_threshold(ReportedTokens(40_000))  # reasoning does not count


def test_limits_include_their_own_token() -> None:
    limits = limits_of(100_001, 10_000, DEFAULT)
    assert (limits.threshold, limits.urgent) == (50_000, 82_801)
    assert not limits.is_over_threshold(EstimatedTokens(49_999))
    assert limits.is_over_threshold(EstimatedTokens(50_000))
    assert not limits.is_urgent(EstimatedTokens(82_800))
    assert limits.is_urgent(EstimatedTokens(82_801))


def test_a_share_is_the_written_fraction_and_not_the_nearest_float() -> None:
    assert int(100 * 0.29) == 28
    assert limits_of(100_000, 8_192, LimitSettings(threshold=0.29)).threshold == 29_000


@pytest.mark.parametrize(("content", "tokens"), [(0, 2_000), (10_000, 2_000), (20_000, 4_000), (900_000, 10_000)])
def test_a_summary_is_a_fifth_of_its_content_within_floor_and_ceiling(content: int, tokens: int) -> None:
    assert limits_of(200_000, 8_192, DEFAULT).summary_tokens(content) == tokens


def test_on_a_small_window_the_summary_ceiling_wins_over_its_floor() -> None:
    assert limits_of(16_000, 1_600, DEFAULT).summary_tokens(100) == 800
    assert limits_of(4_096, 410, DEFAULT).summary_tokens(100_000) == MIN_SUMMARY_CEILING


def test_a_summary_models_window_limits_its_input_but_not_the_threshold() -> None:
    assert summary_input_tokens(200_000) == 40_000
    assert summary_input_tokens(8_000) == 4_800


# ---- properties of every window

_contexts = st.one_of(st.integers(4_000, 2_000_000), st.sampled_from([4_096, 127_999, 128_000, 131_072, 2_000_000]))
_settings = st.builds(
    LimitSettings,
    threshold=st.floats(0.001, 1.0),
    target_ratio=st.floats(0.10, 0.80),
    minimum_context_length=st.integers(0, 1_000_000),
    hygiene_threshold=st.floats(0.85, 0.95),
)


@st.composite
def _windows(draw: st.DrawFn) -> tuple[int, int, int | None]:
    context = draw(_contexts)
    reserved = draw(st.integers(0, context - MIN_INPUT_WINDOW))
    return context, reserved, draw(st.one_of(st.none(), st.integers(MIN_INPUT_WINDOW, context)))


def _limits(window: tuple[int, int, int | None], configured: LimitSettings) -> Limits:
    context, reserved, max_input = window
    return limits_of(context, reserved, configured, max_input)


def _check(limits: Limits) -> None:
    """The limits are far enough apart, and each can be reached."""
    window = limits.input_window
    assert (limits.hygiene - limits.threshold) * 100 >= 10 * window
    assert limits.threshold >= 1
    assert limits.threshold * 100 <= 75 * window
    assert limits.threshold < limits.hygiene <= limits.urgent <= window
    assert 0 <= limits.head <= 4_000
    assert limits.head * 4 <= limits.threshold
    assert 0 <= limits.tail <= limits.threshold


def _is_hygienes(tokens: int, limits: Limits, configured: LimitSettings) -> bool:
    """Return True if hygiene acts on a prompt of this many tokens."""
    share = Fraction(repr(configured.hygiene_threshold))
    return tokens >= share * limits.context_length or tokens * 100 >= 90 * limits.input_window


def _is_allowed(threshold: int, limits: Limits, configured: LimitSettings) -> bool:
    """Return True if a threshold of this many tokens keeps the required distances."""
    window = limits.input_window
    return (limits.hygiene - threshold) * 100 >= 10 * window and threshold * 100 <= 75 * window


@examples(500)
@given(window=_windows(), configured=_settings)
def test_on_every_window_the_loop_acts_ten_points_before_hygiene_and_both_can_be_reached(
    window: tuple[int, int, int | None], configured: LimitSettings
) -> None:
    _check(_limits(window, configured))


@examples(300)
@given(window=_windows(), configured=_settings)
def test_hygiene_acts_from_the_exact_token_of_its_limit(
    window: tuple[int, int, int | None], configured: LimitSettings
) -> None:
    limits = _limits(window, configured)
    assert _is_hygienes(limits.hygiene, limits, configured)
    assert not _is_hygienes(limits.hygiene - 1, limits, configured)


@examples(300)
@given(window=_windows(), configured=_settings)
def test_the_threshold_is_what_is_configured_or_the_highest_that_is_allowed(
    window: tuple[int, int, int | None], configured: LimitSettings
) -> None:
    limits, context = _limits(window, configured), window[0]
    floor = configured.minimum_context_length if configured.minimum_context_length * 2 <= context else 0
    wanted = max(1, floor, int(Fraction(repr(configured.threshold)) * context))
    assert limits.threshold <= wanted
    assert _is_allowed(limits.threshold, limits, configured)
    assert limits.threshold == wanted or not _is_allowed(limits.threshold + 1, limits, configured)


@examples(200)
@given(window=_windows(), configured=_settings, content=st.integers(0, 2_000_000))
def test_a_summary_is_never_longer_than_its_ceiling(
    window: tuple[int, int, int | None], configured: LimitSettings, content: int
) -> None:
    limits = _limits(window, configured)
    assert 1 <= limits.summary_tokens(content) <= limits.summary_ceiling
    assert limits.summary_ceiling <= max(MIN_SUMMARY_CEILING, window[0] * Fraction(5, 100))
    assert limits.summary_ceiling <= MAX_SUMMARY_TOKENS
