"""What comes of asking for a compression. Every layer learns the same thing from the same value."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from hermes_state.lineage import Layer
from hermes_state.sessions import Session
from hermes_state.values import EstimatedTokens, Millis, Tokens

SummaryKind: TypeAlias = Literal["model", "deterministic"]


class Why(StrEnum):
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

    why: Why
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
