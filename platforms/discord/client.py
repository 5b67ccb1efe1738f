"""Client of Discord's gateway and REST API: discord.py with our own intents, addresses and heartbeat checks.

This is the only module that uses private names of discord.py. The library has no public way to use another server for
one client, to continue after an event or a response that it cannot parse, or to read the last heartbeat.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Token
from functools import partial
from typing import Any

import discord
import structlog
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Route
from discord.state import ConnectionState
from discord.webhook.async_ import AsyncWebhookAdapter, async_context

from hermes_state.connector import connector_for
from hermes_state.errors import PlatformUnavailable, SendAmbiguous
from hermes_state.values import Clock, InboundMessage
from platforms.discord.errors import rest_errors
from platforms.discord.event_queue import ChannelsEvent, ConnectedEvent, EventQueue, MessageEvent
from platforms.discord.inbound import EventReader
from platforms.settings import DiscordSettings
from platforms.text import UNREADABLE, known_parts, parsed_json, text_in

log = structlog.get_logger()

discord.utils._from_json = parsed_json  # the library would use orjson, which rejects unpaired surrogates

CLOSE_SECONDS = 5.0
_WRITES = (
    ("POST", "/channels/{channel_id}/messages"),
    ("PATCH", "/channels/{channel_id}/messages/{message_id}"),
    ("POST", "/webhooks/{webhook_id}/{webhook_token}"),
    ("PATCH", "/webhooks/{webhook_id}/{webhook_token}/messages/@original"),
)
"""Requests whose response contains the created or changed message."""


class RestClient(HTTPClient):
    """discord.py's REST client, with its own base URL. In the library, all clients share one base URL."""

    def __init__(self, client: discord.Client, settings: DiscordSettings) -> None:
        super().__init__(client.loop)
        self._client = client
        # If a rate limit requires a wait of more than ten seconds, the library raises an error, so the gateway can skip
        # a preview. The constructor increases values below 30 s to 30 s, so the attribute is set here.
        self.max_ratelimit_timeout = 10.0
        self._base = f"{settings.api_url.rstrip('/')}/api/v10"
        self._gateway_url = yarl.URL(settings.gateway_url)
        self._network = settings.network

    async def static_login(self, token: str) -> Any:  # discord.py's own type
        self.connector = connector_for(self._network, "discord", limit=0)
        return await super().static_login(token)

    async def request(self, route: Route, **options: Any) -> Any:  # Any: discord.py's own signature
        route.url = self._base + route.url.removeprefix(Route.BASE)
        try:
            # Discord never redirects. Another server would receive the message.
            answer = await super().request(route, allow_redirects=False, **options)
            if (route.method, route.path) in _WRITES:
                return _written(answer)
            is_read = (route.method, route.path) != ("PUT", "/applications/{application_id}/commands")
            return answer if is_read else []  # the response to publishing commands is not needed
        except RuntimeError as error:
            if not self._client.is_closed():
                raise
            # aiohttp raises this for a client that was closed while the request waited.
            raise PlatformUnavailable("not connected to Discord") from error

    async def ws_connect(self, url: str, *, compress: int = 0) -> Any:
        requested = yarl.URL(url)
        # Replace only the default address, because a session resumes at the URL from its READY event.
        if requested.host == DiscordWebSocket.DEFAULT_GATEWAY.host:
            url = str(self._gateway_url.with_query(requested.query))
        return await super().ws_connect(url, compress=compress)


def _written(answer: Any) -> dict[str, Any]:
    """Return only the ids in a response. If the SDK failed on another field, the message would be sent again."""
    if not isinstance(answer, dict) or "id" not in answer:
        raise SendAmbiguous("Discord's answer could not be read")
    return {"id": answer["id"], "channel_id": answer.get("channel_id", 0), "type": 0, "content": ""}


class InteractionWebhooks(AsyncWebhookAdapter):
    """discord.py's webhook adapter for interactions, which sends requests through a client's `RestClient`."""

    def __init__(self, http: RestClient) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._http = http

    async def request(self, route: Route, session: object, **options: Any) -> Any:  # Any: discord.py's own signature
        form, params = options.get("multipart"), options.get("params")
        body = {"form": form, "files": options["files"]} if form else {"json": options["payload"]}
        answer = await self._http.request(route, params=params, **body)
        # The SDK needs only this part of the response to an acknowledgement, and could fail on the message in it.
        return {"interaction": {"id": route.webhook_id}} if route.path.endswith("/callback") else answer


class TolerantState(ConnectionState[Any]):
    """Connection state that skips unreadable events, because an error would end the connection."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for event in self.parsers.keys() - {"READY", "RESUMED"}:  # without these two events there is no session
            self.parsers[event] = partial(self._read, self.parsers[event])

    def _read(self, parse: Callable[[Any], None], data: Any) -> None:
        with _skipping(data):
            try:
                parse(data)
            except UNREADABLE:
                parse(self._known(self._get_guild_channel(data)[0], data))

    def create_message(self, *, channel: Any, data: Any) -> Any:
        """Create a message from history data. If the data cannot be read, return an object with only the id."""
        message: Any = discord.Object(data["id"])
        with _skipping(data):
            try:
                message = super().create_message(channel=channel, data=data)
            except UNREADABLE:
                message = super().create_message(channel=channel, data=self._known(channel, data))
        return message

    def _known(self, channel: Any, data: Any) -> Any:
        """Return a message's data without unparsable parts.

        If the message has no text, the text of the unparsable parts is added as a forwarded message.
        """
        fields: list[str] = []
        known = known_parts(data, lambda part: discord.Message(state=self, channel=channel, data=part), fields)
        if "author" in known:
            log.warning("update.partially_parsed", update_id=known["id"], fields=fields)
        shown = {"poll", "embeds", "components", "message_snapshots"} - known.keys()
        words = text_in({key: part for key, part in data.items() if key in shown})
        if not words or known["content"]:
            return known
        said = {"type": 0, "embeds": [], "attachments": [], "edited_timestamp": None, "timestamp": data["timestamp"]}
        return {**known, "message_snapshots": [{"message": {**said, "content": words}}]}


@contextmanager
def _skipping(data: Any) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        update_id = data.get("id") if isinstance(data, dict) else None
        log.warning("update.skipped", update_id=update_id, error=type(error).__name__)


class GatewayClient(discord.Client):
    """Connection to Discord's gateway. It passes every event to an `EventQueue`, in order, without waiting."""

    def __init__(self, events: EventQueue, settings: DiscordSettings, *, clock: Clock) -> None:
        intents = discord.Intents.none()
        intents.guilds = intents.guild_messages = intents.dm_messages = intents.message_content = True
        intents.guild_reactions = intents.dm_reactions = True
        super().__init__(
            intents=intents,
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=1.0,
            allowed_mentions=discord.AllowedMentions.none(),
        )
        rest = RestClient(self, settings)
        self.http = self._connection.http = rest
        self._webhooks = InteractionWebhooks(rest)
        self._events = events
        self.reader = EventReader(self, clock, settings)
        self.offline_since: float | None = time.monotonic()
        """Monotonic time at which the session was lost; None while there is a session."""
        self.had_session = asyncio.Event()
        """Set by the first READY event."""

    def _get_state(self, **options: Any) -> ConnectionState[Any]:
        return TolerantState(
            dispatch=self.dispatch, handlers=self._handlers, hooks=self._hooks, http=self.http, **options
        )

    async def end(self) -> None:
        """Close the connection. Stop waiting for Discord's close frame after a timeout."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.close()
        except TimeoutError:
            log.info("discord.close_timed_out")
        finally:
            await self.http.close()

    def is_own(self, user: discord.abc.User) -> bool:
        """Return True for the bot and for its application, which is the author of answers to slash commands."""
        return user.id == self.application_id or (self.user is not None and user.id == self.user.id)

    def silence_seconds(self) -> float | None:
        """Return the seconds since the last answered heartbeat, or None before the first connection."""
        # There is no public attribute. `latency` keeps its last value when heartbeats are no longer answered.
        keep_alive = getattr(self.ws, "_keep_alive", None)
        return None if keep_alive is None else time.perf_counter() - float(keep_alive._last_ack)

    @asynccontextmanager
    async def calling(self, seconds: float, *, is_read: bool = False) -> AsyncIterator[None]:
        """Run the SDK calls in the block with a time limit and the client's base URL. Raises only `PlatformError`.

        This includes the errors of `rest_errors`, and `PlatformUnavailable` if the client is closed or not logged in.
        """
        if self.is_closed() or self.user is None:
            raise PlatformUnavailable("not connected to Discord")
        earlier = self.use_own_addresses()
        try:
            with rest_errors(is_read=is_read):
                async with asyncio.timeout(seconds):
                    yield
        finally:
            async_context.reset(earlier)

    def use_own_addresses(self) -> Token[AsyncWebhookAdapter]:
        """Send this task's answers to interactions through `InteractionWebhooks`."""
        return async_context.set(self._webhooks)

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Dispatch an event, unless the client is closed and no longer has an event loop."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    # Events. The first statement of each handler must pass the event on, without waiting. discord.py runs each handler
    # in a separate task, and only the order in which these tasks start is Discord's order.

    async def on_message(self, message: discord.Message) -> None:
        self._events.put(MessageEvent(str(message.channel.id), message.id, self.read(message)))

    def read(self, message: discord.Message | discord.Object) -> InboundMessage | None:
        """Convert a message to an event. Return None if the gateway ignores the message or cannot read it."""
        read = None
        with _skipping({"id": message.id}):
            read = self.reader.message(message) if isinstance(message, discord.Message) else None
        return read

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        if (edit := self.reader.edit(payload)) is not None:
            self._events.put(MessageEvent(str(payload.channel_id), 0, edit))

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        self._put_deletion(payload.channel_id, payload.message_id)

    async def on_raw_bulk_message_delete(self, payload: discord.RawBulkMessageDeleteEvent) -> None:
        for message_id in sorted(payload.message_ids):
            self._put_deletion(payload.channel_id, message_id)

    async def on_raw_reaction_add(self, payload: discord.RawReactionActionEvent) -> None:
        if (reaction := self.reader.reaction(payload)) is not None:
            self._events.put(MessageEvent(str(payload.channel_id), 0, reaction))

    on_raw_reaction_remove = on_raw_reaction_add

    def _put_deletion(self, channel_id: int, message_id: int) -> None:
        self._events.put(MessageEvent(str(channel_id), 0, self.reader.deletion(channel_id, message_id)))

    async def on_connect(self) -> None:  # called for READY, never for RESUMED
        self._events.put(ConnectedEvent())
        self.offline_since = None
        self.had_session.set()

    async def on_ready(self) -> None:  # called when the list of servers is complete
        channels: list[discord.TextChannel | discord.VoiceChannel | discord.StageChannel | discord.Thread] = []
        for guild in self.guilds:
            channels += [*guild.text_channels, *guild.voice_channels, *guild.stage_channels, *guild.threads]
        newest = {str(one.id): one.last_message_id for one in channels if one.last_message_id and _is_readable(one)}
        self._events.put(ChannelsEvent(newest))

    async def on_resumed(self) -> None:
        self.offline_since = None

    async def on_disconnect(self) -> None:
        if self.offline_since is None:
            self.offline_since = time.monotonic()


def _is_readable(channel: "discord.abc.GuildChannel | discord.Thread") -> bool:
    me = channel.guild.me
    return me is None or channel.permissions_for(me).read_message_history
