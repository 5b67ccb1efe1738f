"""The inlet under random weather: whatever is lost, live or late, each channel is stored whole and in order."""

import asyncio
import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_state.errors import PlatformUnavailable
from hermes_state.values import ChatKey, ChatKind, InboundMessage, Millis, Sender
from platforms.discord.inbound import millis_of, snowflake_at
from platforms.discord.inlet import Arrived, Connected, Inlet
from tests.platforms.contract import RecordingIntake, eventually

START = Millis(1_700_000_000_000)
CHANNELS = ("1", "2", "3")


class StepClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> Millis:
        return self.time


class Weather:
    """A Discord in memory: channels with histories, a connection that comes and goes, a history that is slow."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.clock = StepClock()
        self.intake = RecordingIntake()
        self.inlet = Inlet(self.intake, account="discord", clock=self.clock)
        self.channels: dict[str, list[Arrived]] = {channel: [] for channel in CHANNELS}
        self.is_online = False

    async def fetch(self, channel_ref: str, seen: int, until: int | None) -> Sequence[Arrived]:
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
        self.clock.time = Millis(self.clock.time + self.dice.randrange(1, 200_000))
        message_id = snowflake_at(self.clock.time)
        row = Arrived(channel_ref, message_id, _event(channel_ref, message_id) if self.dice.random() < 0.8 else None)
        self.channels[channel_ref].append(row)
        if self.is_online:
            self.inlet.put(row)

    def connect(self) -> None:
        self.clock.time = Millis(self.clock.time + 1)
        self.is_online = True
        self.inlet.put(Connected())


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
    for channel in CHANNELS:  # every channel is known from the start: a first message is live
        weather.write(channel)
    worker = asyncio.create_task(weather.inlet.run(weather))
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


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_channel_is_stored_whole_and_in_order(seed: int) -> None:
    weather = asyncio.run(_play(seed))
    for channel, rows in weather.channels.items():
        stored = [event.event_ref for event in weather.intake.messages if event.chat.chat_ref == channel]
        assert stored == [row.event.event_ref for row in rows if row.event is not None]


async def test_the_cursor_never_moves_back() -> None:
    intake = RecordingIntake()
    inlet = Inlet(intake, account="discord", clock=StepClock())
    later, earlier = snowflake_at(Millis(START + 1)), snowflake_at(START)
    inlet.put(Connected())
    inlet.put(Arrived("1", later, _event("1", later)))
    inlet.put(Arrived("1", earlier, _event("1", earlier)))
    worker = asyncio.create_task(inlet.run(Weather(random.Random(1))))
    await intake.wait_for(2)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert [message.message_ref for message in intake.messages] == [str(later), str(earlier)]
    assert intake.cursors["1"] == str(later)
