"""A message that arrives during a turn: it waits, joins, or interrupts; commands are heard at once."""

import asyncio
from typing import Any

import pytest

from tests.e2e.protocols import conversation_of, prompt_of
from tests.e2e.world import World


async def start_hanging_turn(world: World) -> None:
    """A turn whose model streams two pieces and then says nothing more."""
    frames = world.protocol.frames(2)
    await world.script(match="hang please", text="one two three four five six", chunk_chars=4, hang_after=frames)
    await world.say("hang please")
    await world.tg.get("sent", method="sendMessageDraft", wait=10, count=1)


def last_user_text(request: dict[str, Any]) -> str:
    return [said.text for said in prompt_of(request) if said.role == "user"][-1]


async def test_three_pieces_of_one_long_paste_become_one_turn(world: World) -> None:
    await world.gateway.start()
    pieces = [letter * 4090 for letter in "abc"]
    for piece in pieces:
        await world.say(piece)
        await asyncio.sleep(0.8)  # one after the other, and all of them in more time than the lane waits for the next
    assert len(await world.replies(1, match="^echo")) == 1
    assert world.query("SELECT count(*) FROM turns") == [(1,)]
    assert world.query("SELECT count(*), count(DISTINCT turn_id) FROM messages WHERE role = 'user'") == [(3, 1)]
    [request] = await world.asked(1)
    assert all(piece in last_user_text(request) for piece in pieces)


@pytest.mark.each_protocol
async def test_five_messages_sent_during_a_turn_become_one_next_turn(world: World) -> None:
    await world.gateway.start()
    await world.hold(match="first", text="done with the first")
    await world.say("first")
    await world.turn_runs()
    for number in range(5):
        await world.say(f"part {number}")
    await world.stored(6)
    await world.release()
    replies = await world.replies(2)
    assert "done with the first" in replies[0]
    assert world.query("SELECT count(*) FROM turns") == [(2,)]
    text = last_user_text((await world.asked(2))[1])
    assert [number for number in range(5) if f"part {number}" in text] == list(range(5))


async def test_commands_are_answered_while_the_model_hangs(world: World) -> None:
    await world.gateway.start()
    await start_hanging_turn(world)
    for command, answer in (("/status", "Working on"), ("/help", "/stop"), ("/stop", "Stopped")):
        await world.ask(command, answer)
    await world.ask("and now?", "and now")


async def test_stop_keeps_what_was_written_and_leaves_what_waits_unless_all_is_stopped(world: World) -> None:
    await world.gateway.start()
    await start_hanging_turn(world)
    await world.say("next please")
    await world.say("/stop")
    replies = await world.replies(3)
    assert any(reply == "one two …" for reply in replies)
    assert any("Stopped" in reply for reply in replies)
    assert any("next please" in reply for reply in replies)
    [(body,)] = world.query("SELECT body FROM messages WHERE text LIKE 'one two%'")
    assert "was_interrupted" in body
    await start_hanging_turn(world)
    await world.asked(3)
    await world.say("never mind")
    await world.ask("/stop all", "Removed 1 message from the queue")
    states = [state for (state,) in world.query("SELECT state FROM inbox WHERE kind = 'message' ORDER BY id")]
    assert states == ["done"] * 3 + ["dropped"]


@pytest.mark.each_protocol
async def test_steer_joins_the_running_turn(world: World) -> None:
    await world.gateway.start()
    await world.hold(match="look it up", tool_calls=[{"name": "history_search", "arguments": {"query": "x"}}])
    await world.say("look it up")
    await world.turn_runs()
    await world.ask("/steer use metric units", "I will use this")
    await world.release()
    requests = await world.asked(2)
    assert "use metric units" in conversation_of(requests[1])
    await world.replies(2)
    assert world.query("SELECT count(*) FROM turns") == [(1,)]
    assert world.query("SELECT count(DISTINCT turn_id) FROM messages WHERE role = 'user'") == [(1,)]


async def test_interrupt_keeps_what_was_done_and_answers_the_newer_message(world: World) -> None:
    await world.gateway.start(HERMES_SESSIONS__BUSY_MODE="interrupt")
    await start_hanging_turn(world)
    await world.say("something else")
    replies = await world.replies(2)
    assert replies[0] == "one two …"
    assert "something else" in replies[1]
    assert world.query("SELECT state FROM turns ORDER BY id") == [("stopped",), ("finished",)]


async def test_new_waits_for_its_place_and_is_acknowledged_at_once(world: World) -> None:
    await world.gateway.start(HERMES_NOTICES__REACTIONS="off")
    await world.hold(match="first", text="done with the first")
    await world.say("first")
    await world.turn_runs()
    await world.ask("/new", "Queued until the current answer")
    await world.say("second")
    await world.stored(2)
    await world.release()
    replies = await world.replies(4)
    assert [("first" in reply, "Started a new" in reply, "second" in reply) for reply in replies[1:]] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    lineages = world.query("SELECT text, lineage_id FROM messages WHERE role = 'user' ORDER BY id")
    assert [text for text, _ in lineages] == ["first", "second"]
    assert lineages[0][1] != lineages[1][1]
