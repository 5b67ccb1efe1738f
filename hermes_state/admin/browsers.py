"""Browsers that are signed in to the web chat. What signs them in is stored as a hash only.

Nobody remembers them: one node serves the page, and people sign browsers out on any.
"""

from dataclasses import dataclass

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, scalar, select
from hermes_state.values import Millis

LIFETIME_MS = 90 * 24 * 3_600_000
"""Time for which a browser stays signed in, in milliseconds."""

_LOAD = "SELECT digest, agent, created_at FROM browsers WHERE created_at >= ? ORDER BY id"
_IS_SIGNED_IN = "SELECT EXISTS (SELECT 1 FROM browsers WHERE digest = ? AND created_at >= ?)"
_REMOVE_OLD = "DELETE FROM browsers WHERE created_at < ?"

# Purpose: the oldest give way. The limit holds between transactions, too: they have a lock of their own.
_REMOVE_SURPLUS = "DELETE FROM browsers WHERE id NOT IN (SELECT id FROM browsers ORDER BY id DESC LIMIT ?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedInBrowser:
    """One browser that is signed in."""

    digest: str
    """SHA-256 of its cookie and its key together."""
    agent: str
    """Name that it gave itself."""
    created_at: Millis
    """Time at which it was signed in."""

    @property
    def id(self) -> str:
        """Id for people; nothing opens with it."""
        return self.digest[:8]


def load(db: Connection, now: Millis) -> list[SignedInBrowser]:
    """Every browser that is signed in, the newest last."""
    return select(db, SignedInBrowser, _LOAD, (now - LIFETIME_MS,))


def is_signed_in(db: Connection, digest: str, now: Millis) -> bool:
    """True for the digest of a browser that is signed in."""
    return scalar(db, bool, _IS_SIGNED_IN, (digest, now - LIFETIME_MS))


@locks("browsers")
def add(db: Connection, browser: SignedInBrowser, max_browsers: int) -> None:
    """Sign a browser in; those whose time is over, and the oldest above `max_browsers`, are signed out."""
    insert = "INSERT INTO browsers (digest, agent, created_at) VALUES (?, ?, ?)"
    db.execute(insert, (browser.digest, browser.agent, browser.created_at))
    db.execute(_REMOVE_OLD, (browser.created_at - LIFETIME_MS,))
    db.execute(_REMOVE_SURPLUS, (max_browsers,))


@locks("browsers")
def remove(db: Connection, browser_id: str | None, now: Millis) -> int:
    """Sign out the browser with this id, or all when it is None; returns how many."""
    db.execute(_REMOVE_OLD, (now - LIFETIME_MS,))
    if browser_id is None:
        return db.execute("DELETE FROM browsers").rowcount
    return db.execute("DELETE FROM browsers WHERE substr(digest, 1, 8) = ?", (browser_id,)).rowcount
