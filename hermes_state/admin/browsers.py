"""Browsers signed in to the web chat, and unused links that sign in a browser. Their secrets are stored only as hashes.

Do not cache these rows in a process: one node serves the page, but any node can sign a browser out.
"""

import msgspec
from msgspec.structs import asdict

from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, insertion, load_note, save_note, select, select_one
from hermes_state.values import LOCAL_OWNER, Millis, UserRef

LIFETIME_MS = 90 * 24 * 3_600_000
"""Time in milliseconds for which a browser stays signed in."""
LINK_LIFETIME_MS = 24 * 3_600_000
"""Time in milliseconds for which an unused link is valid."""
MAX_BROWSERS, MAX_LINKS = 20, 5
"""Maximum numbers of signed-in browsers and of unused links for each person."""

_COLUMNS = "digest, agent, created_at, person, person_name"
_REMOVE_OLD = "DELETE FROM browsers WHERE created_at < ?"
_LINK = "link."
"""Start of the key of a note that holds an unused link. The SHA-256 of the link's token follows."""


class SignedInBrowser(msgspec.Struct, frozen=True, kw_only=True):
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


class SignInLink(msgspec.Struct, frozen=True, kw_only=True):
    """Unused link that signs in one browser of a person."""

    created_at: Millis
    person: UserRef
    person_name: str

    def is_valid(self, now: Millis) -> bool:
        return abs(now - self.created_at) <= LINK_LIFETIME_MS


def load(db: Connection, now: Millis) -> list[SignedInBrowser]:
    """Load the signed-in browsers, oldest first."""
    query = f"SELECT {_COLUMNS} FROM browsers WHERE created_at >= ? ORDER BY id"
    return select(db, SignedInBrowser, query, (now - LIFETIME_MS,))


def find(db: Connection, digest: str, now: Millis) -> SignedInBrowser | None:
    query = f"SELECT {_COLUMNS} FROM browsers WHERE digest = ? AND created_at >= ?"
    return select_one(db, SignedInBrowser, query, (digest, now - LIFETIME_MS))


@locks("browsers")
def add(db: Connection, browser: SignedInBrowser, max_browsers: int) -> None:
    """Sign a browser in. Sign out expired browsers, and the person's oldest ones if more than `max_browsers` remain."""
    values = asdict(browser)
    db.execute(insertion("browsers", values), values)
    db.execute(_REMOVE_OLD, (browser.created_at - LIFETIME_MS,))
    # All sign-ins take the same lock, so parallel sign-ins cannot exceed the limit.
    newest = "SELECT id FROM browsers WHERE person = :person ORDER BY id DESC LIMIT :limit"
    surplus = f"DELETE FROM browsers WHERE person = :person AND id NOT IN ({newest})"
    db.execute(surplus, {"person": browser.person, "limit": max_browsers})


@locks("browsers")
def remove(db: Connection, browser_id: str | None, now: Millis) -> int:
    """Sign out the browser with this id. If `browser_id` is None, sign out all browsers, and end all unused links.

    Return how many browsers were signed out.
    """
    db.execute(_REMOVE_OLD, (now - LIFETIME_MS,))
    if browser_id is None:
        db.execute("DELETE FROM meta WHERE substr(key, 1, 5) = ?", (_LINK,))
        return db.execute("DELETE FROM browsers").rowcount
    return db.execute("DELETE FROM browsers WHERE substr(digest, 1, 8) = ?", (browser_id,)).rowcount


def forget(db: Connection, person: UserRef) -> None:
    """Sign out all browsers of a person, and end the person's unused links."""
    db.execute("DELETE FROM browsers WHERE person = ?", (person,))
    notes = db.execute("SELECT key, value FROM meta WHERE substr(key, 1, 5) = ?", (_LINK,)).fetchall()
    ended = [(key,) for key, value in notes if _decode(value).person == person]
    db.executemany("DELETE FROM meta WHERE key = ?", ended)


# ---- links


def find_link(db: Connection, token_digest: str, now: Millis) -> SignInLink | None:
    """Load an unused link that has not expired."""
    note = load_note(db, _LINK + token_digest)
    link = None if note is None else _decode(note)
    return link if link is not None and link.is_valid(now) else None


@locks("browsers")
def add_link(db: Connection, token_digest: str, link: SignInLink) -> None:
    """Store a link. Remove expired links, and the person's oldest ones if more than `MAX_LINKS` remain."""
    notes = db.execute("SELECT key, value FROM meta WHERE substr(key, 1, 5) = ?", (_LINK,)).fetchall()
    links = [(key, _decode(value)) for key, value in notes]
    expired = [key for key, one in links if not one.is_valid(link.created_at)]
    own = sorted((one.created_at, key) for key, one in links if one.person == link.person and key not in expired)
    ended = [*expired, *(key for _, key in own[: 1 - MAX_LINKS])]
    db.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in ended])
    save_note(db, _LINK + token_digest, msgspec.json.encode(link).decode())


@locks("browsers")
def use_link(db: Connection, token_digest: str, browser: SignedInBrowser) -> bool:
    """Sign a browser in and remove the link. Return False if another browser has used the link."""
    if not db.execute("DELETE FROM meta WHERE key = ?", (_LINK + token_digest,)).rowcount:
        return False
    add(db, browser, MAX_BROWSERS)
    return True


def _decode(note: str) -> SignInLink:
    return msgspec.json.decode(note, type=SignInLink)
