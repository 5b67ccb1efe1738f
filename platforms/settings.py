"""Settings of the platforms. A field with a `Setting` is a configuration key; the other fields are limits in the code.

Imports no SDK. All times are in seconds unless the name says otherwise.
"""

import ipaddress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from hermes_state.aio import Backoff
from hermes_state.kinds import Origin, Secret, SocketUrl, Url, WebhookSecret
from hermes_state.settings import Setting


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Webhook for Telegram, instead of long polling."""

    url: Annotated[Url | None, Setting(restart=True)] = None
    """Public `https` address that Telegram calls, with its path."""
    secret: Annotated[WebhookSecret | None, Setting(default_text="generated at each start", restart=True)] = None
    """Secret token that Telegram sends with every call."""
    host: Annotated[str, Setting(restart=True)] = "127.0.0.1"
    """Address on which the webhook listens."""
    port: Annotated[int, Setting(ge=0, le=65_535, restart=True)] = 8443
    """Port on which the webhook listens. `0` picks a free port."""
    max_connections: int = 1
    """Maximum number of simultaneous posts. With more than one, Telegram may deliver messages of a chat out of
    order."""


@dataclass(frozen=True, kw_only=True)
class TelegramSettings:
    """Telegram bot; enabled when a token is set."""

    token: Annotated[Secret | None, Setting(restart=True)] = None
    """Bot token from @BotFather."""
    base_url: Annotated[Url, Setting(restart=True)] = "https://api.telegram.org"
    """Base URL of the Bot API server, without `/bot`."""
    webhook: Annotated[WebhookSettings, Setting()] = WebhookSettings()

    # The liveness promises depend on these defaults.
    poll_seconds: float = 25
    """Seconds that one getUpdates waits, below the 30 s after which many NATs drop a silent connection."""
    poll_grace_seconds: float = 10
    """Additional seconds for an answer. After that the connection counts as dead: a black-holed socket is noticed and
    replaced after 35 s."""
    stall_seconds: float = 45
    """Seconds without progress after which the adapter is not ready; longer than poll and grace together."""
    webhook_check_seconds: float = 30
    """Seconds between checks of the webhook with Telegram, the only proof of progress in a quiet hour."""
    backoff: Backoff = field(default_factory=Backoff)
    """Pauses after network loss, at most 30 seconds."""
    conflict_seconds: float = 5
    """Minimum wait after a 409, in seconds. A faster retry would keep cutting off the other poller."""
    connect_seconds: float = 10
    request_seconds: float = 20
    """Maximum silence of a request, in seconds. Telegram answers sends within a second; photos take longer."""
    connections: int = 512
    """Maximum connections: two per concurrent turn (256), for its preview or answer and its typing indicator."""


@dataclass(frozen=True, kw_only=True)
class DiscordSettings:
    """Discord bot; enabled when a token is set."""

    token: Annotated[Secret | None, Setting(restart=True)] = None
    """Bot token from the Discord developer portal."""
    api_url: Annotated[Url, Setting(restart=True)] = "https://discord.com"
    """Base URL of Discord's REST API, without `/api/v10`. Change it to use a proxy."""
    gateway_url: Annotated[SocketUrl, Setting(restart=True)] = "wss://gateway.discord.gg"
    """WebSocket address of Discord's gateway. Change it to use a proxy."""
    catch_up_hours: Annotated[float, Setting(ge=0, le=168, unit="hours", restart=True)] = 24
    """Maximum age of messages to answer after a lost connection. `0` skips all missed messages."""
    catch_up_messages: int = 200
    """Maximum messages per channel to fetch after a connection that did not resume, within the hours above."""
    queue_size: int = 10_000
    """Maximum events that wait for the database. Beyond that the adapter reconnects and catches up."""
    backoff: Backoff = field(default_factory=partial(Backoff, 0.1, 5.0))
    """Pauses of the event queue while the database or a channel's history cannot be read."""
    stale_seconds: float = 90.0
    """Seconds without an answered heartbeat, or without a session, after which the adapter reconnects."""
    request_seconds: float = 30.0
    """Maximum wait for the answer to a REST request, in seconds."""


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Web chat on this machine."""

    enabled: Annotated[bool, Setting(restart=True)] = True
    """Serve the web chat."""
    host: Annotated[str, Setting(restart=True)] = "127.0.0.1"
    """Address on which the web chat listens. An address other than loopback requires an entry in `access`."""
    port: Annotated[int, Setting(ge=0, le=65_535, restart=True)] = 8765
    """Port of the web chat; `0` picks a free port. If not set, the gateway takes the next free port from 8765 on."""
    public_url: Annotated[Origin | None, Setting(default_text="none", restart=True)] = None
    """Public address of the web chat behind a reverse proxy, such as `https://chat.example.org`."""
    max_characters: int = 200_000
    """Maximum length of a person's message, in characters."""
    max_part_units: int = 100_000
    """Maximum length of a shown message, in UTF-16 units; keeps the page responsive."""

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False
