"""What comes of asking for a compression. Every layer learns the same thing from the same value.

What people are told of a compression that they asked for: four short texts from one outcome.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias, assert_never

from hermes_state.compressions import Layer
from hermes_state.sessions import Session
from hermes_state.values import EstimatedTokens, Millis, Tokens

SummaryKind: TypeAlias = Literal["model", "deterministic"]


class SkipReason(StrEnum):
    """Why nothing was compressed, although nothing went wrong."""

    TOO_FEW = "too_few"
    """Fewer messages than head, tail and one between them."""
    NOTHING_BETWEEN = "nothing_between"
    """Head and tail meet: nothing could be summarised."""
    NOT_SMALLER = "not_smaller"
    """The handoff would have been as large as what it stands for."""
    TOOL_RUNS = "tool_runs"
    NO_PREVIEW = "no_preview"
    """A plugin's engine can only tell what it takes out by doing it."""
    MOVED = "moved"
    """Somebody else compressed, reset or edited the conversation meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A child continues the conversation."""

    parent: Session
    child: Session
    layer: Layer
    summary_kind: SummaryKind
    model: str | None
    """Which model wrote the summary; None for the deterministic one."""
    failure: str | None
    """Why no model's summary could be had, in words for people; None when there is one."""
    focus: str | None
    messages_before: int
    messages_after: int
    summarised: int
    """How many messages the handoff stands for, earlier handoffs' messages not counted."""
    tokens_before: EstimatedTokens
    """Anchored on the provider's last count where there is one; what came since is estimated."""
    tokens_after: EstimatedTokens
    compressions: int
    """Of this lineage so far, those that were undone left out."""
    took_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNeeded:
    """Nothing was changed, and nothing had to be."""

    why: SkipReason
    prompt_tokens: EstimatedTokens
    threshold: Tokens
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """No summary could be made, and the conversation was left as it was because the next request still fits."""

    kind: str
    """How the ledger calls the failure, such as `auth`."""
    reason: str
    """One sentence for people."""
    retry_at: Millis | None
    """Before then no layer tries again by itself."""


CompressionOutcome: TypeAlias = Compressed | NotNeeded | Aborted


_WHY = {
    SkipReason.TOO_FEW: "the conversation is too short",
    SkipReason.NOTHING_BETWEEN: "nothing lies between its beginning and its newest messages",
    SkipReason.NOT_SMALLER: "a summary would be no smaller than what it stands for",
    SkipReason.TOOL_RUNS: "a tool call of the last turn has no result yet",
    SkipReason.NO_PREVIEW: "its context engine cannot tell beforehand what it would take out",
    SkipReason.MOVED: "the conversation was changed meanwhile",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualFeedback:
    """`note` is None where there is nothing to add."""

    noop: bool
    headline: str
    token_line: str
    note: str | None


def summarize_manual_compression(outcome: CompressionOutcome) -> ManualFeedback:
    """The texts for `/compress`. All token figures are estimates, and say so.

    Also the one before: a provider has last counted the prompt of an answer, and that answer is part of the next one.
    """
    match outcome:
        case Compressed():
            before, after = outcome.tokens_before, outcome.tokens_after
            has_risen = after >= before and outcome.messages_after < outcome.messages_before
            return ManualFeedback(
                noop=False,
                headline=f"Compressed: {outcome.messages_before:,} → {outcome.messages_after:,} messages",
                token_line=f"Next prompt (estimate): about {before:,} → {after:,} tokens",
                note=(
                    "There are fewer messages, but they take more tokens: the summary is longer than what it replaced."
                    if has_risen
                    else None
                ),
            )
        case NotNeeded():
            return ManualFeedback(
                noop=True,
                headline=f"No changes from compression: {outcome.messages:,} messages",
                token_line=f"Next prompt (estimate): about {outcome.prompt_tokens:,} of {outcome.threshold:,} tokens",
                note=f"Nothing could be compressed: {_WHY[outcome.why]}.",
            )
        case Aborted():
            return ManualFeedback(
                noop=True,
                headline="Not compressed; nothing was changed",
                token_line="",
                note=outcome.reason,
            )
        case _:
            assert_never(outcome)
