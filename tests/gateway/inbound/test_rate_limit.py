"""Rate limits, which never prevent a `/stop`."""

from msgspec.structs import replace

from gateway.access.permissions import RateLimiter
from gateway.inbound.intake import COMMANDS_PER_MINUTE, TOO_FAST
from hermes_state.store.locks import EVERYTHING, locks
from hermes_state.store.sql import Connection, scalar
from hermes_state.values import ChatId, Cursor, InboundMessage, Millis
from tests.gateway.helpers import BOB, GROUP, PLATFORM, Hang, TestGateway, eventually
from tests.gateway.inbound.test_admission import message
from tests.hermes_state.rows import START, start

MINUTE = 60_000


@locks(EVERYTHING)
def open_turn(db: Connection) -> None:
    """Open a turn in the only chat."""
    start(db, scalar(db, ChatId, "SELECT id FROM chats"), "go")


def commands(count: int, *, every: int, first: int = 0) -> list[InboundMessage]:
    """Messages of one person, sent `every` milliseconds."""
    return [
        replace(message(number, "/help"), sent_at=Millis(START + index * every))
        for index, number in enumerate(range(first, first + count))
    ]


def test_the_limit_holds_for_a_minute_of_the_platforms_time() -> None:
    pace = RateLimiter()
    flood = commands(COMMANDS_PER_MINUTE + 1, every=100)
    assert [pace.full_since(one, COMMANDS_PER_MINUTE) is None for one in flood] == [True] * COMMANDS_PER_MINUTE + [
        False
    ]
    later = replace(message(1_000, "/help"), sent_at=Millis(START + MINUTE))
    assert pace.full_since(later, COMMANDS_PER_MINUTE) is None


def test_messages_sent_slowly_are_accepted_even_if_they_arrive_together() -> None:
    pace = RateLimiter()
    slow = commands(200, every=MINUTE // COMMANDS_PER_MINUTE)
    assert all(pace.full_since(one, COMMANDS_PER_MINUTE) is None for one in slow)


def test_a_repeated_event_is_neither_counted_nor_refused() -> None:
    pace = RateLimiter()
    flood = commands(COMMANDS_PER_MINUTE, every=0)
    assert all(pace.full_since(one, COMMANDS_PER_MINUTE) is None for one in flood * 3)


async def test_a_flood_of_commands_is_refused_once_and_others_are_accepted(gateway: TestGateway) -> None:
    for number in range(COMMANDS_PER_MINUTE + 20):
        cursor = Cursor(platform=PLATFORM, account=PLATFORM, channel_ref="c", seen_ref=str(number + 1))
        await gateway.say("/whoami", cursor, chat=GROUP)
    await gateway.tell("/whoami", chat=GROUP, sender=BOB)
    texts = gateway.adapter.texts(GROUP)
    assert 1 <= texts.count(TOO_FAST) <= 2, "a minute may end meanwhile"
    assert len(texts) - texts.count(TOO_FAST) == COMMANDS_PER_MINUTE + 1
    assert await gateway.intake.load_cursors(PLATFORM, PLATFORM) == {"c": str(COMMANDS_PER_MINUTE + 20)}


async def test_a_running_turn_can_always_be_stopped(gateway: TestGateway) -> None:
    for _ in range(COMMANDS_PER_MINUTE + 1):
        await gateway.say("/help")
    hang = Hang()
    gateway.model.script.append(hang)
    await gateway.say("q")
    await hang.begun.wait()
    await gateway.say("/stop")
    await eventually(lambda: gateway.model.running == 0, "the turn is stopped")
    await gateway.quiet()
    assert "Stopped." in gateway.adapter.texts()


async def test_a_turn_on_another_node_can_always_be_stopped(gateway: TestGateway) -> None:
    for _ in range(COMMANDS_PER_MINUTE + 1):
        await gateway.say("/help")
    await gateway.quiet()
    await gateway.store.write(open_turn)
    await gateway.tell("/stop")
    assert "Stopped." in gateway.adapter.texts()
