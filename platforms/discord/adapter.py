"""The Discord adapter: one bot account, with a new client for each connection attempt."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import discord
import structlog
from msgspec.structs import replace

from hermes_state import errors
from hermes_state.aio import wait_until
from hermes_state.connector import connector_for
from hermes_state.errors import MessageRejected, PlatformError, PlatformUnavailable, TokenRejected
from hermes_state.network import NetworkSettings
from hermes_state.ratings import SignedMessage
from hermes_state.setting_types import plain
from hermes_state.store.locks import locks
from hermes_state.store.sql import Connection, load_note, save_note
from hermes_state.store.writer import Store
from hermes_state.values import ChatKey, Clock, InboundMessage, IncomingAttachment, Millis, OutboundPart
from platforms.base import AdapterHealth, AdapterState, Capabilities, Intake, MenuCommand, Preview, SendRequest
from platforms.buttons import ButtonCommandStore
from platforms.discord.client import GatewayClient
from platforms.discord.errors import MessageNotFound, connection_errors, rest_errors
from platforms.discord.event_queue import EventQueue, FetchHistory, MessageEvent
from platforms.discord.inbound import LIMIT, PLATFORM, FileRef, scope_of, snowflake_at
from platforms.discord.outbound import DiscordSender
from platforms.discord.slash import SlashCommands, TicketRegistry
from platforms.files import CHUNK_BYTES, save_stream
from platforms.settings import DiscordSettings

STOP_SECONDS = 0.5
"""Seconds to wait for the SDK to react to a cancellation before it is cancelled again."""
log = structlog.get_logger(__name__)


class DiscordAdapter:
    """A `PlatformAdapter` for Discord."""

    capabilities = Capabilities(
        max_part_units=LIMIT,
        preview_interval_seconds=1.2,  # Discord accepts five edits in five seconds per channel
        shared_preview_interval_seconds=3.0,
        has_buttons=True,
        shows_steps=True,
        typing_seconds=10.0,
        has_files=True,
        finds_previews=True,
        max_file_bytes=10 << 20,  # boosted servers accept larger files, but in a direct chat the limit is unknown
    )

    def __init__(self, settings: DiscordSettings, *, store: Store, menu: Sequence[MenuCommand], clock: Clock) -> None:
        self.name = settings.account
        self._settings = settings
        self._store = store
        self._menu = tuple(menu)
        self._clock = clock
        self._tickets = TicketRegistry()
        self._buttons = ButtonCommandStore(store=store, platform=PLATFORM, hash_mark="n:", max_bytes=100)
        self._client: GatewayClient | None = None
        self._sender: DiscordSender | None = None
        self._state = AdapterState.STARTING
        self._detail = ""
        self._progress_at: Millis | None = None

    def health(self) -> AdapterHealth:
        client = self._client
        if client is None:
            return AdapterHealth(state=self._state, last_progress_at=self._progress_at, detail=self._detail)
        self._note_progress(client)
        if client.offline_since is not None:
            was_lost = client.had_session.is_set()
            state = AdapterState.BACKING_OFF if was_lost else AdapterState.STARTING
            detail = "The session was lost; reconnecting." if was_lost else "Connecting."
        elif (client.silence_seconds() or 0.0) > self._settings.stale_seconds * 2 / 3:  # a heartbeat comes every 41 s
            state, detail = AdapterState.STALLED, "Discord has stopped answering heartbeats."
        else:
            state, detail = AdapterState.RUNNING, ""
        return AdapterHealth(state=state, last_progress_at=self._progress_at, detail=detail)

    async def run(self, intake: Intake) -> None:
        try:
            async with self._connection(intake) as (client, commands, events, fetch), asyncio.TaskGroup() as tasks:
                tasks.create_task(events.run(fetch), name="discord events")
                tasks.create_task(self._watch(client, events), name="discord watch")
                tasks.create_task(commands.publish(self._store, self._settings.request_seconds), name="discord menu")
                # Connect in this task, not in a separate task. The group then undoes the cancellation that a failing
                # task causes, so `cancelling` below is nonzero only if the adapter was stopped.
                await self._connect(client)
        except BaseExceptionGroup as group:
            error = _most_telling(group)
            self._note_end(error)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # raising the group would hide the cancellation
                raise asyncio.CancelledError from group
            raise error from error.__cause__  # not chained to the group, because only the reason matters
        except (PlatformError, asyncio.CancelledError) as error:
            self._note_end(error)
            raise

    def render(self, text: str) -> Sequence[OutboundPart]:
        from platforms.discord.rendering import render  # after the connection, because it takes 30 ms

        return render(text, tables=self._settings.tables)

    async def send(self, request: SendRequest) -> str:
        with _store_errors():
            return await self._connected_sender().send(request)

    async def show(self, preview: Preview) -> str | None:
        return await self._connected_sender().show(preview)

    async def show_typing(self, chat: ChatKey, *, is_recording: bool = False) -> None:
        await self._connected_sender().show_typing(chat.chat_ref)

    async def react(self, chat: ChatKey, signed: SignedMessage) -> bool:
        return await self._connected_sender().react(chat.chat_ref, signed)

    async def sees_reactions(self, group: ChatKey) -> bool:
        return True  # the intents for reactions need no permission

    async def download(self, attachment: IncomingAttachment, target: Path, max_bytes: int) -> int:
        ref = FileRef.decode(attachment.file_ref)
        if self._client is None:
            raise PlatformUnavailable("not connected to Discord")
        network = self._settings.network
        size = await _fetch(ref.url, target, max_bytes, network)
        if size is None:
            size = await _fetch(await _renewed_url(self._client, ref), target, max_bytes, network)
        if size is None:
            raise MessageRejected("the file was deleted")
        return size

    # One connection

    @contextlib.asynccontextmanager
    async def _connection(
        self, intake: Intake
    ) -> AsyncIterator[tuple[GatewayClient, SlashCommands, EventQueue, FetchHistory]]:
        settings = self._settings
        with _store_errors():
            salt, began = await self._load_notes()
        self._state, self._detail = AdapterState.STARTING, "Connecting."
        events = EventQueue(intake, settings, clock=self._clock, began=began)
        client = GatewayClient(events, settings, clock=self._clock)
        commands = SlashCommands(
            client, self._menu, events=events, intake=intake, tickets=self._tickets, buttons=self._buttons
        )
        sender = DiscordSender(client, self._tickets, self._buttons, clock=self._clock, salt=salt, settings=settings)
        history = HistoryReader(client, sender.post, settings, clock=self._clock)
        self._client, self._sender = client, sender
        try:
            async with contextlib.AsyncExitStack() as stack:
                # The SDK's own `__aexit__` waits for a close frame, which never arrives on a dead connection.
                await client.__aenter__()
                stack.push_async_callback(client.end)
                yield client, commands, events, history.fetch
        finally:
            self._note_progress(client)
            self._client = self._sender = None

    async def _connect(self, client: GatewayClient) -> None:
        """Keep the connection open. Never returns: ends only with an exception.

        Before Python 3.12, `asyncio.wait_for` can lose a cancellation, and the SDK then retries forever. The SDK
        therefore runs in its own task, which is cancelled repeatedly until it ends.
        """
        task = asyncio.create_task(client.start(plain(self._settings.token)), name="discord gateway")
        try:
            await asyncio.wait({task})
            with connection_errors(client, self._settings.token_key):
                await task
            raise PlatformUnavailable("the connection to Discord ended")
        finally:
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=STOP_SECONDS)

    async def _watch(self, client: GatewayClient, events: EventQueue) -> None:
        """Raise an error if the connection is open but makes no progress."""
        limit = self._settings.stale_seconds
        while True:
            if await wait_until(events.overflowed, min(limit / 6, 15.0)):
                raise PlatformUnavailable("More events arrived than the database could store")
            offline_since = client.offline_since
            if offline_since is not None and time.monotonic() - offline_since > limit:
                raise PlatformUnavailable(f"There was no Discord session for {limit:g} s")
            if offline_since is None and (client.silence_seconds() or 0.0) > limit:
                raise PlatformUnavailable(f"Discord has not answered a heartbeat for {limit:g} s")

    async def _load_notes(self) -> tuple[str, Millis]:
        """Return the salt for nonces, and the time in ms of the first connection (0 if this is the first)."""
        salt = await self._store.read(load_note, f"{self.name}.nonce_salt")
        began = await self._store.read(load_note, f"{self.name}.began")
        if salt is None or began is None:
            salt = salt or secrets.token_hex(8)
            await self._store.write(_save_notes, self.name, salt, self._clock.now())
        return salt, Millis(int(began or 0))

    def _note_end(self, error: BaseException) -> None:
        self._state = AdapterState.FAILED if isinstance(error, TokenRejected) else AdapterState.BACKING_OFF
        self._detail = str(error) if isinstance(error, PlatformError) else "Stopped."

    def _connected_sender(self) -> DiscordSender:
        if self._sender is None:
            raise PlatformUnavailable("not connected to Discord")
        return self._sender

    def _note_progress(self, client: GatewayClient) -> None:
        if (silence := client.silence_seconds()) is not None:
            self._progress_at = Millis(self._clock.now() - round(silence * 1000))


@locks("notes")
def _save_notes(db: Connection, account: str, salt: str, now: Millis) -> None:
    save_note(db, f"{account}.nonce_salt", salt)
    save_note(db, f"{account}.began", str(now))


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except errors.StoreUnavailable as error:
        raise PlatformUnavailable("the database cannot be used right now") from error


def _most_telling(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report from a group. An error that only the operator can fix takes precedence."""
    errors = [_most_telling(error) if isinstance(error, BaseExceptionGroup) else error for error in group.exceptions]
    return min(errors, key=lambda error: (isinstance(error, PlatformError), not isinstance(error, TokenRejected)))


# Fetching missed messages, up to the limits in the settings


@dataclass(frozen=True, repr=False, slots=True)
class HistoryReader:
    """Reads channel histories through one client. `EventQueue` uses it to fetch missed messages."""

    client: GatewayClient
    announce: Callable[[str, str, str], Awaitable[object]]
    """Sends a sentence to a channel. The arguments are the channel's id, the sentence and an idempotency key."""
    settings: DiscordSettings
    clock: Clock

    async def fetch(self, channel_ref: str, seen: int, until: int | None) -> Sequence[MessageEvent]:
        """Fetch the messages after `seen` (and before `until`), oldest first.

        Messages beyond the limits in the settings are skipped for good; a limit of 0 skips all of them. Raises
        `ChatUnreachable` if the channel was deleted, `MessageRejected` if it cannot be read, and another
        `PlatformError` if a retry might succeed.
        """
        hours, messages = self.settings.catch_up_hours, self.settings.catch_up_messages
        if hours <= 0 or messages <= 0:
            return ()
        with rest_errors(is_read=True):
            try:
                channel = self.client.get_channel(int(channel_ref)) or await self.client.fetch_channel(int(channel_ref))
            except discord.InvalidData as error:
                raise MessageRejected("the SDK does not know this kind of channel") from error
            if not isinstance(channel, discord.abc.Messageable):
                return ()
            newest = getattr(channel, "last_message_id", None) if channel.guild is not None else None
            if newest is not None and newest <= seen:
                return ()
            oldest = snowflake_at(Millis(self.clock.now() - round(hours * 3_600_000)))
            floor = max(seen - (2_000 << 22), oldest)  # messages can arrive out of order
            found = await self._read(channel, floor, until, messages + 1)
            kept = found[:messages]
            bound = kept[-1].id if len(found) > len(kept) else floor + 1
            skipped = await self._read(channel, seen, bound, 100) if bound > seen + 1 else []
            members: dict[int, discord.User | discord.Member] = {}
            read = [(message.id, await self._with_roles(message, members)) for message in reversed(kept)]
        arrived = [MessageEvent(channel_ref, message_id, event) for message_id, event in read]
        if skipped:
            await self._report(channel_ref, skipped)
            arrived.insert(0, MessageEvent(channel_ref, skipped[0].id, None))
        return arrived

    async def _read(
        self, channel: "discord.abc.MessageableChannel", after: int, before: int | None, limit: int
    ) -> list[discord.Message]:
        """Return at most `limit` messages, newest first. If there are more, the oldest are left out."""
        end = discord.Object(before) if before is not None else None
        history = channel.history(limit=limit, after=discord.Object(after), before=end, oldest_first=False)
        return [message async for message in history]

    async def _with_roles(
        self, message: discord.Message, members: dict[int, discord.User | discord.Member]
    ) -> InboundMessage | None:
        """Convert a message, and fetch the roles of a person who addresses the bot, which a history does not contain.

        `members` are the people who were fetched before.
        """
        event = self.client.read(message)
        if event is None or event.scope is None or not event.is_addressed or event.sender.is_bot:
            return event
        guild, author = message.guild, message.author
        assert guild is not None, "a message with a scope is in a server"
        if author.id not in members:
            try:
                members[author.id] = await guild.fetch_member(author.id)
            except (discord.NotFound, discord.Forbidden):  # the person or the bot has left the server
                members[author.id] = author
        return replace(event, scope=scope_of(guild, message.channel, members[author.id]))

    async def _report(self, channel_ref: str, skipped: Sequence[discord.Message]) -> None:
        events = [event for message in skipped if (event := self.client.read(message)) is not None]
        waiting = sum(event.is_addressed and not event.sender.is_bot for event in events)
        log.warning("discord.messages_skipped", channel_ref=channel_ref, at_least=len(skipped), addressed=waiting)
        if not waiting:
            return  # no person in the channel is waiting for an answer
        sentence = (
            f"I was offline for a while and have only read the last {self.settings.catch_up_messages} messages "
            f"of the last {self.settings.catch_up_hours:g} hours. Please resend anything that is still unanswered."
        )
        try:
            await self.announce(channel_ref, sentence, f"skipped:{skipped[0].id}")
        except PlatformError as error:
            log.warning("discord.skip_notice_failed", channel_ref=channel_ref, error=type(error).__name__)


# Files that people sent


async def _renewed_url(client: GatewayClient, ref: FileRef) -> str:
    try:
        async with client.calling(30.0, is_read=True):
            message = await client.get_partial_messageable(ref.channel_id).fetch_message(ref.message_id)
    except (errors.ChatUnreachable, MessageNotFound) as error:
        raise MessageRejected("the file was deleted") from error
    if isinstance(message, discord.Message):  # `TolerantState.create_message` could not read the message
        forwarded = (file for one in message.message_snapshots for file in one.attachments)
        for attachment in (*message.attachments, *forwarded):
            if attachment.id == ref.file_id:
                return attachment.url
    raise MessageRejected("the file was deleted")


async def _fetch(url: str, target: Path, max_bytes: int, network: NetworkSettings) -> int | None:
    """Write the file at `url` to `target`. Return its size in bytes, or None if the URL has expired."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=30.0)
    connector = connector_for(network, "discord")
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, session.get(url) as response:
            if response.status in (403, 404, 410):
                return None
            if response.status != 200:
                raise PlatformUnavailable(f"the file server answered {response.status}")
            if (response.content_length or 0) > max_bytes:
                raise errors.FileSizeExceeded(max_bytes)
            return await save_stream(response.content.iter_chunked(CHUNK_BYTES), target, max_bytes)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise PlatformUnavailable(f"the file server cannot be reached: {type(error).__name__}") from error
