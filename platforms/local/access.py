"""Access to the page: a token that works once, exchanged for a cookie and a key.

The address that the gateway gives carries the token; a browser that opens it never needs it again. Browsers send a
cookie to every port of its host, whoever listens there, so the cookie alone opens nothing: every request names the key
too, which only the page has, in the storage of its origin. All are random; the database keeps a SHA-256 of cookie and
key together, so that a browser stays signed in over a restart.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

import msgspec
from yarl import URL

from hermes_state.admin import browsers
from hermes_state.admin.browsers import SignedInBrowser
from hermes_state.errors import StoreUnavailable
from hermes_state.store.writer import Store
from hermes_state.values import Clock, Millis

TOKEN_MS = 24 * 3600 * 1000
"""Lifetime of a printed token that nobody uses, in milliseconds."""

COOKIE_SECONDS = browsers.LIFETIME_MS // 1000
"""Seconds for which a browser stays signed in."""

KEY_HEADER = "Hermes-Key"
"""Header by which a page names its key."""

TOKEN_HEADER = "Hermes-Token"
"""Header by which a page names the token of its address: there is no body to wait for."""

MAX_BROWSERS = 20
"""Most browsers that are signed in at the same time; the oldest gives way."""

MAX_TOKENS = 5
MAX_AGENT_CHARACTERS = 200

UNKNOWN_NAME = (
    "The web chat does not accept requests for “{name}”. If a reverse proxy serves it under this name, set "
    "local.public_url to the address that your browser shows, and restart the gateway."
)
OTHER_PAGE = (
    "The web chat does not accept requests from a page at {origin}. If a reverse proxy serves the web chat at this "
    "address, set local.public_url to it and restart the gateway."
)
NO_ORIGIN = "The web chat accepts this request only from its own page. Open the page and try again."
_MAX_NAMED = 100
"""Longest name or origin that a refusal repeats, in characters."""

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
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


class Credentials(msgspec.Struct, frozen=True):
    """Cookie and key of one browser: worth nothing without each other."""

    cookie: str
    key: str

    @property
    def digest(self) -> str:
        """Digest of both together, by which the database knows the browser."""
        return _digest(self.cookie + self.key)


class BrowserAccessControl:
    """Open tokens, and access for the browsers that have exchanged one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._tokens: dict[str, Millis] = {}
        self._admitted: set[str] = set()
        """Digests of browsers that were signed in when somebody last asked."""

    def mint(self) -> str:
        """Make a new token; the oldest unused one gives way when there are too many."""
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = self._clock.now()
        while len(self._tokens) > MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return token

    async def exchange(self, token: str, agent: str) -> Credentials | None:
        """Exchange a token, which is used up; None when it is unknown, used or too old. `agent` names the browser.

        Raises `StoreUnavailable`; the token stays open then.
        """
        digest = _digest(token)
        minted_at = self._tokens.pop(digest, None)
        if minted_at is None or abs(self._clock.now() - minted_at) > TOKEN_MS:
            return None
        made = Credentials(cookie=secrets.token_urlsafe(32), key=secrets.token_urlsafe(32))
        shown = "".join(character for character in agent if character.isprintable())[:MAX_AGENT_CHARACTERS]
        browser = SignedInBrowser(digest=made.digest, agent=shown, created_at=self._clock.now())
        try:
            await self._store.write(browsers.add, browser, MAX_BROWSERS)
        except BaseException:
            self._tokens[digest] = minted_at
            raise
        self._admitted.add(made.digest)
        return made

    async def admits(self, given: Credentials) -> bool:
        """Tell whether cookie and key open the page, as of now: another process may have signed the browser out.

        While nothing can be read, whoever was admitted last stays so: there is nothing to see, and pages come back.
        """
        if not (given.cookie and given.key):
            return False
        try:
            is_signed_in = await self._store.read_short(browsers.is_signed_in, given.digest, self._clock.now())
        except StoreUnavailable:
            return given.digest in self._admitted
        (self._admitted.add if is_signed_in else self._admitted.discard)(given.digest)
        return is_signed_in


def refusal(headers: Mapping[str, str], method: str, hosts: Sequence[str], public_origin: str = "") -> str | None:
    """Return why a request is refused, in a sentence; None if this page, or a person with its address, made it.

    A name that resolves to this machine is not enough (`hosts` are the ones we go by), and a page of another
    origin gets nothing: browsers say so in `Origin` and `Sec-Fetch-Site`, which pages cannot forge. A reverse proxy may
    replace `Host`, so a request of the page at `public_origin` is ours whatever its host.
    """
    host = headers.get("Host", "").lower()
    if host not in hosts:
        return UNKNOWN_NAME.format(name=host[:_MAX_NAMED])
    origin = headers.get("Origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}", public_origin):
        return OTHER_PAGE.format(origin=origin[:_MAX_NAMED])
    site = headers.get("Sec-Fetch-Site")
    if site not in (None, "same-origin", "none") and not _is_visit(headers, method):
        return OTHER_PAGE.format(origin="another address")
    if method in ("GET", "HEAD") or origin is not None or site == "same-origin":
        return None
    return NO_ORIGIN


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
