"""Data types and events of a compression, from the request to the outcome.

An engine requests a compression (`CompressionRequest`). The controller makes a `CompressionJob`, and the engine
prepares it (`PreparedCompression`, `NotNeeded`, `Aborted`). A transaction commits it (`Compressed`).
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias, assert_never

import msgspec

from agent.context.cuts import SkipReason
from agent.context.estimate import Estimator
from agent.context.limits import CompressorSettings, Limits
from agent.context.model_handle import ModelInfo, SummaryRoute
from agent.context.state import ContextState
from agent.handoff import parse_handoff
from agent.model.base import ModelRequest
from hermes_state.compressions import ContextItem, Layer
from hermes_state.sessions import Session
from hermes_state.store.sql import Connection
from hermes_state.transcripts import NewMessage, View
from hermes_state.values import (
    CanonicalUsage,
    ConversationRef,
    EstimatedTokens,
    Millis,
    Origin,
    ReportedTokens,
    SessionId,
    Tokens,
)

SummaryKind: TypeAlias = Literal["model", "deterministic"]


class CompressionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A compression requested by an engine. The controller decides whether to run it."""

    reason: str
    """Reason for the request: the name of the engine's rule, such as `threshold`, or a sentence from the model."""
    focus: str | None = None


class NotNeeded(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was changed, because a compression was impossible or not needed."""

    why: SkipReason
    prompt_tokens: EstimatedTokens
    threshold: Tokens
    messages: int


class Aborted(msgspec.Struct, frozen=True, kw_only=True):
    """No summary could be made. Nothing was changed, because the next request still fits into the window."""

    kind: str
    """Kind of failure as recorded in the ledger, such as `auth`."""
    reason: str
    """The reason for the failure, as one sentence to show to users."""


class CompressionJob(msgspec.Struct, frozen=True, kw_only=True):
    """One requested compression."""

    conversation: ConversationRef
    view: View
    request: ModelRequest
    """The next model request, including the system prompt and tools, which a compression does not shorten."""
    limits: Limits
    threshold: Tokens
    layer: Layer
    focus: str | None
    keep_turns: int | None
    tokens_before: EstimatedTokens
    grown: int = 0
    """Number of tokens by which the prompt grew while the compression was prepared."""
    must_shrink: bool
    """True if the conversation cannot continue without a compression."""
    message_limit: int | None = None
    """Maximum number of messages, if hygiene compresses because the conversation has more. None in all other cases."""
    held_seconds: float = 0.0
    """Maximum number of seconds that a turn waits while its prompt still fits."""
    on_begin: Callable[[], Awaitable[None]] | None = None
    """Called as soon as there is something to compress, before a model is asked."""
    model: ModelInfo
    estimator: Estimator
    routes: Sequence[SummaryRoute] = ()
    """Models to ask for a summary, in order."""
    flush_route: SummaryRoute | None = None
    """Model that takes notes before the compression. None: no notes are taken."""
    settings: CompressorSettings = msgspec.field(default_factory=CompressorSettings)

    @property
    def messages_before(self) -> int:
        return len(self.view.transcript)

    async def begin(self) -> None:
        if self.on_begin is not None:
            await self.on_begin()

    def not_needed(self, why: SkipReason) -> NotNeeded:
        return NotNeeded(
            why=why, prompt_tokens=self.tokens_before, threshold=self.threshold, messages=self.messages_before
        )


class PreparedCompression(msgspec.Struct, frozen=True, kw_only=True):
    """A compression that is ready to commit."""

    context: Sequence[ContextItem]
    summary_kind: SummaryKind
    model: str | None
    """Model that wrote the summary; None for a deterministic summary."""
    failure: str | None = None
    """Reason why no model wrote the summary, worded for people."""
    passed_over: str | None = None
    """Model that failed before another model wrote the summary."""
    summarised: int
    """Number of messages that the handoff replaces, without the messages that earlier handoffs replaced."""
    tokens_after: EstimatedTokens

    @property
    def stands_for(self) -> int:
        """Number of messages that the handoff replaces, including those that earlier handoffs replaced."""
        rows = [item for item in self.context if isinstance(item, NewMessage) and item.origin is Origin.SUMMARY]
        return sum(parse_handoff(row.text or "").messages for row in rows)

    @property
    def messages_after(self) -> int:
        return len(self.context)


Preparation: TypeAlias = PreparedCompression | NotNeeded | Aborted


class CompressionPreview(msgspec.Struct, frozen=True, kw_only=True):
    head: int
    middle: int
    tail: int
    pruned: int
    tokens_before: EstimatedTokens
    summary_tokens: Tokens
    tokens_after: EstimatedTokens


class CompressionResult(msgspec.Struct, frozen=True, kw_only=True):
    job: CompressionJob
    result: Preparation
    state: ContextState
    system_prompt: str
    took_ms: int


class Compressed(msgspec.Struct, frozen=True, kw_only=True):
    """A committed compression. A child session continues the conversation."""

    job: CompressionJob
    prepared: PreparedCompression
    child: Session
    compressions: int
    """Number of compressions of this lineage so far. Undone compressions do not count."""

    @property
    def parent(self) -> Session:
        return self.job.view.session


CompressionOutcome: TypeAlias = Compressed | NotNeeded | Aborted


class BlockedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Compression no longer helps this conversation, so automatic compression is paused."""

    tokens: int
    threshold: Tokens


class MessageLimitEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Hygiene compressed a conversation because it had too many messages, not because they were too long."""

    messages: int
    limit: int


class PressureEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt is close to the threshold."""

    tokens: ReportedTokens
    threshold: Tokens
    percent: int
    session_id: SessionId
    level: int
    """The warning level that the prompt has passed, in tokens. `commit.note_pressure` records the warning."""


BeforeSplit: TypeAlias = Callable[[CompressionJob], Coroutine[Any, Any, None]]
"""Takes notes from rows that leave the view. Never raises or delays a commit. A restart repeats unfinished calls."""
OnWait: TypeAlias = Callable[[ConversationRef, View], Awaitable[None]]
"""Tells people that a turn has to wait for an automatic compression. Called when the wait becomes noticeable."""
ContextEvent: TypeAlias = Compressed | Aborted | BlockedEvent | MessageLimitEvent
Listener: TypeAlias = Callable[[Connection, ConversationRef, ContextEvent, Millis], None]
"""Called inside the event's transaction, so its changes are committed with the event. It must only execute SQL."""


class ReplyEvent(msgspec.Struct, frozen=True, kw_only=True):
    session: Session
    usage: CanonicalUsage


class ContinuedEvent(msgspec.Struct, frozen=True, kw_only=True):
    child: Session


class EndedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation of this view has ended."""

    view: View
    was_reset: bool
    """True after `/new`, when the chat continues with an empty conversation."""


EngineEvent: TypeAlias = ReplyEvent | ContinuedEvent | EndedEvent


_WHY = {
    SkipReason.TOO_FEW: "the conversation is too short",
    SkipReason.NOTHING_BETWEEN: "there is nothing between the first and the newest messages, which are always kept",
    SkipReason.NOT_SMALLER: "a summary would not be shorter than the messages it replaces",
    SkipReason.UNCHANGED: "the context engine returned the messages unchanged",
    SkipReason.TOOL_RUNS: "a tool call in the last turn has no result yet",
    SkipReason.NO_PREVIEW: "this context engine cannot preview a compression",
    SkipReason.MOVED: "the conversation changed in the meantime",
}


class CompressionReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reply to `/compress`. `note` is None if there is nothing to add."""

    noop: bool
    headline: str
    token_line: str
    note: str | None


def summarize_manual_compression(outcome: CompressionOutcome) -> CompressionReport:
    """Return a report for `/compress`. Its token counts are labelled as estimates of the next prompt."""
    match outcome:
        case Compressed():
            before, after = outcome.job.tokens_before, outcome.prepared.tokens_after
            return CompressionReport(
                noop=False,
                headline=f"Compressed: {outcome.job.messages_before:,} → {outcome.prepared.messages_after:,} messages",
                token_line=f"Next prompt (estimate): about {before:,} → {after:,} tokens",
                note=None,
            )
        case NotNeeded():
            return CompressionReport(
                noop=True,
                headline=f"No changes from compression: {outcome.messages:,} messages",
                token_line=f"Next prompt (estimate): about {outcome.prompt_tokens:,} of {outcome.threshold:,} tokens",
                note=f"Nothing could be compressed: {_WHY[outcome.why]}.",
            )
        case Aborted():
            return CompressionReport(
                noop=True, headline="Not compressed; nothing was changed", token_line="", note=outcome.reason
            )
        case _:
            assert_never(outcome)
