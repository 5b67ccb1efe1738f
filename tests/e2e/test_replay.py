"""Replaying any platform event or command starts nothing; a lost acknowledgement shows nothing twice."""

import re

from tests.e2e.world import GROUP, World


async def test_replaying_messages_and_commands_starts_nothing(world: World) -> None:
    await world.gateway.start()
    await world.converse("once", "/new")
    before = (world.query("SELECT count(*) FROM inbox"), world.query("SELECT count(*) FROM sessions"))
    said = [row for row in (await world.tg.get("chat/42"))["messages"] if not row["from"]["is_bot"]]
    fields = ("message_id", "from", "chat", "date", "text")
    for number, row in enumerate(said * 2):
        message = {name: row[name] for name in fields}
        await world.tg.post("update", {"update": {"update_id": 900_000 + number, "message": message}})
    await world.ask("/whoami", "telegram:42")
    after = (world.query("SELECT count(*) - 1 FROM inbox"), world.query("SELECT count(*) FROM sessions"))
    assert after == before


async def test_replaying_presses_and_edits_starts_nothing(world: World) -> None:
    await world.gateway.start()
    await world.converse("about trains", "/new", "about boats", "/sessions")
    chat = (await world.tg.get("chat/42"))["messages"]
    menu = next(row for row in chat if "reply_markup" in row)
    button = menu["reply_markup"]["inline_keyboard"][0][0]
    person = next(row["from"] for row in chat if not row["from"]["is_bot"])
    press = {"id": "77", "from": person, "message": menu, "chat_instance": "42", "data": button["callback_data"]}
    edit = {**chat[0], "text": "about planes", "edit_date": chat[0]["date"] + 1}
    updates = [{"callback_query": press}, {"edited_message": edit}]
    await world.tg.post("update", {"update": {"update_id": 900_000, **updates[0]}})
    await world.replies(5)  # an edit is for the conversation that is open, so the press has to have opened it
    await world.tg.post("update", {"update": {"update_id": 900_001, **updates[1]}})
    await world.gateway.wait_for_log("inbox.edited")
    counts = "SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM turns), (SELECT count(*) FROM outbox)"
    [(inbox, turns, outbox)] = world.query(counts)
    for number, update in enumerate(updates * 3):
        await world.tg.post("update", {"update": {"update_id": 900_100 + number, **update}})
    await world.ask("/whoami", "telegram:42")
    assert world.query(counts) == [(inbox + 1, turns, outbox + 1)]


async def test_a_lost_acknowledgement_in_a_group_with_a_placeholder_shows_one_copy(world: World) -> None:
    await world.gateway.start()
    await world.script(match="story", text="word " * 40, chunk_chars=5, chunk_delay=0.1)
    await world.say_in_group("@lab_gateway_bot story")
    await world.tg.get("sent", method="sendMessage", chat_id=GROUP, wait=15, count=1)
    await world.tg.post("faults", {"kind": "reset_after", "match": "editMessageText", "times": 2})
    await world.gateway.wait_for_log("delivery.failed")
    await world.tg.get("calls", method="editMessageText", wait=15, count=3)
    await world.say("done?")
    await world.replies(1)
    shown = await world.visible(GROUP)
    assert len(shown) == 1
    assert len(re.findall("word", shown[0])) == 40


async def test_a_lost_acknowledgement_without_a_placeholder_is_labelled(world: World) -> None:
    await world.gateway.start()
    await world.tg.post("faults", {"kind": "reset_after", "match": "sendMessage$"})
    await world.say("short one")
    replies = await world.replies(2)
    assert len(replies) == 2
    assert replies[0] in replies[1]
    assert replies[0] != replies[1], "the second copy says that it may be one"
