"""Event queue, which stores Discord's events in order for each channel.

Discord has no acknowledgements, so the gateway stores a cursor for each channel, which never skips a message. After a
reconnect that did not resume the session, the messages after the cursor are fetched first. Fetched and live copies
of a message have the same `event_ref`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import msgspec
import structlog

from hermes_state.aio import retried
from hermes_state.errors import ChatUnreachable, MessageRejected, PlatformError, StoreUnavailable
from hermes_state.values import Clock, Cursor, InboundEvent, InboundMessage, Millis
from platforms.base import Intake, ReceivedEvent
from platforms.discord.inbound import PLATFORM, snowflake_at
from platforms.settings import DiscordSettings

PARALLEL_FETCHES = 4
SKEW_MS = 60_000
"""Maximum expected difference between this machine's clock and Discord's, in milliseconds."""
LISTEN_SECONDS = 0.5
"""Seconds to wait for an event to be stored before the queue looks for a `/stop` among later events."""

log = structlog.get_logger(__name__)


class ConnectedEvent(msgspec.Struct, frozen=True):
    """Start of a session that does not resume an earlier session, so messages may have been missed."""


class ChannelsEvent(msgspec.Struct, frozen=True):
    """Channels that the bot can see, each with the id of its newest message."""

    newest: Mapping[str, int]


class MessageEvent(msgspec.Struct, frozen=True):
    """A message (live or from the history), an edit, a deletion or a reaction, stored in order within its channel."""

    channel_ref: str
    message_id: int
    """Id of the message, which becomes the new cursor; 0 for an edit, deletion or reaction."""
    event: InboundEvent | None
    """The gateway's event, or None for a message that the gateway ignores."""


StoredItem: TypeAlias = MessageEvent | InboundMessage
Item: TypeAlias = ConnectedEvent | ChannelsEvent | StoredItem
"""Item of the queue. An `InboundMessage` is a command or a pressed button, which is never in the history."""
FetchHistory: TypeAlias = Callable[[str, int, int | None], Awaitable[Sequence[MessageEvent]]]
"""Function that fetches the messages of a channel after one id and before another. See `HistoryReader.fetch`."""


class _CatchUpState(msgspec.Struct):
    seen: int
    until: int | None
    is_open: bool = True
    """True while missed messages, which are older than the live events in `waiting`, must still be fetched."""
    waiting: list[MessageEvent] = msgspec.field(default_factory=list)


class PrioritySemaphore:
    """Semaphore that admits urgent waiters first, and the others in order of arrival."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: OrderedDict[str, asyncio.Future[None]] = OrderedDict()

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Hold the semaphore within the block. Each `name` must have at most one waiter."""
        if self._free:
            self._free -= 1
        else:
            slot = self._waiting[name] = asyncio.get_running_loop().create_future()
            try:
                await slot
            except asyncio.CancelledError:
                self._waiting.pop(name, None)
                if not slot.cancelled():  # the slot was already granted
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def prioritize(self, name: str) -> None:
        if name in self._waiting:
            self._waiting.move_to_end(name, last=False)

    def _pass_on(self) -> None:
        while self._waiting:
            _, slot = self._waiting.popitem(last=False)
            if not slot.done():  # a cancelled waiter might not have removed itself yet
                slot.set_result(None)
                return
        self._free += 1


class EventQueue:
    """Queue of events on their way to the intake. `put` never waits; `run` is the worker."""

    def __init__(self, intake: Intake, settings: DiscordSettings, *, clock: Clock, began: int = 0) -> None:
        """Create a queue. `began`: time in ms of the first connection to the account; 0 if this is the first."""
        self._began = began
        self._intake = intake
        self._account = settings.account
        self._backoff = settings.backoff
        self._clock = clock
        self._queue: asyncio.Queue[Item] = asyncio.Queue(settings.queue_size)
        self._fetches = PrioritySemaphore(PARALLEL_FETCHES)
        self._cursors: dict[str, int] = {}
        self._gaps: dict[str, _CatchUpState] = {}
        self._complete: set[str] = set()
        """Channels whose history is complete for this connection."""
        self._high_water = 0
        """Newest message id stored for any channel; if there is none, `began` as an id. Ids are ordered by time."""
        self._connected_at = Millis(0)
        self._unstored: dict[str, InboundMessage] = {}
        """Events that are still waiting to be stored, by `event_ref`. They might include a `/stop`."""
        self._is_held_up = False
        """True while events cannot be stored because the database is slow or unavailable."""
        self._may_listen = asyncio.Event()
        self.overflowed = asyncio.Event()
        """Set when an event was dropped. Later events are dropped too, so that no cursor skips the missing event."""

    def put(self, item: Item) -> None:
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

    async def run(self, fetch: FetchHistory) -> None:
        """Store events until cancelled. An event that the database cannot store is retried, never skipped."""
        load = partial(self._intake.load_cursors, PLATFORM, self._account)
        stored = await retried(load, StoreUnavailable, "discord.cursors_retried", backoff=self._backoff)
        self._cursors = {channel_ref: int(seen) for channel_ref, seen in stored.items()}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="discord listener")
            while True:
                arrived = [await self._queue.get()]
                while len(arrived) < 100 and not self._queue.empty():
                    arrived.append(self._queue.get_nowait())
                await self._take(arrived, fetch, tasks)

    async def _listen(self) -> None:
        """Let the intake look for `/stop` among the waiting events while the database cannot store them."""
        while True:
            await self._may_listen.wait()
            self._may_listen.clear()
            while self._is_held_up and self._unstored:
                await self._intake.overhear(self._unstored.pop(next(iter(self._unstored))))

    def _start_listening(self) -> None:
        self._is_held_up = True
        self._may_listen.set()

    async def _take(self, items: Sequence[Item], fetch: FetchHistory, tasks: asyncio.TaskGroup) -> None:
        """Store events that arrived together, except those whose channel's history must be stored first."""
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
                case MessageEvent():
                    self._catch_up(item.channel_ref, fetch, tasks, item.message_id)
                    if gap := self._gaps.get(item.channel_ref):
                        gap.waiting.append(item)
                        self._fetches.prioritize(item.channel_ref)  # a thousand other channels can be waiting
                        if len(gap.waiting) > self._queue.maxsize:  # the history could not be read for a long time
                            self.overflowed.set()
                    else:
                        batch.append(item)
        await self._settle(batch)

    def _begin(self, fetch: FetchHistory, tasks: asyncio.TaskGroup) -> None:
        self._high_water = max(self._cursors.values(), default=snowflake_at(Millis(self._began)) if self._began else 0)
        self._connected_at = self._clock.now()
        self._complete.clear()
        for gap in self._gaps.values():
            gap.is_open, gap.until = True, None
        for channel_ref in self._cursors:
            self._catch_up(channel_ref, fetch, tasks)

    def _catch_up(self, channel_ref: str, fetch: FetchHistory, tasks: asyncio.TaskGroup, latest: int = 0) -> None:
        """Fetch the missed messages of a channel, once per connection.

        For a channel without a cursor, fetch the messages between the newest known message of any channel and
        the start of this connection. The message `latest` shows how far this machine's clock is behind
        Discord's. Discord does not list direct chats of bots, so a chat that was opened during an outage is
        noticed at its next message. Source: https://github.com/discord/discord-api-docs/issues/184
        """
        if channel_ref in self._complete or channel_ref in self._gaps:
            return
        seen = self._cursors.get(channel_ref)
        if seen is not None:
            gap = _CatchUpState(seen, None)
        elif self._high_water:
            behind = max(0, latest - snowflake_at(self._clock.now()))  # positive if `latest` is in our future
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
                gap.is_open = False  # set before the fetch, because a reconnect during the fetch sets it to True
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

        async def fetched() -> Sequence[MessageEvent]:
            async with self._fetches.hold(channel_ref):
                return await fetch(channel_ref, seen, gap.until)

        final = (ChatUnreachable, MessageRejected)  # retrying would change nothing
        event = "discord.catch_up_retried"
        try:
            return await retried(
                fetched, PlatformError, event, unless=final, backoff=self._backoff, channel_ref=channel_ref
            )
        except final as error:
            log.warning("discord.channel_skipped", channel_ref=channel_ref, reason=str(error))
            return ()

    async def _settle(self, items: Sequence[StoredItem]) -> None:
        """Store events in order, with their cursors."""
        newest: dict[str, int] = {}
        received: list[ReceivedEvent] = []
        for item in items:
            if isinstance(item, InboundMessage) or not item.message_id:
                received.append(ReceivedEvent(item if isinstance(item, InboundMessage) else item.event))
                continue
            # Messages may arrive out of order. The cursor never moves back, but the event is stored.
            ref = item.channel_ref
            seen = newest[ref] = max(item.message_id, newest.get(ref, 0), self._cursors.get(ref, 0))
            cursor = Cursor(platform=PLATFORM, account=self._account, channel_ref=ref, seen_ref=str(seen))
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
        """Store at least the first event, retrying until this succeeds. Return the number of stored events."""
        if (event := received[0].event) is not None:
            self._unstored.pop(event.event_ref, None)

        async def stored() -> int:
            try:
                count = await self._intake.accept_batch(received)
            except StoreUnavailable:
                self._start_listening()
                raise
            self._is_held_up = False
            return count

        timer = asyncio.get_running_loop().call_later(LISTEN_SECONDS, self._start_listening)
        try:
            return await retried(stored, StoreUnavailable, "discord.event_retried", backoff=self._backoff)
        finally:
            timer.cancel()
