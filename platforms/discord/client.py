"""Client of Discord's gateway and REST API: discord.py with intents, addresses and heartbeats of our choice.

discord.py keeps its addresses in class attributes. Here a client of its own HTTP class rewrites them call by
call, so that two clients in one process may talk to two servers and nothing is left behind.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import discord
import structlog
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Route
from discord.state import ConnectionState

from hermes_state.errors import PlatformUnavailable
from hermes_state.values import Clock, InboundMessage
from platforms.discord.event_queue import ChangeEvent, ChannelsEvent, ConnectedEvent, EventQueue, MessageEvent
from platforms.discord.inbound import EventReader
from platforms.discord.settings import DiscordSettings
from platforms.text import UNREADABLE, known_parts, parsed_json, text_in

log = structlog.get_logger()

discord.utils._from_json = parsed_json  # orjson, which it takes where it is installed, refuses halves of characters

RATE_LIMIT_SECONDS = 10.0
"""Longest wait for a rate limit inside the SDK, in seconds; a longer one is raised: the gateway can shed previews."""

_SHOWN = ("poll", "embeds", "components", "message_snapshots")
_SNAPSHOT = {"type": 0, "embeds": [], "attachments": [], "edited_timestamp": None}

GUILD_READY_SECONDS = 1.0
"""Seconds that discord.py waits for one more server after READY before it calls itself ready."""


class RestClient(HTTPClient):
    """discord.py's REST client with addresses of its own."""

    def __init__(self, client: discord.Client, settings: DiscordSettings) -> None:
        super().__init__(client.loop)
        self._client = client
        # The constructor would raise anything shorter to 30 s; the limiters read the attribute.
        self.max_ratelimit_timeout = RATE_LIMIT_SECONDS
        self._base = f"{settings.api_url.rstrip('/')}/api/v10"
        self._gateway_url = yarl.URL(settings.gateway_url) if settings.gateway_url else None

    async def request(self, route: Route, **options: Any) -> Any:  # Any: discord.py's own signature
        route.url = self._base + route.url.removeprefix(Route.BASE)
        try:
            # Discord redirects nobody: another server would be told what was said.
            return await super().request(route, allow_redirects=False, **options)
        except RuntimeError as error:
            if not self._client.is_closed():
                raise
            # What aiohttp says when the client was closed while the request waited for its turn.
            raise PlatformUnavailable("not connected to Discord") from error

    async def ws_connect(self, url: str, *, compress: int = 0) -> Any:
        requested = yarl.URL(url)
        # Only the default address: a session is resumed where Discord's READY said.
        if self._gateway_url is not None and requested.host == DiscordWebSocket.DEFAULT_GATEWAY.host:
            url = str(self._gateway_url.with_query(requested.query))
        return await super().ws_connect(url, compress=compress)


class TolerantState(ConnectionState[Any]):
    """State of a connection that puts aside what it cannot read: an error would end the connection, and come again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for event in self.parsers.keys() - {"READY", "RESUMED"}:  # without these there is no session
            self.parsers[event] = partial(self._read, self.parsers[event])

    def _read(self, parse: Callable[[Any], None], data: Any) -> None:
        with _skipping(data):
            try:
                parse(data)
            except UNREADABLE:
                parse(self._known(self._get_guild_channel(data)[0], data))

    def create_message(self, *, channel: Any, data: Any) -> Any:
        """A message of the history; only its id where it cannot be read."""
        message: Any = discord.Object(data["id"])
        with _skipping(data):
            try:
                message = super().create_message(channel=channel, data=data)
            except UNREADABLE:
                message = super().create_message(channel=channel, data=self._known(channel, data))
        return message

    def _known(self, channel: Any, data: Any) -> Any:
        """A message without the parts that the SDK cannot read; if it has no text, their words are quoted in it."""
        fields: list[str] = []
        known = known_parts(data, lambda part: discord.Message(state=self, channel=channel, data=part), fields)
        if "author" in known:
            log.warning("update.partly_read", update_id=known["id"], fields=fields)
        words = text_in({key: part for key, part in data.items() if key in _SHOWN and key not in known})
        said = {**_SNAPSHOT, "content": words, "timestamp": data["timestamp"]}
        return {**known, "message_snapshots": [{"message": said}]} if words and not known["content"] else known


@contextmanager
def _skipping(data: Any) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        update_id = data.get("id") if isinstance(data, dict) else None
        log.warning("update.skipped", update_id=update_id, error=type(error).__name__)


class GatewayClient(discord.Client):
    """Connection to Discord's gateway; hands every event to an `EventQueue`, in order, without waiting."""

    def __init__(self, events: EventQueue, settings: DiscordSettings, *, clock: Clock) -> None:
        intents = discord.Intents.none()
        intents.guilds = intents.guild_messages = intents.dm_messages = intents.message_content = True
        super().__init__(
            intents=intents,
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=GUILD_READY_SECONDS,
            allowed_mentions=discord.AllowedMentions.none(),
        )
        self.http = self._connection.http = RestClient(self, settings)
        self._events = events
        self.reader = EventReader(self, clock)
        self.offline_since: float | None = time.monotonic()
        """Monotonic seconds at which the session was lost, None while it lives."""
        self.had_session = asyncio.Event()
        """Set by the first READY."""

    def _get_state(self, **options: Any) -> ConnectionState[Any]:
        return TolerantState(
            dispatch=self.dispatch, handlers=self._handlers, hooks=self._hooks, http=self.http, **options
        )

    def silence_seconds(self) -> float | None:
        """Seconds since the last answered heartbeat; None before the first connection."""
        # There is no public name for it: `latency` stays at its last value when answers stop.
        keep_alive = getattr(self.ws, "_keep_alive", None)
        return None if keep_alive is None else time.perf_counter() - float(keep_alive._last_ack)

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Dispatch an event as discord.py does, but not after the end: its late tasks would find no loop."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    # Events: the first statement hands over without waiting, because discord.py runs each of them as a task of
    # its own, and only the order in which they start is the order in which Discord sent them.

    async def on_message(self, message: discord.Message) -> None:
        self._events.put(MessageEvent(str(message.channel.id), message.id, self.read(message)))

    def read(self, message: discord.Message | discord.Object) -> InboundMessage | None:
        """Read a message; None also for what cannot be read."""
        read = None
        with _skipping({"id": message.id}):
            read = self.reader.message(message) if isinstance(message, discord.Message) else None
        return read

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        if (edit := self.reader.edit(payload)) is not None:
            self._events.put(ChangeEvent(str(payload.channel_id), edit))

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        self._events.put(
            ChangeEvent(str(payload.channel_id), self.reader.deletion(payload.channel_id, payload.message_id))
        )

    async def on_raw_bulk_message_delete(self, payload: discord.RawBulkMessageDeleteEvent) -> None:
        for message_id in sorted(payload.message_ids):
            self._events.put(ChangeEvent(str(payload.channel_id), self.reader.deletion(payload.channel_id, message_id)))

    async def on_connect(self) -> None:  # READY, never RESUMED
        self._events.put(ConnectedEvent())
        self.offline_since = None
        self.had_session.set()

    async def on_ready(self) -> None:  # the servers are listed
        self._events.put(ChannelsEvent({ref: newest for guild in self.guilds for ref, newest in _readable(guild)}))

    async def on_resumed(self) -> None:
        self.offline_since = None

    async def on_disconnect(self) -> None:
        if self.offline_since is None:
            self.offline_since = time.monotonic()


def _readable(guild: discord.Guild) -> Iterator[tuple[str, int]]:
    """Channels and threads of a server that we may read, each with its newest message."""
    channels: list[discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread]
    channels = [*guild.text_channels, *guild.voice_channels, *guild.stage_channels, *guild.threads]
    for channel in channels:
        newest = channel.last_message_id
        if newest is not None and (guild.me is None or channel.permissions_for(guild.me).read_message_history):
            yield str(channel.id), newest
