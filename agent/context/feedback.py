"""What people are told of a compression that they asked for: four short texts from one outcome."""

from dataclasses import dataclass
from typing import assert_never

from agent.context.outcomes import Aborted, Compressed, CompressionOutcome, NotNeeded, Why

_WHY = {
    Why.TOO_FEW: "the conversation is too short",
    Why.NOTHING_BETWEEN: "nothing lies between its beginning and its newest messages",
    Why.NOT_SMALLER: "a summary would be no smaller than what it stands for",
    Why.TOOL_RUNS: "a tool call of the last turn has no result yet",
    Why.NO_PREVIEW: "its context engine cannot tell beforehand what it would take out",
    Why.MOVED: "the conversation was changed meanwhile",
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
