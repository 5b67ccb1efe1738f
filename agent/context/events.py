"""What happens to a conversation's view, for whoever has to act on it or tell its people."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from sqlite3 import Connection
from typing import TypeAlias

from agent.context.outcomes import Aborted, Compressed
from hermes_state.transcripts import View
from hermes_state.values import ConversationRef, Millis, ReportedTokens, SessionId, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedEvent:
    """Compression does not help this conversation any more and waits until it has grown."""

    tokens: int
    threshold: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLimitEvent:
    """Hygiene has acted because of the number of messages, not of their size."""

    messages: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureEvent:
    """A prompt has come near to the threshold, or past a configured share of the window."""

    tokens: ReportedTokens
    of_tokens: Tokens
    """The threshold, or the window for a configured level."""
    percent: int
    is_threshold: bool
    session_id: SessionId
    level: int
    """The line that was crossed, in tokens; `commit.keep_pressure` notes that people know."""


BeforeSplit: TypeAlias = Callable[[ConversationRef, View], Awaitable[None]]
"""Asked when a compression is certain and there is time: the last look at rows that are about to leave the view."""
OnWait: TypeAlias = Callable[[ConversationRef, View], Awaitable[None]]
"""Called when a turn has waited for a while for a compression that nobody asked for, and still waits: its people do not
know why nothing happens."""
ContextEvent: TypeAlias = Compressed | Aborted | BlockedEvent | MessageLimitEvent
Listener: TypeAlias = Callable[[Connection, ConversationRef, ContextEvent, Millis], None]
"""Told inside the transaction that makes the event true, so that what follows from it is as durable. Must be pure SQL.

Whoever keeps something per view (todos that belong into it, caches of what the model has read) listens here.
"""
