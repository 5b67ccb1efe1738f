"""Commands and buttons as people use them."""

from tests.e2e.protocols import conversation_of
from tests.e2e.world import World


async def test_a_button_under_sessions_goes_back_to_a_conversation(world: World) -> None:
    await world.gateway.start()
    await world.converse("about trains", "/title Trains", "/new", "about boats", "/sessions")
    await world.replies(1, match="Conversations of this chat")
    await world.tg.post("callback", {"chat_id": 42, "button": "Trains"})
    assert await world.replies(1, match="Back in conversation “Trains”")
    await world.say("and now?")
    await world.replies(1, match="and now")
    messages = conversation_of((await world.asked(3))[2])
    assert "about trains" in messages
    assert "about boats" not in messages


async def test_undo_takes_back_and_retry_asks_again(world: World) -> None:
    await world.gateway.start()
    await world.converse("first", "second")
    await world.ask("/undo", "Undid 1 exchange")
    await world.script(match="first", text="another answer")
    await world.ask("/retry", "another answer")
    retried = conversation_of((await world.asked(3))[2])
    assert "second" not in retried
    assert "echo" not in retried
    await world.say("/history")
    [history] = await world.replies(1, match="\\(undone\\)")
    assert "second" in history


async def test_an_edit_of_an_answered_message_is_told_with_the_next_turn(world: World) -> None:
    await world.gateway.start()
    said = await world.say("meet at noon")
    await world.replies(1)
    await world.tg.post("edit", {"chat_id": 42, "message_id": said["message"]["message_id"], "text": "meet at one"})
    await world.gateway.wait_for_log("inbox.edited")
    assert len(await world.replies(1, wait=0)) == 1, "an edit starts no turn"
    await world.say("so when?")
    await world.replies(2)
    assert "meet at one" in conversation_of((await world.asked(2))[1])


async def test_queue_makes_a_message_wait_even_when_others_would_interrupt(world: World) -> None:
    await world.gateway.start(HERMES_SESSIONS__BUSY_MODE="interrupt")
    await world.hold(match="slow", text="done slowly")
    await world.say("slow")
    await world.turn_runs()
    await world.say("/queue later please")
    await world.ask("/queue", "1. later please")
    await world.release()
    assert await world.replies(1, match="done slowly")
    assert await world.replies(1, match="^echo: .*later please")
