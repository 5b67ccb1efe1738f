"""Limits of a context window: the prompt sizes at which each layer compresses.

Shares of a window are computed as exact fractions, not floats. The threshold is rounded down. The hygiene and urgent
limits are rounded up.
"""

from dataclasses import dataclass
from datetime import UTC, tzinfo
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal

import msgspec

from hermes_state.setting_types import AnyCase
from hermes_state.settings import Setting
from hermes_state.values import EstimatedTokens, ReportedTokens, Tokens

MIN_INPUT_WINDOW = 2_048
"""Smallest possible input window, in tokens. A system prompt and one exchange do not fit into a smaller window."""
SMALL_WINDOW = 16_000
"""Context length, in tokens, below which a window is small: head, summary and tail leave little space in it."""
MIN_SUMMARY_CEILING = 256
MAX_SUMMARY_TOKENS = 12_000
"""Maximum length to request for a summary. Models seldom write more in one reply."""


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    threshold: Annotated[float, Setting(ge=0.0, le=1.0, unit="of the context window")] = 0.50
    """Share of the context window at which a conversation is compressed, but at most 75 % of the input window. Lower
    the share to save costs. With `0`, only `minimum_context_length` applies."""
    target_ratio: Annotated[float, Setting(ge=0.10, le=0.80, unit="of the threshold")] = 0.20
    """Share of the threshold that is reserved for the newest messages, which stay unchanged."""
    minimum_context_length: Annotated[int, Setting(ge=0, le=20_000_000, unit="tokens")] = 64_000
    """Minimum threshold for context windows that are at least twice as large. Lower the value to compress earlier."""
    facts_share: float = 0.20
    """Share of the threshold that the facts in a record can fill. 0: no facts."""
    hygiene_threshold: float = 0.85
    """Share of the context window at which hygiene compresses. A value below 0.85 could be too close to the
    threshold."""


@dataclass(frozen=True, kw_only=True)
class CompressorSettings:
    """Settings of the built-in context engine, except the limits."""

    protect_last_n: Annotated[int, Setting(ge=1, le=1_000, unit="messages")] = 20
    """Number of newest messages to keep unchanged if they fit in 1.5 times the space set by `target_ratio`."""
    protect_first_n: Annotated[int, Setting(ge=0, le=100, unit="messages")] = 3
    """Number of messages to keep unchanged at the start of a conversation if they fit in 4,000 tokens."""
    keeps_head_once: bool = False
    """True to keep the head only at the first compression. Later compressions also summarise it."""
    summary_seconds: float = 225
    """Maximum time for one summary: a quarter of `model.turn_seconds`."""
    summary_template: Annotated[str | None, Setting(default_text="thirteen built-in headings")] = None
    """Your own headings for summaries, with explanations for the summary model."""
    note_in_system: Annotated[bool, Setting()] = True
    """After the first compression, explain in the system prompt that older messages were compressed."""
    zone: tzinfo = UTC


@dataclass(frozen=True, kw_only=True)
class ContextSettings(LimitSettings, CompressorSettings):
    """Settings for the compression of conversations with a model."""

    enabled: Annotated[bool, Setting()] = True
    """Compress automatically. If `false`, only `/compress` compresses a conversation."""
    mode: Annotated[Literal["background", "blocking"], AnyCase, Setting()] = "background"
    """`background`: write the summary while the conversation continues. `blocking`: finish each compression before the
    next model call."""
    hard_message_limit: int = 5_000
    """Number of messages at which hygiene compresses, whatever their size."""
    hold_seconds: float = 10.0
    """Maximum number of seconds that a turn waits for hygiene while its prompt still fits."""
    quiet_seconds: float = 5.0
    """Seconds that a turn waits for an automatic compression before people are told why."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a context window, in tokens."""

    context_length: Tokens
    input_window: Tokens
    """Context length minus the output reserve, or the provider's prompt limit if that is smaller."""
    longest_prompt: Tokens
    """Size of the longest prompt that is sent. A longer prompt cannot fit, even if the answer is short."""
    threshold: Tokens
    hygiene: Tokens
    urgent: Tokens
    """Prompt size at which a turn must be compressed before it can continue."""
    tail: Tokens
    head: Tokens
    summary_ceiling: Tokens
    rules: Tokens
    facts: Tokens

    def summary_tokens(self, content: int) -> Tokens:
        floor = min(2_000, self.summary_ceiling)
        return Tokens(min(max(content // 5, floor), self.summary_ceiling))

    @property
    def is_small(self) -> bool:
        """True if the window is so small that a compression at the threshold frees little space."""
        return self.context_length < SMALL_WINDOW

    def is_over_threshold(self, prompt: EstimatedTokens | ReportedTokens) -> bool:
        return prompt >= self.threshold

    def fits(self, prompt: int) -> bool:
        """Return True if the prompt is smaller than the input window."""
        return prompt < self.input_window

    def is_urgent(self, prompt: EstimatedTokens | ReportedTokens, *, is_pending: bool = False) -> bool:
        """Return True if a turn must wait for a compression. `is_pending`: a compression is already being prepared."""
        return not self.fits(prompt) if is_pending else prompt >= self.urgent


@lru_cache(maxsize=1_024)  # cached, because it is called several times per turn with few different windows
def limits_of(
    context_length: int, reserved_output: int, settings: LimitSettings, max_input: int | None = None
) -> Limits:
    """Compute all limits of a window, in tokens. `max_input`: the provider's own limit for prompts."""
    longest_prompt = context_length if max_input is None else min(context_length, max_input)
    window = min(context_length - reserved_output, longest_prompt)
    # at most 90 % of the input window, because the output needs room
    hygiene = min(_at_least(context_length, settings.hygiene_threshold), _at_least(window, Fraction(90, 100)))
    threshold = _threshold(context_length, window, settings)
    ceiling = min(context_length * 5 // 100, MAX_SUMMARY_TOKENS, threshold * 20 // 100)
    return Limits(
        context_length=Tokens(context_length),
        input_window=Tokens(window),
        longest_prompt=Tokens(longest_prompt),
        threshold=threshold,
        hygiene=Tokens(hygiene),
        urgent=Tokens(_at_least(window, Fraction(92, 100))),
        tail=Tokens(_at_most(threshold, settings.target_ratio)),
        head=Tokens(min(4_000, threshold * 25 // 100)),
        summary_ceiling=Tokens(max(MIN_SUMMARY_CEILING, ceiling)),
        rules=Tokens(max(400, threshold * 4 // 100)),
        facts=Tokens(_at_most(threshold, settings.facts_share) // (4 if context_length < SMALL_WINDOW else 1)),
    )


def summary_input_tokens(summary_window: int) -> Tokens:
    """Return the maximum number of conversation tokens to send to a summary model with this window."""
    return Tokens(min(40_000, summary_window * 60 // 100))


def _threshold(context_length: int, window: int, settings: LimitSettings) -> Tokens:
    threshold = _at_most(context_length, settings.threshold)
    if settings.minimum_context_length * 2 <= context_length or not settings.threshold:
        threshold = max(threshold, settings.minimum_context_length)
    # If the threshold were closer to the hygiene limit (85 %), hygiene and the turn would compress one after the other.
    threshold = min(threshold, window * 75 // 100)
    return Tokens(max(1, threshold))


def _exact(share: float | Fraction) -> Fraction:
    """Return a share exactly as configured: 0.29 is 29/100, not the nearest float."""
    return share if isinstance(share, Fraction) else Fraction(repr(share))


def _at_most(window: int, share: float | Fraction) -> int:
    return int(window * _exact(share))


def _at_least(window: int, share: float | Fraction) -> int:
    return -int(-window * _exact(share) // 1)
