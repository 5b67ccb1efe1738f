"""Notices about a message that cannot be stored: first that it waits, later that it continues."""

import pytest
from msgspec.structs import replace

from gateway.inbound.admission import GOES_ON, WAITS
from hermes_state.errors import PlatformUnavailable, StoreUnavailable
from hermes_state.values import ChatKey, ChatKind, InboundMessage
from tests.databases import place_of
from tests.gateway.helpers import EVE, GROUP, TestGateway, answer, eventually, settled
from tests.hermes_state.helpers import locked_by_another_process, set_max_pages

OTHER = ChatKey(platform="telegram", account="telegram", chat_ref="2")


async def unstored(gateway: TestGateway, text: str = "hello") -> InboundMessage:
    """Send a message repeatedly while the disk is full."""
    message = gateway.message(text + " " * 100_000)
    await gateway.store.write(set_max_pages, 0)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await gateway.intake.accept(message)
    return message


async def test_a_full_disk_sends_one_notice_for_repeated_messages(gateway: TestGateway) -> None:
    await gateway.ask("warm up")
    gateway.intake.waiting.seconds = 0.1
    gateway.model.script.append(answer("here I am"))
    message = await unstored(gateway)
    await eventually(lambda: gateway.adapter.texts()[1:] == [WAITS], "a notice")
    with pytest.raises(StoreUnavailable):
        await gateway.intake.accept(message)
    await settled(0.3)
    await gateway.store.write(set_max_pages, None)
    await gateway.intake.accept(message)
    assert (await gateway.replies(4))[1:] == [WAITS, GOES_ON, "here I am"]


async def test_a_chat_waiting_behind_another_chat_also_gets_the_notice(gateway: TestGateway) -> None:
    gateway.intake.waiting.seconds = 0.1
    behind = gateway.message("behind", chat=OTHER)
    for event in (
        behind,
        behind,
        gateway.message("hello", sender=EVE, chat=replace(OTHER, chat_ref="3")),
        gateway.message("among others", chat=GROUP, is_addressed=False),
    ):
        await gateway.intake.overhear(event)
    await eventually(lambda: gateway.adapter.texts(OTHER) == [WAITS], "a notice")
    await settled(0.2)
    assert len(gateway.adapter.requests) == 1, "nobody else was told"
    await gateway.intake.accept(behind)
    assert await gateway.replies(3, OTHER) == [WAITS, GOES_ON, "echo: behind"]


async def test_a_short_wait_is_not_mentioned(gateway: TestGateway) -> None:
    gateway.intake.waiting.seconds = 1.0
    with locked_by_another_process(place_of(gateway.store), 0.3):
        assert await gateway.ask("hello") == "echo: hello"
    await settled(1.2)
    assert len(gateway.adapter.requests) == 1


async def test_without_a_waiting_notice_no_recovery_notice_is_sent(gateway: TestGateway) -> None:
    await gateway.ask("warm up")
    gateway.intake.waiting.seconds = 0.1
    gateway.model.script.append(answer("here I am"))
    gateway.adapter.troubles.append(PlatformUnavailable("no network"))
    message = await unstored(gateway)
    await eventually(lambda: len(gateway.adapter.requests) == 2, "a notice is tried")
    await gateway.store.write(set_max_pages, None)
    await gateway.intake.accept(message)
    assert (await gateway.replies(2))[1:] == ["here I am"]


async def test_the_web_page_keeps_the_text_so_no_message_waits(gateway: TestGateway) -> None:
    await gateway.ask("warm up")
    gateway.intake.waiting.seconds = 0.1
    await gateway.store.write(set_max_pages, 0)
    message = replace(gateway.message("hello" + " " * 100_000), chat_kind=ChatKind.LOCAL)
    with pytest.raises(StoreUnavailable):
        await gateway.intake.accept(message)
    await settled(0.3)
    assert len(gateway.adapter.requests) == 1
    await gateway.store.write(set_max_pages, None)
