"""Taking a compression back: the model sees again what it saw before, and everything that was said since."""

from dataclasses import dataclass
from sqlite3 import Connection

from agent.context.limits import Limits
from agent.context.state import state_of, stored_form
from hermes_state.lineage import UndoPlan, undo_compression
from hermes_state.sessions import Session, load_session
from hermes_state.values import EstimatedTokens, Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """A compression that could be taken back."""

    plan: UndoPlan
    tokens: EstimatedTokens
    """What the whole view takes."""
    limits: Limits

    @property
    def fits(self) -> bool:
        """Whether there is room for the whole view; otherwise the next message would compress it again."""
        return not self.limits.is_urgent(self.tokens)


def settle_undo(db: Connection, undoing: Undoing, now: Millis) -> Session:
    """Do it, inside the caller's transaction; compressing by itself waits until the conversation has grown.

    Raises `LineageMoved` when the conversation has changed since this was planned.
    """
    state = state_of(undoing.plan.tip.context_state).undone(undoing.tokens)
    return load_session(db, undo_compression(db, undoing.plan, now, context_state=stored_form(state)))
