"""Event queue: what Discord sent is stored in order, channel by channel, with a cursor over all of it.

Discord acknowledges nothing, so the adapter remembers how far it came: a cursor per channel that moves over
everything seen, ignored or not, and only over a gapless prefix. After each connection that did not resume,
what lies behind a channel's cursor is fetched, while that channel's live events wait in memory and follow.
The fetched and the live copy of a message carry the same `event_ref`, so overlaps do no harm.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from hermes_state.errors import ChatUnreachable, MessageRejected, PlatformError, RateLimited, StoreUnavailable
from hermes_state.values import Clock, Cursor, DeletionEvent, EditEvent, InboundMessage, Millis
from platforms.base import Intake, ReceivedEvent
from platforms.discord.inbound import PLATFORM, snowflake_at
from platforms.discord.priority import PrioritySemaphore
from platforms.discord.settings import DiscordSettings

PARALLEL_FETCHES = 4
SKEW_MS = 60_000
"""Largest difference of this machine's clock and Discord's, in milliseconds."""

MAX_ARRIVED = 100
"""Most events taken from the queue at once."""

LISTEN_SECONDS = 0.5
"""Seconds that an event may take to be stored before what waits behind it is listened to."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectedEvent:
    """Beginning of a session that continues no earlier one: something may have been missed."""


@dataclass(frozen=True, slots=True)
class ChannelsEvent:
    """Channels that the bot sees, each with its newest message."""

    newest: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MessageEvent:
    """Message, live or from history; `event` is None when it is no event for us."""

    channel_ref: str
    message_id: int
    event: InboundMessage | None


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """Edit or deletion; it waits for what came before it in its channel."""

    channel_ref: str
    event: EditEvent | DeletionEvent


StoredItem: TypeAlias = MessageEvent | ChangeEvent | InboundMessage
Item: TypeAlias = ConnectedEvent | ChannelsEvent | StoredItem
"""Event of the queue. A bare message is a slash command or a button: never in the history, never kept waiting."""


FetchHistory: TypeAlias = Callable[[str, int, int | None], Awaitable[Sequence[MessageEvent]]]
"""Fetches what was written to a channel after one message id (and before another), see `HistoryReader.fetch`."""


@dataclass(slots=True)
class _CatchUpState:
    """State of a channel that is being caught up."""

    seen: int
    until: int | None
    is_open: bool = True
    """Something may still be missing before the live events that wait."""
    waiting: list[MessageEvent | ChangeEvent] = field(default_factory=list)


class EventQueue:
    """Queue of events on their way to the intake. `put` never waits; `run` is the worker."""

    def __init__(self, intake: Intake, settings: DiscordSettings, *, clock: Clock, began: int = 0) -> None:
        """`began`: time at which the account was first listened to, in milliseconds; 0 where that is now."""
        self._began = began
        self._intake = intake
        self._backoff = settings.backoff
        self._clock = clock
        self._queue: asyncio.Queue[Item] = asyncio.Queue(settings.queue_size)
        self._fetches = PrioritySemaphore(PARALLEL_FETCHES)
        self._cursors: dict[str, int] = {}
        self._gaps: dict[str, _CatchUpState] = {}
        self._complete: set[str] = set()
        """Channels that nothing is missing from in this connection."""
        self._high_water = 0
        """Newest message seen anywhere before this connection; before there was one, the time at which the account was
        first listened to, as an id: ids are ordered by time."""
        self._connected_at = Millis(0)
        self._unstored: dict[str, InboundMessage] = {}
        """Events that arrived and are not being stored yet, by `event_ref`: somebody may want to stop something."""
        self._is_held_up = False
        """The database keeps an event waiting."""
        self._may_listen = asyncio.Event()
        self.overflowed = asyncio.Event()
        """Set when an event had to be dropped; from then on everything is, so that no cursor passes the hole."""

    def put(self, item: Item) -> None:
        """Hand over an event in the order of arrival."""
        if self.overflowed.is_set():
            return
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:
            self.overflowed.set()
            return
        event = item.event if isinstance(item, MessageEvent) else item
        if isinstance(event, InboundMessage):
            self._unstored[event.event_ref] = event
            if self._is_held_up:
                self._may_listen.set()

    async def _listen(self) -> None:
        """Let the intake hear, in order, of what waits while the database takes nothing."""
        while True:
            await self._may_listen.wait()
            self._may_listen.clear()
            while self._is_held_up and self._unstored:
                await self._intake.overhear(self._unstored.pop(next(iter(self._unstored))))

    def _start_listening(self) -> None:
        self._is_held_up = True
        self._may_listen.set()

    async def run(self, fetch: FetchHistory) -> None:
        """Store until cancelled. What the database cannot take is tried again, never skipped."""
        await self._load_cursors()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="discord listener")
            while True:
                arrived = [await self._queue.get()]
                while len(arrived) < MAX_ARRIVED and not self._queue.empty():
                    arrived.append(self._queue.get_nowait())
                await self._take(arrived, fetch, tasks)

    async def _take(self, items: Sequence[Item], fetch: FetchHistory, tasks: asyncio.TaskGroup) -> None:
        """Store what arrived together, but for what has to wait for the history of its channel."""
        batch: list[StoredItem] = []
        for item in items:
            match item:
                case ConnectedEvent():
                    await self._settle(batch)
                    batch.clear()
                    self._begin(fetch, tasks)
                case ChannelsEvent(newest=newest):
                    for channel_ref, message_id in newest.items():
                        if message_id > self._high_water:
                            self._catch_up(channel_ref, fetch, tasks, message_id)
                case InboundMessage():
                    batch.append(item)
                case MessageEvent() | ChangeEvent():
                    latest = item.message_id if isinstance(item, MessageEvent) else 0
                    self._catch_up(item.channel_ref, fetch, tasks, latest)
                    if gap := self._gaps.get(item.channel_ref):
                        gap.waiting.append(item)
                        self._fetches.prioritize(item.channel_ref)  # there may be a thousand channels to look into
                        if len(gap.waiting) > self._queue.maxsize:  # a history that cannot be read for long
                            self.overflowed.set()
                    else:
                        batch.append(item)
        await self._settle(batch)

    def _begin(self, fetch: FetchHistory, tasks: asyncio.TaskGroup) -> None:
        self._high_water = max(self._cursors.values(), default=snowflake_at(Millis(self._began)) if self._began else 0)
        self._connected_at = self._clock.now()
        self._complete.clear()
        for gap in self._gaps.values():
            gap.is_open = True
            gap.until = None
        for channel_ref in self._cursors:
            self._catch_up(channel_ref, fetch, tasks)

    def _catch_up(self, channel_ref: str, fetch: FetchHistory, tasks: asyncio.TaskGroup, latest: int = 0) -> None:
        """Catch a channel up once per connection.

        A channel without a cursor may have been written to for the first time while nobody listened: what
        came after everything else that was seen, and before this connection, is fetched; `latest` is a message that
        shows how far this machine's clock is behind Discord's. Discord lists the channels of
        servers, but no bot's direct chats: one that was opened in an outage is found with its next message.
        Source: https://github.com/discord/discord-api-docs/issues/184
        """
        if channel_ref in self._complete or channel_ref in self._gaps:
            return
        seen = self._cursors.get(channel_ref)
        if seen is not None:
            gap = _CatchUpState(seen, None)
        elif self._high_water:
            behind = max(0, latest - snowflake_at(self._clock.now()))  # where `latest` is of our future
            before = snowflake_at(Millis(self._connected_at + SKEW_MS)) + behind
            gap = _CatchUpState(max(0, self._high_water - (SKEW_MS << 22)), before)
        else:
            self._complete.add(channel_ref)
            return
        self._gaps[channel_ref] = gap
        tasks.create_task(self._close_gap(channel_ref, gap, fetch), name=f"discord catch-up {channel_ref}")

    async def _close_gap(self, channel_ref: str, gap: _CatchUpState, fetch: FetchHistory) -> None:
        while True:
            if gap.is_open:
                gap.is_open = False  # before the fetch: a reconnect during it opens the gap again
                await self._settle(await self._fetch(channel_ref, gap, fetch))
            elif gap.waiting:
                waiting, gap.waiting = gap.waiting, []
                await self._settle(waiting)
            else:
                break
        del self._gaps[channel_ref]
        self._complete.add(channel_ref)

    async def _fetch(self, channel_ref: str, gap: _CatchUpState, fetch: FetchHistory) -> Sequence[MessageEvent]:
        seen = max(gap.seen, self._cursors.get(channel_ref, 0))
        for delay in self._backoff:
            try:
                async with self._fetches.hold(channel_ref):
                    return await fetch(channel_ref, seen, gap.until)
            except (ChatUnreachable, MessageRejected) as error:  # asking again would change nothing
                log.warning("discord.channel_skipped", channel_ref=channel_ref, reason=str(error))
                return ()
            except PlatformError as error:
                log.warning("discord.catch_up_retried", channel_ref=channel_ref, error=type(error).__name__)
                wait = error.retry_after if isinstance(error, RateLimited) else delay
            await asyncio.sleep(wait)
        raise AssertionError("a backoff never ends")

    async def _settle(self, items: Sequence[StoredItem]) -> None:
        """Store events in order, the cursors with them."""
        newest: dict[str, int] = {}
        received: list[ReceivedEvent] = []
        for item in items:
            if not isinstance(item, MessageEvent):
                received.append(ReceivedEvent(item.event if isinstance(item, ChangeEvent) else item))
                continue
            # Two messages of one moment may arrive in the other order: the cursor never moves back, the event counts.
            ref = item.channel_ref
            seen = newest[ref] = max(item.message_id, newest.get(ref, 0), self._cursors.get(ref, 0))
            cursor = Cursor(platform=PLATFORM, account=PLATFORM, channel_ref=ref, seen_ref=str(seen))
            received.append(ReceivedEvent(item.event, cursor))
        while received:
            stored = received[: await self._store(received)]
            for one in stored:
                if one.event is not None:
                    self._unstored.pop(one.event.event_ref, None)
                if one.cursor is not None:
                    self._cursors[one.cursor.channel_ref] = int(one.cursor.seen_ref)
            del received[: len(stored)]

    async def _store(self, received: Sequence[ReceivedEvent]) -> int:
        """Store the first events, tried until it is done; returns how many."""
        if (event := received[0].event) is not None:
            self._unstored.pop(event.event_ref, None)
        timer = asyncio.get_running_loop().call_later(LISTEN_SECONDS, self._start_listening)
        try:
            for delay in self._backoff:
                try:
                    count = await self._intake.accept_batch(received)
                    self._is_held_up = False
                    return count
                except StoreUnavailable as error:
                    log.warning("discord.event_retried", detail=str(error), retry_seconds=delay)
                self._start_listening()
                await asyncio.sleep(delay)
        finally:
            timer.cancel()
        raise AssertionError("a backoff never ends")

    async def _load_cursors(self) -> None:
        for delay in self._backoff:
            try:
                stored = await self._intake.load_cursors(PLATFORM, PLATFORM)
            except StoreUnavailable as error:
                log.warning("discord.cursors_retried", detail=str(error), retry_seconds=delay)
                await asyncio.sleep(delay)
            else:
                self._cursors = {channel_ref: int(seen) for channel_ref, seen in stored.items()}
                return
