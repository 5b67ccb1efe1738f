"""People search with the keyboard that they have, and find what was said with another one."""

import unicodedata

from tests.e2e import test_discord as discord
from tests.e2e.world import World

SAID = (
    unicodedata.normalize("NFD", "나는 한국어를 배운다"),
    "製品ＡＢＣ１２３です",
    "قال مُحَمَّدٌ ذلك",
    "ฉันกินข้าวแล้ว",
)
ASKED = ("한국어", "abc123", "محمد", "ข้าว")


async def test_words_in_another_form_are_found_on_telegram(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ADMINS="telegram:42")
    await world.script(text="I see.", times=4)
    for said in SAID:
        await world.converse(said)
    for number, query in enumerate(ASKED):
        await world.say(f"/search {query}")
        replies = await world.replies(len(SAID) + number + 1)
        assert SAID[number] in replies[-1]
        assert "Nothing matches" not in replies[-1]


async def test_words_in_another_form_are_found_on_discord(discord_world: World) -> None:
    world = discord_world
    await world.dc.post("config", {"rate_limits": False})
    await discord.ready(world, HERMES_ACCESS__ADMINS=f"discord:{discord.ALICE}")
    await world.script(text="I see.", times=4)
    for count, said in enumerate(SAID, start=1):
        await discord.say(world, said)
        assert len(await discord.sent(world, count)) == count
    for number, query in enumerate(ASKED):
        await discord.say(world, f"/search {query}")
        replies = await discord.sent(world, len(SAID) + number + 1)
        assert SAID[number] in replies[-1]
