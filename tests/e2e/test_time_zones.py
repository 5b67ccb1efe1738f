"""Times that a chat shows are those of `agent.time_zone`."""

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.world import World

ZONE = "Pacific/Kiritimati"  # fourteen hours ahead, so that the day differs, too
COMMANDS = ("/history", "/sessions", "/lineage", "/search hello", "/session m1")


def is_now(text: str) -> bool:
    """True when the times in a reply are those of that zone in the last minutes, and say so."""
    times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d \S+", text)
    now = datetime.now(ZoneInfo(ZONE)).replace(tzinfo=None)
    shown = [datetime.fromisoformat(time[:16]) for time in times]
    return bool(times) and all(
        abs(now - at) < timedelta(minutes=5) and time[17:].startswith("+14")
        for at, time in zip(shown, times, strict=True)
    )


async def test_times_on_telegram_are_local(world: World) -> None:
    await world.gateway.start(HERMES_AGENT__TIME_ZONE=ZONE, HERMES_ACCESS__ADMINS="telegram:42")
    await world.converse("hello there")
    for number, command in enumerate(COMMANDS):
        await world.say(command)
        replies = await world.replies(number + 2)
        assert is_now(replies[-1]), replies[-1]
    today = datetime.now(ZoneInfo(ZONE)).date()
    for number, (day, is_found) in enumerate([(today, True), (today + timedelta(days=1), False)]):
        await world.say(f"/search hello --since {day}")
        replies = await world.replies(len(COMMANDS) + number + 2)
        assert ("hello there" in replies[-1]) == is_found


async def test_times_on_discord_are_local(discord_world: World) -> None:
    world = discord_world
    await world.dc.post("config", {"rate_limits": False})
    await discord.ready(world, HERMES_AGENT__TIME_ZONE=ZONE, HERMES_ACCESS__ADMINS=f"discord:{discord.ALICE}")
    await discord.say(world, "hello there")
    await discord.sent(world, 1)
    for number, command in enumerate(COMMANDS):
        await discord.say(world, command)
        replies = await discord.sent(world, number + 2)
        assert is_now(replies[-1]), replies[-1]


@pytest.mark.parametrize(("zone", "shown"), [("Europe/Berlin", "CEST"), ("Asia/Tehran", "+0330"), ("UTC", "UTC")])
async def test_the_zone_is_named(world: World, zone: str, shown: str) -> None:
    await world.gateway.start(HERMES_AGENT__TIME_ZONE=zone)
    await world.converse("hello there")
    await world.say("/history")
    replies = await world.replies(2)
    assert re.search(rf"\d\d:\d\d ({re.escape(shown)}|CET)\n", replies[-1])
