"""`/schedule`: adding, changing and listing, with the replies."""

from collections.abc import AsyncIterator

import pytest

from agent.tools.schedules.schedule_tool import MAX_PER_CHAT
from gateway.schedules import schedule_zone
from tests.gateway.helpers import ANN, BOB, BOSS, GROUP, Serve, TestGateway, config_of, eventually, hanging

UTC = {"time_zone": "UTC"}


@pytest.fixture
async def gateway(serve: Serve) -> AsyncIterator[TestGateway]:
    async with serve(agent=UTC) as running:
        yield running


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("add", "Send `/schedule`"),
        ("add every weekday at eight: look", "Send `/schedule`"),
        ("add 8:00 look", "Send `/schedule`"),
        ("remove", "Send `/schedule`"),
        ("add 0 8 * * mon-fri", "The text of a schedule must be"),
        ("add 0 8 * look at it", "'look' is not a valid month"),
        ("add 0 0 8 * * * look", "That time has six fields"),
        ("add 0 0 8 ? * * look", "That time has six fields"),
        ("add 0 26 * * * look", "'26' is not a valid hour: use 0 to 23"),
        ("add */2 * * * * look", "*/2 * * * * repeats after 2 minutes; the minimum is 5 minutes"),
        ("add 58,1 * * * * look", "58,1 * * * * repeats after 3 minutes"),
        ("add */90 * * * * look", "'*/90' is not a valid minute: the step"),
        ("add 0 0 30 2 * look", "0 0 30 2 * has passed or never occurs: it is now"),
        ("add 2020-01-01 08:00 look", "2020-01-01T08:00 has passed or never occurs: it is now"),
        ("add 2099-02-30 08:00 look", "'2099-02-30 08:00' is not a date with a time"),
        ("add 2099-02-03 look", "'2099-02-03' is not a date with a time"),
        ("add @reboot look", "'@reboot' is unknown"),
        ("add @daily look", "Schedule 1 is set"),
        ("ADD 0 8 * * MON-FRI look", "Schedule 1 is set"),
        ("add 2099-02-03T08:00 5 * 5 is 25", "Schedule 1 is set; next: Tue 2099-02-03 08:00 (UTC)."),
        ("remove 7", "There is no schedule 7 here; no schedules are set."),
    ],
)
async def test_a_schedule_is_added_or_the_error_explained(gateway: TestGateway, line: str, said: str) -> None:
    assert (await gateway.ask(f"/schedule {line}")).startswith(said)
    [(count,)] = await gateway.rows("SELECT count(*) FROM schedules")
    assert count == said.startswith("Schedule 1 is set")


async def test_pause_resume_and_remove(gateway: TestGateway) -> None:
    await gateway.ask("/schedule add @daily look around")
    assert await gateway.ask("/schedule pause 1") == "Schedule 1 is paused."
    assert await gateway.ask("/schedule list") == "- 1: `@daily` (UTC), paused, by Ann: look around"
    assert (await gateway.ask("/schedule resume #1")).startswith("Schedule 1 is active again; next: ")
    assert await gateway.ask("/schedule remove 1") == "Schedule 1 is removed."
    assert await gateway.ask("/schedule") == "No schedules are set."


async def test_run_sends_the_message_now_and_keeps_its_times(gateway: TestGateway) -> None:
    await gateway.ask("/schedule add @daily look around")
    before = await gateway.rows("SELECT next_at, state FROM schedules")
    await gateway.say("/schedule run 1")
    assert set(await gateway.replies(3)) >= {"Sending schedule 1 now.", "echo: look around"}
    await gateway.say("/schedule run 1")
    assert (await gateway.replies(5)).count("Sending schedule 1 now.") == 2
    assert await gateway.rows("SELECT next_at, state FROM schedules") == before


async def test_run_is_refused_while_the_message_is_queued(gateway: TestGateway) -> None:
    await gateway.ask("/schedule add @daily look around")
    hang = await hanging(gateway)
    await gateway.say("/schedule run 1")
    await eventually(lambda: "Sending schedule 1 now." in gateway.adapter.texts(), "it comes")
    await gateway.say("/schedule run 1")
    refused = "The message of schedule 1 is already in the queue."
    await eventually(lambda: refused in gateway.adapter.texts(), "it waits")
    hang.release()
    await gateway.quiet()
    assert [text for _, text in await gateway.turns_of()][1:] == ["look around"]


async def test_the_number_of_schedules_per_chat_is_limited(gateway: TestGateway) -> None:
    for _ in range(MAX_PER_CHAT):
        await gateway.ask("/schedule add @daily look")
    refused = await gateway.ask("/schedule add @daily look")
    assert refused == f"This chat already has the maximum of {MAX_PER_CHAT} schedules; remove one first"
    await gateway.ask("/schedule remove 1")
    assert (await gateway.ask("/schedule add @daily look")).startswith(f"Schedule {MAX_PER_CHAT + 1} is set")


async def test_in_a_group_moderators_add_schedules_and_creators_can_change_theirs(serve: Serve) -> None:
    access = {"allow": [ANN.ref, BOB.ref], "admins": [BOSS.ref], "moderators": [BOB.ref]}
    async with serve(agent=UTC, access=access) as gateway:
        assert "admins" in await gateway.ask("/schedule add @daily look", chat=GROUP, sender=ANN)
        assert "is set" in await gateway.ask("/schedule add @daily look", chat=GROUP, sender=BOSS)
        refused = await gateway.ask("/schedule remove 1", chat=GROUP, sender=ANN)
        assert refused == "Schedule 1 belongs to Boss; only they and moderators can change it"
        assert "look" in await gateway.ask("/schedule", chat=GROUP, sender=ANN)
        assert await gateway.ask("/schedule remove 1", chat=GROUP, sender=BOB) == "Schedule 1 is removed."


async def test_schedules_of_another_chat_are_out_of_reach(gateway: TestGateway) -> None:
    await gateway.ask("/schedule add @daily look", chat=GROUP, sender=BOSS)
    assert (await gateway.ask("/schedule remove 1", sender=BOSS)).startswith("There is no schedule 1 here")


def test_without_a_configured_time_zone_the_servers_zone_applies() -> None:
    assert schedule_zone(config_of(agent=UTC)) == "UTC"
    assert schedule_zone(config_of())


@pytest.mark.parametrize("word", ["pause", "remove"])
async def test_pausing_or_removing_a_schedule_also_drops_its_queued_message(gateway: TestGateway, word: str) -> None:
    await gateway.ask("/schedule add @daily look around")
    await gateway.ask("/schedule add @daily look elsewhere")
    hang = await hanging(gateway)
    for number in (1, 2):
        await gateway.say(f"/schedule run {number}")
        await gateway.until_rows(f"SELECT 1 FROM inbox WHERE event_ref LIKE 'schedule:{number}:%'")
    await gateway.say(f"/schedule {word} 1")
    await eventually(lambda: f"Schedule 1 is {word}d." in gateway.adapter.texts(), "it is changed")
    hang.release()
    await gateway.quiet()
    assert [text for _, text in await gateway.turns_of()][1:] == ["look elsewhere"]
