"""Stop of a running turn on the page of live turns."""

from gateway.console.activity import stop
from hermes_state.values import Sender
from platforms.console import SentCommand
from tests.gateway.console.contexts import OWNER, context_of
from tests.gateway.helpers import DIRECT, TestGateway, eventually, hanging


async def test_a_stop_that_arrives_late_does_not_stop_the_next_turn(gateway: TestGateway) -> None:
    first = await hanging(gateway, reply="one")
    [(turn,)] = await gateway.rows("SELECT id FROM turns")
    sent = await stop(context_of(gateway), OWNER, {"turn": str(turn)})
    assert isinstance(sent, SentCommand)
    assert sent.chat == DIRECT
    first.release()
    await gateway.quiet()
    second = await hanging(gateway, reply="two")
    await gateway.say(sent.text, chat=sent.chat, sender=Sender(platform="local", id="owner", name="Owner"))
    await eventually(lambda: len(gateway.adapter.texts()) == 2, "the command is answered")
    second.release()
    assert await gateway.replies(3) == ["one", "That answer has already ended.", "two"]
