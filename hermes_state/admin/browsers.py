"""Browsers that are signed in to the web chat. What signs them in is stored as a hash only."""

from dataclasses import dataclass

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, select
from hermes_state.values import Millis

_LOAD = "SELECT digest, agent, created_at FROM browsers ORDER BY id"
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


def load(db: Connection) -> list[SignedInBrowser]:
    """Every browser that is signed in, the newest last."""
    return select(db, SignedInBrowser, _LOAD)


@locks("browsers")
def add(db: Connection, browser: SignedInBrowser, max_age_ms: int, max_browsers: int) -> list[SignedInBrowser]:
    """Sign a browser in; those older than `max_age_ms`, and the oldest above `max_browsers`, are signed out."""
    insert = "INSERT INTO browsers (digest, agent, created_at) VALUES (?, ?, ?)"
    db.execute(insert, (browser.digest, browser.agent, browser.created_at))
    db.execute(_REMOVE_OLD, (browser.created_at - max_age_ms,))
    db.execute(_REMOVE_SURPLUS, (max_browsers,))
    return load(db)


@locks("browsers")
def remove(db: Connection, browser_id: str | None) -> list[SignedInBrowser]:
    """Sign out the browser with this id, or all when it is None; returns those that are left."""
    if browser_id is None:
        db.execute("DELETE FROM browsers")
    else:
        db.execute("DELETE FROM browsers WHERE substr(digest, 1, 8) = ?", (browser_id,))
    return load(db)
