"""Audit log: what admins did in the console, and which conversations of other people they opened there."""

import msgspec

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, select
from hermes_state.values import Millis, UserRef


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    at: Millis
    person: UserRef
    action: str
    """Name of the action, such as `read` or `approve`."""
    subject: str
    """Chat, person or request that the action concerns."""


@locks("audit")
def record(db: Connection, at: Millis, person: UserRef, action: str, subject: str) -> None:
    db.execute("INSERT INTO audit (at, person, action, subject) VALUES (?, ?, ?, ?)", (at, person, action, subject))


def load(db: Connection, limit: int) -> list[AuditEntry]:
    """Load the newest entries, newest first."""
    return select(db, AuditEntry, "SELECT at, person, action, subject FROM audit ORDER BY id DESC LIMIT ?", (limit,))
