"""Messages that come back into a chat at a time: made with a yes, brought once, answered as a turn."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.protocols import prompt_of
from tests.e2e.test_approvals import delivered, question_on_discord
from tests.e2e.test_clock_jumps import run_on_turned_clock
from tests.e2e.test_discord import ALICE, ready, say, sent
from tests.e2e.world import World

PROGRAM = run_on_turned_clock
HOUR = 3_600 * 10**9
ZONE = {"HERMES_AGENT__TIME_ZONE": "Europe/Berlin"}
TEXT = "tell us the weather of the harbour"


def turn_clock(world: World, hours: float) -> None:
    """Set the gateway's clock so many hours ahead of the machine's."""
    path = world.home.parent / "offset"
    path.write_text(str(int(hours * HOUR)))


def at(hours: float) -> str:
    """A local time in so many hours, as the tool takes it."""
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M")


async def ask_for(world: World, **call: object) -> None:
    """Have the model call the tool for a schedule, as somebody asked it to."""
    await world.script_call("remind us", "schedule", action="add", text=TEXT, **call)


@pytest.mark.each_protocol
async def test_the_agent_makes_one_with_a_yes_and_it_comes_as_a_turn(world: World) -> None:
    await world.gateway.start(**ZONE)
    await ask_for(world, cron="0 */2 * * *")
    await world.say("remind us")
    [question] = await world.replies(1, match="May I use")
    assert TEXT in question
    assert len(re.findall(":00[,)]", question)) == 3, "the next three times"
    assert "(Europe/Berlin; next" in question
    assert world.query("SELECT count(*) FROM schedules") == [(0,)]
    await world.ask("/approve", "Schedule 1 is set")
    await world.gateway.stop()

    turn_clock(world, 2)
    await world.script(match="weather of the harbour", last_role="user", text="Sunny, as ever.", times=1)
    await world.gateway.start()
    assert await world.replies(1, match="Sunny, as ever")
    await delivered(world)
    last = prompt_of((await world.asked(3))[2])[-1]
    assert TEXT in last.text
    assert "[gateway notice] the message was scheduled earlier" in last.text
    assert world.query("SELECT purpose FROM model_calls ORDER BY id") == [("turn",), ("turn",), ("schedule",)]
    await world.gateway.kill()
    await world.gateway.start()
    await world.converse("and now?")
    assert len(await world.asked(0, wait=0)) == 4, "it came once"


async def test_on_discord_it_comes_as_a_turn(discord_world: World) -> None:
    world = discord_world
    await ready(world, HERMES_AGENT__TIME_ZONE="UTC")
    await ask_for(world, at=at(1))
    await say(world, "remind us")
    labels, press = await question_on_discord(world)
    assert list(labels) == ["Yes, once", "No"], "each is asked about anew"
    await world.dc.post("interaction", {**press, "custom_id": labels["Yes, once"], "dm_user_id": ALICE})
    assert await sent(world, 1, match="Schedule 1 is set")
    turn_clock(world, 1.1)  # while it runs
    await world.script(match="weather of the harbour", last_role="user", text="Sunny, as ever.", times=1)
    assert await sent(world, 1, match="Sunny, as ever")
    assert world.query("SELECT state, next_at FROM schedules") == [("done", None)]
    await say(world, "/schedule")
    assert await sent(world, 1, match="No schedules are set")


async def test_a_no_makes_none_and_neither_does_a_wrong_one_or_a_turn_that_a_schedule_began(world: World) -> None:
    await world.gateway.start(**ZONE)
    await ask_for(world, cron="0 25 * * *")
    await world.ask("remind us", "'25' is not a valid hour")
    await ask_for(world, cron="0 8 * * mon-fri")
    await world.ask("remind us", "May I use")
    await world.ask("/deny not so early", "not so early")
    assert world.query("SELECT count(*) FROM schedules") == [(0,)]

    await world.gateway.stop()
    await world.gateway.start(HERMES_TOOLS__APPROVAL__WRITES="allow")
    await world.ask("/schedule add @daily remind us of it", "Schedule 1 is set")
    await ask_for(world, cron="@hourly")
    await world.ask("/schedule run 1", "cannot add schedules")
    assert world.query("SELECT count(*) FROM schedules") == [(1,)]


async def test_whoever_lost_access_brings_nothing_and_the_chat_is_told_once(world: World) -> None:
    await world.gateway.start(**ZONE)
    await world.say("/schedule add @hourly " + TEXT)
    assert await world.replies(1, match="Schedule 1 is set")
    await world.gateway.stop()
    turn_clock(world, 3)
    await world.gateway.start(HERMES_ACCESS__ALLOW="telegram:43")
    assert await world.replies(1, match="no longer has access")
    await delivered(world)
    await world.gateway.kill()
    turn_clock(world, 6)
    await world.gateway.start()
    await world.say("hello", chat_id=43)
    assert await world.replies(1, chat_id=43)
    assert len(await world.replies(0, wait=0, match="no longer has access")) == 1
    assert world.query("SELECT state FROM schedules") == [("paused",)]
    assert world.query("SELECT count(*) FROM turns WHERE started_by = 'telegram:42'") == [(0,)]


def reach(status: str, chat_id: int = 42) -> dict[str, object]:
    """Telegram's update about a private chat in which the bot was blocked (`kicked`) or let in again (`member`)."""
    bot = {"id": 123456, "is_bot": True, "first_name": "lab"}
    person = {"id": chat_id, "is_bot": False, "first_name": "Ann"}
    members = {"old_chat_member": {"status": "member", "user": bot}, "new_chat_member": {"status": status, "user": bot}}
    if status == "kicked":
        members["new_chat_member"]["until_date"] = 0
    changed = {"chat": {"id": chat_id, "type": "private"}, "from": person, "date": 1_800_000_000, **members}
    return {"update": {"my_chat_member": changed}}


async def until_unreachable(world: World) -> None:
    await world.until_rows("SELECT count(*) FROM chats WHERE unreachable_since IS NOT NULL", (1,))


def scheduled_calls(world: World) -> int:
    [(count,)] = world.query("SELECT count(*) FROM model_calls WHERE purpose = 'schedule'")
    return int(count)


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "refused"])
async def test_schedules_of_a_chat_that_blocked_the_bot_wait_without_a_model_call(world: World, is_told: bool) -> None:
    await world.gateway.start(**ZONE)
    await world.say("/schedule add @hourly " + TEXT)
    assert await world.replies(1, match="Schedule 1 is set")
    await world.tg.post("chat", {"chat_id": 42, "blocked": "blocked"})
    if is_told:
        await world.tg.post("update", reach("kicked"))
        await until_unreachable(world)
    await world.gateway.stop()
    for hours in (3, 6):
        turn_clock(world, hours)
        await world.gateway.start()
        await until_unreachable(world)
        await world.say("hello", chat_id=43)
        assert await world.replies(1 if hours == 3 else 2, chat_id=43)
        assert scheduled_calls(world) == (0 if is_told else 1), "only the first finds out"
        _, shown = await world.command_line("doctor")
        assert "cannot write in telegram:42 (1 schedule)" in shown
        await world.gateway.stop()

    turn_clock(world, 7)
    await world.gateway.start()
    await world.tg.post("chat", {"chat_id": 42, "blocked": None})
    await world.tg.post("update", reach("member"))
    assert await world.replies(1, match="I can write here again, so 1 schedule in this chat continues")
    await world.replies(1, match="weather of the harbour")
    await delivered(world)
    assert scheduled_calls(world) == (1 if is_told else 2), "what was missed comes once"
    assert world.query("SELECT count(*) FROM chats WHERE unreachable_since IS NOT NULL") == [(0,)]


async def test_a_message_for_one_time_that_has_come_is_answered_when_the_chat_is_back(world: World) -> None:
    await world.gateway.start(HERMES_AGENT__TIME_ZONE="UTC", HERMES_SESSIONS__BUSY_MODE="queue")
    await world.ask(f"/schedule add {at(1)} {TEXT}", "Schedule 1 is set")
    await world.hold(match="a long story")
    await world.say("a long story")
    await world.asked(1)
    turn_clock(world, 1.1)  # its message waits behind that answer
    await world.until_rows("SELECT state FROM schedules", ("done",))
    await world.tg.post("update", reach("kicked"))
    await until_unreachable(world)
    await world.release()
    assert await world.replies(1, match="a long story")
    await delivered(world)
    assert scheduled_calls(world) == 0
    await world.tg.post("update", reach("member"))
    assert await world.replies(1, match="weather of the harbour")


async def test_schedules_of_a_discord_channel_go_on_when_somebody_writes_there(discord_world: World) -> None:
    world = discord_world
    await ready(world, **ZONE)
    await say(world, "/schedule add @hourly " + TEXT)
    assert await sent(world, 1, match="Schedule 1 is set")
    await world.gateway.stop()
    fault = {"kind": "403", "match": r"POST /channels/\d+/messages", "times": -1}
    await world.dc.post("faults", fault)
    turn_clock(world, 3)
    await world.gateway.start()
    await until_unreachable(world)
    await world.gateway.stop()
    await world.dc.delete("faults")
    turn_clock(world, 6)
    await ready(world)
    assert scheduled_calls(world) == 1
    await say(world, "hello")
    assert await sent(world, 1, match="I can write here again")
    assert await sent(world, 1, match="weather of the harbour")
