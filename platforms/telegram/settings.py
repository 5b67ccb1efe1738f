"""Settings of the Telegram adapter: the token, the address of the Bot API, timeouts and backoff."""

from dataclasses import dataclass, field

from hermes_state.aio import Backoff

BASE_URL = "https://api.telegram.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Settings for receiving by webhook: Telegram posts to `url`, which a TLS proxy hands on to `host:port`.

    `secret`, 1-256 characters of `A-Z a-z 0-9 _ -`, comes back in a header of every post.
    """

    url: str
    secret: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8443
    max_connections: int = 1
    """Most posts at the same time. With more than one, Telegram may deliver two messages of a chat out of order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramSettings:
    """Settings of one bot. All times are seconds; the promises about liveness rest on the defaults."""

    token: str = field(repr=False)
    base_url: str = BASE_URL
    """Root of the Bot API server, without `/bot`; a local server's address goes here."""
    webhook: WebhookSettings | None = None
    """Webhook to receive by; None: long polling."""

    poll_seconds: float = 25
    """Seconds that one getUpdates waits: below the 30 s after which many NATs forget a silent connection."""
    poll_grace_seconds: float = 10
    """Seconds beyond that which an answer may take. Then the connection is dead and a new one is made, so that a
    black-holed socket is noticed after 35 s and replaced in the same second."""
    stall_seconds: float = 45
    """Seconds without progress after which the adapter is not ready, whatever its task believes; above poll + grace."""
    webhook_check_seconds: float = 30
    """Seconds after which webhook mode asks Telegram about the webhook: its only proof of progress in a quiet hour."""

    backoff: Backoff = field(default_factory=Backoff)
    """Pauses after network loss: people wait at most 30 seconds for the bot to come back."""
    conflict_seconds: float = 5
    """Shortest wait after a 409, in seconds: we cut the other poller off too, a quick retry makes it a fight."""

    connect_seconds: float = 10
    request_seconds: float = 20
    """Longest silence of a request, in seconds. Telegram answers sends within a second; photos take longer to fetch."""
    connections: int = 512
    """Most connections: two per concurrent turn (256), for its preview or final, and its typing signal."""
