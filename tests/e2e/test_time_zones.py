"""Times that a chat shows are those of `agent.time_zone`."""

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tests.e2e.chats import Chat
from tests.e2e.world import World

ZONE = "Pacific/Kiritimati"  # fourteen hours ahead, so that the day differs, too
COMMANDS = ("/history", "/search hello", "/session m1")


def is_now(text: str) -> bool:
    """True when the times in a reply are those of that zone in the last minutes, and say so."""
    times = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d \S+", text)
    now = datetime.now(ZoneInfo(ZONE)).replace(tzinfo=None)
    shown = [datetime.fromisoformat(time[:16]) for time in times]
    return bool(times) and all(
        abs(now - at) < timedelta(minutes=5) and time[17:].startswith("+14")
        for at, time in zip(shown, times, strict=True)
    )


async def test_times_are_local(chat: Chat) -> None:
    await chat.start(HERMES_AGENT__TIME_ZONE=ZONE, HERMES_ACCESS__ADMINS=chat.person)
    await chat.ask("hello there", "hello there")
    for command in COMMANDS:
        told = await chat.ask(command, r"\d\d:\d\d")
        assert is_now(told), told
    today = datetime.now(ZoneInfo(ZONE)).date()
    await chat.ask(f"/search hello --since {today}", "hello there")
    await chat.ask(f"/search hello --since {today + timedelta(days=1)}", "No message matches")


async def test_the_zone_is_named(world: World) -> None:
    await world.gateway.start()
    await world.converse("hello there")
    for zone, shown in (("Europe/Berlin", "CEST|CET"), ("Asia/Tehran", r"\+0330"), ("UTC", "UTC")):
        world.configure(f"agent: {{time_zone: {zone}}}\n")
        await world.reload()
        await world.converse("/history")
        assert re.search(rf"\d\d:\d\d ({shown})\n", (await world.visible())[-1])
