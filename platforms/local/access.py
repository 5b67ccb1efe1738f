"""Access to the web chat: a one-time token is exchanged for a cookie and a key.

The database contains only SHA-256 hashes: one of the token, and one of the cookie and the key.

Browsers send a cookie to every port of a host, so any program on another port could receive it. Every request
therefore also needs the key, which is in browser storage that only this page can read.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

import msgspec
from yarl import URL

from hermes_state.admin import browsers
from hermes_state.admin.browsers import SignedInBrowser, SignInLink
from hermes_state.admin.pairings import find_client
from hermes_state.errors import StoreUnavailable
from hermes_state.store.writer import Store
from hermes_state.values import LOCAL_OWNER, Clock, UserRef

KEY_HEADER, TOKEN_HEADER = "Hermes-Key", "Hermes-Token"
"""Request headers with the page's key, and with the token from the page's address."""

OTHER_PAGE = (
    "The web chat does not accept requests from a page at {origin}. If a reverse proxy serves the web chat at this "
    "address, set local.public_url to it and restart the gateway."
)

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "media-src blob:; worker-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer`, our own forms would send `Origin: null`. `same-origin` sends other hosts no referrer either.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Credentials(msgspec.Struct, frozen=True):
    """Cookie and key of one browser; each is worthless without the other."""

    cookie: str
    key: str

    @property
    def digest(self) -> str:
        return _digest(self.cookie + self.key)


class BrowserAccessControl:
    """Issues one-time tokens, and admits browsers that have exchanged one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._terminals: set[str] = set()
        """Digests of the owner's tokens for terminals."""
        self._admitted: dict[str, SignedInBrowser] = {}
        """Browsers that were signed in at their last request, keyed by a digest of their cookie and key."""

    async def mint(self, person: UserRef = LOCAL_OWNER, name: str = "Owner") -> str:
        """Create a token for a person. Raises `StoreUnavailable` if it cannot be stored."""
        token = secrets.token_urlsafe(32)
        link = SignInLink(created_at=self._clock.now(), person=person, person_name=name)
        await self._store.write(browsers.add_link, _digest(token), link)
        return token

    def mint_terminal(self) -> str:
        """Create a token with which the owner uses the API until this process ends."""
        self._terminals.add(_digest(token := secrets.token_urlsafe(32)))
        return token

    async def find_client(self, token: str) -> tuple[UserRef, str] | None:
        """Return the person and the name of the program with this token, or None."""
        if (digest := _digest(token)) in self._terminals:
            return LOCAL_OWNER, "Owner"
        return await self._store.read_short(find_client, digest)

    async def exchange(self, token: str, agent: str) -> Credentials | None:
        """Exchange a one-time token for a cookie and key. Return None if the token is unknown, used or too old.

        `agent`: the browser's `User-Agent` header. Raises `StoreUnavailable`, and the token then stays valid.
        """
        digest, now = _digest(token), self._clock.now()
        if (link := await self._store.read_short(browsers.find_link, digest, now)) is None:
            return None
        made = Credentials(cookie=secrets.token_urlsafe(32), key=secrets.token_urlsafe(32))
        browser = SignedInBrowser(
            digest=made.digest,
            agent="".join(character for character in agent if character.isprintable())[:200],
            created_at=now,
            person=link.person,
            person_name=link.person_name,
        )
        if not await self._store.write(browsers.use_link, digest, browser):
            return None
        self._admitted[made.digest] = browser
        return made

    async def find_browser(self, given: Credentials) -> SignedInBrowser | None:
        """Return the signed-in browser with this cookie and key, or None.

        Reads the database each time, because another process can sign the browser out. If the database cannot be read,
        the previous result for this browser is used.
        """
        if not (given.cookie and given.key):
            return None
        try:
            browser = await self._store.read_short(browsers.find, given.digest, self._clock.now())
        except StoreUnavailable:
            return self._admitted.get(given.digest)
        if browser is None:
            self._admitted.pop(given.digest, None)
        else:
            self._admitted[given.digest] = browser
        return browser


def refusal(headers: Mapping[str, str], method: str, hosts: Sequence[str], public_origin: str = "") -> str | None:
    """Return the reason to refuse a request, or None if this page sent it or a person opened its address.

    The host must be one of `hosts`, because any domain name can resolve to this machine. Requests from pages of other
    origins are refused. Browsers name the origin in `Origin` and `Sec-Fetch-Site`, which pages cannot forge. `Origin`
    can also be `public_origin`, because a reverse proxy can replace `Host`.
    """
    host = headers.get("Host", "").lower()
    if host not in hosts:
        return (
            f"The web chat does not accept requests for “{host[:100]}”. If a reverse proxy serves it under this name, "
            "set local.public_url to the address that your browser shows, and restart the gateway."
        )
    origin = headers.get("Origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}", public_origin):
        return OTHER_PAGE.format(origin=origin[:100])
    site = headers.get("Sec-Fetch-Site")
    # A link on another page is allowed to open our page. The other page cannot read it.
    mode, target = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    is_visit = method == "GET" and mode == "navigate" and target == "document"
    if site not in (None, "same-origin", "none") and not is_visit:
        return OTHER_PAGE.format(origin="another address")
    if method in ("GET", "HEAD") or origin is not None or site == "same-origin":
        return None
    return "The web chat accepts this request only from its own page. Open the page and try again."


def host_names(host: str, port: int) -> tuple[str, ...]:
    """Return the valid `Host` headers: the loopback names, and the address on which the server listens."""
    names = [host, "localhost", "127.0.0.1", "[::1]"]
    own = [f"[{name}]" if ":" in name and not name.startswith("[") else name for name in names]
    bare = [name for name in own if port == 80]
    return tuple(dict.fromkeys(name.lower() for name in (*(f"{name}:{port}" for name in own), *bare)))


def address(host: str, port: int) -> URL:
    """Return the address of the page for a browser on this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return URL.build(scheme="http", host=shown.strip("[]"), port=port, path="/")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
