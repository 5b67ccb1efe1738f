"""Schedules under clock changes: no message is lost, and none is sent twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from sqlite3 import Connection
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.wire import WireStyle, chat_messages
from agent.tools.schedules.times import next_occurrence
from gateway.inbound.intake import MAX_WAITING
from gateway.schedules import MISSED_NOTE, firing_plan
from hermes_state.chats import ensure_chat
from hermes_state.store.writer import Store
from hermes_state.tools import schedules
from hermes_state.tools.schedules import NewSchedule
from hermes_state.transcripts import SCHEDULED_NOTE
from hermes_state.values import ChatId, ChatKind, Millis
from tests.clocks import SetClock
from tests.gateway.helpers import ANN, BOB, BOSS, DIRECT, GROUP, Serve, TestGateway, config_of, hanging
from tests.hermes_state.rows import migrated
from tests.sampling import examples

BERLIN = {"time_zone": "Europe/Berlin"}
HOUR = 3_600_000
LATE = "is late"
AUTUMN = datetime(2026, 10, 24, 20, tzinfo=UTC)


class BerlinClock(SetClock):
    """Clock that stays at the set local time in Berlin."""

    def set(self, local: str) -> None:
        at = datetime.fromisoformat(local).replace(tzinfo=ZoneInfo("Europe/Berlin"))
        self.at = round(at.timestamp() * 1000)


@pytest.fixture
def clock() -> BerlinClock:
    clock = BerlinClock()
    clock.set("2026-11-23T07:30")
    return clock


@pytest.fixture
async def gateway(serve: Serve, clock: BerlinClock) -> AsyncIterator[TestGateway]:
    async with serve(clock=clock, agent=BERLIN) as running:
        yield running


async def store_is_due(gateway: TestGateway, clock: BerlinClock) -> bool:
    due = await gateway.store.read(schedules.next_due, clock.now())
    return due is not None and due <= clock.now()


async def looked(gateway: TestGateway, clock: BerlinClock, local: str, *, hours: int = 0) -> list[str]:
    """Set the clock, run the timer, and return the local times that have fired so far, in order."""
    clock.set(local)
    clock.at += hours * HOUR
    gateway.rescheduled.wake()
    async with asyncio.timeout(5):
        while await store_is_due(gateway, clock):  # noqa: ASYNC110 - rows have no event
            await asyncio.sleep(0.002)
    await gateway.quiet()
    rows = await gateway.rows("SELECT event_ref FROM inbox WHERE event_ref LIKE 'schedule:%' ORDER BY id")
    return [ref.split(":", 2)[2] for (ref,) in rows]


async def all_waiting(gateway: TestGateway, clock: BerlinClock, local: str) -> int:
    """Set the clock, run the timer during a hanging turn, and return the number of waiting rows."""
    clock.set(local)
    gateway.rescheduled.wake()
    done = f"SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM schedules WHERE next_at <= {clock.now()})"
    await gateway.until_rows(done)
    return len(await gateway.rows("SELECT id FROM inbox WHERE state = 'new'"))


def last_text(gateway: TestGateway) -> str:
    """Return the text of the model's last prompt."""
    text: str = chat_messages("", gateway.model.requests[-1].transcript, WireStyle())[-1]["content"]
    return text


async def test_a_schedule_fires_as_a_turn_and_repeats(gateway: TestGateway, clock: BerlinClock) -> None:
    clock.set("2026-11-23T07:00")
    said = await gateway.ask("/schedule add 0 8 * * mon-fri what is new?")
    times = "Mon 2026-11-23 08:00, Tue 2026-11-24 08:00, Wed 2026-11-25 08:00 (Europe/Berlin)"
    assert said == f"Schedule 1 is set; next: {times}."
    assert await looked(gateway, clock, "2026-11-23T07:59:59") == []
    assert await looked(gateway, clock, "2026-11-23T08:00") == ["2026-11-23T08:00"]
    assert gateway.adapter.texts()[-1] == "echo: what is new?"
    assert SCHEDULED_NOTE in last_text(gateway)
    assert LATE not in last_text(gateway)
    assert (await gateway.ask("/schedule")).endswith("next Tue 2026-11-24 08:00, by Ann: what is new?")


async def test_a_schedule_fires_once_at_both_dst_changes(gateway: TestGateway, clock: BerlinClock) -> None:
    clock.set("2026-03-28T12:00")
    await gateway.ask("/schedule add 30 2 * * * good night")
    assert await looked(gateway, clock, "2026-03-29T01:59") == []
    assert await looked(gateway, clock, "2026-03-29T03:29") == []
    spring = ["2026-03-29T02:30"]
    assert await looked(gateway, clock, "2026-03-29T03:30") == spring
    await gateway.ask("/schedule pause 1")
    clock.set("2026-10-24T12:00")
    await gateway.ask("/schedule resume 1")
    both = [*spring, "2026-10-25T02:30"]
    assert await looked(gateway, clock, "2026-10-25T02:30") == both
    assert await looked(gateway, clock, "2026-10-25T02:30", hours=1) == both, "02:30 again, an hour later"
    assert await looked(gateway, clock, "2026-10-26T02:29") == both
    assert await looked(gateway, clock, "2026-10-26T02:30") == [*both, "2026-10-26T02:30"]


async def test_missed_times_fire_once(serve: Serve, clock: BerlinClock) -> None:
    async with serve(clock=clock, agent=BERLIN) as gateway:
        await gateway.ask("/schedule add @hourly look")
        expected = ["2026-11-23T10:00"]
        assert await looked(gateway, clock, "2026-11-23T10:31") == expected
        assert f"it was due at 2026-11-23 10:00 (Europe/Berlin) and {LATE}" in last_text(gateway)
        assert MISSED_NOTE in last_text(gateway)
        assert await looked(gateway, clock, "2026-11-23T11:00") == [*expected, "2026-11-23T11:00"]
        assert LATE not in last_text(gateway)
        assert await looked(gateway, clock, "2026-11-23T13:01") == [*expected, "2026-11-23T11:00", "2026-11-23T13:00"]
        assert MISSED_NOTE in last_text(gateway)
        assert LATE not in last_text(gateway), "this one is on time"


async def test_a_one_time_message_is_sent_late(serve: Serve, clock: BerlinClock) -> None:
    async with serve(clock=clock, agent=BERLIN) as gateway:
        await gateway.ask("/schedule add 2026-11-23 08:00 take the cake out")
    clock.set("2026-11-25T00:00")
    async with serve(clock=clock, agent=BERLIN) as again:
        assert await looked(again, clock, "2026-11-25T00:00") == ["2026-11-23T08:00"]
        assert LATE in last_text(again)
        assert await again.rows("SELECT state, next_at FROM schedules") == [("done", None)]
        assert await again.ask("/schedule") == "No schedules are set."


async def test_a_clock_set_back_neither_repeats_nor_loses_a_message(gateway: TestGateway, clock: BerlinClock) -> None:
    await gateway.ask("/schedule add 0 8 * * * look")
    first = ["2026-11-23T08:00"]
    assert await looked(gateway, clock, "2026-11-23T08:00") == first
    assert await looked(gateway, clock, "2026-11-23T06:00") == first
    assert await looked(gateway, clock, "2026-11-23T08:00") == first
    assert await looked(gateway, clock, "2027-11-23T09:00") == [*first, "2027-11-23T08:00"], "a year ahead by error"
    assert len(await looked(gateway, clock, "2026-11-23T09:00")) == 2
    assert (await looked(gateway, clock, "2026-11-24T08:00"))[2:] == ["2026-11-24T08:00"], "not in a year"


async def test_a_schedule_pauses_when_its_creator_loses_access(gateway: TestGateway, clock: BerlinClock) -> None:
    await gateway.ask("/schedule add 0 8 * * * look")
    gateway.configure(config_of(agent=BERLIN, access={"allow": [BOB.ref], "admins": [BOSS.ref]}))
    assert await looked(gateway, clock, "2026-11-23T08:00") == []
    assert await looked(gateway, clock, "2026-11-24T08:00") == []
    told = [text for text in gateway.adapter.texts() if "no longer has access" in text]
    assert told == [
        "Schedule 1 is paused because Ann, who added it, no longer has access. To remove it, send `/schedule remove 1`."
    ]
    refused = await gateway.ask("/schedule resume 1", sender=BOSS)
    assert refused == "Ann, who added schedule 1, no longer has access. Add it again."
    assert await gateway.ask("/schedule remove 1", sender=BOSS) == "Schedule 1 is removed."


async def test_an_unknown_time_zone_pauses_the_schedule(gateway: TestGateway, clock: BerlinClock) -> None:
    await gateway.ask("/schedule add 0 8 * * * look")
    await gateway.store.write(lambda db: db.execute("UPDATE schedules SET zone = 'Europe/Atlantis'"))
    assert await looked(gateway, clock, "2026-11-23T08:00") == []
    assert "time zone Europe/Atlantis" in gateway.adapter.texts()[-1]


def _schedule(number: int) -> NewSchedule:
    return NewSchedule(
        chat_id=ChatId(1),
        creator_ref=ANN.ref,
        creator_name=ANN.name,
        spec="0 8 * * *",
        zone="Europe/Berlin",
        text=f"number {number}",
        next_at=Millis(1_000 + number),
        created_at=Millis(1),
    )


async def test_schedules_survive_new_and_follow_a_moved_chat(gateway: TestGateway, clock: BerlinClock) -> None:
    await gateway.ask("/schedule add 0 8 * * * look", chat=GROUP, sender=BOSS)
    await gateway.ask("/new", chat=GROUP, sender=BOSS)
    moved = replace(GROUP, chat_ref="-200")
    await gateway.intake.move_chat(GROUP.platform, GROUP.account, GROUP.chat_ref, moved.chat_ref)
    await looked(gateway, clock, "2026-11-23T08:00")
    assert await gateway.replies(1, moved) == ["echo: look"]
    await gateway.store.write(lambda db: db.execute("DELETE FROM chats WHERE chat_ref = '-200'"))
    assert await gateway.rows("SELECT * FROM schedules") == []


async def test_schedules_move_when_a_chat_joins_another(gateway: TestGateway, clock: BerlinClock) -> None:
    await gateway.ask("/schedule add 0 8 * * * look", chat=GROUP, sender=BOSS)
    moved = replace(GROUP, chat_ref="-200")
    await gateway.ask("hello", chat=moved)
    await gateway.intake.move_chat(GROUP.platform, GROUP.account, GROUP.chat_ref, moved.chat_ref)
    await looked(gateway, clock, "2026-11-23T08:00")
    assert await gateway.replies(2, moved) == ["echo: hello", "echo: look"]


async def test_a_scheduled_message_waits_for_a_running_turn(serve: Serve, clock: BerlinClock) -> None:
    async with serve(clock=clock, agent=BERLIN, sessions={"busy_mode": "interrupt"}) as gateway:
        await gateway.ask("/schedule add 0 8 * * * look")
        hang = await hanging(gateway)
        await all_waiting(gateway, clock, "2026-11-23T08:00")
        await gateway.say("and this")
        hang.release()
        await gateway.quiet()
        assert [turn for _, turn in await gateway.turns_of()][1:] == ["look", "and this"]


SPECS = st.sampled_from(
    ["30 2 * * *", "*/15 1-3 * * *", "0 0 * * mon", "@hourly", "45 1,2 25-31 3,10 *", "0 3 * * sun"]
)
ZONES = st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/New_York", "America/Nuuk"])
STARTS = st.sampled_from([datetime(2026, 3, 6, tzinfo=UTC), datetime(2026, 3, 27, 7, 7, tzinfo=UTC), AUTUMN])
JUMPS = st.lists(st.tuples(st.integers(-40 * 60, 40 * 60), st.integers(0, 50 * 60)), min_size=1, max_size=6)
"""Minutes by which the clock is changed, and minutes that pass afterwards."""


@contextmanager
def _scheduled(spec: str, zone: str, now: Millis) -> Iterator[Connection]:
    """Create a database with one schedule."""
    first = next_occurrence(spec, zone, now)
    assert first is not None
    with migrated() as db:
        chat = ensure_chat(db, DIRECT, ChatKind.DIRECT, None, now)
        new = msgspec.structs.replace(_schedule(1), chat_id=chat, spec=spec, zone=zone, next_at=first.at)
        schedules.insert_schedule(db, new)
        yield db


def _run(db: Connection, now: Millis, until: Millis) -> None:
    """Run the timer while the clock advances."""
    while (due := schedules.next_due(db, now)) is not None and due <= until:
        now = max(now, due)
        schedules.fire_due(db, lambda row, now=now: firing_plan(row, now), now)
        db.execute("UPDATE inbox SET state = 'done', settled_at = 1, payload = ''")  # answered


def _keys(db: Connection) -> list[str]:
    return [ref.split(":", 2)[2] for (ref,) in db.execute("SELECT event_ref FROM inbox ORDER BY id")]


def _due_between(spec: str, zone: str, after: Millis, until: Millis) -> list[str]:
    found: list[str] = []
    while (one := next_occurrence(spec, zone, after)) is not None and one.at <= until:
        found.append(one.key)
        after = one.at
    return found


def test_many_due_schedules_fire_in_several_transactions() -> None:
    with _scheduled("@hourly", "UTC", Millis(0)) as db:
        count = 2 * schedules.MAX_FIRED
        for number in range(count):
            schedules.insert_schedule(db, _schedule(number))
        now, steps = Millis(HOUR), 0
        while (due := schedules.next_due(db, now)) is not None and due <= now:
            schedules.fire_due(db, lambda row: firing_plan(row, now), now)
            steps += 1
        assert (steps, db.execute("SELECT count(*) FROM inbox").fetchall()) == (3, [(count + 1,)])


@given(spec=SPECS, zone=ZONES, start=STARTS, jumps=JUMPS)
@examples(40, 1_000)
def test_no_local_time_fires_twice_however_the_clock_changes(
    spec: str, zone: str, start: datetime, jumps: list[tuple[int, int]]
) -> None:
    now = newest = oldest = Millis(round(start.timestamp() * 1000))
    with _scheduled(spec, zone, now) as db:
        for jump, run in jumps:
            now = Millis(now + jump * 60_000)
            _run(db, now, Millis(now + run * 60_000))
            now = Millis(now + run * 60_000)
            newest, oldest = max(newest, now), min(oldest, now)
        came = _keys(db)
        assert len(set(came)) == len(came)
        assert set(came) <= set(_due_between(spec, zone, Millis(oldest - 48 * HOUR), newest))


@given(spec=SPECS, zone=ZONES, start=STARTS, jumps=JUMPS)
@examples(40, 1_000)
def test_every_local_time_fires_once_even_if_the_clock_is_set_back(
    spec: str, zone: str, start: datetime, jumps: list[tuple[int, int]]
) -> None:
    now = newest = begin = Millis(round(start.timestamp() * 1000))
    with _scheduled(spec, zone, now) as db:
        for jump, run in jumps:
            back = min(jump, 0) * 60_000
            now = Millis(now + back)
            _run(db, now, Millis(now + run * 60_000))
            now = Millis(now + run * 60_000)
            newest = max(newest, now)
        due = _due_between(spec, zone, begin, newest)
        assert sorted(key for key in _keys(db) if key >= min(due, default="")) == sorted(due)


async def test_no_second_message_is_queued_while_one_waits(gateway: TestGateway, clock: BerlinClock) -> None:
    await gateway.ask("/schedule add @hourly look")
    hang = await hanging(gateway)
    for local in ("2026-11-23T08:00", "2026-11-23T09:00", "2026-11-23T10:00"):
        assert await all_waiting(gateway, clock, local) == 1, "the chat would be busy with them for ever"
    hang.release()
    await gateway.quiet()
    assert await looked(gateway, clock, "2026-11-23T11:00") == ["2026-11-23T08:00", "2026-11-23T11:00"]


async def test_scheduled_messages_do_not_count_against_the_creators_queue(serve: Serve, clock: BerlinClock) -> None:
    async with serve(clock=clock, agent=BERLIN, sessions={"messages_per_minute": 0}) as gateway:
        for number in range(3):
            await gateway.ask(f"/schedule add @hourly look {number}")
        hang = await hanging(gateway)
        assert await all_waiting(gateway, clock, "2026-11-23T08:00") == 3
        for number in range(MAX_WAITING):
            await gateway.say(f"and {number}")
        assert await gateway.rows("SELECT count(*) FROM inbox WHERE state = 'dropped'") == [(0,)]
        hang.release()
        await gateway.quiet()


async def test_a_schedule_fires_even_if_the_timer_was_not_woken(
    serve: Serve, clock: BerlinClock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gateway.helpers.LOOK_SECONDS", 0.02)
    async with serve(clock=clock, agent=BERLIN) as gateway:
        await gateway.ask("hello")
        chat = (await gateway.rows("SELECT id FROM chats"))[0][0]
        # As by whoever is stopped between the commit and the word to the timer.
        await store.write(schedules.insert_schedule, msgspec.structs.replace(_schedule(1), chat_id=ChatId(chat)))
        await gateway.until_rows("SELECT 1 FROM inbox WHERE event_ref LIKE 'schedule:%'")


@pytest.mark.parametrize("damage", [("spec", "0 8 * * * *"), ("spec", "2026-"), ("zone", "Eur\0"), ("zone", "")])
async def test_a_damaged_schedule_is_paused_and_the_others_fire(
    gateway: TestGateway, clock: BerlinClock, damage: tuple[str, str]
) -> None:
    await gateway.ask("/schedule add 0 8 * * * look")
    await gateway.ask("/schedule add 0 8 * * * listen")
    column, value = damage
    await gateway.store.write(lambda db: db.execute(f"UPDATE schedules SET {column} = ? WHERE id = 1", (value,)))
    assert "listen" in await gateway.ask("/schedule")
    assert await looked(gateway, clock, "2026-11-23T08:00") == ["2026-11-23T08:00"]
    assert await gateway.rows("SELECT id, state FROM schedules ORDER BY id") == [(1, "paused"), (2, "active")]
    assert "Schedule 1 is paused" in "".join(gateway.adapter.texts())
    assert "crashed" not in await gateway.ask("/schedule resume 1")
    assert await gateway.ask("/schedule remove 1") == "Schedule 1 is removed."


@pytest.mark.parametrize("time_zone", ["America/Los_Angeles", "Etc/GMT+12"])
async def test_a_time_in_the_last_calendar_year_is_refused(serve: Serve, time_zone: str) -> None:
    async with serve(agent={"time_zone": time_zone}) as gateway:
        assert "is not a date" in await gateway.ask("/schedule add 9999-12-31 23:00 look")
        assert await gateway.ask("/schedule") == "No schedules are set."
