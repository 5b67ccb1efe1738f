"""The event queue under random failures: every channel is stored completely and in order."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hermes_state.aio import Backoff
from hermes_state.errors import PlatformUnavailable
from hermes_state.values import ChatKey, ChatKind, InboundMessage, Millis, Sender
from platforms.discord import event_queue
from platforms.discord.event_queue import (
    PARALLEL_FETCHES,
    ChannelsEvent,
    ConnectedEvent,
    EventQueue,
    FetchHistory,
    MessageEvent,
)
from platforms.discord.inbound import millis_of, snowflake_at
from platforms.settings import DiscordSettings
from tests.clocks import SetClock
from tests.platforms.contract import RecordingIntake, eventually

SETTINGS = DiscordSettings(backoff=Backoff(0.01, 0.05))
START = Millis(1_700_000_000_000)
CHANNELS = ("1", "2", "3")


class Weather:
    """A Discord in memory: channels with histories, an unreliable connection, and a slow history."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.clock = SetClock(START)
        self.intake = RecordingIntake()
        self.events = EventQueue(self.intake, SETTINGS, clock=self.clock)
        self.channels: dict[str, list[MessageEvent]] = {channel: [] for channel in CHANNELS}
        self.is_online = False

    async def fetch(self, channel_ref: str, seen: int, until: int | None) -> Sequence[MessageEvent]:
        await self.pause(60)
        if self.dice.random() < 0.05:
            raise PlatformUnavailable("rain")
        rows = [row for row in self.channels[channel_ref] if row.message_id > seen]
        found = [row for row in rows if until is None or row.message_id < until]
        await self.pause(60)
        return found

    async def pause(self, most: int = 3) -> None:
        for _ in range(self.dice.randrange(most)):
            await asyncio.sleep(0)

    def write(self, channel_ref: str) -> None:
        self.clock.at = Millis(self.clock.at + self.dice.randrange(1, 200_000))
        message_id = snowflake_at(self.clock.now())
        row = MessageEvent(
            channel_ref, message_id, _event(channel_ref, message_id) if self.dice.random() < 0.8 else None
        )
        self.channels[channel_ref].append(row)
        if self.is_online:
            self.events.put(row)

    def connect(self) -> None:
        self.clock.at = Millis(self.clock.at + 1)
        self.is_online = True
        self.events.put(ConnectedEvent())


@pytest.fixture
def events(intake: RecordingIntake) -> EventQueue:
    """A queue whose session has started."""
    queue = EventQueue(intake, SETTINGS, clock=SetClock(START))
    queue.put(ConnectedEvent())
    return queue


def _event(channel_ref: str, message_id: int) -> InboundMessage:
    return InboundMessage(
        event_ref=f"9:{message_id}",
        chat=ChatKey(platform="discord", account="discord", chat_ref=channel_ref),
        chat_kind=ChatKind.DIRECT,
        sender=Sender(platform="discord", id="7", name="Ada"),
        text="hello",
        message_ref=str(message_id),
        sent_at=millis_of(message_id),
        is_addressed=True,
    )


async def _play(seed: int) -> Weather:
    weather = Weather(random.Random(seed))
    weather.connect()
    for channel in CHANNELS:  # every channel is known from the start, so a first message is live
        weather.write(channel)
    worker = asyncio.create_task(weather.events.run(weather.fetch))
    for _ in range(weather.dice.randrange(5, 60)):
        match weather.dice.randrange(10):
            case 0 | 1:
                weather.is_online = False
            case 2:
                weather.connect()
            case _:
                weather.write(weather.dice.choice(CHANNELS))
        await weather.pause()
    weather.connect()
    wanted = {row.event.event_ref for rows in weather.channels.values() for row in rows if row.event is not None}
    newest = {channel: str(rows[-1].message_id) for channel, rows in weather.channels.items()}
    await eventually(
        lambda: len(weather.intake.events) >= len(wanted) and weather.intake.cursors == newest, "all is stored"
    )
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    return weather


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_every_channel_is_stored_whole_and_in_order(seed: int) -> None:
    weather = asyncio.run(_play(seed))
    for channel, rows in weather.channels.items():
        stored = [event.event_ref for event in weather.intake.messages if event.chat.chat_ref == channel]
        assert stored == [row.event.event_ref for row in rows if row.event is not None]


async def test_the_cursor_never_moves_back(intake: RecordingIntake, events: EventQueue) -> None:
    later, earlier = snowflake_at(Millis(START + 1)), snowflake_at(START)
    events.put(MessageEvent("1", later, _event("1", later)))
    events.put(MessageEvent("1", earlier, _event("1", earlier)))
    async with _working(events):
        await intake.wait_for(2)
    assert [message.message_ref for message in intake.messages] == [str(later), str(earlier)]
    assert intake.cursors["1"] == str(later)


@pytest.mark.parametrize("batch_length", [1, 4, 100])
async def test_a_burst_reaches_the_intake_together_and_in_order(
    intake: RecordingIntake, events: EventQueue, batch_length: int
) -> None:
    intake.batch_length = batch_length
    burst = [_arrived(CHANNELS[number % 3], number) for number in range(20)]
    for message in burst:
        events.put(message)
    async with _working(events):
        await intake.wait_for(20)
    assert intake.batches == list(range(20, 0, -batch_length))
    assert intake.messages == [message.event for message in burst]
    assert intake.cursors == {message.channel_ref: str(message.message_id) for message in burst}


async def test_missed_messages_reach_the_intake_together() -> None:
    intake = RecordingIntake()
    intake.cursors = {"1": str(snowflake_at(Millis(START - 1)))}
    weather = Weather(random.Random(1))
    weather.channels["1"] = [_arrived("1", number) for number in range(50)]
    weather.dice.random = lambda: 0.9  # type: ignore[method-assign]
    events = EventQueue(intake, SETTINGS, clock=weather.clock)
    events.put(ConnectedEvent())
    async with _working(events, weather.fetch):
        await intake.wait_for(50)
    assert intake.batches == [50]


async def test_the_cursor_stops_before_an_unstored_message_and_later_ones_wait(
    intake: RecordingIntake, events: EventQueue
) -> None:
    intake.batch_length, intake.capacity = 4, 8
    burst = [_arrived("1", number) for number in range(11)]
    for message in burst:
        events.put(message)
    async with _working(events):
        await eventually(lambda: len(intake.overheard) == 2, "what waits behind it is heard")
        assert intake.cursors == {"1": str(burst[7].message_id)}
        intake.capacity = 11
        await intake.wait_for(11)
    assert intake.messages == [message.event for message in burst]
    assert intake.overheard == [message.event for message in burst[9:]]


# ---- events that must wait ---------------------------------------------------------------------------------


def _arrived(channel_ref: str, number: int) -> MessageEvent:
    message_id = snowflake_at(Millis(START + number))
    return MessageEvent(channel_ref, message_id, _event(channel_ref, message_id))


@pytest.mark.parametrize("behind_ms", [0, 86_400_000], ids=["right", "a day behind"])
async def test_a_new_channel_is_caught_up_with_a_wrong_clock(behind_ms: int) -> None:
    intake, clock = RecordingIntake(), SetClock(START)
    intake.cursors = {"1": str(snowflake_at(Millis(START - 7_200_000)))}
    clock.at = Millis(START - behind_ms)
    weather = Weather(random.Random(1))
    missed = _arrived("2", -3_600_000)
    weather.channels["2"].append(missed)
    events = EventQueue(intake, SETTINGS, clock=clock)
    events.put(ConnectedEvent())
    events.put(ChannelsEvent({"2": missed.message_id}))
    async with _working(events, weather.fetch):
        await intake.wait_for(1)
    assert intake.messages == [missed.event]


@contextlib.asynccontextmanager
async def _working(events: EventQueue, fetch: FetchHistory | None = None) -> AsyncIterator[None]:
    worker = asyncio.create_task(events.run(fetch or Weather(random.Random(1)).fetch))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        assert worker.cancelled(), "nothing else happened on the way out"


async def test_events_behind_an_unstorable_event_are_overheard(intake: RecordingIntake, events: EventQueue) -> None:
    stuck, queued, later = (_arrived(channel, number) for number, channel in enumerate(CHANNELS))
    pressed = replace(_event("1", 9), event_ref="9:interaction:1", text="/stop")
    intake.gate.clear()
    events.put(stuck)
    events.put(queued)  # before the queue knows that the database is stuck
    async with _working(events):
        await eventually(lambda: queued.event in intake.overheard, "what was queued is heard")
        events.put(later)
        events.put(pressed)
        await eventually(lambda: len(intake.overheard) == 3, "what comes later is heard")
        assert (intake.overheard, intake.events) == ([queued.event, later.event, pressed], [])
        intake.gate.set()
        await intake.wait_for(4)
    assert intake.messages == [stuck.event, queued.event, later.event, pressed], "and stored when its turn comes"


async def test_events_that_wait_for_history_are_overheard_only_while_the_database_fails(
    intake: RecordingIntake, events: EventQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "LISTEN_SECONDS", 0.05)

    async def fetch_for_ever(channel_ref: str, seen: int, until: int | None) -> Sequence[MessageEvent]:
        await asyncio.Event().wait()
        return ()

    intake.cursors["1"] = "1"
    live = _arrived("1", 1)
    pressed = replace(_event("2", 9), event_ref="9:interaction:1", text="/status")
    events.put(live)
    events.put(pressed)
    async with _working(events, fetch_for_ever):
        await intake.wait_for(1)
        await asyncio.sleep(0.2)  # four times the limit for the database
        assert intake.overheard == []
        intake.gate.clear()
        events.put(replace(pressed, event_ref="9:interaction:2"))
        await eventually(lambda: intake.overheard == [live.event], "the live message is heard")
    assert intake.messages == [pressed]


async def test_events_behind_a_refused_event_are_overheard_at_once(intake: RecordingIntake, events: EventQueue) -> None:
    intake.refusals = 4
    refused, behind = _arrived("1", 1), _arrived("1", 2)
    events.put(refused)
    events.put(behind)
    async with _working(events):
        await intake.wait_for(2)
    assert intake.overheard == [behind.event]


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_channel_with_waiting_messages_is_caught_up_first(
    intake: RecordingIntake, events: EventQueue, is_cut: bool
) -> None:
    class Gated:
        def __init__(self) -> None:
            self.asked: list[str] = []
            self.places = asyncio.Semaphore(0)

        async def fetch(self, channel_ref: str, seen: int, until: int | None) -> Sequence[MessageEvent]:
            self.asked.append(channel_ref)
            await self.places.acquire()
            return ()

    history = Gated()
    channels = [str(number) for number in range(100)]
    intake.cursors = dict.fromkeys(channels, "1")
    async with _working(events, history.fetch):
        await eventually(lambda: len(history.asked) == PARALLEL_FETCHES, "the first channels are looked into")
        events.put(_arrived("77", 1))
        events.put(_arrived("99", 2))
        events.put(replace(_event("1", 9), event_ref="9:interaction:1", text="/status"))
        await intake.wait_for(1)  # a command does not wait for history, and earlier events have been handled
        history.places.release()
        history.places.release()
        await eventually(lambda: len(history.asked) == PARALLEL_FETCHES + 2, "two more")
        assert set(history.asked[-2:]) == {"77", "99"}
        if is_cut:
            return
        for _ in channels:
            history.places.release()
        await intake.wait_for(3)
        await eventually(lambda: len(history.asked) == len(channels), "every channel is looked into")
    assert sorted(history.asked) == sorted(channels)


async def test_events_stored_at_once_are_not_overheard(
    intake: RecordingIntake, events: EventQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_queue, "LISTEN_SECONDS", 0.05)
    async with _working(events):
        events.put(_arrived("1", 1))
        await intake.wait_for(1)
        intake.gate.clear()
        events.put(_arrived("1", 2))
        events.put(_arrived("1", 3))
        await eventually(lambda: bool(intake.overheard), "the last one is heard")
    assert [event.event_ref for event in intake.overheard] == [f"9:{snowflake_at(Millis(START + 3))}"]
