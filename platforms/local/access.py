"""Access to the page: a token that works once, exchanged for a cookie.

The address printed at start carries the token; a browser that opens it gets a cookie and never needs the token again.
Tokens and cookies are random, and only their SHA-256 is kept, that of cookies in the database, so that a browser
stays signed in over a restart.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from sqlite3 import Connection

import msgspec
from yarl import URL

from hermes_state.store.meta import load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Millis

TOKEN_MS = 24 * 3600 * 1000
"""Lifetime of a printed token that nobody uses, in milliseconds."""

COOKIE_SECONDS = 90 * 24 * 3600
"""Seconds for which a browser stays signed in."""

MAX_COOKIES = 20
"""Most browsers that are signed in at the same time; the oldest gives way."""

MAX_TOKENS = 5

_NOTE = "local.cookies"

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`, under which browsers send `Origin: null` with our own forms. Other hosts learn as little.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class _CookieRow(msgspec.Struct, frozen=True):
    digest: str
    since: int


class BrowserAccessControl:
    """Open tokens and valid cookies."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, Millis] = {}
        self._cookies: Sequence[_CookieRow] = ()

    async def load(self) -> None:
        """Read which cookies are valid. Raises `StoreUnavailable`."""
        self._cookies = await self._store.read(_load)

    def mint(self) -> str:
        """Make a new token; the oldest unused one gives way when there are too many."""
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = self._clock.now()
        while len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return token

    async def exchange(self, token: str) -> str | None:
        """Exchange a token, which is used up, for a cookie; None when it is unknown, used or too old.

        Raises `StoreUnavailable`; the token stays open then.
        """
        digest = _digest(token)
        minted_at = self._tokens.pop(digest, None)
        if minted_at is None or abs(self._clock.now() - minted_at) > TOKEN_MS:
            return None
        cookie = secrets.token_urlsafe(32)
        try:
            self._cookies = await self._store.write(_add, _CookieRow(_digest(cookie), self._clock.now()))
        except BaseException:
            self._tokens[digest] = minted_at
            raise
        return cookie

    def admits(self, cookie: str | None) -> bool:
        """Tell whether this cookie opens the page."""
        digest, oldest = _digest(cookie or ""), self._clock.now() - COOKIE_SECONDS * 1000
        return any(row.digest == digest and row.since >= oldest for row in self._cookies)


def is_same_origin(headers: Mapping[str, str], method: str, hosts: Sequence[str]) -> bool:
    """Tell whether a request was made by this page, or by a person who typed or followed an address.

    A name that resolves to this machine is not enough (`hosts` are the ones we go by), and a page of another
    origin gets nothing: browsers say so in `Origin` and `Sec-Fetch-Site`, which pages cannot forge.
    """
    host = headers.get("Host", "").lower()
    if host not in hosts:
        return False
    origin = headers.get("Origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        return False
    site = headers.get("Sec-Fetch-Site")
    if site not in (None, "same-origin", "none") and not _is_visit(headers, method):
        return False
    return method in ("GET", "HEAD") or origin is not None or site == "same-origin"


def host_names(host: str, port: int) -> tuple[str, ...]:
    """`Host` headers that mean us: loopback under its names, and the address bound to."""
    names = [host, "localhost", "127.0.0.1", "[::1]"]
    own = [f"[{name}]" if ":" in name and not name.startswith("[") else name for name in names]
    bare = [name for name in own if port == 80]
    return tuple(dict.fromkeys(name.lower() for name in (*(f"{name}:{port}" for name in own), *bare)))


def address(host: str, port: int) -> URL:
    """Address of the page for a browser on this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return URL.build(scheme="http", host=shown.strip("[]"), port=port, path="/")


def _is_visit(headers: Mapping[str, str], method: str) -> bool:
    """Recognise a link on another page that opens ours as a page of its own; the other page sees nothing of it."""
    mode, target = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    return method == "GET" and mode == "navigate" and target == "document"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _load(db: Connection) -> list[_CookieRow]:
    note = load_note(db, _NOTE)
    return msgspec.json.decode(note, type=list[_CookieRow]) if note else []


def _add(db: Connection, cookie: _CookieRow) -> list[_CookieRow]:
    """Keep a new cookie, and the newest of those that still count."""
    oldest = cookie.since - COOKIE_SECONDS * 1000
    kept = [one for one in _load(db) if one.since >= oldest]
    kept = [*kept[1 - MAX_COOKIES :], cookie]
    save_note(db, _NOTE, msgspec.json.encode(kept).decode())
    return kept
