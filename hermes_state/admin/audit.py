"""Audit list: which conversations of other people an admin opened in the console, and what an admin did there."""

from dataclasses import asdict, dataclass

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, insertion, select
from hermes_state.values import Millis, UserRef


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    at: Millis
    person: UserRef
    action: str
    """Word for the action, such as `read` or `approve`."""
    subject: str
    """Chat, person or request that the action concerns."""


@locks("audit")
def record(db: Connection, entry: AuditEntry) -> None:
    values = asdict(entry)
    db.execute(insertion("audit", values), values)


def load(db: Connection, limit: int) -> list[AuditEntry]:
    """Load the newest entries, newest first."""
    return select(db, AuditEntry, "SELECT at, person, action, subject FROM audit ORDER BY id DESC LIMIT ?", (limit,))
