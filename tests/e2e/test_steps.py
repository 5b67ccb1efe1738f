"""Steps of a turn: the line under the preview, its Stop button, and the list of the last answer's steps."""

from typing import Any

from tests.e2e import test_discord as discord
from tests.e2e.test_subagents import delegating
from tests.e2e.with_tools import run_with_tools
from tests.e2e.world import GROUP, World

PROGRAM = run_with_tools
ALLOWED = {"HERMES_TOOLS__APPROVAL__WRITES": "allow"}
ODD = "the *harbour* `@all` [x](http://y) key=sk-proj-Zk3Jv8Qw1Rt5Yb7Nm2Xc4Vd6"
SEARCH = {"name": "history_search", "arguments": {"query": ODD}}


async def say(world: World, text: str, user_id: int = 42) -> None:
    await world.say_in_group(f"@lab_gateway_bot {text}", user_id=user_id)


async def line_in_group(world: World, match: str) -> dict[str, Any]:
    """Wait for a line in the group that matches, and return the message that the group shows now."""
    query = {"method": "sendMessage|editMessageText", "match": match, "chat_id": GROUP}
    assert await world.tg.get("sent", **query, count=1, wait=15), await world.visible(GROUP)
    return await newest(world)


async def newest(world: World) -> dict[str, Any]:
    messages = (await world.tg.get(f"chat/{GROUP}"))["messages"]
    return dict([message for message in messages if message["from"]["is_bot"]][-1])


def labels(message: dict[str, Any]) -> list[str]:
    rows = (message.get("reply_markup") or {}).get("inline_keyboard", [])
    return [button["text"] for row in rows for button in row]


async def press(world: World, label: str, user_id: int = 42) -> None:
    await world.tg.post("callback", {"chat_id": GROUP, "user_id": user_id, "button": label})


async def hold(world: World, *calls: dict[str, Any]) -> None:
    """Let the next turn call tools, and hold its answer."""
    await world.script_calls("look it up", *calls)
    await world.hold(match="look it up", last_role="tool", text="the answer", times=1)


async def test_a_line_says_what_the_tools_did_and_the_answer_replaces_it(world: World) -> None:
    await world.gateway.start()
    await hold(world, SEARCH, SEARCH)
    await say(world, "look it up")
    shown = await line_in_group(world, r"^searched this chat 2× · \d+ s")
    assert labels(shown) == ["Stop"]
    await world.release()
    await world.tg.get("sent", method="editMessageText", match="the answer", count=1, wait=10)
    final = await newest(world)
    assert (final["text"], labels(final), final["message_id"]) == ("the answer", [], shown["message_id"])
    await say(world, "/steps")
    [steps] = await world.replies(1, chat_id=GROUP, match="Steps of the last answer")
    assert "1. Searching this chat for the *harbour* '@all' [x](http://y) key=[redacted] (done" in steps


async def test_words_of_the_model_in_the_line_are_code_without_secrets(world: World) -> None:
    await world.gateway.start(**ALLOWED)
    await hold(world, {"name": "stall", "arguments": {}}, SEARCH)
    await say(world, "/steps full", user_id=1)
    await world.replies(1, chat_id=GROUP, match="list my steps")
    await say(world, "look it up")
    shown = await line_in_group(world, "stall")
    [entity] = [one for one in shown["entities"] if one["type"] == "code" and one["length"] > 10]
    assert (
        shown["text"].encode("utf-16-le")[2 * entity["offset"] :].decode("utf-16-le").startswith("the *harbour* '@all'")
    )
    assert "Zk3J" not in shown["text"]
    assert "Using the tool stall (running)" in shown["text"]
    assert not any(one["type"] in ("mention", "text_link", "url") for one in shown["entities"])


async def test_a_chat_that_wants_no_line_gets_none(world: World) -> None:
    await world.gateway.start()
    await world.ask("/steps off", "no longer show my steps", chat_id=1)
    await say(world, "/steps off", user_id=1)
    await world.replies(1, chat_id=GROUP, match="no longer show my steps")
    await hold(world, SEARCH)
    await say(world, "look it up")
    await world.asked(2)
    await world.release()
    await world.replies(1, chat_id=GROUP, match="the answer")
    assert not await world.tg.get("sent", method="sendMessage|editMessageText", match="searched", wait=0)


async def test_stop_belongs_to_the_starter_works_after_a_restart_and_spares_later_turns(world: World) -> None:
    await world.gateway.start(HERMES_LIFECYCLE__DRAIN_SECONDS="1")
    await hold(world, SEARCH)
    await say(world, "look it up")
    old = await line_in_group(world, "searched this chat")
    await press(world, "Stop", user_id=43)
    assert await world.replies(1, chat_id=GROUP, match="Only the person who started this turn")
    await world.gateway.stop()
    await world.gateway.start()
    await world.hold(match="look it up", last_role="tool", text="never", times=1)
    await world.tg.post(
        "callback", {"chat_id": GROUP, "user_id": 42, "message_id": old["message_id"], "button": "Stop"}
    )
    assert await world.replies(1, chat_id=GROUP, match="^Stopped")
    assert world.query("SELECT state FROM turns") == [("stopped",)]
    await world.until_rows("SELECT count(*) FROM outbox WHERE settled_at IS NULL", (0,))
    messages = (await world.tg.get(f"chat/{GROUP}"))["messages"]
    assert not any(labels(message) for message in messages)
    await hold(world, SEARCH)
    await say(world, "look it up again")
    await world.asked(4)
    await world.tg.post(
        "callback", {"chat_id": GROUP, "user_id": 42, "message_id": old["message_id"], "data": "c:/stop t1"}
    )
    assert await world.replies(1, chat_id=GROUP, match="already ended")
    assert world.query("SELECT state FROM turns ORDER BY id") == [("stopped",), ("running",)]


async def test_the_line_shows_the_steps_of_a_sub_agent_and_a_message_reaches_it(world: World) -> None:
    await world.gateway.start()
    await world.script_calls("hand it on", *delegating("count lamps"))
    await world.script_calls("count lamps", SEARCH)
    await world.hold(match="count lamps", last_role="tool", text="", tool_calls=[SEARCH], times=1)
    await say(world, "hand it on")
    await line_in_group(world, r"Working with a sub-agent on count lamps · searched this chat · \d+ s")
    await say(world, "/steer use the *blue* list")
    await world.replies(1, chat_id=GROUP, match="I will use this")
    await world.release()
    requests = await world.asked(5)
    inner = [row for row in requests if "count lamps" in str(row["body"]) and "hand it on" not in str(row["body"])]
    assert "sent while you work: use the *blue* list" in str(inner[-1]["body"])
    assert "use the *blue* list" in str(requests[-1]["body"])
    assert world.query("SELECT count(*) FROM messages WHERE inbox_id IS NOT NULL AND text LIKE '%blue%'") == [(1,)]


async def test_retry_under_an_error_answers_again_and_then_vanishes(world: World) -> None:
    await world.gateway.start()
    await world.script(match="count", error={"kind": "content_filter"}, times=1)
    await world.script(match="hello", status=500, times=-1)
    await say(world, "hello")
    await world.tg.get("sent", method="sendMessage|editMessageText", match="/retry", chat_id=GROUP, count=1, wait=30)
    failed = await newest(world)
    assert labels(failed) == ["Retry"]
    await world.llm.post("reset")
    await press(world, "Retry")
    await world.replies(1, chat_id=GROUP, match="hello")
    await world.until_rows("SELECT count(*) FROM live_buttons", (0,))
    await world.until_rows("SELECT count(*) FROM outbox WHERE settled_at IS NULL", (0,))
    messages = (await world.tg.get(f"chat/{GROUP}"))["messages"]
    assert not any(labels(message) for message in messages)
    await world.tg.post(
        "callback", {"chat_id": GROUP, "user_id": 42, "message_id": failed["message_id"], "data": "c:/retry t1"}
    )
    assert await world.replies(1, chat_id=GROUP, match="no longer the newest")


async def test_discord_shows_the_line_with_a_stop_button(discord_world: World) -> None:
    world = discord_world
    await discord.ready(world)
    await hold(world, SEARCH)
    channel = (await discord.say(world, "look it up"))["channel_id"]
    await world.dc.get("sent", match="searched this chat", count=1, wait=15)
    [shown] = (await world.dc.get("messages", channel_id=channel))[-1:]
    assert [button["label"] for row in shown["components"] for button in row["components"]] == ["Stop"]
    await world.release()
    await world.dc.get("sent", match="the answer", count=1, wait=15)
    [final] = (await world.dc.get("messages", channel_id=channel))[-1:]
    assert (final["content"], final.get("components") or []) == ("the answer", [])
