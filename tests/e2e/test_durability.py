"""What was said while the daemon was down is answered once, in order; a replay starts nothing."""

from tests.e2e.world import World


async def test_six_messages_sent_while_the_daemon_is_stopped_are_each_answered_in_one_turn(world: World) -> None:
    await world.gateway.start(HERMES_SESSIONS__MERGE_SECONDS="0")
    await world.say("before")
    [reply] = await world.replies(1)
    assert (reply[:6], reply[-6:]) == ("echo: ", "before")
    assert await world.gateway.stop() == 0
    for number in range(6):
        await world.say(f"missed-{number}")
    await world.gateway.start()
    replies = await world.replies(7)
    assert [number for reply in replies for number in range(6) if f"missed-{number}" in reply] == list(range(6))
    assert world.query("SELECT count(*), count(DISTINCT turn_id) FROM messages WHERE text LIKE 'missed-%'") == [(6, 6)]
