"""Settings of the Discord adapter: the token, addresses, how much is caught up, and timeouts."""

from dataclasses import dataclass, field
from functools import partial

from hermes_state.aio import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordSettings:
    token: str = field(repr=False)
    api_url: str = "https://discord.com"
    """Root of the REST API; `/api/v10` is appended."""
    gateway_url: str | None = None
    """Address of the gateway's WebSocket; None means Discord's own."""
    catch_up_hours: float = 24.0
    catch_up_messages: int = 200
    """Most messages fetched per channel, not older than the hours above, after a connection that did not resume."""
    queue_size: int = 10_000
    """Events that may wait for the database; with more the connection is given up and caught up later."""
    backoff: Backoff = field(default_factory=partial(Backoff, 0.1, 5.0))
    """Pauses of the event queue while the database, or a channel's history, cannot be read."""
    stale_seconds: float = 90.0
    """Seconds without an answered heartbeat, or without a session, after which the adapter connects again."""
    request_seconds: float = 30.0
    """Longest wait for the answer to one REST request, in seconds."""
