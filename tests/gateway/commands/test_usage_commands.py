"""/usage and /insights: figures by role and chat."""

import pytest

from tests.gateway.helpers import ANN, BOSS, DIRECT, GROUP, TestGateway


async def test_a_group_sees_only_its_own_usage(gateway: TestGateway) -> None:
    await gateway.ask("in private")
    await gateway.ask("before all", chat=GROUP, sender=ANN)
    told = await gateway.ask("/insights", chat=GROUP, sender=BOSS)
    assert "This chat, the last 7 days" in told
    assert GROUP.name in told
    assert "Ann" not in told, "only the private chat is shown by this name"
    everywhere = await gateway.ask("/insights 1", sender=BOSS)
    assert "All chats, today" in everywhere
    assert GROUP.name in everywhere
    assert "Ann" in everywhere


async def test_only_admins_in_private_chats_see_the_spending_of_all_chats(gateway: TestGateway) -> None:
    for chat, sender, has_reply in ((DIRECT, BOSS, True), (DIRECT, ANN, False), (GROUP, BOSS, False)):
        told = await gateway.ask("/usage", chat=chat, sender=sender)
        assert ("The whole gateway today" in told) is has_reply, (chat, sender)
        assert "This chat today" in told


async def test_usage_before_the_first_message_says_so(gateway: TestGateway) -> None:
    assert "no conversation yet" in await gateway.ask("/usage")
    assert "No model calls." in await gateway.ask("/insights", sender=BOSS)


@pytest.mark.parametrize("days", ["0", "367", "ops 0", "-3", "9" * 40])
async def test_days_that_cannot_be_shown_are_refused(gateway: TestGateway, days: str) -> None:
    assert "at most 366" in await gateway.ask(f"/insights {days}", sender=BOSS)


async def test_usage_covers_only_the_current_conversation(gateway: TestGateway) -> None:
    await gateway.ask("one")
    await gateway.ask("two")
    assert "- Model calls: 2" in await gateway.ask("/usage")
    await gateway.ask("/new")
    await gateway.ask("three")
    told = await gateway.ask("/usage")
    assert "- Model calls: 1" in told
    assert "- Input: 100 tokens (100 new" in told
    assert "- Output: 10 tokens" in told
