"""A model's answer arrives with every character that is no markup, on each platform."""

import re

import pytest

from platforms.text import UNFINISHED
from tests.e2e import test_discord as discord
from tests.e2e.chats import Chat, only_web
from tests.e2e.world import World
from tests.platforms.discord.shown import shown

ANSWER = (
    "So a**2 + b**2, 2*3*4 and `x*y`; call __init__, **boldly**.\n"
    "这是**重点**内容<br>if a || b || c\n\n"
    "<table><tr><th>Name</th><th>Sum</th></tr><tr><td>Ann</td><td>1*2*3</td></tr></table>\n\n"
    "<details>\n<summary>More</summary>\n\nstd::vector<std::string>\n\n</details>"
)
PIECES = (
    "So a**2 + b**2, 2*3*4 and x*y; call __init__, boldly.",
    "这是重点内容\nif a || b || c",
    "Ann  | 1*2*3",
    "More\n",
)


async def test_telegram_shows_sums_names_and_tables_of_an_answer(world: World) -> None:
    await world.gateway.start()
    await world.script(match="how far", text=ANSWER)
    await world.say("how far")
    await world.replies(1)
    [text] = await world.visible()
    assert [piece for piece in PIECES if piece not in text] == []
    assert "std::vector<std::string>" in text
    assert not any(tag in text for tag in ("<t", "<br", "<details", "summary>"))


async def test_discord_shows_sums_names_and_tables_of_an_answer(discord_world: World) -> None:
    await discord.ready(discord_world)
    await discord_world.script(match="how far", text=ANSWER)
    await discord.say(discord_world, "how far")
    [sent] = await discord.sent(discord_world, 1)
    seen = shown(sent)
    assert [piece for piece in PIECES if piece not in seen.text] == []
    assert "std::vector<std::string>" in seen.text
    assert seen.covered("bold") == ["boldly", "重点", "More"]
    assert not any(tag in seen.text for tag in ("<t", "<br", "<details", "summary>"))


@only_web
async def test_the_web_chat_shows_sums_names_and_tables_of_an_answer(chat: Chat) -> None:
    await chat.start()
    await chat.world.script(match="how far", text=ANSWER)
    text = await chat.ask("how far", "So a")
    for piece in (PIECES[0], "这是重点内容\nif a || b || c", "Ann", "1*2*3", "More", "std::vector<std::string>"):
        assert piece in text
    assert not any(tag in text for tag in ("<t", "<br", "<details", "summary>"))


SECTION = (
    "## Part {0}\n\n"
    + "Some words about the plan. " * 32
    + "\n\n- one item, for $5 or $6\n- $x_{0}^2 + \\frac{{1}}{{2}}$\n"
)
TABLE = "| Plan | What it contains now | Price |\n|---|:-:|--:|\n| **Small** | `2` users | $5 |\n| Large | | $10 |"
LONG = "\n".join([*map(SECTION.format, range(5)), TABLE, "\n```py\n" + "x = 1\n" * 350 + "```\n\nThe end of it."])
LISTED = "Plan:\nSmall\n• What it contains now: 2 users\n• Price: $5\n\nLarge\n• What it contains now: –\n• Price: $10"


@pytest.mark.parametrize("chat", ["telegram", "discord"], indirect=True)
@pytest.mark.parametrize("tables", ["list", "text"])
async def test_a_long_answer_with_a_wide_table_formulas_and_code_reads_well(chat: Chat, tables: str) -> None:
    await chat.start(HERMES_DELIVERY__TABLES=tables)
    await chat.world.script(match="explain", text=LONG)
    await chat.ask("explain", r"The end of it\.$")
    parts = [text for text in await chat.texts() if not text.endswith(UNFINISHED)]
    text = re.sub(r"\*\*|`|^#+ ", "", "\n".join(parts), flags=re.MULTILINE)
    assert (LISTED in text, "Plan  | What it contains now | Price" in text) == (tables == "list", tables == "text")
    assert [number for number in range(5) if f"x{'₀₁₂₃₄'[number]}² + ½" not in text] == []
    assert (text.count("for $5 or $6"), text.count("x = 1\n")) == (5, 350)
    assert len(parts) >= (2 if chat.platform == "telegram" else 5)
    assert [part for part in parts if re.search(r"Part \d$", part) or part.count("```") % 2] == []
    assert re.search(r"^(## )?Part \d\n", parts[1])
