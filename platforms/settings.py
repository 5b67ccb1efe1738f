"""Settings of the platforms. A field with a `Setting` is a configuration key. The other fields are fixed limits.

Imports no SDK. All times are in seconds unless the name says otherwise.
"""

import base64
import ipaddress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BeforeValidator

from hermes_state.aio import Backoff
from hermes_state.network import NetworkSettings
from hermes_state.setting_types import HookSecret, Origin, Secret, SocketUrl, Url, WebhookSecret, listed, plain
from hermes_state.settings import Setting

HookEvent: TypeAlias = Literal["turn.finished", "compression", "cap.reached", "person.requested_access"]
TableStyle: TypeAlias = Literal["list", "text"]
"""Layout of tables that are too wide for a phone: a list of the rows, or monospaced text."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Webhook for Telegram, instead of long polling."""

    url: Annotated[Url | None, Setting(restart=True)] = None
    """Public `https` URL, including the path, to which Telegram sends updates."""
    secret: Annotated[WebhookSecret | None, Setting(default_text="generated at each start", restart=True)] = None
    """Secret token that Telegram sends with every request to the webhook."""
    host: Annotated[str, Setting(restart=True)] = "127.0.0.1"
    """Address on which the webhook listens."""
    port: Annotated[int, Setting(ge=0, le=65_535, restart=True)] = 8443
    """Port on which the webhook listens. `0` picks a free port."""
    max_connections: int = 1
    """Maximum number of simultaneous requests. With more than one, Telegram can deliver a chat's messages out of
    order."""


@dataclass(frozen=True, kw_only=True)
class TelegramSettings:
    """Telegram bot; enabled when a token is set."""

    token: Annotated[Secret | None, Setting(restart=True)] = None
    """Bot token from @BotFather."""
    base_url: Annotated[Url, Setting(restart=True)] = "https://api.telegram.org"
    """Base URL of the Bot API server, without `/bot`."""
    webhook: Annotated[WebhookSettings, Setting()] = WebhookSettings()

    # The following defaults determine how soon a dead connection is noticed.
    poll_seconds: float = 25
    """Seconds that one getUpdates request waits. Many NATs drop an idle connection after 30 s, so the value is
    lower."""
    poll_grace_seconds: float = 10
    """Seconds to wait for the response in addition to `poll_seconds`. After that (35 s by default), the connection
    counts as dead and is replaced."""
    stall_seconds: float = 45
    """Seconds without progress after which the adapter counts as stalled. Must be longer than `poll_seconds` plus
    `poll_grace_seconds`."""
    webhook_check_seconds: float = 30
    """Seconds between requests that ask Telegram whether the webhook works. Without them, a broken webhook would look
    like a bot to which nobody writes."""
    backoff: Backoff = field(default_factory=Backoff)
    """Delays between retries after a network error, at most 30 seconds."""
    conflict_seconds: float = 5
    """Minimum wait after a 409 response, in seconds. Faster retries would keep interrupting the other poller."""
    connect_seconds: float = 10
    request_seconds: float = 20
    """Maximum time without received data during a request, in seconds. Telegram responds to sends within a second;
    photos take longer."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    tables: TableStyle = "list"
    connections: int = 512
    """Maximum number of connections: two for each of 256 concurrent turns (one for messages, one for the typing
    indicator)."""
    account: str = "telegram"
    """Stored name of the account, which is `ChatKey.account`."""
    label: str = "telegram"
    """Name of the account for people: the platform, followed by the account's own name if it has one."""
    token_key: str = "telegram.token"
    """Setting that contains the token, for messages."""

    @property
    def server(self) -> str:
        return self.base_url

    @property
    def bot_id(self) -> str:
        """The bot's id, with which its token begins, or an empty string."""
        return _digits(str(plain(self.token)).partition(":")[0])


@dataclass(frozen=True, kw_only=True)
class DiscordSettings:
    """Discord bot; enabled when a token is set."""

    token: Annotated[Secret | None, Setting(restart=True)] = None
    """Bot token from the Discord developer portal."""
    api_url: Annotated[Url, Setting(restart=True)] = "https://discord.com"
    """Base URL of Discord's REST API, without `/api/v10`. Change the URL to use a proxy."""
    gateway_url: Annotated[SocketUrl, Setting(restart=True)] = "wss://gateway.discord.gg"
    """WebSocket address of Discord's gateway. Change the address to use a proxy."""
    thread_mention: Annotated[bool, Setting(restart=True)] = False
    """Require a mention also in threads that the bot opened. Set it if people talk to each other in these threads."""
    catch_up_hours: float = 24
    """Maximum age of missed messages to answer after a reconnect. A day covers an outage overnight, and older messages
    rarely still need an answer."""
    catch_up_messages: int = 200
    """Maximum number of missed messages to fetch per channel if a reconnect does not resume the session."""
    queue_size: int = 10_000
    """Maximum number of events that wait for the database. If there are more, the adapter reconnects and catches
    up."""
    backoff: Backoff = field(default_factory=partial(Backoff, 0.1, 5.0))
    """Delays between retries while the database or a channel's history is unavailable."""
    stale_seconds: float = 90.0
    """Seconds without an answered heartbeat, or without a session, after which the adapter reconnects."""
    request_seconds: float = 30.0
    """Maximum time to wait for the response to a REST request, in seconds."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    tables: TableStyle = "list"
    account: str = "discord"
    """Stored name of the account, which is `ChatKey.account`."""
    label: str = "discord"
    """Name of the account for people: the platform, followed by the account's own name if it has one."""
    token_key: str = "discord.token"
    """Setting that contains the token, for messages."""

    @property
    def server(self) -> str:
        return self.api_url

    @property
    def bot_id(self) -> str:
        """The bot's id, with which its token begins (in base64), or an empty string."""
        first = str(plain(self.token)).partition(".")[0]
        try:
            return _digits(base64.urlsafe_b64decode(first + "==").decode("ascii"))
        except ValueError:
            return ""


def _digits(text: str) -> str:
    return text if text.isascii() and text.isdecimal() else ""


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Web chat on this machine."""

    enabled: Annotated[bool, Setting(restart=True)] = True
    """Serve the web chat."""
    host: Annotated[str, Setting(restart=True)] = "127.0.0.1"
    """Address on which the web chat listens. An address other than loopback requires an entry in `access`."""
    port: Annotated[int, Setting(ge=0, le=65_535, restart=True)] = 8765
    """Port of the web chat; `0` picks a free port. If not set, the first free port from 8765 upwards is used."""
    public_url: Annotated[Origin | None, Setting(default_text="none", restart=True)] = None
    """Public address of the web chat behind a reverse proxy, such as `https://chat.example.org`."""
    max_characters: int = 200_000
    """Maximum length of a person's message, in characters."""
    max_part_units: int = 100_000
    """Maximum length of one displayed message, in UTF-16 units, so that the page stays responsive."""

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """Signed webhook: requests become messages in `chat`, or events are sent to `url`."""

    secret: Annotated[HookSecret, Setting()]
    chat: Annotated[str, Setting()] = ""
    template: Annotated[str, Setting()] = ""
    """Text of the message, in which `{a.b}` stands for a field of the JSON body."""
    url: Annotated[Url | None, Setting()] = None
    events: Annotated[tuple[HookEvent, ...], BeforeValidator(listed), Setting()] = get_args(HookEvent)
