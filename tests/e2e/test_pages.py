"""Page buttons of long lists, private answers on Discord, and Telegram's menus by role."""

import asyncio
import json
from typing import Any

import pytest

from tests.e2e import test_discord as discord
from tests.e2e.test_steps import labels, newest, press, say
from tests.e2e.world import GROUP, World

ADMIN = 42


async def shows(world: World, match: str, ref: int | None = None) -> dict[str, Any]:
    """Wait until a message of the bot in the group has matched. Return the message `ref`, or the newest one."""
    query = {"method": "sendMessage|editMessageText", "match": match, "chat_id": GROUP}
    assert await world.tg.get("sent", **query, count=1, wait=30), await world.visible(GROUP)
    messages = (await world.tg.get(f"chat/{GROUP}"))["messages"]
    return dict([one for one in messages if one["from"]["is_bot"] and ref in (None, one["message_id"])][-1])


async def test_a_list_turns_its_pages_in_place_even_after_a_restart(world: World) -> None:
    await world.gateway.start()
    await world.hold(match="slow", text="done")
    await say(world, "slow")
    await world.asked(1)
    for number in range(1, 13):
        await say(world, f"/queue item {number}")
    await world.stored(13)
    await say(world, "/queue")
    first = await shows(world, r"\n10\. \S+: item 10$")
    assert labels(first) == ["More"]
    await world.until_rows("SELECT count(*) FROM outbox WHERE settled_at IS NULL", (0,))  # otherwise it is sent again
    await world.gateway.kill()
    await world.gateway.start()
    await press(world, "More", user_id=43)
    second = await shows(world, r"^Queued for the next turn \(12\):\n11\. \S+: item 11\n12\. ", first["message_id"])
    assert (labels(second), second["text"][:35]) == (["Back"], "Queued for the next turn (12):\n11. ")
    assert world.query("SELECT count(*) FROM inbox WHERE kind = 'message'") == [(13,)], "a page is no message"
    await world.release()
    assert await world.replies(1, chat_id=GROUP, match="item 12", wait=30)
    await world.until_rows("SELECT count(*) FROM inbox WHERE state = 'new'", (0,))
    await world.tg.post(
        "callback", {"chat_id": GROUP, "user_id": 42, "message_id": first["message_id"], "button": "Back"}
    )
    last = await shows(world, "^The queue is empty", first["message_id"])
    assert (last["text"][:19], labels(last)) == ("The queue is empty.", [])


async def test_a_forged_press_replaces_no_message_that_is_not_the_list(world: World) -> None:
    await world.gateway.start()
    await say(world, "/whoami")
    other = await shows(world, "^You are ")
    await say(world, "/sessions")
    listed = await shows(world, "^This chat has no conversation yet")
    for message, pressed in ((other, "pc:/queue 1"), (other, "pc:/whoami"), (listed, "pc:/queue 1")):
        place = {"chat_id": GROUP, "message_id": message["message_id"]}
        await world.tg.post("callback", {**place, "user_id": 42, "data": pressed})
    await world.tg.get("calls", method="answerCallbackQuery", count=3, wait=15)
    assert len(await world.replies(5, chat_id=GROUP)) == 5, "every answer is a new message"
    texts = await world.visible(GROUP)
    assert (texts[0], texts[1]) == (other["text"], listed["text"])


async def test_pages_of_admins_belong_to_admins(world: World) -> None:
    await world.gateway.start(HERMES_ACCESS__ADMINS=f"telegram:{ADMIN}")
    for number in range(6):
        await say(world, f"heron {number}")
        await world.replies(number + 1, chat_id=GROUP)
    await say(world, "/search heron --role user")
    first = await shows(world, r"^m\d+ .*, session \w+\n")
    assert labels(first)[-1] == "More"
    await press(world, "More", user_id=43)
    await world.tg.get("calls", method="answerCallbackQuery", count=1, wait=15)
    [told] = await world.tg.get("sent", method="answerCallbackQuery", count=1, wait=15)
    assert told["text"] == "Only admins can use /search."
    assert (await newest(world))["text"] == first["text"]
    await press(world, "More")
    async with asyncio.timeout(20):
        while True:
            second = await shows(world, "heron", first["message_id"])
            if labels(second)[-1] == "Back":
                break
            await asyncio.sleep(0.02)  # edits of another process have no event to wait for
    hits = [text.split("\n\n") for text in (first["text"], second["text"])]
    assert [len(hit) for hit in hits] == [5, 1]
    assert len({*hits[0], *hits[1]}) == 6


async def test_on_discord_only_the_caller_sees_lists_and_their_pages(discord_world: World) -> None:
    world = discord_world
    await discord.ready(world, HERMES_ACCESS__ADMINS=f"discord:{discord.ALICE}")
    await world.gateway.wait_for_log("discord.menu_published")
    for number in range(7):
        await discord.say(world, f"heron {number} " + "flies low " * 20, channel="general", mention=True)
        await discord.sent(world, 2 * number + 1)
        await discord.say(world, "/new", channel="general", mention=True)
        await discord.sent(world, 2 * number + 2)
    sent = len(await discord.sent(world, 14))
    await discord.pick(world, "sessions")

    async def until(match: str) -> dict[str, Any]:
        """Return the newest answer to an interaction that matches, which only Alice must see."""
        rows = await world.dc.get("sent", action="interaction_.*", match=match, wait=15, count=1)
        assert rows[-1]["ephemeral"]
        return dict(rows[-1])

    def buttons(message: dict[str, Any]) -> dict[str, str]:
        return {one["label"]: one["custom_id"] for row in message["components"] for one in row["components"]}

    async def push(message: dict[str, Any], label: str) -> None:
        pressed = {"custom_id": buttons(message)[label], "message_id": message["message_id"], "channel": "general"}
        await world.dc.post("interaction", {**pressed, "user_id": discord.ALICE})

    first = await until("heron 6")
    assert "heron 0" not in first["text"]
    await push(first, "More")
    second = await until("heron 0")
    assert (second["message_id"], "heron 6" in second["text"]) == (first["message_id"], False)
    assert "Back" in buttons(second)
    await discord.pick(world, "search", options={"words": "heron --role user"})
    found = await until("session")
    await push(found, next(label for label in buttons(found) if label.startswith("Open")))
    await until("^Session ")
    assert len(await discord.sent(world, sent, wait=0)) == sent, "nothing appeared in the channel"
    await discord.pick(world, "title", options={"title": "Birds"})
    [public] = await world.dc.get("sent", action="interaction_edit", match="now called “Birds”", wait=15, count=1)
    assert not public["ephemeral"], "a change concerns everybody"


@pytest.mark.parametrize(
    ("name", "options", "answer", "is_private"),
    [
        ("reactions", {"state": "off"}, "Reactions are off here", False),
        ("reactions", {}, "Reactions are on here", True),
        ("steps", {"show": "full"}, "While I work", False),
        ("steps", {}, "This conversation has no answer yet", True),
    ],
)
async def test_on_discord_everybody_sees_a_change_that_concerns_them(
    discord_world: World, name: str, options: dict[str, str], answer: str, *, is_private: bool
) -> None:
    await discord.ready(discord_world, HERMES_ACCESS__ADMINS=f"discord:{discord.ALICE}")
    await discord_world.gateway.wait_for_log("discord.menu_published")
    await discord.pick(discord_world, name, options=options)
    [row] = await discord_world.dc.get("sent", action="interaction_.*", match=answer, wait=15, count=1)
    assert row["ephemeral"] == is_private


async def test_an_admins_menu_comes_and_goes_with_the_role(world: World) -> None:
    await world.gateway.start(HERMES_PAIRING__ENABLED="true")
    await world.ask("hello", "pairing code is", chat_id=77)
    code = (await world.replies(1, chat_id=77))[0].split("code is ")[1].split(",")[0]

    async def menus() -> dict[str, list[str]]:
        [bot] = (await world.tg.get("state"))["bots"]
        named = {
            json.loads(key)[0]["type"] + str(json.loads(key)[0].get("chat_id", "")): key for key in bot["commands"]
        }
        return {name: [row["command"] for row in bot["commands"][key]] for name, key in named.items()}

    await world.ask(f"/pair approve {code} admin", "role admin", chat_id=1)
    await world.tg.get("calls", method="setMyCommands", count=4, wait=15)
    shown = await menus()
    assert "search" in shown["chat77"]
    assert "search" not in shown["all_private_chats"]
    assert ("groupcontext" in shown["all_group_chats"], "groupcontext" in shown["chat77"]) == (True, False)
    await world.ask("/pair revoke telegram:77", "no longer has access", chat_id=1)
    await world.tg.get("calls", method="deleteMyCommands", count=1, wait=15)
    assert not (await menus())["chat77"]
