"""Browsers signed in to the web chat. Their cookies and keys are stored only as hashes.

Do not cache these rows in a process: one node serves the page, but any node can sign a browser out.
"""

from dataclasses import asdict, dataclass

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, insertion, select, select_one
from hermes_state.values import LOCAL_OWNER, Millis, UserRef

LIFETIME_MS = 90 * 24 * 3_600_000
"""Time in milliseconds for which a browser stays signed in."""

_COLUMNS = "digest, agent, created_at, person, person_name"
_REMOVE_OLD = "DELETE FROM browsers WHERE created_at < ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedInBrowser:
    digest: str
    """SHA-256 of the browser's cookie and key together."""
    agent: str
    created_at: Millis
    person: UserRef = LOCAL_OWNER
    """Person who is signed in."""
    person_name: str = "Owner"

    @property
    def id(self) -> str:
        """Id shown to people. It does not grant access."""
        return self.digest[:8]


def load(db: Connection, now: Millis) -> list[SignedInBrowser]:
    """Load the signed-in browsers, oldest first."""
    query = f"SELECT {_COLUMNS} FROM browsers WHERE created_at >= ? ORDER BY id"
    return select(db, SignedInBrowser, query, (now - LIFETIME_MS,))


def find(db: Connection, digest: str, now: Millis) -> SignedInBrowser | None:
    query = f"SELECT {_COLUMNS} FROM browsers WHERE digest = ? AND created_at >= ?"
    return select_one(db, SignedInBrowser, query, (digest, now - LIFETIME_MS))


@locks("browsers")
def add(db: Connection, browser: SignedInBrowser, max_browsers: int) -> None:
    """Sign a browser in. Sign out expired browsers, and the oldest ones if more than `max_browsers` remain."""
    values = asdict(browser)
    db.execute(insertion("browsers", values), values)
    db.execute(_REMOVE_OLD, (browser.created_at - LIFETIME_MS,))
    # All sign-ins take the same lock, so parallel sign-ins cannot exceed the limit.
    surplus = "DELETE FROM browsers WHERE id NOT IN (SELECT id FROM browsers ORDER BY id DESC LIMIT ?)"
    db.execute(surplus, (max_browsers,))


@locks("browsers")
def remove(db: Connection, browser_id: str | None, now: Millis) -> int:
    """Sign out the browser with this id, or all browsers if `browser_id` is None. Return how many were signed out."""
    db.execute(_REMOVE_OLD, (now - LIFETIME_MS,))
    if browser_id is None:
        return db.execute("DELETE FROM browsers").rowcount
    return db.execute("DELETE FROM browsers WHERE substr(digest, 1, 8) = ?", (browser_id,)).rowcount
