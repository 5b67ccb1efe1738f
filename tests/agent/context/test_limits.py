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
from agent.model.catalog import model_size
from hermes_state.values import EstimatedTokens, Tokens
from tests.sampling import examples

DEFAULT = LimitSettings()


@pytest.mark.parametrize(
    ("context", "threshold", "hygiene", "urgent", "tail", "ceiling"),
    [
        (8_192, 4_096, 5_530, 5_653, 819, 409),
        (32_768, 16_384, 25_805, 26_379, 3_276, 1_638),
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
    assert (limits.tail, limits.summary_ceiling, limits.head) == (tail, ceiling, min(4_000, threshold // 4))


LOW, FLOOR_ALONE = LimitSettings(threshold=0.20), LimitSettings(threshold=0.0)
THRESHOLDS = {
    "the minimum applies up to half of the context": (200_000, 8_192, LOW, 64_000),
    "the minimum is exactly half of the context": (128_000, 8_192, LOW, 64_000),
    "the minimum is above half of the context": (127_999, 8_192, LOW, 25_599),
    "without a share only the minimum counts": (200_000, 8_192, FLOOR_ALONE, 64_000),
    "without a share on a large window": (1_000_000, 8_192, FLOOR_ALONE, 64_000),
    "without a share on a small window": (32_768, 8_192, FLOOR_ALONE, 24_576 * 75 // 100),
    "without a share but with a minimum": (
        200_000,
        8_192,
        LimitSettings(threshold=0.0, minimum_context_length=20_000),
        20_000,
    ),
    "the input window is a cap": (100_000, 20_000, LimitSettings(threshold=1.0), 60_000),
    "a large reserve moves it down": (200_000, 150_000, DEFAULT, 37_500),
    "a share is the written fraction, not the nearest float": (100_000, 8_192, LimitSettings(threshold=0.29), 29_000),
}


@pytest.mark.parametrize("case", THRESHOLDS)
def test_thresholds_follow_the_settings_within_the_window(case: str) -> None:
    context, reserved, configured, threshold = THRESHOLDS[case]
    assert limits_of(context, reserved, configured).threshold == threshold


@pytest.mark.parametrize(("reserved", "hygiene"), [(4_096, 170_000), (64_000, 122_400)])
def test_hygiene_acts_at_85_percent_unless_the_answer_needs_that_room(reserved: int, hygiene: int) -> None:
    assert limits_of(200_000, reserved, DEFAULT).hygiene == hygiene


def test_a_prompt_limit_is_the_input_window_and_leaves_the_context_shares() -> None:
    limits = limits_of(400_000, 8_192, DEFAULT, 272_000)
    assert (limits.context_length, limits.input_window, limits.longest_prompt) == (400_000, 272_000, 272_000)
    assert (limits.threshold, limits.hygiene) == (200_000, 244_800)
    beyond = limits_of(200_000, 8_192, DEFAULT, 272_000)
    assert (beyond, beyond.longest_prompt) == (limits_of(200_000, 8_192, DEFAULT), 200_000)


def test_limits_include_their_own_token() -> None:
    limits = limits_of(100_001, 10_000, DEFAULT)
    assert (limits.threshold, limits.urgent) == (50_000, 82_801)
    assert [limits.is_over_threshold(EstimatedTokens(tokens)) for tokens in (49_999, 50_000)] == [False, True]
    assert [limits.is_urgent(EstimatedTokens(tokens)) for tokens in (82_800, 82_801)] == [False, True]


@pytest.mark.parametrize(
    ("context", "reserved", "content", "tokens"),
    [
        *((200_000, 8_192, *pair) for pair in ((0, 2_000), (10_000, 2_000), (20_000, 4_000), (900_000, 10_000))),
        (16_000, 1_600, 100, 800),  # on a small window, the ceiling wins over the floor
        (4_096, 410, 100_000, MIN_SUMMARY_CEILING),
    ],
)
def test_a_summary_is_a_fifth_of_its_content_within_floor_and_ceiling(
    context: int, reserved: int, content: int, tokens: int
) -> None:
    assert limits_of(context, reserved, DEFAULT).summary_tokens(content) == tokens
    assert (summary_input_tokens(200_000), summary_input_tokens(8_000)) == (40_000, 4_800)


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


def _is_hygienes(tokens: int, limits: Limits, configured: LimitSettings) -> bool:
    """Return True if hygiene acts on a prompt of this many tokens."""
    share = Fraction(repr(configured.hygiene_threshold))
    return tokens >= share * limits.context_length or tokens * 100 >= 90 * limits.input_window


@examples(500)
@given(window=_windows(), configured=_settings)
def test_on_every_window_the_loop_acts_ten_points_before_hygiene_and_both_can_be_reached(
    window: tuple[int, int, int | None], configured: LimitSettings
) -> None:
    limits = _limits(window, configured)
    assert (limits.hygiene - limits.threshold) * 100 >= 10 * limits.input_window
    assert 1 <= limits.threshold <= limits.input_window * 75 / 100
    assert limits.threshold < limits.hygiene <= limits.urgent <= limits.input_window
    assert 0 <= limits.head <= min(4_000, limits.threshold / 4)
    assert 0 <= limits.tail <= limits.threshold
    assert _is_hygienes(limits.hygiene, limits, configured)
    assert not _is_hygienes(limits.hygiene - 1, limits, configured), "hygiene acts from its exact limit"


def _is_allowed(threshold: int, limits: Limits, configured: LimitSettings) -> bool:
    """Return True if a threshold of this many tokens keeps the required distances."""
    window = limits.input_window
    return (limits.hygiene - threshold) * 100 >= 10 * window and threshold * 100 <= 75 * window


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
