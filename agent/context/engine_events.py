"""What a context engine may ask for, and what it is told beside its work."""

from dataclasses import dataclass
from typing import TypeAlias

from hermes_state.sessions import Session
from hermes_state.transcripts import View
from hermes_state.values import CanonicalUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionRequest:
    """A compression that an engine wants now. Whoever keeps the conversation decides whether it may be."""

    reason: str
    """Which rule of the engine's, such as `threshold`, or its own words where it asked by itself."""
    focus: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEvent:
    """The model has answered a session."""

    session: Session
    usage: CanonicalUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedEvent:
    """A compression was committed: from now on the conversation is in `child`."""

    child: Session


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEvent:
    """Nobody will go on with this view's conversation by itself."""

    view: View
    was_reset: bool
    """By `/new`: the chat goes on with an empty conversation."""


EngineEvent: TypeAlias = ReplyEvent | ContinuedEvent | EndedEvent
