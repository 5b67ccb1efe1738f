"""Limits of a context window: where compression acts, from one table, for every layer alike.

Limits are computed anew for each model and window, so that a model switch or a learned window moves all of them
together. Shares of a window are taken exactly (no float creeps in); the threshold is rounded down, every other line is
the first whole number that satisfies it.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from hermes_state.values import EstimatedTokens, ReportedTokens, Tokens

URGENT_PERCENT = 92
"""Share of the input window, in percent, from which on nobody goes on without room."""
HYGIENE_INPUT_PERCENT = 90
"""Hygiene acts here at the latest, whatever share of the context is configured: the output needs its room."""
THRESHOLD_CAP_PERCENT = 75
"""Highest threshold, in percent of the input window: ten points below hygiene, which acts at 85 % at the earliest.
Closer to each other, both would act with every message of a long chat."""
MIN_INPUT_WINDOW = 2_048
SMALL_WINDOW = 16_000
"""Context length, in tokens, below which little is left between beginning, summary and end."""

HEAD_TOKENS = 4_000
HEAD_THRESHOLD_PERCENT = 25
MIN_SUMMARY_TOKENS = 2_000
MIN_SUMMARY_CEILING = 256
SUMMARY_CONTEXT_PERCENT = 5
SUMMARY_THRESHOLD_PERCENT = 20
SUMMARY_INPUT_TOKENS = 40_000
SUMMARY_INPUT_PERCENT = 60
"""Share of the summary model's own window, in percent."""
RULES_TOKENS = 400
RULES_THRESHOLD_PERCENT = 4
LEAN_TAIL = (10_000, 25_000)
STEPPED_SHARES = ((10_000, 20), (30_000, 15), (100_000, 10))
"""Up to so many tokens of content, so many percent of them; beyond, `STEPPED_REST`."""
STEPPED_REST = 5

TailMode = Literal["fraction", "lean"]
SummaryBudget = Literal["proportional", "lean", "stepped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Configuration of sizes: shares are of the context window, the rest is in tokens."""

    threshold: float = 0.50
    target_ratio: float = 0.20
    """Share of the threshold that the kept tail may take."""
    tail_mode: TailMode = "fraction"
    minimum_context_length: int = 64_000
    """The threshold is not below it where it is at most half of the context, or where no share of that is set."""
    maximum_threshold_tokens: int | None = None
    summary_budget: SummaryBudget = "proportional"
    summary_max_tokens: int = 12_000
    facts_share: float = 0.20
    """Share of the threshold that the facts of a record may take; 0: it has none."""
    hygiene_threshold: float = 0.85
    """Not below 0.85, or the threshold could come too close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The lines of one window, in tokens."""

    context_length: Tokens
    input_window: Tokens
    """The context less what is reserved for the output, or the provider's own bound of prompts if that is less."""
    longest_prompt: Tokens
    """A longer one is not sent: it cannot fit, however short the answer is."""
    threshold: Tokens
    hygiene: Tokens
    urgent: Tokens
    tail: Tokens
    head: Tokens
    summary_ceiling: Tokens
    rules: Tokens
    """Most that the standing rules of a record take."""
    facts: Tokens
    """Most that its facts take."""
    summary_budget: SummaryBudget = "proportional"

    def summary_tokens(self, content: int) -> Tokens:
        """Target length of a summary of `content` tokens: for the model's words, no limit on the wire."""
        if self.summary_budget == "stepped":
            percent = next((share for upto, share in STEPPED_SHARES if content < upto), STEPPED_REST)
            return Tokens(max(MIN_SUMMARY_CEILING, min(content * percent // 100, self.summary_ceiling)))
        floor = min(MIN_SUMMARY_TOKENS, self.summary_ceiling)
        proportional = min(max(content // 5, floor), self.summary_ceiling)
        return Tokens(proportional // 2 if self.summary_budget == "lean" else proportional)

    @property
    def is_small(self) -> bool:
        """The window is so small that a compression right at the threshold frees little of it."""
        return self.context_length < SMALL_WINDOW

    def is_over_threshold(self, prompt: EstimatedTokens | ReportedTokens) -> bool:
        return prompt >= self.threshold

    def fits(self, prompt: int) -> bool:
        """Return True while the prompt leaves room in the input window."""
        return prompt < self.input_window

    def is_urgent(self, prompt: EstimatedTokens | ReportedTokens, *, is_pending: bool = False) -> bool:
        """There is no room to go on without compressing. `is_pending`: a compression is under way."""
        return not self.fits(prompt) if is_pending else prompt >= self.urgent


@lru_cache(maxsize=1_024)  # asked for several times in every turn, for a few windows
def limits_of(
    context_length: int, reserved_output: int, settings: LimitSettings, max_input: int | None = None
) -> Limits:
    """Every limit of a window of `context_length` tokens, `reserved_output` of them kept for the answer.

    `max_input`: longest prompt, where the provider bounds it below that.
    """
    longest_prompt = context_length if max_input is None else min(context_length, max_input)
    window = min(context_length - reserved_output, longest_prompt)
    hygiene = min(
        _at_least(context_length, settings.hygiene_threshold), _at_least(window, Fraction(HYGIENE_INPUT_PERCENT, 100))
    )
    threshold = _threshold(context_length, window, settings)
    ceiling = min(
        context_length * SUMMARY_CONTEXT_PERCENT // 100,
        settings.summary_max_tokens,
        threshold * SUMMARY_THRESHOLD_PERCENT // 100,
    )
    return Limits(
        context_length=Tokens(context_length),
        input_window=Tokens(window),
        longest_prompt=Tokens(longest_prompt),
        threshold=threshold,
        hygiene=Tokens(hygiene),
        urgent=Tokens(_at_least(window, Fraction(URGENT_PERCENT, 100))),
        tail=_tail(context_length, threshold, settings),
        head=Tokens(min(HEAD_TOKENS, threshold * HEAD_THRESHOLD_PERCENT // 100)),
        summary_ceiling=Tokens(max(MIN_SUMMARY_CEILING, ceiling)),
        rules=Tokens(max(RULES_TOKENS, threshold * RULES_THRESHOLD_PERCENT // 100)),
        facts=Tokens(_at_most(threshold, settings.facts_share) // (4 if context_length < SMALL_WINDOW else 1)),
        summary_budget=settings.summary_budget,
    )


def summary_input_tokens(summary_window: int) -> Tokens:
    """Tokens of a conversation that a summary model of this window is shown."""
    return Tokens(min(SUMMARY_INPUT_TOKENS, summary_window * SUMMARY_INPUT_PERCENT // 100))


def _threshold(context_length: int, window: int, settings: LimitSettings) -> Tokens:
    threshold = _at_most(context_length, settings.threshold)
    if settings.minimum_context_length * 2 <= context_length or not settings.threshold:
        threshold = max(threshold, settings.minimum_context_length)
    threshold = min(threshold, window * THRESHOLD_CAP_PERCENT // 100)
    if settings.maximum_threshold_tokens is not None:
        threshold = min(threshold, settings.maximum_threshold_tokens)
    return Tokens(max(1, threshold))


def _tail(context_length: int, threshold: int, settings: LimitSettings) -> Tokens:
    share = _at_most(threshold, settings.target_ratio)
    low, high = LEAN_TAIL
    lean = min(max(context_length * 25 // 1_000, low), high)
    return Tokens(min(share, lean) if settings.tail_mode == "lean" else share)


def _exact(share: float | Fraction) -> Fraction:
    """A configured share as people wrote it: 0.29 is twenty-nine hundredths, not the float beside it."""
    return share if isinstance(share, Fraction) else Fraction(repr(share))


def _at_most(window: int, share: float | Fraction) -> int:
    return int(window * _exact(share))


def _at_least(window: int, share: float | Fraction) -> int:
    """The first whole number of tokens that is at least `share` of the window."""
    return -int(-window * _exact(share) // 1)
